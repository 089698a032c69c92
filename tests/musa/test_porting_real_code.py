"""The default rules on headers that others wrote: CUDA's own, and PyTorch's that use CUDA."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from my_utils.musa import _rules
from my_utils.musa._port_tree import MARKER
from my_utils.musa._replacer import Replacer
from my_utils.musa.simple_porting import PortingReport, SimplePorting

pytestmark = pytest.mark.no_torch

NAME = re.compile(rb"[A-Za-z0-9_]+")
# What an include is called depends on the tree: test_porting_includes.py.
INCLUDE = re.compile(rb"(?:include|include_next|__has_include) *\(? *[<\"][^>\"\n]+[>\"]")
KNOWN = [
    "cudaMalloc",
    "cudaStream_t",
    "cudaMemcpyAsync",
    "cuLaunchKernel",
    "CUresult",
    "cudaSuccess",
]


def cuda_headers() -> Path | None:
    for entry in sys.path:
        for folder in sorted(Path(entry or ".").glob("nvidia/*/include"), reverse=True):
            if (folder / "cuda_runtime_api.h").is_file():
                return folder
    return None


def torch_headers() -> Path | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "include"
    return folder if folder.is_dir() else None


def without_suffix(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not Path(name).suffix and Path(folder, name).is_file()]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, the CUDA parts of PyTorch only."""
    cuda, torch = cuda_headers(), torch_headers()
    if cuda is None:
        pytest.skip("the package nvidia-cuda-runtime is not installed")
    root = tmp_path_factory.mktemp("real") / "cuda"
    # Files without a suffix, such as nv/target, are copied as they are.
    shutil.copytree(cuda, root / "runtime", ignore=without_suffix)
    for part in ("ATen/cuda", "c10/cuda", "ATen/native/cuda", "torch/csrc/cuda"):
        if torch is not None and (torch / part).is_dir():
            shutil.copytree(torch / part, root / part)
    return root


@pytest.fixture(scope="module", params=["musa"])
def port(sources: Path, request: pytest.FixtureRequest) -> tuple[str, PortingReport]:
    return request.param, SimplePorting(sources, platform=request.param, progress=False).run()


def replacer_of(pairs: dict[str, str]) -> Replacer:
    return Replacer([([(old.encode(), new.encode()) for old, new in pairs.items()], True)])


def test_every_name_that_is_mapped_is_whole(sources: Path, port: tuple[str, PortingReport]) -> None:
    """Counted by name: a name that has a rule is gone, all others stand as often as before."""
    platform, report = port
    rules = _rules.load(platform).pairs
    names = {
        old.encode(): new.encode() for old, new in rules.items() if NAME.fullmatch(old.encode())
    }
    others = {part for new in rules.values() for part in NAME.findall(new.encode())}
    others |= {part for old in rules for part in NAME.findall(old.encode())}
    assert report.errors == [] and report.replaced > 1000
    for old in sources.rglob("*"):
        if not old.is_file():
            continue
        stem = old.relative_to(sources)
        suffix = _rules.PLATFORMS[platform].suffixes.get(stem.suffix, stem.suffix)
        new = report.output / stem.with_suffix(suffix)
        before, after = (
            Counter(NAME.findall(INCLUDE.sub(b"", path.read_bytes()))) for path in (old, new)
        )
        for name in names.keys() - set(names.values()):
            assert after[name] == 0, (stem, name)
        renamed = {b"cuh", b"cu", b"muh", b"mu", b"hip"}
        for name in (before.keys() | after.keys()) - others - renamed:
            assert before[name] == after[name], (stem, name)


def test_the_main_names_are_gone(sources: Path, port: tuple[str, PortingReport]) -> None:
    platform, report = port
    text = (report.output / "runtime/cuda_runtime_api.h").read_bytes()
    text += (report.output / "runtime/cuda.h").read_bytes()
    for name in KNOWN:
        assert not re.search(rf"\b{name}\b".encode(), text), name
    assert {each.name for each in report.unmapped}.isdisjoint(_rules.load(platform).pairs)


API = re.compile(rb"\b(?:cu[A-Z]|CU[a-z]|cuda|__cuda|nvrtc|NVRTC_|CU_|CUDA_|CUDART_)\w+")
COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)


def test_each_name_of_cuda_is_ported_or_reported(port: tuple[str, PortingReport]) -> None:
    platform, report = port
    rules = _rules.load(platform).pairs
    known = {each.name for each in report.unmapped} | set(rules.values())
    for name in ("cuda.h", "cuda_runtime_api.h", "driver_types.h", "cuComplex.h", "cudaGL.h"):
        text = COMMENT.sub(b"", (report.output / "runtime" / name).read_bytes())
        left = {found.decode() for found in API.findall(INCLUDE.sub(b"", text))}
        left.discard("cuFunc")  # a parameter
        assert left <= known, sorted(left - known)


def test_ported_again_nothing_changes(port: tuple[str, PortingReport]) -> None:
    platform, report = port
    rules = _rules.load(platform).pairs
    replacer = replacer_of({old: new for old, new in rules.items() if old[0] not in '<"'})
    for path in report.output.rglob("*"):
        if path.is_file() and path.name != MARKER:
            text = INCLUDE.sub(b"", path.read_bytes())
            assert replacer.replace(text)[0] is None, path


def test_the_way_back(sources: Path, port: tuple[str, PortingReport]) -> None:
    """Rules that are one to one, applied the other way, bring the input back byte for byte."""
    platform, _ = port
    rules = _rules.load(platform).pairs
    times = Counter(rules.values())
    one_to_one = {old: new for old, new in rules.items() if times[new] == 1 and old != new}
    there = replacer_of(one_to_one)
    back = replacer_of({new: old for old, new in one_to_one.items()})
    changed = 0
    for path in sources.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        ported = there.replace(data)[0]
        if ported is None or back.replace(data)[0] is not None:
            continue  # it holds names of the other platform already
        changed += 1
        assert back.replace(ported)[0] == data, path
    assert changed > 40

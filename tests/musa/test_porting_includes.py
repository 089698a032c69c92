"""Includes of a port: the compiler finds the same files afterwards, by their new names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from my_utils.musa.simple_porting import PortingReport, SimplePorting

pytestmark = pytest.mark.no_torch


def ported(root: Path, files: dict[str, str], **options: object) -> PortingReport:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    report = SimplePorting(root, progress=False, **options).run()  # type: ignore[arg-type]
    assert report.errors == []
    return report


def one(tmp_path: Path, text: str, others: tuple[str, ...] = (), **options: object) -> str:
    files = {"a.cu": text, **dict.fromkeys(others, "\n")}
    return (ported(tmp_path / "src", files, **options).output / "a.mu").read_text()


@pytest.mark.parametrize(
    ("include", "wanted"),
    [
        ('"sum.cuh"', '"sum.muh"'),
        ("<sum.cuh>", "<sum.muh>"),
        ('"../src/sum.cuh"', '"../src/sum.muh"'),
        ('"src/deep/max.cuh"', '"src/deep/max.muh"'),
        ('"deep/max.cuh"', '"deep/max.muh"'),
        ('"max.cuh"', '"max.muh"'),
        ('"block_reduce.cuh"', '"block_reduce.muh"'),
        ("<cub/block/block_reduce.cuh>", "<cub/block/block_reduce.cuh>"),
        ("<cub/cub.cuh>", "<cub/cub.cuh>"),
        ("<thrust/sum.cuh>", "<thrust/sum.cuh>"),
        ('"other/sum.cuh"', '"other/sum.cuh"'),
        ('"cuda_utils.h"', '"cuda_utils.h"'),
        ('"cuda_fp16.h"', '"cuda_fp16.h"'),
        ("<cuda_fp16.h>", "<musa_fp16.h>"),
        ("<cuda_bf16.h>", "<musa_bf16.h>"),
        ('"cuda_runtime.h"', '"musa_runtime.h"'),
        ("<ATen/cuda/PhiloxCudaState.h>", "<ATen/musa/PhiloxCudaState.h>"),
        ("<c10/cuda/CUDAEvent.h>", "<torch_musa/csrc/core/MUSAEvent.h>"),
        ("<ATen/cuda/CUDAContext.h>", "<torch_musa/csrc/aten/musa/MUSAContext.h>"),
        ("<ATen/native/cuda/Loops.cuh>", "<ATen/native/musa/Loops.muh>"),
        ("<ATen/native/cuda/CUDALoops.cuh>", "<ATen/native/musa/MUSALoops.muh>"),
        ("<ATen/cuda/detail/UnpackRaw.cuh>", "<torch_musa/csrc/aten/musa/UnpackRaw.muh>"),
        ("<c10/cuda/CUDAMathCompat.h>", "<c10/musa/MUSAMathCompat.h>"),
    ],
)
def test_an_include(tmp_path: Path, include: str, wanted: str) -> None:
    own = ("sum.cuh", "deep/max.cuh", "block_reduce.cuh", "cuda_utils.h", "cuda_fp16.h")
    for form in ("#include {}\n", "#  include\t{} // here\n", "#if __has_include({})\n#endif\n"):
        got = one(tmp_path, form.format(include), own)
        assert got == form.format(wanted)
        shutil.rmtree(tmp_path / "src")
        shutil.rmtree(tmp_path / "src_musa")


def test_what_is_no_include_stays(tmp_path: Path) -> None:
    text = 'const char *sum = "see sum.cuh"; // sum.cuh\nint include = 1; include("sum.cuh");\n'
    assert one(tmp_path, text, ("sum.cuh",)) == text


def test_what_has_no_counterpart_is_reported_once_each(tmp_path: Path) -> None:
    text = (
        '#include "cuda_utils.h"\n#include <cooperative_groups.h>\n#include <nvToolsExt.h>\n'
        "#include <cuda/std/atomic>\n#include <ATen/cuda/CUDAGreenContext.h>\n"
        "#include <cooperative_groups.h>\n#include <vector>\n#include <cub/cub.cuh>\n"
        "#include <torch/csrc/cuda/python_comm.h>\n"
    )
    report = ported(tmp_path / "src", {"a.cu": text, "cuda_utils.h": ""})
    assert (report.output / "a.mu").read_text() == text
    assert {(each.name, each.count, each.line) for each in report.unmapped} == {
        ("<cooperative_groups.h>", 2, 2), ("<nvToolsExt.h>", 1, 3), ("<cuda/std/atomic>", 1, 4),
        ("<ATen/cuda/CUDAGreenContext.h>", 1, 5), ("<torch/csrc/cuda/python_comm.h>", 1, 9),
    }  # fmt: skip


def test_the_users_rules_win(tmp_path: Path) -> None:
    text = '#include <c10/cuda/CUDAGuard.h>\n#include "sum.cuh"\nint cudaGuard;\n'
    rules = {"#include <c10/cuda/CUDAGuard.h>": '#include "mine.h"', "sum": "total"}
    got = one(tmp_path, text, ("sum.cuh",), mapping_rule=rules)
    assert got == '#include "mine.h"\n#include "total.cuh"\nint cudaGuard;\n'


# --- generated trees, with the compiler as the judge ---

FOLDERS = ["", "k/", "k/block/", "lib/"]
FILES = [
    f"{folder}{stem}{suffix}"
    for folder in FOLDERS
    for stem in ("sum", "cuda_utils", "block_reduce")
    for suffix in (".cu", ".cuh", ".h")
]
OUTSIDE = ["cub/block/block_reduce.cuh", "other/sum.cuh"]


@st.composite
def trees(draw: st.DrawFn) -> dict[str, list[str]]:
    """Files, and the includes of each, as they are written."""
    names = draw(st.lists(st.sampled_from(FILES), min_size=2, max_size=5, unique=True))
    tree: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        includes = []
        for target in draw(st.lists(st.sampled_from([*names[:number], *OUTSIDE]), max_size=4)):
            up = "../" * name.count("/")
            form = draw(st.sampled_from(['"{0}"', "<{0}>", '"{1}{0}"', "<src/{0}>", '"{2}"']))
            includes.append(form.format(target, up, target.rpartition("/")[2]))
        tree[name] = includes
    return tree


def once(name: str) -> str:
    """The head of a file. GCC takes files of equal content and time for one, so that none is."""
    return f"#pragma once\n// {name}\n"


def dependencies(gcc: str, root: Path, file: str, outside: Path) -> set[str] | None:
    """What a compiler reads for a file, from the root; None where it misses something."""
    done = subprocess.run(
        [gcc, "-M", "-x", "c++", f"-I{root}", f"-I{root.parent}", f"-I{outside}", root / file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        return None
    found = done.stdout.partition(":")[2].replace("\\\n", " ").split()
    return {str(Path(each).resolve()) for each in found if "/stdc-predef" not in each}


@given(trees())
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_compiler_finds_the_same_files(tmp_path: Path, tree: dict[str, list[str]]) -> None:
    gcc = shutil.which("g++")
    if gcc is None:
        pytest.skip("g++ is not installed")
    root, outside = tmp_path / "in/src", tmp_path / "outside"
    new_root = tmp_path / "out/src"
    for folder in (tmp_path / "in", tmp_path / "out", outside):
        shutil.rmtree(folder, ignore_errors=True)
    for name in OUTSIDE:
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text(once(f"outside/{name}"))
    report = ported(
        root,
        {
            name: once(name) + "".join(f"#include {each}\n" for each in includes)
            for name, includes in tree.items()
        },
    )
    # Beside one another the include of src/... would find the folder that was ported.
    new_root.parent.mkdir(parents=True)
    report.output.rename(new_root)
    before = {name: dependencies(gcc, root, name, outside) for name in tree}
    assume(any(before.values()))
    for name, found in before.items():
        new_name = name.replace(".cu", ".mu")
        after = dependencies(gcc, new_root, new_name, outside)
        if found is None:
            continue  # it did not compile before
        wanted = {
            each.replace(str(root), str(new_root)).replace(".cu", ".mu")
            if each.startswith(str(root))
            else each
            for each in found
        }
        assert after == wanted, (name, tree)

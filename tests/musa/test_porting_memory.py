"""A port takes little memory, however large its files are, and writes only what is new."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils.musa._port_output import Output
from my_utils.musa._port_tree import Entry
from my_utils.musa.simple_porting import SimplePorting

from ..conftest import RunPython

pytestmark = pytest.mark.no_torch

PIECE = (
    "__global__ void kernel(float *x) { x[threadIdx.x] += 1; }\n"
    "void f(cudaStream_t s) {\n  cudaMemcpyAsync(a, b, n, cudaMemcpyDefault, s);\n}\n"
)
RUN = r"""
import re, sys
from my_utils.musa.simple_porting import SimplePorting
report = SimplePorting(sys.argv[1], jobs=2, progress=False).run()
assert report.errors == [], report.errors
# Not ru_maxrss, which begins with that of the process that started this one.
print(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1], report.replaced)
"""


@pytest.mark.parametrize(("files", "mib"), [pytest.param(1, 96, marks=pytest.mark.slow), (96, 1)])
def test_memory(files: int, mib: int, run_python: RunPython, tmp_path: Path) -> None:
    text = PIECE * (mib * 2**20 // len(PIECE))
    for folder, count, data in (("small", 1, PIECE), ("large", files, text)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / f"k{number}.cu").write_text(data)
    (tmp_path / "large/weights.bin").write_bytes(os.urandom(2**20) * 64)
    (small, few), (large, many) = (
        map(int, run_python("-c", RUN, folder).stdout.split()) for folder in ("small", "large")
    )
    assert (few, many) == (3, 3 * files * text.count(PIECE))
    assert large - small < 48 * 1024, "KiB for 96 MiB of sources and 64 MiB of other files"
    new = (tmp_path / "large_musa/k0.mu").read_text()
    assert new == text.replace("cuda", "musa")


def test_a_large_diff_applies(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("patch") is None:
        pytest.skip("patch is not installed")
    (tmp_path / "src").mkdir()
    lines = [f"int x{number};\n" for number in range(200_000)]
    for number in range(0, 200_000, 20_000):
        lines[number] = "cudaFree(x);\n"
    text = "".join(lines)
    (tmp_path / "src/a.h").write_text(text)
    diff = "".join(SimplePorting(tmp_path / "src", progress=False).diffs())
    assert diff.count("\n+++ ") == 1 and diff.count("+musaFree") == 10
    subprocess.run(["patch", "-s", "src/a.h"], input=diff.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "src/a.h").read_text() == text.replace("cuda", "musa")


@pytest.mark.parametrize(
    ("old", "mode", "is_new"),
    [
        (b"abcdef", 0o640, False),
        (b"abcdef", 0o600, True),
        (b"abcdeg", 0o640, True),
        (b"abc", 0o640, True),
        (b"abcdefg", 0o640, True),
        (b"", 0o640, True),
        (None, 0o640, True),
    ],
)
def test_only_what_is_new_is_written(
    tmp_path: Path, old: bytes | None, mode: int, is_new: bool
) -> None:
    path = tmp_path / "a.mu"
    if old is not None:
        path.write_bytes(old)
        path.chmod(mode)
        before = path.stat().st_ino
    output = Output(tmp_path)
    entry = Entry("a.cu", "a.mu", 0o640)
    assert output.holds(entry, [b"abc", b"", b"def"]) != is_new
    assert output.put(entry, [b"abc", b"", b"def"]) == is_new
    assert path.read_bytes() == b"abcdef"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    if old is not None and not is_new:
        assert path.stat().st_ino == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file(tmp_path: Path) -> None:
    entry = Entry("a.cu", "a.mu", 0o640)
    assert Output(tmp_path).put(entry, [])
    assert (tmp_path / "a.mu").read_bytes() == b""
    assert not Output(tmp_path).put(entry, [])


def test_what_fails_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mu"
    path.write_bytes(b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        Output(tmp_path).put(Entry("a.cu", "a.mu", 0o640), pieces())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]

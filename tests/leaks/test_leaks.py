"""No entry point of the C module leaves memory, files, mappings or threads behind."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils import _core

from .all_cases import CASES
from .harness import Case, entry_points, find_leaks, prepared


def test_every_entry_point_has_a_case() -> None:
    covered = {name for item in CASES.values() for name in item.covers}
    missing = sorted(entry_points(_core) - covered)
    assert not missing, f"no leak case in tests/leaks for: {', '.join(missing)}"


def test_no_case_covers_what_is_gone() -> None:
    known = entry_points(_core)
    strangers = sorted(
        f"{item.name}: {name}"
        for item in CASES.values()
        for name in item.covers
        if name not in known
    )
    assert not strangers, f"cases for entry points that do not exist: {', '.join(strangers)}"


@pytest.mark.parametrize("item", CASES.values(), ids=lambda item: item.name)
def test_case_leaves_nothing_behind(item: Case, tmp_path: Path) -> None:
    with prepared(item, tmp_path) as action:
        assert find_leaks(action, item.repeat) == []


class TestTheHarnessItself:
    """It must see each kind of leak, or the tests above prove nothing."""

    def test_sees_a_kept_object(self) -> None:
        kept: list[object] = []
        assert any("Python blocks" in line for line in find_leaks(lambda: kept.append([1]), 500))

    def test_sees_sixteen_bytes_of_malloc(self) -> None:
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "mallinfo2"):
            pytest.skip("this C library has no mallinfo2")
        libc.malloc.restype = ctypes.c_void_p
        assert any("C heap bytes" in line for line in find_leaks(lambda: libc.malloc(16), 500))

    @pytest.fixture
    def opened(self) -> Iterator[list[int]]:
        files: list[int] = []
        yield files
        for number in files:
            os.close(number)

    def test_sees_an_open_file(self, opened: list[int]) -> None:
        lines = find_leaks(lambda: opened.append(os.open("/dev/null", os.O_RDONLY)), 50)
        assert any("open files" in line for line in lines)

    def test_passes_what_only_fills_a_cache(self) -> None:
        cache: dict[int, bytes] = {}
        assert find_leaks(lambda: cache.setdefault(len(cache) % 256, bytes(100)), 500) == []

"""Each entry point of the C module runs a few times, which is for the allocator's own checks.

`test_leaks.py` says whether a case leaves something behind, and that each entry point has a case.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from .all_cases import CASES
from .harness import Case, prepared

pytestmark = pytest.mark.c_code


@pytest.mark.parametrize("item", CASES.values(), ids=lambda item: item.name)
def test_case_runs(item: Case, tmp_path: Path) -> None:
    with prepared(item, tmp_path) as action:
        for _ in range(5):
            action()
    gc.collect()

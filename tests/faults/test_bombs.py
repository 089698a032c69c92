"""Small files that would take minutes or gigabytes: each reader ends, and names the file, or the
rank that it is of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.variants import gate_runs
from .bombs import READERS, bombs_of

pytest.importorskip("torch", reason="torch is not installed")

MEMORY_MAX = 2 << 30  # bytes, with torch
QUICK = {"why trace", "trace rank_0.7.7.journal"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", gate_runs(QUICK, READERS))
def test_each_reader_bears_each_bomb(reader: str, run_python: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    done = run_python("-m", "tests.faults.bombs", reader, str(tmp_path / "bombs"), timeout=3500)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [case["bomb"] for case in cases] == list(bombs_of(READERS[reader]))
    names = [Path(READERS[reader].name).name, *["rank 0"] * READERS[reader].has_run]
    for case in cases:
        assert case["ended"] == 0, case
        assert case["status"] != "died" and "Traceback" not in case["said"], case
        assert case["memory"] < MEMORY_MAX, case
        is_named = any(name in case["said"] for name in names)
        assert is_named or case["bomb"] in READERS[reader].may_be_silent, case

"""What is found on all ranks of a run has the same cause where only some of them are judged, and
what to do next is about the steps that are slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.analysis.verdict.next_steps import MORE_CORES, change_for
from my_utils.analysis.why import judge, load_run

from ...support.run_csv import RankCsv

pytestmark = pytest.mark.no_torch

STEPS, EVERY, COLLECTION_MS = 100, 5, 180.0


def collecting(folder: Path, cause: str, ran_share: float) -> Path:
    """Two ranks of DDP, which both collect garbage (or only wait) after each fifth step."""
    for rank in range(2):
        one = RankCsv(rank, 2)
        one.process()
        one.note("run", {"device": "cpu", "attempt": 1, "wrappers": "DDP"})
        one.note("sync", {"stage": "backward", "kind": "ddp", "members": "0-1"})
        at_ms = 0.0
        for step in range(STEPS):
            one.step(step, at_ms, [("forward", 0.0, 4.0), ("backward", 4.2, 9.0 - 0.1 * rank)])
            one.step(step, at_ms, [("optimizer", 9.1, 10.0)])
            pause_ms = COLLECTION_MS if step % EVERY == EVERY - 1 else 0.0
            us = pause_ms * 1e3
            collected = us if cause == "gc2" else 0.0
            one.counter("host", step, at_ms + 10.1, {
                "cpu_us": 9000 + us * ran_share * (cause == "gc2"),
                "delay_us": 10 + us * (1 - ran_share) * (cause == "gc2"),
                "gc0_us": 0, "gc1_us": 0, "gc2_us": collected,
                "storage_us": 0, "page_us": 0, "gil_us": 0, "other_us": us - collected,
            })  # fmt: skip
            at_ms += 10.5 + pause_ms
        one.write(folder / "logs")
    return folder / "logs"


@pytest.mark.parametrize("ran_share", [1.0, 0.5, 0.15])
@pytest.mark.parametrize("ranks", [None, [0], [1]])
def test_a_collection_that_has_no_core_is_one(
    ran_share: float, ranks: list[int] | None, tmp_path: Path
) -> None:
    """Its time is counted once, whether the thread ran in it or was ready to."""
    verdict = judge(load_run(collecting(tmp_path, "gc2", ran_share), ranks=ranks))
    one = verdict.findings[0]
    assert one.detail["cause"] == "gc2", one
    assert dict(one.detail["causes"])["gc2"] > 0.9
    assert any("gc.freeze()" in line for line in verdict.lines())


@pytest.mark.parametrize("ranks", [None, [0]])
def test_the_next_capture_has_a_slow_step(ranks: list[int] | None, tmp_path: Path) -> None:
    run = load_run(collecting(tmp_path, "other", 0.0), ranks=ranks)
    run.command = ["train.py"]
    (line,) = (line for line in judge(run).lines() if "next: " in line)
    words = line.split()
    first, end = map(int, words[words.index("--capture-steps") + 1].split(":"))
    assert any(step % EVERY == EVERY - 1 for step in range(first, end)), line
    assert 22 <= first < end == first + 3
    assert words[words.index("--capture-every") + 1] == str(EVERY)


def test_fewer_threads_are_not_advised_where_there_is_one() -> None:
    assert "OMP_NUM_THREADS=1" in (change_for("short of cores", {"threads": 4}) or "")
    assert "OMP_NUM_THREADS=1" in (change_for("short of cores", {}) or "")
    assert change_for("short of cores", {"threads": 1}) == MORE_CORES

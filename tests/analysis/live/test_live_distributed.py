"""Ranks that really hang, over gloo, with torch's own flight recorder beside; and torch's own
analyser on the dumps that the other tests make."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis import live

from ...support.flight_dumps import calls, write_dump
from ...support.live_ranks import wait_until
from ...support.ranks import Ranks

pytest.importorskip("torch")

pytestmark = pytest.mark.long_file

snapshot: Any = live.snapshot  # without the types of its keys

WORLD = 3
HELD = 1
START_S = 100.0

TRAIN = f"""
import threading
from pathlib import Path
from torch._C import _distributed_c10d as c10d
from my_utils import _core

def dump_when_asked():
    while not Path("dump").exists():
        time.sleep(0.05)
    Path(f"dumps/part_{{rank}}").write_bytes(c10d._dump_fr_trace())
    Path(f"dumps/trace_{{rank}}.json").write_bytes(c10d._dump_fr_trace_json())
    Path(f"dumps/part_{{rank}}").rename(f"dumps/trace_{{rank}}")

threading.Thread(target=dump_when_asked, daemon=True).start()
_core.open_output(log_dir="logs", rank=rank, world_size=world)
timer = _core.Timer("train")
for step in range(3):
    timer.set_step(step)
    with timer.time_stage("iter"):
        with timer.time_stage("data"):
            if (rank, step) == ({HELD}, 2):
                Path("there_{HELD}").touch()
                time.sleep(1000)
        with timer.time_stage("all_reduce"):
            call = dist.all_reduce(torch.ones(8, 2), async_op=True)
            if step == 2:
                Path(f"there_{{rank}}").touch()
            call.wait()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run of which one rank never leaves a stage; with dumps of all ranks."""
    (tmp_path / "dumps").mkdir()
    ranks = Ranks(TRAIN, WORLD, tmp_path)
    try:
        wait_until(lambda: all((tmp_path / f"there_{r}").exists() for r in range(WORLD)), START_S)
        wait_until(lambda: all_stand_still(tmp_path / "logs"), START_S)
        (tmp_path / "dump").touch()
        wait_until(lambda: all((tmp_path / f"dumps/trace_{r}").exists() for r in range(WORLD)))
        yield tmp_path
    finally:
        for rank in range(WORLD):
            ranks.kill(rank)
        ranks.finish()


def all_stand_still(logs: Path) -> bool:
    ranks = snapshot(logs)["ranks"]
    steps = [rank["step"] for rank in ranks]
    # For less than five seconds a wait is none: the clocks of hosts differ.
    return steps == [2] * WORLD and min(rank["still_s"] for rank in ranks) >= 6


@pytest.mark.slow
def test_a_rank_that_hangs_while_the_others_wait(held: Path) -> None:
    data: dict[str, Any] = {}

    def all_give_signs_of_life() -> bool:
        data.update(snapshot(held / "logs", hung_after_s=1, flight_recorder=held / "dumps/trace_"))
        return {rank["state"] for rank in data["ranks"]} == {"running"}

    wait_until(all_give_signs_of_life)
    (suspect,) = data["suspects"]
    assert (suspect["rank"], suspect["kinds"]) == (HELD, ["never entered", "elsewhere"])
    assert suspect["stack"] == ["iter", "data"]
    assert data["hang"]["waiting"] == [0, 2]
    assert data["hang"]["waiting_stack"] == ["iter", "all_reduce"]
    check_stalled(data["flight_recorder"])
    for rank in range(WORLD):
        (held / f"dumps/trace_{rank}").unlink()
    check_stalled(snapshot(held / "logs", flight_recorder=held / "dumps")["flight_recorder"])


def check_stalled(recorded: dict[str, Any]) -> None:
    assert (recorded["dumps"], recorded["problems"]) == ([0, 1, 2], [])
    (stalled,) = recorded["stalled"]
    assert (stalled["name"], stalled["seq"]) == ("all_reduce", 3)
    assert (stalled["description"], stalled["sizes"]) == ("default_pg", "[8, 2] Float")
    assert (stalled["waiting"], stalled["missing"]) == ([0, 2], [HELD])
    assert stalled["last_calls"][str(HELD)]["seq"] == 2


def test_torch_finds_the_same_in_the_dumps_that_tests_make(tmp_path: Path) -> None:
    """So that they are what torch writes, and the matching is what torch does."""
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    logs, dumps = tmp_path / "logs", tmp_path / "dumps"
    logs.mkdir()
    dumps.mkdir()
    for rank in (0, 1, 3):
        write_dump(dumps, rank, calls("all_reduce", "broadcast", "all_reduce", last="started"))
    write_dump(dumps, 2, calls("all_reduce", "broadcast"))
    arguments = JobConfig().parse_args([str(dumps), "-p", "trace_"])
    database = build_db(*read_dir(arguments)[:1], arguments, "2.10")
    gc.enable()  # which read_dir leaves off
    incomplete = [c for c in database.collectives if c.missing_ranks]
    (stalled,) = snapshot(logs, flight_recorder=dumps)["flight_recorder"]["stalled"]
    assert [(c.collective_seq_id, c.missing_ranks) for c in incomplete] == [
        (stalled["seq"], set(stalled["missing"]))
    ]

"""Each collective of a rank is a row, however it was called."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from my_utils.run.stages import meetings as module
from my_utils.run.stages.meetings import Meetings, is_sampled

from ..conftest import ROOT, RunPython
from ..support.profile_rows import Profile, Row, read

TAG = "collectives"
SCRIPT = ROOT / "tests/run/scripts/collectives.py"


def launch(run_python: RunPython, *words: str, **variables: str) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = run_python(
        "-m", "my_utils", "run", "--quiet", "-o", "logs", *torchrun, str(SCRIPT), *words,
        env={"OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def of_collectives(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.metadata.get("tag") == TAG]


@pytest.mark.slow
def test_every_way_to_call_is_recorded_once_and_in_order(
    run_python: RunPython, tmp_path: Path
) -> None:
    launch(run_python, "called.json")
    called = json.loads((tmp_path / "called.json").read_text())
    rows = read(tmp_path / "logs/profile_rank_0.csv")
    started = [row.name for row in of_collectives(rows) if row.kind == "START"]
    calls = [name for name in started if not name.startswith("wait ")]
    first = calls.index("all_reduce world")  # before it, groups and meshes were made
    assert calls[first : first + len(called)] == [text for text, _ in called]
    assert sorted(name for name in started if name.startswith("wait ")) == sorted(
        f"wait {text}" for text, awaited in called if awaited
    )
    groups = {
        row.metadata["label"]: row.metadata["members"]
        for row in rows if row.name == "my_utils.group"
    }  # fmt: skip
    assert groups == {"world": "0-3", "tp": "0-1"}
    of_rank_3 = read(tmp_path / "logs/profile_rank_3.csv")
    named = [row.metadata for row in of_rank_3 if row.name == "my_utils.group"]
    assert [one["members"] for one in named if one["label"] == "tp"] == ["2-3"]


@pytest.mark.thorough
def test_a_switch_turns_it_off(run_python: RunPython, tmp_path: Path) -> None:
    launch(run_python, "called.json", MY_UTILS_RUN_COLLECTIVES="0")
    rows = read(tmp_path / "logs/profile_rank_0.csv")
    assert not of_collectives(rows)
    assert any(row.name == "collective" for row in rows)  # the stage


COMPILED = """
import os
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as funcol
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

@torch.compile(backend="aot_eager", fullgraph=True)
def doubled(x):
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

print(doubled(torch.arange(3.0)).tolist(), type(torch.ops._c10d_functional.all_reduce).__mro__[-2])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_compilers_still_know_the_operators(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILED)
    recorded = run_python("-m", "my_utils", "run", "--quiet", "train.py")
    bare = run_python("train.py")
    assert recorded.stdout == bare.stdout != "", recorded.stderr[-3000:]


# --- which steps are recorded ---


def test_sampled_steps_are_a_part_of_those_of_a_smaller_period_at_uneven_distances() -> None:
    steps = range(64_000)
    rarer: set[int] | None = None
    for every in (64, 16, 4, 1):
        found = {step for step in steps if is_sampled(step, every)}
        assert len(found) == pytest.approx(len(steps) / every, rel=0.1)
        assert rarer is None or rarer < found
        rarer = found
    fourth = [step for step in range(200) if is_sampled(step, 4)]
    assert len({later - one for one, later in itertools.pairwise(fourth)}) > 4


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[Profile]:
    found = Profile(tmp_path)
    yield found
    found.close()


def test_many_calls_a_step_are_recorded_in_whole_steps(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALL_UNTIL", 100)
    monkeypatch.setattr(module, "_describe_group", lambda name: ("tp", [0, 1]))
    stages: Any = SimpleNamespace(on=True, steps=0, timer=SimpleNamespace(current_step=0))
    said: list[dict[str, object]] = []
    meetings = Meetings(stages, lambda name, row: said.append(row))
    meetings.write_groups()
    calls = 32
    for step in range(400):
        stages.steps = stages.timer.current_step = step
        for _ in range(calls):
            if text := meetings.begin("all_reduce", "0"):
                meetings.end(text)
    counts: dict[int, int] = {}
    for row in profile.ended():
        counts[row.step] = counts.get(row.step, 0) + 1
    assert set(counts.values()) == {calls}
    all_until = 100 // calls + 1
    later = [step for step in counts if step > all_until]
    assert all(is_sampled(step, 4) for step in later)
    assert len(later) == pytest.approx(400 / 4, rel=0.25)
    assert said[-1] == {"every": 4, "calls_per_step": calls}

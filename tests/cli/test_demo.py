"""The demo: what it prints, what it writes, and what it says when a rank dies."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import verdict_of
from my_utils.cli.demo import WARM_UP, DemoError, _wait, clear_logs, who_waits

from ..support.planted_runs import Run

# three processes import torch side by side
pytestmark = [pytest.mark.long_file, pytest.mark.timeout(320)]

ROOT = Path(__file__).resolve().parents[3]
STEPS = 6
STAGES = {"iter": 1, "data": 1, "forward": 1, "backward": 1, "all_reduce": 1, "optimizer": 1,
          "block0": 1, "block1": 1, "block2": 1, "attn": 3, "mlp": 3, "loss": 1}  # fmt: skip


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "my_utils", "demo", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("demo")
    process = start("--out", out, "--steps", str(STEPS), "--ranks", "2")
    stdout, stderr = process.communicate(timeout=250)
    assert process.returncode == 0, stderr
    yield stdout, out


def ended_rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as handle:
        return [row for row in csv.DictReader(handle) if row["event_type"] == "END"]


@pytest.mark.slow
def test_it_ends_with_the_verdict_and_what_is_next(demo: tuple[str, Path]) -> None:
    said, out = demo
    logs = out / "logs"
    verdict = verdict_of(str(logs)).lines()
    assert f"my_utils why {logs}\n" + "\n".join(verdict) in said
    for command in ("trace", "report", "live"):
        assert f"my_utils {command} {logs}" in said


def test_every_stage_of_both_ranks_is_recorded(demo: tuple[str, Path]) -> None:
    for rank in (0, 1):
        rows = ended_rows(demo[1] / "logs" / f"profile_rank_{rank}.csv")
        expected = {name: times * STEPS for name, times in STAGES.items()}
        assert Counter(row["event_name"] for row in rows) == expected


def test_it_prints_the_table_and_where_the_files_are(demo: tuple[str, Path]) -> None:
    stdout, out = demo
    for stage in STAGES:
        assert re.search(rf"\b{stage}\b", stdout), f"{stage} is not in the table"
    for name in ("trace.pftrace", "trace.json", "timeline.png"):
        assert str(out / name) in stdout
    assert "ui.perfetto.dev" in stdout
    assert "all_reduce" in stdout.split("mean a step, ms")[1]


def test_the_trace_holds_both_ranks(demo: tuple[str, Path]) -> None:
    with open(demo[1] / "trace.json", encoding="utf-8") as handle:
        events = json.load(handle)["traceEvents"]
    # Step markers have no node.
    stages = [
        event for event in events if event["ph"] == "X" and "node_id" in event.get("args", {})
    ]
    per_rank = Counter(event["pid"] for event in stages)
    assert list(per_rank.values()) == [STEPS * sum(STAGES.values())] * 2
    counters = Counter(event["name"] for event in events if event["ph"] == "C")
    assert counters["loss"] == counters["tokens"] == 2 * STEPS
    assert (demo[1] / "trace.pftrace").stat().st_size > 1000


def test_the_rank_with_the_short_texts_waits(demo: tuple[str, Path]) -> None:
    with open(demo[1] / "trace.json", encoding="utf-8") as handle:
        events = json.load(handle)["traceEvents"]
    tokens: dict[int, list[int]] = {}
    for event in events:
        if event["ph"] == "C" and event["name"] == "tokens":
            tokens.setdefault(event["pid"], []).append(*event["args"].values())
    short, long = (tokens[pid] for pid in sorted(tokens))
    assert max(short) < min(long)

    waited = {}
    for rank in (0, 1):
        rows = ended_rows(demo[1] / "logs" / f"profile_rank_{rank}.csv")
        after_warm_up = [row for row in rows if int(row["step"]) >= WARM_UP]
        times = [float(row["duration_ms"]) for row in after_warm_up
                 if row["event_name"] == "all_reduce"]  # fmt: skip
        waited[rank] = sum(times) / len(times)
        assert re.search(rf"rank {rank} .*{waited[rank]:.1f}$", demo[0], re.MULTILINE)
    # On a busy machine the other rank may be the one that is waited for.
    if "it waits for rank 1" not in demo[0]:
        assert waited[0] < waited[1] or "No rank waits long" in demo[0]


def test_who_waits_for_whom(tmp_path: Path) -> None:
    def said(means_ms: Sequence[float], name: str) -> str:
        run = Run(ranks=2, steps=20, means_ms=means_ms).slower(2, "forward", rank=1)
        return "\n".join(who_waits(run.write(tmp_path / name)))

    assert "Rank 0 spends 26% of its time in all_reduce." in said((5, 20, 30, 3), "much")
    assert "it waits for rank 1, whose texts are longer" in said((5, 20, 30, 3), "more")
    assert "No rank waits long for another: at most" in said((5, 2, 30, 3), "less")


def test_the_picture_is_a_png(demo: tuple[str, Path]) -> None:
    pytest.importorskip("matplotlib")
    content = (demo[1] / "timeline.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
    assert width > 1000
    assert height > 300


def test_it_leaves_only_what_it_names(demo: tuple[str, Path]) -> None:
    left = {path.relative_to(demo[1]).as_posix() for path in demo[1].rglob("*") if path.is_file()}
    left -= {"timeline.png"}  # not there without matplotlib
    assert left == {"trace.pftrace", "trace.json", "logs/.my_utils_demo"} | {
        f"logs/{name}"
        for rank in (0, 1)
        for name in (
            f"profile_rank_{rank}.csv",
            f"rank_{rank}.log",
            f"rank_{rank}.heartbeat.json",
            f"report_rank_{rank}.txt",
            f"report_rank_{rank}.json",
        )
    }


@pytest.mark.thorough
@pytest.mark.parametrize("run", range(10))
def test_the_demo_and_the_verdict_below_it_name_one_rank(tmp_path: Path, run: int) -> None:
    pytest.importorskip("torch")
    stdout, stderr = start("--out", tmp_path, "--ranks", "2").communicate(timeout=250)
    assert "it waits for rank 1, whose texts are longer" in stdout, stderr
    assert "\nWAITING FOR rank 1 " in stdout, stdout


@pytest.mark.thorough
def test_a_rank_that_dies_ends_the_demo_with_its_name(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    process = start("--out", tmp_path, "--steps", "500", "--ranks", "2")
    try:
        assert process.stdout is not None
        while "step" not in (line := process.stdout.readline()) or "loss" not in line:
            assert line, "the demo ended before its first step"
        workers = workers_of(process.pid)
        assert sorted(workers) == [0, 1]
        os.kill(workers[1], signal.SIGKILL)
        _, stderr = process.communicate(timeout=200)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert stderr.startswith("my_utils demo: error: rank 1 ended by SIGKILL")
    assert not any(alive(worker) for worker in workers.values())


def test_a_later_rank_that_dies_is_noticed_while_the_first_one_waits() -> None:
    with (
        subprocess.Popen(["sleep", "1000"]) as first,
        subprocess.Popen(["false"]) as second,
    ):
        _wait([first, second])
        assert (first.poll(), second.returncode) == (None, 1)
        first.kill()


def workers_of(parent: int) -> dict[int, int]:
    """The process id of each rank, from the command lines of the demo's children."""
    found = {}
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        found[int(words[words.index(b"--rank") + 1])] = int(child)
    return found


def alive(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "3"], "argument --steps: 3 is less than 4"),
        (["--ranks", "1"], "argument --ranks: 1 is less than 2"),
        (["--ranks", "two"], "argument --ranks: invalid int value: 'two'"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    process = start(*arguments)
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 2
    assert message in stderr


def test_the_files_of_another_run_stay(tmp_path: Path) -> None:
    theirs = tmp_path / "logs" / "profile_rank_0.csv"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    with pytest.raises(DemoError, match="holds the files of another run; name another directory"):
        clear_logs(theirs.parent)
    assert theirs.read_text() == "mine"
    theirs.unlink()
    for _ in range(2):
        clear_logs(theirs.parent)
        assert not theirs.exists()
        theirs.write_text("of a demo")


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = start("--out", tmp_path / "file")
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 1
    assert stderr.startswith("my_utils demo: error: ")
    assert "file" in stderr

"""How far the ledger and Google's ml-goodput-measurement are from a training's own clocks.

One training dies once and starts again from its last checkpoint. `my_utils run` records it without
an edit; the peer has the calls that its users write, with the times of the training itself, and a
list in place of Cloud Logging. As a program it prints the table of `docs/runs/ledger.md`:

    python -m benchmarks.bench_goodput
"""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Claim, NotMeasured, Row

SCRIPT = Path(__file__).resolve().with_name("goodput_training.py")
ROOT = SCRIPT.parents[1]
PEER = "ml-goodput-measurement"
Event = tuple[str, float, int]


def trained(folder: Path) -> tuple[list[Event], dict[str, Any]]:
    """What happened, and the ledger of `my_utils why --json`."""
    run = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "--"]
    launch = ["-m", "torch.distributed.run", "--max-restarts=1", "--monitor-interval=0.2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*run, sys.executable, *launch, "--nproc-per-node=1", str(SCRIPT), str(folder)]
    subprocess.run(command, cwd=folder, env=env, check=True, stderr=subprocess.DEVNULL)
    why = [sys.executable, "-m", "my_utils", "why", "logs", "--json"]
    said = subprocess.run(why, cwd=folder, env=env, stdout=subprocess.PIPE, check=False)
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ledger: dict[str, Any] = json.loads(said.stdout)["ledger"]
    return [tuple(json.loads(line)) for line in lines], ledger


def between(events: Sequence[Event], begin: str, end: str) -> float:
    """The sum of the times from each `begin` to the next `end`, s."""
    total, since = 0.0, None
    for name, at, _ in events:
        if name == begin:
            since = at
        elif name == end and since is not None:
            total, since = total + at - since, None
    return total


def truth_of(events: Sequence[Event], began: Sequence[float]) -> dict[str, float]:
    """By row, s: what the training measured itself. began: of its processes, Unix time."""
    (died,) = (at for name, at, _ in events if name == "died")
    saved = max(at for name, at, _ in events if name == "saved" and at < died)
    steps = [at for name, at, _ in events if name == "step"]
    restored = between(events, "restore", "restored")
    launched = steps[0] - began[0] + min(at for at in steps if at > died) - died
    return {
        "launch and restart": launched - restored,
        "restore": restored,
        "checkpoint": between(events, "save", "saved"),
        "in vain": died - saved,
        "closing": between(events, "done", "ended"),
    }


def of_ledger(ledger: Mapping[str, Any]) -> dict[str, float]:
    ns = {row["row"]: row["ns"][0] for row in ledger["rows"]}
    rows = {name: ns.get(name, 0) / 1e9 for name in ("restore", "checkpoint", "in vain", "closing")}
    return {"launch and restart": (ns.get("launch", 0) + ns.get("restart", 0)) / 1e9, **rows}


class _Log:
    """What the peer calls its cloud logger."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)

    def read_cloud_logging_entries(
        self, *_: object, **__: object
    ) -> tuple[list[dict[str, Any]], tuple[None, None]]:
        return self.entries, (None, None)

    def flush(self) -> None:
        pass


def of_peer(events: Sequence[Event], began: Sequence[float], ended: float) -> dict[str, float]:
    """began: of its processes, ended: of the job, Unix time."""
    peer = importlib.import_module("ml_goodput_measurement.src.goodput")
    kinds = importlib.import_module("ml_goodput_measurement.src.goodput_utils").BadputType
    log = _Log()
    recorder = peer.GoodputRecorder("job", "log", True, log)

    def at(seconds: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)

    starts = iter(began)
    calls = {
        "prepared": recorder.record_training_preparation_end_time,
        "done": recorder.record_job_end_time,
    }
    for name, seconds, step in events:
        if name == "imported":
            start = next(starts)
            recorder.record_job_start_time(at(start))
            recorder.record_tpu_init_start_time(at(start))
            recorder.record_tpu_init_end_time(at(seconds))
            recorder.record_training_preparation_start_time(at(seconds))
        elif name == "step":
            recorder.record_step_start_time(step, at(seconds))
        elif name in calls:
            calls[name](at(seconds))
    with tempfile.TemporaryDirectory() as folder:
        calculator = peer.GoodputCalculator("job", "log", log, cache_dir=folder)
        _, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
    rows = {
        "launch and restart": (
            "TPU_INITIALIZATION", "TRAINING_PREP", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
        ),
        "in vain": ("WASTED_PROGRESS_FROM_DISRUPTION",),
    }  # fmt: skip
    share_s = (ended - began[0]) / 100
    return {
        row: sum(float(badput.get(kinds[kind], 0.0)) for kind in its) * share_s
        for row, its in rows.items()
    }


def run(smoke: bool) -> list[Row]:
    what = "seconds by which rows of a job that starts again are off, the largest"
    if importlib.util.find_spec("ml_goodput_measurement") is None:
        return [NotMeasured(what, f"{PEER}: pip install {PEER}")]
    truth, ours, theirs = measured()
    off = [max(abs(found[row] - truth[row]) for row in theirs) for found in (ours, theirs)]
    return [Claim(what, off[0], PEER, off[1], "s", 1)]


def measured() -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """By row, s: the truth, the ledger, and the peer."""
    with tempfile.TemporaryDirectory() as folder:
        events, ledger = trained(Path(folder))
        rows = Path(folder, "logs", "profile_rank_0.csv").read_text(encoding="utf-8")
    began = sorted({int(ns) / 1e9 for ns in re.findall(r"began_ns=([0-9]+)", rows)})
    peer = of_peer(events, began, events[-1][1])
    return truth_of(events, began), of_ledger(ledger), peer


def main() -> None:
    truth, ours, theirs = measured()
    for row, seconds in truth.items():
        peer = f"{theirs[row]:.3f}" if row in theirs else "-"
        print(f"{row:20} truth {seconds:.3f} s  ledger {ours[row]:.3f}  {PEER} {peer}")


if __name__ == "__main__":
    main()

"""Which of fourteen planted bottlenecks a tool names, beside TraceML, and how long its run takes.

`planted_training.py` runs on two ranks, under `my_utils run` without an edit and under `traceml
run` with the lines that TraceML asks for. A plant is found if what the tool says first has the
right words (`WORDS`). As a program it prints what was said of each plant:

    python -m benchmarks.bench_verdict
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Claim, NotMeasured, Row

SCRIPT = Path(__file__).resolve().with_name("planted_training.py")
ROOT = SCRIPT.parents[1]
STEPS, SMOKE_STEPS = 100, 30
COMMAND = ["--standalone", "--nproc-per-node", "2"]

# What the first finding must say: of ours its headline, of TraceML its status and its reason.
WORDS: dict[str, tuple[str, str]] = {
    "slow loader on one rank": (r"INPUT on rank 1", r"INPUT.STRAGGLER.*\b(r|rank )1\b"),
    "slow loader on all ranks": (r"INPUT on all ranks", r"INPUT.BOUND"),
    "slow host": (r"WAITING FOR rank 1", r"STRAGGLER.*\b(r|rank )1\b"),
    "all ranks slower from a step on": (r"SLOWER SINCE step", r"SLOWER|REGRESS|SINCE"),
    "slow forward on one rank": (
        r"WAITING FOR rank 1 in forward", r"STRAGGLER.*\b(r|rank )1\b.*forward|"
        r"STRAGGLER.*forward.*\b(r|rank )1\b"),
    "slow optimizer on all ranks": (r"THE OPTIMIZER on all ranks", r"OPTIMIZER"),
    "one rank sleeps every 5th step": (r"WAITING FOR rank 1", r"STRAGGLER.*\b(r|rank )1\b"),
    "growing memory": (r"MEMORY GROWS", r"CREEP|MEMORY.*(GROW|RIS)"),
    "GC pauses": (r"(HICCUPS|WAITING FOR).*rank 1", r"(JITTER|PAUSE|STRAGGLER).*\b(r|rank )1\b"),
    "CPU hog": (r"(HICCUPS|WAITING FOR).*rank 1", r"(JITTER|PAUSE|STRAGGLER).*\b(r|rank )1\b"),
    "uneven batches": (r"IMBALANCE THAT MOVES", r"IMBALANCE|UNEVEN|VARIATION"),
    "checkpoint stalls": (r"CHECKPOINTS", r"CHECKPOINT"),
    "evaluation": (r"EVALUATION", r"EVALUATION|VALIDATION"),
    "untimed work": (r"NO STAGE TIMES", r"RESIDUAL|UNTIMED|OVERHEAD"),
}  # fmt: skip


class Said(NamedTuple):
    first: str
    found: bool
    seconds: float


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    kept = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **kept, **more}


def timed(command: list[str], folder: str, **more: str) -> tuple[str, float]:
    """What it prints to both outputs, and the seconds that it takes."""
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment(**more), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    return done.stdout, time.perf_counter() - began


def ours(plant: str, steps: int) -> Said:
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "torch.distributed.run", *COMMAND]
        command = [sys.executable, "-m", "my_utils.run", "--", *launcher]
        text, seconds = timed([*command, str(SCRIPT), plant, str(steps)], folder)
        logs = str(next(path for path in Path(folder, "logs").iterdir() if not path.is_symlink()))
        from my_utils.analysis.replay.inputs import verdict_of

        first = verdict_of(logs).lines()[0]
        assert first.split("  ")[0][:40] in text, text
    return Said(first.split("   ")[0], bool(re.search(WORDS[plant][0], first)), seconds)


def traceml(plant: str, steps: int) -> Said:
    program = "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", program, "run", "--run-name", "planted",
                   "--nproc-per-node", "2", str(SCRIPT), "--args", plant, str(steps)]  # fmt: skip
        _, seconds = timed(command, folder, TRACEML="1")
        (path,) = Path(folder).glob("logs/**/final_summary.json")
        summary = json.loads(path.read_text(encoding="utf-8"))
    about = summary["primary_diagnosis"] or {}
    first = f"{about.get('status')}: {about.get('summary')}"
    return Said(first, bool(re.search(WORDS[plant][1], first, re.IGNORECASE)), seconds)


def run(smoke: bool) -> list[Row]:
    plants = list(WORDS)[:1] if smoke else list(WORDS)
    what = [f"planted bottlenecks of {len(plants)} that are missed",
            "seconds of a run with its verdict"]  # fmt: skip
    if importlib.util.find_spec("traceml_ai") is None:
        return [NotMeasured(each, "TraceML: pip install traceml-ai") for each in what]
    steps = SMOKE_STEPS if smoke else STEPS
    found = {tool: [tool(plant, steps) for plant in plants] for tool in (ours, traceml)}
    missed = {tool: sum(not one.found for one in said) for tool, said in found.items()}
    seconds = {tool: sum(one.seconds for one in said) / len(said) for tool, said in found.items()}
    return [
        Claim(what[0], missed[ours], "TraceML", missed[traceml], "", 1 if smoke else 0.5),
        Claim(what[1], seconds[ours], "TraceML", seconds[traceml], "s", 1),
    ]


def main() -> None:
    """Prints what was said of each plant, or of those that are named."""
    has_peer = importlib.util.find_spec("traceml_ai") is not None
    for plant in sys.argv[1:] or WORDS:
        for tool in (ours, traceml) if has_peer else (ours,):
            said = tool(plant, STEPS)
            mark = "found " if said.found else "MISSED"
            print(
                f"{mark} {tool.__name__:8} {said.seconds:5.1f} s  {plant}: {said.first}", flush=True
            )


if __name__ == "__main__":
    main()

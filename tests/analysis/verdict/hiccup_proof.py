"""The proof of the causes of hiccups: each is made for real, and named by what was recorded.

    python -m tests.analysis.verdict.hiccup_proof [--runs 2] [--hiccups 12]
        [--causes NAME ...] [--out FILE]

Needs root, FUSE, the cpu and memory controllers of cgroups of version 1, and cgroups of version 2
beside them. Prints the tables;
with --out it writes them in Markdown.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from my_utils.analysis.verdict.causes import LATE_STEPS, find_causes
from my_utils.analysis.verdict.load import load_run
from my_utils.analysis.verdict.rules import judge
from my_utils.analysis.verdict.run_data import HOST_COUNTERS, Matrix, RunData

from ...support.ranks import ROOT
from .hiccup_training import EVERY, FIRST

TRAINING = Path(__file__).with_name("hiccup_training.py")
RIGHT = {
    "collection": "gc2", "busy core": "delay", "quota": "quota", "lack of memory": "memory",
    "slow disk": "storage", "dropped pages": "page", "GIL, by Python": "gil", "GIL, by C": "gil",
    "SIGSTOP": "stopped", "little memory": "memory", "lack of memory, v2": "memory",
    "little memory, v2": "memory", "slow disk, v2": "storage", "dropped pages, v2": "page",
}  # fmt: skip
BESIDE = {"own work": "own", "sleep": "other", "nothing": ""}
BY_OTHERS = 0.2  # of the lost time, from which on a hiccup is one with contention
LEAST_SHARE, LEAST_NS = 0.2, 5e6  # by which a step is a hiccup

PAGE = """## What a hiccup was

Made by `python -m tests.analysis.verdict.hiccup_proof --runs {runs} --hiccups {hiccups}` on {date}:
{machine}. The rules are in [What a hiccup was](runs/hiccups.md).

Each cause is real ([`hiccup_training.py`](../tests/analysis/verdict/hiccup_training.py)): a
training of one rank, with iterations of about 12 ms, of which every tenth has a hiccup of 60 ms or
more.

- Listed: the step took {share} and 5 ms longer than the other steps of the run.
- Contention: other processes on the machine took {others} or more of the lost time. These hiccups
  are counted separately.
- Right, unknown, wrong: how the rest were named.
- Verdict: the runs whose verdict names the cause.

{tables}

{sums}

"v2": the same in a cgroup of version 2, where the kernel counts the cgroup's own pressure. The
memory limit is one of version 1. Besides the causes there are runs with work of the rank itself,
with a sleep, and with nothing. Other programs run on this machine too, so the training gets a
higher priority (`SCHED_RR`), except for "busy core" and "quota", which do not affect real-time
threads. The kernel's cpu controller of version 2 could not be tried here; the tests of the engine
read trees of files written by hand.
"""


class Outcome(NamedTuple):
    """Of one hiccup. others: the share of the lost time that other processes took. parts: those of
    20 % and more, with their shares."""

    cause: str
    listed: bool
    named: str
    others: float
    parts: list[tuple[str, float]]


def attempt(cause: str, hiccups: int) -> tuple[list[Outcome], str]:
    """The hiccups of one run, and the cause that its verdict names."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs"]
        command += [str(TRAINING), cause, folder, str(hiccups)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            command, cwd=folder, env=env, check=True, timeout=120, stdout=subprocess.DEVNULL
        )
        run = load_run(Path(folder) / "logs")
    steps = [FIRST + EVERY * number for number in range(hiccups)]
    found = [one for one in judge(run).findings if "cause" in one.detail]
    verdict = str(found[0].detail["cause"]) if found else ""
    return [outcome(cause, run, step, steps) for step in steps], verdict


def outcome(cause: str, run: RunData, step: int, steps: Sequence[int]) -> Outcome:
    """What is said of one hiccup beside steps without any."""
    away = {other + late for other in steps if other != step for late in range(LATE_STEPS + 1)}
    kept = np.array([number > 1 and number not in away for number in run.steps.tolist()])
    at = int(np.flatnonzero(run.steps[kept] == step)[0])
    step_ns = run.step_ns[:, kept]
    usual = float(np.nanmedian(step_ns))
    lost = float(step_ns[0, at]) - usual
    listed = lost > max(LEAST_SHARE * usual, LEAST_NS)
    sizes = np.zeros_like(step_ns)
    sizes[0, at] = max(lost, 1.0)
    host = {name: values[:, kept] for name, values in run.counters.items() if name in HOST_COUNTERS}
    detail = find_causes(host, sizes)
    named, parts = str(detail.get("cause", "not measured")), detail.get("causes", [])
    assert isinstance(parts, list)
    return Outcome(cause, listed, named, by_others(host, at, lost), parts)


def by_others(host: Mapping[str, Matrix], at: int, lost: float) -> float:
    """The share of the lost ns that the thread was ready to run and no quota kept it."""
    waited = host["delay_us"][0] - host["quota_us"][0]
    return float(waited[at] - np.nanmedian(waited)) * 1000 / lost


# --- tables ---


def percent(part: int, of: int) -> str:
    return f"{part} of {of} ({100 * part / of:.1f} %)" if of else "none"


def rows(outcomes: Sequence[Outcome], verdicts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield "| Made | Should be | Hiccups | Listed | Contention | Right | Unknown | Wrong | Verdict |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for cause, right in {**RIGHT, **BESIDE}.items():
        ours = [one for one in outcomes if one.cause == cause]
        if not ours or cause == "nothing":
            continue
        quiet = [one for one in ours if is_quiet(one)]
        names = Counter(one.named for one in quiet)
        wrong = {name: n for name, n in names.items() if name not in (right, "unknown")}
        said = ", ".join(f"{n} {name}" for name, n in wrong.items())
        runs = verdicts[cause]
        yield (
            f"| {cause} | {right} | {len(ours)} | {sum(one.listed for one in ours)} | "
            f"{len(ours) - len(quiet)} | {names[right]} | {names['unknown']} | {said or 0} | "
            f"{runs.count(right)} of {len(runs)} |"
        )


def is_quiet(one: Outcome) -> bool:
    return one.cause == "busy core" or one.others < BY_OTHERS


def sums(outcomes: Sequence[Outcome]) -> Iterator[str]:
    made = [one for one in outcomes if one.cause in RIGHT]
    quiet = [one for one in made if is_quiet(one)]
    busy = [one for one in made if not is_quiet(one)]
    right = sum(one.named == RIGHT[one.cause] for one in quiet)
    wrong = sum(one.named not in (RIGHT[one.cause], "unknown") for one in quiet)
    yield f"- listed: {percent(sum(one.listed for one in made), len(made))}, required: 95 %"
    yield f"- named right without contention: {percent(right, len(quiet))}, required: 95 %"
    yield f"- named wrong without contention: {percent(wrong, len(quiet))}, allowed: 1 %"
    named = sum(one.named == RIGHT[one.cause] for one in busy)
    yield f"- named right with contention: {percent(named, len(busy))}"
    idle = [one for one in outcomes if one.cause == "nothing"]
    if idle:
        yield (
            f"- steps of 12 ms in which nothing was done and that are listed: "
            f"{percent(sum(one.listed for one in idle), len(idle))}"
        )


def machine() -> str:
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    return (
        f"{model}, {os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--hiccups", type=int, default=12)
    parser.add_argument("--causes", nargs="+", default=[*RIGHT, *BESIDE])
    parser.add_argument("--store", type=Path, help="a file that gets the outcomes, as JSON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    verdicts: dict[str, list[str]] = {}
    for _ in range(options.runs):
        for cause in options.causes:
            found, verdict = attempt(cause, options.hiccups)
            outcomes += found
            verdicts.setdefault(cause, []).append(verdict)
            print(f"{cause}: {verdict}", flush=True)
            for one in found:
                if one.named != {**RIGHT, **BESIDE}[cause]:
                    print("  ", one, flush=True)
    today = datetime.datetime.now(datetime.UTC).date()
    text = PAGE.format(
        runs=options.runs, hiccups=options.hiccups, machine=machine(),
        share=f"{100 * LEAST_SHARE:.0f} %", others=f"{100 * BY_OTHERS:.0f} %", date=today,
        tables="\n".join(rows(outcomes, verdicts)), sums="\n".join(sums(outcomes)),
    )  # fmt: skip
    if options.store:
        options.store.write_text(json.dumps([outcomes, verdicts]))
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""Since which step replicas, or two sides, differ: the passports of a folder, step by step."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import msgspec

from ...core.units import count_text
from .compare import FindingData, Status, check_replicas, compare_weights, finding_lines
from .file import PassportData, PassportError, read_passport
from .weights import Weights, merged

_RANK = re.compile(r"rank_?\d+", re.IGNORECASE)
_STEP = re.compile(r"(?<=step)_?(\d+)", re.IGNORECASE)


class StepData(msgspec.Struct):
    """step: of the training. side: the name of the files without step and rank. against: the
    other side, "" where the replicas of one were compared. findings: what differs."""

    step: int
    side: str
    against: str
    findings: list[FindingData]


class HistoryData(msgspec.Struct):
    """version: of this object. status: "equal", "differ", or "not comparable" where nothing differs
    but some tensors have another dtype. steps: all comparisons, the earliest first. since: by side,
    or by "side against side", the last step at which all was equal (null if there is none) and the
    first at which something differs."""

    version: int
    status: Status
    steps: list[StepData]
    since: dict[str, tuple[int | None, int]]


def history_of(folder: str) -> HistoryData:
    """OSError if it cannot be read; PassportError if a file in it is no passport, or says of no
    step."""
    sides = _read_sides(folder)
    steps: list[StepData] = []
    for side, by_step in sides.items():
        for step, weights in by_step.items():
            found = list(check_replicas("", weights, weights.tensors))
            steps.append(StepData(step, side, "", found))
    first, *others = sides
    for other in others:
        for step in sides[first].keys() & sides[other].keys():
            found = compare_weights(sides[first][step], sides[other][step]).findings
            found = [finding for finding in found if finding.kind != "replicas"]
            steps.append(StepData(step, first, other, found))
    steps.sort(key=lambda one: one.step)
    since = _since(steps)
    status: Status = "differ" if since else "equal"
    if status == "equal" and any(one.findings for one in steps):
        status = "not comparable"
    return HistoryData(1, status, steps, since)


def _read_sides(folder: str) -> dict[str, dict[int, Weights]]:
    """By the names of files without step and rank: the weights of each step."""
    os.stat(folder)  # a missing one is named by the system
    files: dict[tuple[str, int], list[PassportData]] = defaultdict(list)
    for path in sorted(Path(folder).rglob("*.json")):
        data = read_passport(path)
        in_name = _STEP.search(path.name)
        step = data.step if data.step is not None or in_name is None else int(in_name[1])
        if step is None:
            raise PassportError(f"{path}: says of no step: passport(..., step=N) sets it")
        side = _STEP.sub("", _RANK.sub("", path.stem)).replace("step", "").strip("_-.")
        files[side, step].append(data)
    if not files:
        raise PassportError(f"{folder}: no passport is in it")
    sides: dict[str, dict[int, Weights]] = defaultdict(dict)
    for (side, step), passports in sorted(files.items()):
        sides[side][step] = merged(passports, f"{folder}, step {step}")
    return sides


def _since(steps: list[StepData]) -> dict[str, tuple[int | None, int]]:
    last: dict[str, int] = {}
    since: dict[str, tuple[int | None, int]] = {}
    for one in steps:
        name = _name_of(one)
        if any(finding.kind != "dtype" for finding in one.findings):
            since.setdefault(name, (last.get(name), one.step))
        elif not one.findings and name not in since:
            last[name] = one.step
    return since


def _name_of(one: StepData) -> str:
    return " against ".join(filter(None, (one.side, one.against))) or "replicas"


def history_lines(data: HistoryData, most: int = 12) -> list[str]:
    """At most `most` lines."""
    count = len({one.step for one in data.steps})
    lines = []
    if not data.since:
        lines.append(f"{data.status}: no difference in {count_text(count, 'step')}")
        not_compared = next((one for one in data.steps if one.findings), None)
        if not_compared is not None:
            lines.append(f"{_name_of(not_compared)}: not compared since step {not_compared.step}")
            lines += [f"  {line}" for line in finding_lines(not_compared.findings)]
    for name, (last, first) in data.since.items():
        since = f"step {first}"
        if last is not None and last + 1 < first:
            since = f"step {last + 1} to {first}"
        lines.append(f"{name}: differ since {since}")
        for one in data.steps:
            if _name_of(one) == name and one.step == first:
                lines += [f"  {line}" for line in finding_lines(one.findings)]
    left = len(lines) - most + 1
    return lines if left <= 1 else [*lines[: most - 1], f"and {left} more lines: --json has all"]

"""Whether the figures of a report contradict its verdict or each other: those of its JSON, and
those that are printed on its page."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from typing import Any

from .verdict_figures import HEAD, INFORM, LAST_DIGIT_NS, ROUNDED, TIME, _ns, contradictions

SUMS = 1e-6  # of sums of the same figures, which are rounded in some of them
SECTION = re.compile(r'<h2 id="mean-step">(.*?)</section>', re.S)
AVERAGE = re.compile(rf"Where a step goes: {TIME} on average")
PART = re.compile(rf"</svg>(.*) {TIME}, ([\d.]+) %</li>")
ROW = re.compile(r"<tr>(.*?)</tr>")
CELL = re.compile(r'<td[^>]*?(?: data-value="([^"]*)")?>(.*?)</td>')
WAITS_HERE = " (ranks wait here)"
WAITING = "waiting for other ranks"
BARS_MAX = 64


def contradictions_of_report(data: dict[str, Any]) -> list[str]:
    """Sentences about figures that cannot all be true. data: what `Report.to_json` gives."""
    verdict = data["verdict"]
    return [
        *contradictions(verdict),
        *_of_run(data, verdict),
        *_of_waits(data),
        *_of_stragglers(data, verdict),
        *_of_changes(data, verdict),
    ]


def _of_run(data: dict[str, Any], verdict: dict[str, Any]) -> Iterator[str]:
    run, steps = data["run"], data["steps"]
    if verdict["status"] != "not judged":
        if "replay" not in verdict and run["warmup"] != verdict["warmup"]:
            yield f"warm-up of {run['warmup']} steps, the verdict has {verdict['warmup']}"
        if not run["first_step"] <= verdict["first_step"] <= verdict["last_step"]:
            yield "the verdict judges steps that are not in the report"
        if verdict["last_step"] > run["last_step"]:
            yield f"the verdict judges step {verdict['last_step']} of {run['last_step']}"
    if [one["step"] for one in steps][:1] != [run["first_step"]] or len(steps) != run["steps"]:
        yield f"{len(steps)} rows of {run['steps']} steps from {run['first_step']} on"
    if len(data["ranks"]) != run["ranks"]:
        yield f"{len(data['ranks'])} rows of {run['ranks']} ranks"
    for one in steps:
        busy = [one[f"busy_{name}ms"] for name in ("low_", "", "high_", "max_")]
        if None not in busy and busy != sorted(busy):
            yield f"step {one['step']}: busy for {busy} ms"
    shares = sum(one["critical_share"] for one in data["stages"])
    if not (abs(shares - 1) < SUMS or shares == 0):
        yield f"the critical path has {shares:.3f} of itself"


def _of_waits(data: dict[str, Any]) -> Iterator[str]:
    whole = data["run"]["waited_s"]
    sums = {
        "ranks that waited": sum(one["waited_s"] for one in data["ranks"]),
        "hosts that waited": sum(one["waited_s"] for one in data["hosts"]),
    }
    if _has_all_ranks(data):
        sums["steps"] = sum(one.get("cost_s") or 0.0 for one in data["steps"])
        for name in ("ranks", "hosts"):
            sums[f"{name} that were waited for"] = sum(one["cost_s"] for one in data[name])
    for name, total in sums.items():
        if not math.isclose(total, whole, rel_tol=SUMS, abs_tol=1e-6):
            yield f"the waits of the {name} are {total} s, of the run {whole} s"
    if whole and not data["run"]["synchronising"]:
        yield f"ranks waited {whole} s in no stage"
    named = {one["stage"] for one in data["stages"] if one["synchronises"]}
    if named - {*data["run"]["synchronising"]}:
        yield f"ranks wait in {named}, of the run in {data['run']['synchronising']}"


def _has_all_ranks(data: dict[str, Any]) -> bool:
    """Else it shows some of those that were judged, which wait for others, too."""
    return bool(data["run"]["ranks"] >= data["verdict"]["judged_ranks"])


def _of_stragglers(data: dict[str, Any], verdict: dict[str, Any]) -> Iterator[str]:
    steps = verdict["judged_steps"]
    findings = [one for one in verdict["findings"] if one["ranks"]]
    for one in data["stragglers"]:
        same = [
            other
            for other in findings
            if one["rank"] in other["ranks"]
            and (other["stage"] or "") == one["stage"]
            and other["since_step"] == one["since"]
            and abs(other["saves_ns_a_step"] * steps * 1e-9 - one["saved_s"]) < 1e-9 * (steps + 1)
        ]
        name = f"straggler {one['rank']} in {one['stage']}"
        if not same:
            yield f"{name}: saves {one['saved_s']} s, which no finding does"
        can_cost = data["run"]["synchronising"] and _has_all_ranks(data)
        if can_cost and one["cost_s"] > data["run"]["waited_s"] + 1e-6:
            yield f"{name}: cost {one['cost_s']} s of {data['run']['waited_s']} s that ranks waited"
    listed = {(one["rank"], one["stage"]) for one in data["stragglers"]}
    listed |= {(rank, "") for rank, _ in listed}
    shown = {one["rank"] for one in data["ranks"]}
    for one in findings:
        is_one = len(one["ranks"]) < verdict["judged_ranks"] and (
            one["kind"] in ("straggler", "slower rank")
        )
        named = shown.intersection(one["ranks"])
        missing = [rank for rank in named if (rank, one["stage"] or "") not in listed]
        if is_one and missing:
            yield f"{one['kind']} in {one['stage']}: ranks {missing} are no stragglers"
    slow = len({one["rank"] for one in data["stragglers"]})
    if sum(one["stragglers"] for one in data["hosts"]) != slow:
        yield f"{slow} stragglers are not those of the hosts"


def _of_changes(data: dict[str, Any], verdict: dict[str, Any]) -> Iterator[str]:
    rose = {(one["stage"], one["step"]) for one in data["changes"]
            if one["after_ms"] > one["before_ms"]}  # fmt: skip
    stages = {one["stage"] for one in data["stages"]}
    for one in verdict["findings"]:
        is_known = one["kind"] == "slower since" and one["stage"] in stages
        if is_known and (one["stage"], one["since_step"]) not in rose:
            yield f"slower since step {one['since_step']} in {one['stage']}, changes: {rose}"


# --- the page ---


def contradictions_of_page(text: str) -> list[str]:
    """Sentences about figures on a page that cannot all be true, by its text alone."""
    section = SECTION.search(text)
    verdict = re.search(r'<pre id="verdict">(.*?)</pre>', text, re.S)
    head = HEAD.search(html.unescape(verdict[1]).splitlines()[0]) if verdict else None
    if section is None:
        return []
    average = AVERAGE.search(section[1])
    assert average is not None
    step = _ns(*average.groups())
    parts = {
        html.unescape(name): (_ns(value, unit), float(share))
        for name, value, unit, share in PART.findall(section[1])
    }
    found = [*_of_parts(parts, step), *_of_tables(text, parts)]
    if head is not None and step > _ns(*head.group(1, 2)) * (1 + ROUNDED) + LAST_DIGIT_NS:
        found.append(f"a step takes {step:.0f} ns on average, in the verdict {head[0].strip()}")
    return found


def _of_parts(parts: dict[str, tuple[float, float]], step: float) -> Iterator[str]:
    whole, shares = (sum(one[at] for one in parts.values()) for at in (0, 1))
    if whole < (1 - ROUNDED) * step - len(parts) * LAST_DIGIT_NS:
        yield f"the parts of a step of {step:.0f} ns take {whole:.0f} ns"
    if abs(shares - 100) > 0.06 * len(parts):
        yield f"the parts of a step have {shares:.1f} %"
    for name, (took, share) in parts.items():
        if abs(took - share / 100 * whole) > ROUNDED * whole + LAST_DIGIT_NS:
            yield f"{name}: {took:.0f} ns are not {share} % of {whole:.0f} ns"


def _of_tables(text: str, parts: dict[str, tuple[float, float]]) -> Iterator[str]:
    """Values are those that the tables are sorted by, which are not rounded; ms."""
    stages, waited = rows_of(text, "stages"), 0.0
    for name, mean, waits, *_ in stages:
        of_stage = float(waits[0] or 0.0)
        waited += of_stage
        shown = parts.get(name[1].removesuffix(WAITS_HERE))
        took = (float(mean[0]) - of_stage) * 1e6
        # The mean of a stage is that of the ranks and steps that have it, or 0.
        if shown is not None and not math.isclose(
            took, shown[0], rel_tol=ROUNDED, abs_tol=LAST_DIGIT_NS
        ):
            yield f"{name[1]}: {took:.0f} ns in the table, {shown[0]:.0f} ns in a step"
        if of_stage > float(mean[0]) * (1 + SUMS):
            yield f"{name[1]}: ranks wait {of_stage} ms of {mean[0]} ms"
    in_step = parts.get(WAITING, (0.0, 0.0))[0] * 1e-6
    if abs(in_step - waited) > ROUNDED * waited + LAST_DIGIT_NS * 1e-6:
        yield f"ranks wait {in_step} ms a step, in all stages {waited} ms"
    ranks = rows_of(text, "ranks")
    of_ranks = [float(row[4][0]) for row in ranks if row[4][0]]
    if of_ranks and len(of_ranks) == len(ranks):
        mean_ms = sum(of_ranks) / len(of_ranks)
        if not math.isclose(mean_ms, waited, rel_tol=0.02, abs_tol=LAST_DIGIT_NS * 1e-6):
            yield f"the ranks wait {mean_ms} ms a step, in the stages {waited} ms"


def rows_of(text: str, table: str) -> list[list[tuple[str, str]]]:
    """Of each row of a table on a page the cells: the value that it is sorted by, and its text."""
    found = re.search(rf'<table class="rows" id="{table}">.*?<tbody>(.*?)</tbody>', text, re.S)
    if found is None:
        return []
    return [
        [(value, html.unescape(shown)) for value, shown in CELL.findall(row)]
        for row in ROW.findall(found[1])
    ]


__all__ = ["INFORM", "contradictions_of_page", "contradictions_of_report", "rows_of"]

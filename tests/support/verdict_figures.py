"""Whether the figures of a verdict contradict each other, by what it prints and its JSON alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

UNITS_NS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 6e10, "h": 3.6e12}
TIME = r"([\d,.]+) (ns|µs|ms|s|min|h)"
INFORM = ("compute", "not judged inside", "warm-up", "slower rank")

HEAD = re.compile(rf"\s{{2,}}{TIME} a step, (\d+) steps?, (\d+) ranks?$")
SPENDS = re.compile(rf"(?:spends?|waits?|works?) {TIME} of {TIME} \((\d+) %\)(.*)$")
OTHERS = re.compile(rf"; the others {TIME}$")
WOULD = re.compile(rf"would be (at most )?{TIME} a step \(([\d.e+]+) x\)(.*)$")
RATES = re.compile(r": ([\d,.e+]+) samples/s instead of ([\d,.e+]+)$")
TIMES = re.compile(rf"^\s+(\d+) times?(?:, every \d+ steps)?: {TIME} each$")
LONGER = re.compile(rf"^\s+(\d+) steps? takes? {TIME} longer")
ALSO = re.compile(r"^also: .*: (\d+) % of the run")

ROUNDED = 0.012  # of a figure with three digits and more, twice
LAST_DIGIT_NS = 0.06e6  # of a figure in ms
RATIO = 0.06  # of a ratio with two digits


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _ns(value: str, unit: str) -> float:
    return _number(value) * UNITS_NS[unit]


def contradictions(data: dict[str, Any]) -> list[str]:
    """Sentences about figures that cannot all be true. data: a verdict as `as_data` gives it."""
    if data["status"] == "not judged":
        return []
    return [*_of_findings(data), *_of_text(data)]


def _of_findings(data: dict[str, Any]) -> Iterator[str]:
    step = data["step_ms"] * 1e6
    costly = [one for one in data["findings"] if one["kind"] not in INFORM]
    for one in costly:
        name = f"{one['kind']} in {one['stage']} on {one['ranks'][:4]}"
        if abs(one["cost_ns_a_step"] - one["share"] * step) > 0.02 * step:
            share = one["cost_ns_a_step"] / step
            yield f"{name}: costs {share:.3f} of the step, {one['share']} said"
        if one["saves_ns_a_step"] > 1.001 * one["cost_ns_a_step"] + 1:
            yield f"{name}: saves more than it costs"
        if "others_ns" in one["detail"] and len(one["ranks"]) == data["judged_ranks"]:
            yield f"{name}: there are no others"
        yield from _of_detail(name, one, step, data["judged_steps"])
    for key in ("cost_ns_a_step", "saves_ns_a_step"):
        if (whole := sum(one[key] for one in costly)) > 1.005 * step:
            yield f"all findings together: {key} is {whole / step:.2f} of the step"


def _of_detail(name: str, one: dict[str, Any], step: float, steps: int) -> Iterator[str]:
    detail, cost = one["detail"], one["cost_ns_a_step"]
    took = detail.get("took_ns")
    is_all_of_it = took is not None and not {"others_ns", "at_least"} & detail.keys()
    if is_all_of_it and one["saves_ns_a_step"] > (1 + ROUNDED) * took:
        yield f"{name}: saves {one['saves_ns_a_step']} ns of {took:.0f} ns that are spent"
    if "hiccups" in detail and took is None and one["since_step"] is None:
        whole = detail["hiccups"] * detail["hiccup_ns"] / steps
        if abs(whole - cost) > ROUNDED * cost:
            yield f"{name}: {detail['hiccups']} hiccups are {whole:.0f} ns a step, not {cost}"
    if "each_ns" in detail and "hiccups" not in detail:
        whole = detail["times"] * detail["each_ns"] / steps
        if not 0.94 * cost <= whole <= (1 + ROUNDED) * cost:
            yield f"{name}: {detail['times']} times are {whole:.0f} ns a step, not {cost}"


def _of_text(data: dict[str, Any]) -> Iterator[str]:
    step, shares = data["step_ms"] * 1e6, []
    for line in data["text"]:
        if found := HEAD.search(line):
            if abs(_ns(*found.group(1, 2)) - step) > max(ROUNDED * step, LAST_DIGIT_NS):
                yield f"{line!r}: a step takes {step:.0f} ns"
            if (int(found[3]), int(found[4])) != (data["judged_steps"], data["judged_ranks"]):
                yield f"{line!r}: {data['judged_steps']} steps of {data['judged_ranks']} ranks"
        if found := SPENDS.search(line):
            took, whole, share = _ns(*found.group(1, 2)), _ns(*found.group(3, 4)), int(found[5])
            whole = max(whole, LAST_DIGIT_NS)  # shown as nothing
            off = 1.6 + 200 * LAST_DIGIT_NS / whole
            if took > (1 + ROUNDED) * whole or abs(100 * took / whole - share) > off:
                yield f"{line!r}: the share is not that of the two times"
        if found := WOULD.search(line):
            yield from _of_promise(line, found, step, data)
        if found := ALSO.search(line):
            shares.append(int(found[1]))
    costly = [one for one in data["findings"] if one["kind"] not in INFORM]
    if shares and 100 * costly[0]["share"] + sum(shares) > 101 + len(shares):
        yield f"shares of the run: {100 * costly[0]['share']:.0f} % and {shares} %"


def _of_promise(
    line: str, found: re.Match[str], step: float, data: dict[str, Any]
) -> Iterator[str]:
    better, ratio = _ns(*found.group(2, 3)), float(found[4])
    saves = data["findings"][0]["saves_ns_a_step"]
    if abs(step - better - saves) > max(ROUNDED * step, LAST_DIGIT_NS):
        yield f"{line!r}: a step of {step:.0f} ns saves {saves} ns"
    off = LAST_DIGIT_NS / better if better else 1.0
    if better > 0.01 * step and abs(step / better / ratio - 1) > RATIO + off:
        yield f"{line!r}: {step / better:.2f} times"
    if rates := RATES.search(line):
        then, now = (_number(one) for one in rates.groups())
        if better > 0.01 * step and abs(then / now / (step / better) - 1) > 2 * ROUNDED + off:
            yield f"{line!r}: the rates are {then / now:.3f} apart, the times {step / better:.3f}"

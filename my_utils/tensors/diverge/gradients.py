"""Finds the first gradient that differs, where the forward passes agree.

Gradients are examined in the order in which they arrived. All that arrived before the first one
that differs agrees, so the difference arose in what the backward pass did between them: in one of
the calls that were given the tensor, or in code around them that uses it, too. Gradients of a
module's own parameters, which only that module's backward makes, decide between those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..recordings.recording import Recording, TraceTensorMeta
from ..wrapper_names import plain_name
from .result import CallCheck, Cause, Difference, TensorCheck
from .tensors import Rules, check_tensors, differs, listed, only_different


class _Arrival(NamedTuple):
    """One gradient of one call. when: its place in the backward pass."""

    when: float
    call: CallCheck
    check: TensorCheck


def first_gradient(
    first: Recording, second: Recording, rules: Rules, checks: Sequence[CallCheck]
) -> Difference | None:
    """None also for runs of other numbers of ranks, whose losses are means over other batches."""
    if rules.shapes_may_differ:
        return None
    params = _parameters(first, second, rules)
    arrivals = sorted(
        (_Arrival(_when(check, item), check, item) for check in checks for item in check.gradients),
        key=lambda arrival: arrival.when,
    )
    place = next((p for p, item in enumerate(arrivals) if differs(item.check.verdict)), None)
    if place is None:
        found = _of_parameters(params, checks, _owners(first))
    else:
        found = _of_tensor(_same_tensor(arrivals, place), params, checks, _owners(first))
    return found and replace(found, text=found.text + _one_sided(params))


def _when(call: CallCheck, check: TensorCheck) -> float:
    """The order of arrival. Files of earlier versions do not have it: there, the forward pass
    backwards."""
    meta = check.first or check.second
    if meta is not None and meta.arrived >= 0:
        return meta.arrived
    at = call.pair.at
    return -at.end if check.path.startswith("outputs") else -at.begin


def _same_tensor(arrivals: Sequence[_Arrival], place: int) -> list[_Arrival]:
    """The gradient at `place`, and those right behind it that are of the same tensor: an output of
    one call is an input of the next."""
    wanted = _digests(arrivals[place].check)
    found = [arrivals[place]]
    for arrival in arrivals[place + 1 :]:
        if None in wanted or _digests(arrival.check) != wanted:
            break
        found.append(arrival)
    return found


def _digests(check: TensorCheck) -> tuple[str | None, str | None]:
    """None where there is no digest, "" where there is no tensor."""
    return tuple("" if meta is None else meta.hash for meta in (check.first, check.second))  # type: ignore[return-value]


def _of_tensor(
    group: Sequence[_Arrival],
    params: dict[tuple[str, int], TensorCheck],
    checks: Sequence[CallCheck],
    owners: dict[str, str],
) -> Difference:
    """The tensor's gradient differs. Those to which it was given can have made it, or the code of
    the module in which they were called."""
    by_index = {check.pair.at.event.index: check for check in checks}
    takers = [arrival.call for arrival in group if arrival.check.path.startswith("inputs")]
    evidence = [group[0].check]
    if not takers:
        return _of_code(_outermost([item.call for item in group], by_index), by_index, evidence)
    inner = _innermost(takers, by_index)
    wrong = [call for call in inner if _own_parameters_differ(call, params, owners)]
    if len(wrong) == 1:
        found = only_different(wrong[0].gradients)
        text = (
            "the gradients of the call differ, and that arose in its backward: "
            f"{listed(found or evidence)}"
        )
        return Difference(Cause.GRADIENTS, text, wrong[0], found or evidence)
    around = by_index.get(_outermost(takers, by_index).pair.at.parent)
    names = ", ".join(call.title for call in inner)
    code = "code around it" if around is None else f"the code of {around.title} itself"
    text = (
        f"not decided: gradients differ first at an input of {names}; that arose in the backward "
        f"of {'it' if len(inner) == 1 else 'one of them'}, or of {code}: {listed(evidence)}"
    )
    return Difference(Cause.UNDECIDED, text, around or inner[0], evidence)


def _of_code(
    producer: CallCheck, by_index: dict[int, CallCheck], evidence: list[TensorCheck]
) -> Difference:
    """Nothing that was recorded was given the tensor: the code around its producer used it."""
    around = by_index.get(producer.pair.at.parent)
    if around is None:
        text = f"the gradients of the call differ, and that arrived already: {listed(evidence)}"
        return Difference(Cause.GRADIENTS, text, producer, evidence)
    text = (
        f"the gradients differ, and that arose in the backward of the code of {around.title} "
        f"itself, before it came to the result of {producer.title}: {listed(evidence)}"
    )
    return Difference(Cause.GRADIENTS, text, around, evidence)


def _above(call: CallCheck, by_index: dict[int, CallCheck]) -> list[CallCheck]:
    found = []
    parent = by_index.get(call.pair.at.parent)
    while parent is not None:
        found.append(parent)
        parent = by_index.get(parent.pair.at.parent)
    return found


def _innermost(calls: Sequence[CallCheck], by_index: dict[int, CallCheck]) -> list[CallCheck]:
    """Those in which none of the others is."""
    around = {id(outer) for call in calls for outer in _above(call, by_index)}
    return [call for call in calls if id(call) not in around]


def _outermost(calls: Sequence[CallCheck], by_index: dict[int, CallCheck]) -> CallCheck:
    return min(calls, key=lambda call: len(_above(call, by_index)))


# --- parameters ---


def _parameters(
    first: Recording, second: Recording, rules: Rules
) -> dict[tuple[str, int], TensorCheck]:
    """By plain name and number of the gradient, in the order of arrival."""
    ours, theirs = _by_name(first.param_grads), _by_name(second.param_grads)
    lacking = [_without_gradient(recording, rules) for recording in (first, second)]
    keys = [key for key in ours if key in theirs or key[0] in lacking[1]]
    keys += [key for key in theirs if key not in ours and key[0] in lacking[0]]
    return {key: check_tensors(key[0], ours.get(key), theirs.get(key), rules) for key in keys}


def _without_gradient(recording: Recording, rules: Rules) -> set[str]:
    """The parameters that never had one. Those that had fewer than in the other run were in fewer
    calls."""
    if "grads" not in rules.kinds:
        return set()
    recorded = [info for info in recording.modules if info.recorded]
    known = {plain_name(full) for info in recorded for full in info.params.values()}
    return known - {plain_name(meta.path) for meta in recording.param_grads}


def _one_sided(params: dict[tuple[str, int], TensorCheck]) -> str:
    """Names the parameters that have gradients in one run only."""
    words = []
    for side, lacking in (("A", "second"), ("B", "first")):
        found = (path for (path, _), check in params.items() if not getattr(check, lacking))
        names = [*dict.fromkeys(found)]
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            words.append(f"; gradients in {side} only: {', '.join(names[:4])}{more}")
    return "".join(words)


def _by_name(metas: Sequence[TraceTensorMeta]) -> dict[tuple[str, int], TraceTensorMeta]:
    """By the parameter's plain name and how many gradients it had had before."""
    found: dict[tuple[str, int], TraceTensorMeta] = {}
    for meta in metas:
        name, number = plain_name(meta.path), 0
        while (name, number) in found:
            number += 1
        found[name, number] = meta
    return found


def _owners(recording: Recording) -> dict[str, str]:
    """The module whose parameter it is, by plain names; none for one that several share."""
    found: dict[str, str] = {}
    for info in recording.modules:
        for full in info.params.values():
            name = plain_name(full)
            found[name] = "" if name in found else plain_name(info.name)
    return {name: owner for name, owner in found.items() if owner}


def _own_parameters_differ(
    call: CallCheck, params: dict[tuple[str, int], TensorCheck], owners: dict[str, str]
) -> bool:
    if call.event.call != 0 or call.pair.second.event.call != 0:
        return False  # of a module that is called again and again
    name = plain_name(call.pair.first.event.module)
    return any(
        differs(check.verdict) and owners.get(path) == name for (path, _), check in params.items()
    )


def _of_parameters(
    params: dict[tuple[str, int], TensorCheck],
    checks: Sequence[CallCheck],
    owners: dict[str, str],
) -> Difference | None:
    """Where no gradient of a call differs, or none was recorded."""
    wrong = {path: check for (path, _), check in params.items() if differs(check.verdict)}
    if not wrong:
        return None
    path, check = next(iter(wrong.items()))
    calls = {plain_name(item.pair.first.event.module): item for item in checks}
    owner = calls.get(owners.get(path, ""))
    if owner is not None and any(item.verdict.agrees for item in owner.gradients):
        text = (
            f"the gradient of {path} differs ({check.why}), which arose in the backward of the "
            "call: the gradients that it was given and those that it gave agree"
        )
        return Difference(Cause.GRADIENTS, text, owner, [check])
    text = (
        f"not decided: the gradient of {path} differs ({check.why}), and gradients of calls were "
        "not recorded there; it arose in the backward of that module or of one that runs after it"
    )
    return Difference(Cause.UNDECIDED, text, None, [check])

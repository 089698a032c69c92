"""Finds the first place where two aligned recordings differ, and the cause.

Calls are examined by one clock. What is visible first decides: a call that was given other inputs,
or one that gave other outputs. The first names the code of the module around it, the second the
call itself, which is the innermost one, since calls in it end before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..recordings.recording import TraceEvent, TraceTensorMeta
from .result import CallCheck, Cause, Difference, Pair, TensorCheck
from .tensors import Rules, check_tensors, differs, listed, only_different
from .verdict import Verdict

_PLAIN = (int, float, bool, type(None))

# --- one call ---


def check_call(pair: Pair, rules: Rules) -> CallCheck:
    """Compares all that was recorded of a call."""
    first, second = pair.first.event, pair.second.event
    inputs = _check_lists(first.inputs, second.inputs, rules, _both_have("inputs", pair, rules))
    outputs = _check_outputs(pair, rules)
    gradients = _check_lists(
        first.grads, second.grads, rules,
        _both_have("grads", pair, rules) and first.grad_enabled and second.grad_enabled,
    )  # fmt: skip
    return CallCheck(
        pair,
        inputs=inputs,
        outputs=outputs + _check_values(pair, rules, [*inputs, *outputs]),
        weights=_check_weights(pair, rules),
        gradients=gradients,
        settings=_settings(first, second),
    )


def _both_have(kind: str, pair: Pair, rules: Rules) -> bool:
    """Whether a tensor of the kind that one recording does not have was not there."""
    events = pair.first.event, pair.second.event
    return kind in rules.kinds and all(
        event.error is None and not event.compiled for event in events
    )


def _have_results(pair: Pair, rules: Rules) -> bool:
    both_ended = pair.first.event.status == pair.second.event.status == "ok"
    return both_ended and _both_have("outputs", pair, rules)


def _check_outputs(pair: Pair, rules: Rules) -> list[TensorCheck]:
    """Also of inputs that the call wrote to in place: they are results, too."""
    first, second = pair.first.event, pair.second.event
    checks = _check_lists(first.outputs, second.outputs, rules, _have_results(pair, rules))
    written = [{f"input {m.path}": m for m in event.written} for event in (first, second)]
    return checks + [
        check_tensors(path, written[0].get(path), written[1].get(path), rules)
        for path in {**written[0], **written[1]}
    ]


def _check_values(pair: Pair, rules: Rules, tensors: Sequence[TensorCheck]) -> list[TensorCheck]:
    """The results that are no tensors and differ. They may differ as much as the `tensors` of the
    call; those of one rank of several say nothing about all of them."""
    if rules.shapes_may_differ or not _have_results(pair, rules):
        return []
    first, second = pair.first.event.output_values, pair.second.event.output_values
    allowed = max(
        (rules.tolerance(t.first, t.second) for t in tensors if t.first and t.second),
        default=(rules.rtol or 0.0, rules.atol or 0.0),
    )
    return [
        TensorCheck(path, Verdict.DIFFERENT, f"{a!r:.100} in A, {b!r:.100} in B")
        for path in {**first, **second}
        if not _values_agree(a := first.get(path), b := second.get(path), *allowed)
    ]


def _values_agree(a: object, b: object, rtol: float, atol: float) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isfinite(a) and math.isfinite(b):
        return abs(a - b) <= atol + rtol * abs(b)
    return not (_is_plain(a) and _is_plain(b)) or a == b or (a != a and b != b)


def _is_plain(value: object) -> bool:
    """Not of "<Name>": of other objects only the class is known."""
    return not value.startswith("<") if isinstance(value, str) else isinstance(value, _PLAIN)


def _check_lists(
    first: Sequence[TraceTensorMeta], second: Sequence[TraceTensorMeta], rules: Rules, both: bool
) -> list[TensorCheck]:
    """By path."""
    return _check_named(
        {meta.path: meta for meta in first}, {meta.path: meta for meta in second}, rules, both
    )


def _check_named(
    first: dict[str, TraceTensorMeta],
    second: dict[str, TraceTensorMeta],
    rules: Rules,
    both: bool,
) -> list[TensorCheck]:
    """both: both recordings have what there was of the kind. Else nothing is in common with one
    that has none."""
    if not both and not (first and second):
        return []
    return [
        check_tensors(path, first.get(path), second.get(path), rules)
        for path in {**first, **second}
    ]


def _check_weights(pair: Pair, rules: Rules) -> list[TensorCheck]:
    """Parameters that the call uses itself, and buffers, as they were before the call."""
    first, second = dict(pair.first.weights), dict(pair.second.weights)
    _leave_out_renamed(first, second)
    checks = [_weight(name, first, second, pair, rules) for name in {**first, **second}]
    known = [check for check in checks if check is not None]
    buffers = pair.first.event.buffers, pair.second.event.buffers
    return known + _check_named(*buffers, rules, _both_have("buffers", pair, rules))


def _weight(
    name: str,
    first: dict[str, TraceTensorMeta],
    second: dict[str, TraceTensorMeta],
    pair: Pair,
    rules: Rules,
) -> TensorCheck | None:
    """One that only one run has counts where the module itself has it: it may be used or not."""
    if name in first and name in second:
        return check_tensors(name, first[name], second[name], rules)
    both_own = bool(pair.first.event.params) and bool(pair.second.event.params)
    if both_own and (name in pair.first.event.params or name in pair.second.event.params):
        return check_tensors(name, first.get(name), second.get(name), rules)
    return None


def _leave_out_renamed(
    first: dict[str, TraceTensorMeta], second: dict[str, TraceTensorMeta]
) -> None:
    """Weights with another name and the same bits are the same ones."""
    digests = {second[name].hash: name for name in second.keys() - first.keys()}
    for name in [*first.keys() - second.keys()]:
        other = digests.pop(first[name].hash, None) if first[name].hash else None
        if other is not None:
            second[name] = second.pop(other)


def _settings(first: TraceEvent, second: TraceEvent) -> list[str]:
    """What was set differently for the call, in words."""
    found = []
    if first.training != second.training:
        modes = ("training" if event.training else "evaluation" for event in (first, second))
        found.append("{} mode in A, {} mode in B".format(*modes))
    if first.compiled or second.compiled:
        return found  # of a graph only tensors are known
    for path in {**first.input_values, **second.input_values}:
        a, b = (event.input_values.get(path, "nothing") for event in (first, second))
        if a != b and not (a != a and b != b):
            found.append(f"argument {path} is {a!r} in A, {b!r} in B")
    return found


# --- the first difference ---


def find_first(checks: Sequence[CallCheck]) -> Difference | None:
    """The first difference of calls that are in the order of their ends; None for none."""
    changed = next((check for check in checks if check.parts_here), None)
    entered = min(
        (check for check in checks if differs(check.input_verdict)),
        key=lambda check: check.pair.at.begin,
        default=None,
    )
    if entered is not None and (changed is None or entered.pair.at.begin < changed.pair.at.end):
        return _of_inputs(entered, checks)
    return _of_idle_weights(checks) if changed is None else _of_the_call(changed, checks)


def _reason(check: CallCheck) -> tuple[Cause, str, list[TensorCheck]] | None:
    """What makes the code of a module itself give something else, as far as it is known."""
    weights = only_different(check.weights)
    if any(item.first is not None and item.second is not None for item in weights):
        return Cause.WEIGHTS, f"different weights before the call: {listed(weights)}", weights
    if check.classes is not None:
        text = "another class: {} in A, {} in B".format(*check.classes)
        return Cause.CLASS, text, only_different(check.outputs)
    if weights:
        return Cause.WEIGHTS, f"different weights before the call: {listed(weights)}", weights
    if check.settings:
        text = "called in another way: " + "; ".join(check.settings)
        return Cause.SETTINGS, text, only_different(check.outputs)
    return None


def _of_the_call(check: CallCheck, checks: Sequence[CallCheck]) -> Difference:
    """For a call whose result differs, and nothing that was recorded before it."""
    reason = _reason(check)
    if reason is not None:
        cause, text, evidence = reason
        return Difference(cause, text, check, evidence)
    if check.exception is not None:
        return Difference(Cause.EXCEPTION, check.exception, check, [])
    if _is_unknown(check, checks):
        return _undecided(check, checks)
    text = f"different result from {_what_agrees(check)}"
    if check.event.training and "Dropout" in check.event.type:
        text += " (it draws random numbers: were the seeds the same?)"
    return Difference(Cause.RESULT, text, check, only_different(check.outputs))


def _is_unknown(check: CallCheck, checks: Sequence[CallCheck]) -> bool:
    """Whether the difference may have come in with the inputs, and that was not seen."""
    if check.input_verdict is None:
        return not any(other.inputs for other in checks) and check.pair.at.parent >= 0
    return check.input_verdict is Verdict.UNKNOWN


def _undecided(check: CallCheck, checks: Sequence[CallCheck]) -> Difference:
    parent = _find_parent(check, checks)
    around = "the code around it" if parent is None else f"the code of {parent.title} before it"
    text = (
        f"not decided: {check.title} gives the first result that differs, from inputs of which it "
        f"is not known whether they agree; it arises there, or in {around}"
    )
    return Difference(Cause.UNDECIDED, text, parent or check, only_different(check.outputs))


def _what_agrees(check: CallCheck) -> str:
    words = {
        Verdict.SAME: "the same {}",
        Verdict.CLOSE: "{} that agree within the tolerance",
        Verdict.UNKNOWN: "{} of which it is not known whether they agree",
        Verdict.DIFFERENT: "different {}",
        None: "{} that were not recorded",
    }
    if check.input_verdict == check.weight_verdict:
        return words[check.input_verdict].format("inputs and weights")
    inputs = words[check.input_verdict].format("inputs")
    return f"{inputs}, with {words[check.weight_verdict].format('weights')}"


def _of_inputs(entered: CallCheck, checks: Sequence[CallCheck]) -> Difference:
    """For a call that was given other inputs, while all that was called before it agreed."""
    found = only_different(entered.inputs)
    parent = _find_parent(entered, checks)
    if parent is None:
        origin = "" if entered.event.depth == 0 else ", from code that was not recorded"
        text = f"different inputs{origin}: {listed(found)}"
        return Difference(Cause.INPUTS, text, entered, found)
    before = _last_before(entered, parent, checks)
    place = f"after {_inside(parent, before)} and " if before is not None else ""
    where = (
        f"the code of {parent.title} itself, {place}before it calls {_inside(parent, entered)}, "
        f"whose inputs differ: {listed(found)}"
    )
    reason = _reason(parent)
    if reason is not None:
        cause, text, evidence = reason
        return Difference(cause, f"{text}; it shows in {where}", parent, evidence)
    unknown = _unknown_before(entered, parent, checks)
    if unknown is not None:
        text = f"not decided: in {unknown.title}, whose outputs cannot be compared, or in {where}"
        return Difference(Cause.UNDECIDED, text, parent, found)
    return Difference(Cause.BETWEEN, where, parent, found)


def _inside(parent: CallCheck, child: CallCheck) -> str:
    """The name of a module as seen from the one around it."""
    return child.name.removeprefix(f"{parent.name}.") if parent.name else child.name


def _unknown_before(
    entered: CallCheck, parent: CallCheck, checks: Sequence[CallCheck]
) -> CallCheck | None:
    """A call in `parent` from which the difference may have come, unseen."""
    return next(
        (
            check
            for check in _calls_in(parent, checks)
            if check.pair.at.end < entered.pair.at.begin and check.output_verdict is Verdict.UNKNOWN
        ),
        None,
    )


def _find_parent(check: CallCheck, checks: Sequence[CallCheck]) -> CallCheck | None:
    """The call around this one. The inputs of that one agree, or it would have been the first."""
    around = check.pair.at.parent
    return next((other for other in checks if other.pair.at.event.index == around), None)


def _last_before(
    entered: CallCheck, parent: CallCheck, checks: Sequence[CallCheck]
) -> CallCheck | None:
    """The last call in `parent` that had ended when `entered` began."""
    before = (
        check for check in _calls_in(parent, checks) if check.pair.at.begin < entered.pair.at.begin
    )
    return max(before, key=lambda check: check.pair.at.begin, default=None)


def _calls_in(parent: CallCheck, checks: Sequence[CallCheck]) -> Iterator[CallCheck]:
    return (check for check in checks if check.pair.at.parent == parent.pair.at.event.index)


def _of_idle_weights(checks: Sequence[CallCheck]) -> Difference | None:
    """Weights that differ although nothing that was recorded came out differently."""
    for check in sorted(checks, key=lambda check: -check.event.depth):
        found = only_different(check.weights)
        if found:
            text = f"different weights before the call: {listed(found)}"
            return Difference(Cause.WEIGHTS, text, check, found)
    return None

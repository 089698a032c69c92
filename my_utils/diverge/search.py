"""Finds the first place where two aligned recordings part, and what made them part there.

Calls are examined in the order in which they ended. So the innermost module comes first, and a
difference in a child is not attributed to its parents.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..common.public import public
from ..recordings.recording import Recording, RootCall, TraceEvent, TraceTensorMeta
from .align import Pair, plain_name
from .tensors import Rules, TensorCheck, Verdict, check_tensors, worst

__all__ = ["CallCheck", "Cause", "Difference", "check_call", "find_first", "find_first_gradient"]


@public("my_utils.diverge")
class Cause(enum.StrEnum):
    """What made two runs part.

    WEIGHTS: parameters or buffers differ before the call. INPUTS: the model was called with other
    inputs. RESULT: the same inputs and weights gave another result. BETWEEN: the code of a module
    itself, between two of the modules in it. SETTINGS: training or evaluation mode, or an argument
    that is no tensor. EXCEPTION: the call raised in one run only. GRADIENTS: the forward passes
    agree, and the gradients do not.
    """

    WEIGHTS = "weights"
    INPUTS = "inputs"
    RESULT = "result"
    BETWEEN = "between"
    SETTINGS = "settings"
    EXCEPTION = "exception"
    GRADIENTS = "gradients"


@public("my_utils.diverge")
@dataclass(frozen=True, slots=True)
class CallCheck:
    """One call in both recordings. Verdicts are None where nothing of the kind was recorded."""

    pair: Pair
    inputs: list[TensorCheck]
    outputs: list[TensorCheck]
    weights: list[TensorCheck]
    gradients: list[TensorCheck]
    settings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.pair.first.name

    @property
    def event(self) -> TraceEvent:
        return self.pair.first.event

    @property
    def title(self) -> str:
        """The module and its class, "layers.0.mlp (Linear)"."""
        return f"{self.name or 'the model'} ({self.event.type})"

    @property
    def input_verdict(self) -> Verdict | None:
        return worst(check.verdict for check in self.inputs)

    @property
    def output_verdict(self) -> Verdict | None:
        return worst(check.verdict for check in self.outputs)

    @property
    def weight_verdict(self) -> Verdict | None:
        return worst(check.verdict for check in self.weights)

    @property
    def exception(self) -> str | None:
        """What was raised in one run and not in the other."""
        first, second = self.pair.first.event, self.pair.second.event
        if (first.status == "raised") == (second.status == "raised"):
            return None
        side, event = ("A", first) if first.status == "raised" else ("B", second)
        return f"raised in {side} only: {event.exception or 'an exception'}"

    @property
    def parts_here(self) -> bool:
        """Whether what came out differs."""
        return self.output_verdict is Verdict.DIFFERENT or self.exception is not None


@public("my_utils.diverge")
@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two runs part. `text` describes it in words.

    call: the call concerned; None for gradients of parameters. evidence: the tensors that show it.
    """

    cause: Cause
    text: str
    call: CallCheck | None
    evidence: list[TensorCheck]


# --- one call ---


def check_call(pair: Pair, rules: Rules) -> CallCheck:
    """Compares all that was recorded of a call."""
    first, second = pair.first.event, pair.second.event
    return CallCheck(
        pair,
        inputs=_check_lists(first.inputs, second.inputs, rules),
        outputs=_check_lists(first.outputs, second.outputs, rules),
        weights=_check_weights(pair, rules),
        gradients=_check_lists(first.grads, second.grads, rules),
        settings=_settings(first, second),
    )


def _check_lists(
    first: Sequence[TraceTensorMeta], second: Sequence[TraceTensorMeta], rules: Rules
) -> list[TensorCheck]:
    """By path; nothing where one recording left out the whole kind."""
    if not first or not second:
        return []
    return _check_named(
        {meta.path: meta for meta in first}, {meta.path: meta for meta in second}, rules
    )


def _check_named(
    first: dict[str, TraceTensorMeta], second: dict[str, TraceTensorMeta], rules: Rules
) -> list[TensorCheck]:
    if not first or not second:
        return []
    return [
        check_tensors(path, first.get(path), second.get(path), rules)
        for path in {**first, **second}
    ]


def _check_weights(pair: Pair, rules: Rules) -> list[TensorCheck]:
    """Parameters, of the module and of those in it, and buffers, as they were before the call."""
    first, second = pair.first.event, pair.second.event
    checks = _check_named(
        _weights_of(first, pair.first_root), _weights_of(second, pair.second_root), rules
    )
    return checks + _check_named(first.buffers, second.buffers, rules)


def _weights_of(event: TraceEvent, root: RootCall | None) -> dict[str, TraceTensorMeta]:
    """Those of the event, and those of the root's table that belong to modules below it, which a
    module may use without calling the one that owns them."""
    found = dict(event.params)
    prefix = f"{event.module}." if event.module else ""
    for name, meta in ({} if root is None else root.weights).items():
        if name.startswith(prefix):
            found.setdefault(plain_name(name.removeprefix(prefix)), meta)
    return found


def _settings(first: TraceEvent, second: TraceEvent) -> list[str]:
    """What was set differently for the call, in words."""
    found = []
    if first.training != second.training:
        modes = ("training" if event.training else "evaluation" for event in (first, second))
        found.append("{} mode in A, {} mode in B".format(*modes))
    for path in {**first.input_values, **second.input_values}:
        a, b = (event.input_values.get(path, "nothing") for event in (first, second))
        if a != b and not (a != a and b != b):
            found.append(f"argument {path} is {a!r} in A, {b!r} in B")
    return found


# --- the first difference ---


def find_first(checks: Sequence[CallCheck]) -> Difference | None:
    """The first difference of calls that stand in the order of their ends; None for none."""
    changed = next((check for check in checks if check.parts_here), None)
    entered = _first_other_input(checks)
    if changed is None:
        if entered is not None:
            return _of_inputs(entered, checks)
        return _of_idle_weights(checks)
    if _differs(changed.weight_verdict) or changed.settings:
        return _of_the_call(changed)
    if _differs(changed.input_verdict) and entered is not None:
        return _of_inputs(entered, checks)
    return _of_the_call(changed)


def _differs(verdict: Verdict | None) -> bool:
    return verdict is Verdict.DIFFERENT


def _first_other_input(checks: Iterable[CallCheck]) -> CallCheck | None:
    """The call that began first among those whose inputs differ."""
    return min(
        (check for check in checks if _differs(check.input_verdict)),
        key=lambda check: check.event.index,
        default=None,
    )


def _different(checks: Iterable[TensorCheck]) -> list[TensorCheck]:
    return [check for check in checks if _differs(check.verdict)]


def _of_the_call(check: CallCheck) -> Difference:
    """For a call whose result differs."""
    if _differs(check.weight_verdict):
        found = _different(check.weights)
        text = f"different weights before the call: {_listed(found)}"
        return Difference(Cause.WEIGHTS, text, check, found)
    if check.settings:
        text = "called in another way: " + "; ".join(check.settings)
        return Difference(Cause.SETTINGS, text, check, _different(check.outputs))
    if check.exception is not None:
        return Difference(Cause.EXCEPTION, check.exception, check, [])
    text = f"different result from {_what_agrees(check)}"
    if check.event.training and "Dropout" in check.event.type:
        text += " (it draws random numbers: were the seeds the same?)"
    return Difference(Cause.RESULT, text, check, _different(check.outputs))


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
    found = _different(entered.inputs)
    parent = _parent_of(entered, checks)
    if parent is None:
        origin = "" if entered.event.depth == 0 else ", from code that was not recorded"
        text = f"different inputs{origin}: {_listed(found)}"
        return Difference(Cause.INPUTS, text, entered, found)
    before = _last_before(entered, parent, checks)
    place = f"after {_inside(parent, before)} and " if before is not None else ""
    text = (
        f"the code of {parent.title} itself, {place}before it calls {_inside(parent, entered)}, "
        f"whose inputs differ: {_listed(found)}"
    )
    return Difference(Cause.BETWEEN, text, parent, found)


def _inside(parent: CallCheck, child: CallCheck) -> str:
    """The name of a module as seen from the one around it."""
    return child.name.removeprefix(f"{parent.name}.") if parent.name else child.name


def _parent_of(check: CallCheck, checks: Sequence[CallCheck]) -> CallCheck | None:
    """The call around this one. The inputs of that one agree, or it would have been the first."""
    return next((other for other in checks if other.event.index == check.pair.first.parent), None)


def _last_before(
    entered: CallCheck, parent: CallCheck, checks: Sequence[CallCheck]
) -> CallCheck | None:
    """The last call in `parent` that had ended when `entered` began."""
    return max(
        (
            check
            for check in checks
            if check.pair.first.parent == parent.event.index
            and check.event.index < entered.event.index
        ),
        key=lambda check: check.event.index,
        default=None,
    )


def _of_idle_weights(checks: Sequence[CallCheck]) -> Difference | None:
    """Weights that differ although nothing that was recorded came out differently."""
    for check in sorted(checks, key=lambda check: -check.event.depth):
        if _differs(check.weight_verdict):
            return _of_the_call(check)
    return None


def _listed(checks: Sequence[TensorCheck]) -> str:
    shown = [f"{check.path or 'the tensor'} ({check.why})" for check in checks[:4]]
    return ", ".join(shown) + (f" and {len(checks) - 4} more" if len(checks) > 4 else "")


# --- gradients ---


def find_first_gradient(
    first: Recording, second: Recording, rules: Rules, checks: Sequence[CallCheck]
) -> Difference | None:
    """The first gradient that differs where the forward passes agree: of a call, from the last one
    backwards, else of a parameter, in the order of arrival."""
    for check in sorted(checks, key=lambda check: -check.event.end_index):
        found = _different(check.gradients)
        if found:
            arrived = worst(c.verdict for c in check.gradients if c.path.startswith("outputs"))
            origin = "arrived already" if _differs(arrived) else "arose in its backward"
            text = f"the gradients of the call differ, and that {origin}: {_listed(found)}"
            return Difference(Cause.GRADIENTS, text, check, found)
    return _of_parameter_gradients(first, second, rules)


def _of_parameter_gradients(first: Recording, second: Recording, rules: Rules) -> Difference | None:
    ours, theirs = _by_name(first.param_grads), _by_name(second.param_grads)
    for key, meta in ours.items():
        check = check_tensors(key[0], meta, theirs.get(key), rules)
        if _differs(check.verdict):
            text = f"the gradient of {key[0]} differs ({check.why})"
            return Difference(Cause.GRADIENTS, text, None, [check])
    return None


def _by_name(metas: Sequence[TraceTensorMeta]) -> dict[tuple[str, int], TraceTensorMeta]:
    """By the parameter's plain name and how many gradients it had had before."""
    found: dict[tuple[str, int], TraceTensorMeta] = {}
    for meta in metas:
        name, number = plain_name(meta.path), 0
        while (name, number) in found:
            number += 1
        found[name, number] = meta
    return found

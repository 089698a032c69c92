"""The result of comparing two recordings: checks of tensors and calls, and their reports.

The classes with `Data` in their names are the same as plain data, which goes into JSON.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from ...core.notebook import html_text, one_screen
from ...core.public import public
from ..recordings.recording import Recording, RootCall, TraceEvent, TraceTensorMeta
from .verdict import Verdict, worst

EXIT_SAME = 0
EXIT_DIFFERENT = 1
EXIT_NOT_COMPARABLE = 2

Status = Literal["same", "different", "not comparable"]

_COLOURS: dict[Status, str] = {
    "same": "#009e73",
    "different": "#d55e00",
    "not comparable": "#8a8f98",
}
_EXIT: dict[Status, int] = {
    "same": EXIT_SAME,
    "different": EXIT_DIFFERENT,
    "not comparable": EXIT_NOT_COMPARABLE,
}


def plain_type(name: str) -> str:
    """The class of a module without what `fully_shard` adds.

    >>> plain_type("FSDPLinear")
    'Linear'
    """
    return name.removeprefix("FSDP")


@public("my_utils.tensors.diverge")
@dataclass(frozen=True, slots=True)
class Figures:
    """How far b is from a. What the source does not hold is None.

    source: "sample" (of `elements` elements) or "stats".
    max_abs, max_rel: the largest |a - b| and |a - b| / |b|.
    rel_l2: |a - b| / |b| in the L2 norm. From statistics it is the least that the norms prove.
    nans: NaNs and infinities in a and in b, where they differ.
    """

    source: str
    elements: int
    max_abs: float | None = None
    max_rel: float | None = None
    rel_l2: float | None = None
    cosine: float | None = None
    nans: tuple[int, int] | None = None


@public("my_utils.tensors.diverge")
@dataclass(frozen=True, slots=True)
class TensorCheck:
    """One tensor of a call in both recordings. `why` says what decided, in words. `first` or
    `second` is None where one recording has none, both are for results that are no tensors."""

    path: str
    verdict: Verdict
    why: str = ""
    first: TraceTensorMeta | None = None
    second: TraceTensorMeta | None = None
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call with the name under which it is searched in the other recording.

    parent: index of the recorded call around it, wrappers left out, or -1.
    begin, end: when it ran, by one clock for all calls of the recording.
    weights: its own parameters by their names in it, and those of modules below that are not
        called themselves.
    """

    name: str
    event: TraceEvent
    parent: int
    begin: int = 0
    end: int = 0
    weights: dict[str, TraceTensorMeta] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """A call as A and as B recorded it, with the outermost calls around it. `at` is the one of the
    two whose place among the calls counts."""

    first: Call
    second: Call
    first_root: RootCall | None
    second_root: RootCall | None
    at: Call


@public("my_utils.tensors.diverge")
class Cause(enum.StrEnum):
    """Why two runs differ.

    WEIGHTS: parameters or buffers differ before the call. INPUTS: the model was called with other
    inputs. RESULT: the same inputs and weights gave another result. BETWEEN: the code of a module
    itself, between two of the modules in it. CLASS: the module is of another class. SETTINGS:
    training or evaluation mode, or an argument that is not a tensor. EXCEPTION: the call raised in
    one run only. GRADIENTS: the forward passes agree, and the gradients do not. UNDECIDED: the
    place is in the call, if one is given, but the recordings do not show where or why.
    """

    WEIGHTS = "weights"
    INPUTS = "inputs"
    RESULT = "result"
    BETWEEN = "between"
    CLASS = "class"
    SETTINGS = "settings"
    EXCEPTION = "exception"
    GRADIENTS = "gradients"
    UNDECIDED = "not decided"


@public("my_utils.tensors.diverge")
@dataclass(frozen=True, slots=True)
class CallCheck:
    """One call in both recordings. Verdicts are None if nothing of the kind was recorded."""

    pair: Pair
    inputs: list[TensorCheck]
    outputs: list[TensorCheck]
    weights: list[TensorCheck]
    gradients: list[TensorCheck]
    settings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """That of the module in A, as `named_modules` has it."""
        return self.pair.first.name

    @property
    def event(self) -> TraceEvent:
        """The call as A recorded it."""
        return self.pair.first.event

    @property
    def title(self) -> str:
        """The module and its class, "layers.0.mlp (Linear)"."""
        return f"{self.name or 'the model'} ({self.event.type})"

    @property
    def input_verdict(self) -> Verdict | None:
        """The worst of its inputs."""
        return worst(check.verdict for check in self.inputs)

    @property
    def output_verdict(self) -> Verdict | None:
        """The worst of its outputs."""
        return worst(check.verdict for check in self.outputs)

    @property
    def weight_verdict(self) -> Verdict | None:
        """The worst of its weights and buffers."""
        return worst(check.verdict for check in self.weights)

    @property
    def classes(self) -> tuple[str, str] | None:
        """Those of the module in A and in B, where they differ."""
        first, second = (
            plain_type(call.event.type) for call in (self.pair.first, self.pair.second)
        )
        return None if first == second else (first, second)

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
        """Whether the outputs differ."""
        return self.output_verdict is Verdict.DIFFERENT or self.exception is not None


@public("my_utils.tensors.diverge")
@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two runs diverge. `text` describes it in words.

    call: the call concerned; None for gradients of parameters. evidence: the tensors that show it.
    """

    cause: Cause
    text: str
    call: CallCheck | None
    evidence: list[TensorCheck]


@public("my_utils.tensors.diverge")
@dataclass(frozen=True, slots=True)
class RankReport:
    """What was found for one rank.

    status: "same", "different" or "not comparable"; `reason` says why it is the last one.
    difference: the first one. checks: the calls that are in both, in the order of their ends.
    only_a, only_b: how many calls are in one recording only.
    renamed: modules that have another name in B: the name in A by the one in B.
    """

    rank: int
    status: Status
    reason: str
    difference: Difference | None
    checks: list[CallCheck]
    only_a: int
    only_b: int
    recording_a: Recording
    recording_b: Recording
    renamed: dict[str, str] = field(default_factory=dict)


@public("my_utils.tensors.diverge")
@dataclass(frozen=True, slots=True)
class Report:
    """What was found for two runs. `first` is the rank whose difference came first."""

    path_a: str
    path_b: str
    status: Status
    reason: str
    ranks: list[RankReport]
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> RankReport | None:
        """Of the ranks that differ, the one that did so first; None if none does."""
        parted = [rank for rank in self.ranks if rank.difference is not None]
        return min(parted, key=_place_of_difference, default=None)

    @property
    def exit_code(self) -> int:
        """That of `my_utils diverge`: 0 the same, 1 different, 2 not comparable."""
        return _EXIT[self.status]

    def __repr__(self) -> str:
        """One screen; `my_utils diverge` prints all of it."""
        return one_screen(self._lines())

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_text(self._lines(), _COLOURS[self.status])

    def _lines(self) -> list[str]:
        from .text import render

        return render(self, limit=8).splitlines()


def _place_of_difference(rank: RankReport) -> float:
    call = None if rank.difference is None else rank.difference.call
    return math.inf if call is None else call.event.index


# --- plain data ---


class FiguresData(TypedDict):
    """How far B is from A. NaN and infinities are the texts "nan", "inf" and "-inf"; what the
    source does not hold is null.

    source: "sample" (of `elements` elements) or "stats".
    max_abs: the largest |a - b|.
    max_rel: the largest |a - b| / |b|.
    rel_l2: |a - b| / |b| in the L2 norm; from statistics what the norms prove at least.
    nans: NaNs and infinities in A and in B, where they differ.
    """

    source: str
    elements: int
    max_abs: float | str | None
    max_rel: float | str | None
    rel_l2: float | str | None
    cosine: float | str | None
    nans: tuple[int, int] | None


class TensorData(TypedDict):
    """One tensor of a call in both recordings.

    verdict: "same" is bit for bit, "close" within the tolerance; "unknown": the recordings do not
        decide it.
    why: what decided, in words.
    """

    path: str
    verdict: Verdict
    why: str
    shape: list[int] | None
    dtype: str | None
    figures: FiguresData | None


class CallData(TypedDict):
    """A call whose results differ. Verdicts are null if nothing of the kind was recorded.

    type: the class of the module.
    call: its number among those of the module.
    figures: the largest difference.
    """

    module: str
    type: str
    call: int
    inputs: Verdict | None
    weights: Verdict | None
    outputs: Verdict | None
    figures: FiguresData | None


class DifferenceData(TypedDict):
    """The first place where two runs part; module, type and call are null for gradients of
    parameters.

    text: the difference in words.
    type: the class of the module.
    call: its number among those of the module.
    evidence: the tensors that show it.
    """

    cause: Cause
    text: str
    module: str | None
    type: str | None
    call: int | None
    evidence: list[TensorData]


class RankData(TypedDict):
    """What was found for one rank.

    reason: why it is not comparable, or what there is to say of it.
    calls: how many are in both recordings.
    only_a: how many are in the recording of A only.
    only_b: how many are in the recording of B only.
    difference: the first one.
    growth: the calls whose results differ, in the order of their ends.
    """

    rank: int
    status: Status
    reason: str
    calls: int
    only_a: int
    only_b: int
    difference: DifferenceData | None
    growth: list[CallData]


class ReportData(TypedDict):
    """What was found for two runs.

    a: the path of A.
    b: the path of B.
    reason: why they are not comparable, or what there is to say of them.
    first_rank: the rank whose difference came first.
    """

    version: Literal[1]
    a: str
    b: str
    status: Status
    reason: str
    notes: list[str]
    first_rank: int | None
    ranks: list[RankData]

"""Compares the weights of two sides, whatever their layouts, and says what differs and where."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from ...core.ranges import ranks_text
from ...core.units import count_text
from .file import BUFFERS
from .weights import BLOCK_BYTES, STATISTICS, Tensor, Weights, only_block, unchecked
from .words import buffers_text

LINES_MAX = 12
_BOXES_SHOWN = 3
_EXTRA_STATE = "_extra_state"  # torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX
_SCALE = re.compile(r"_scale|_zero_point")

Kind = Literal["values", "replicas", "missing", "only", "shape", "dtype"]
Status = Literal["equal", "differ", "not comparable"]


class FindingData(msgspec.Struct):
    """kind: "values" differ; "replicas" of one side do; parts are "missing"; the tensor is in
    "only" one side; another "shape"; another "dtype", so that it was not compared. name: of the
    tensor. side: "A", "B", or "" for both. ranks: those that differ from the others, where it is
    known. text: what differs, and where."""

    kind: Kind
    name: str
    side: str
    ranks: list[int]
    text: str


class ComparedData(msgspec.Struct):
    """What differs between the weights of A and those of B.

    version: of this object. a, b: what was compared. status: "equal", "differ" or "not comparable".
    compared: tensors that are in both. equal: those of them without a finding. findings: all of
    them. notes: what was left out or could not be checked.
    """

    version: int
    a: str
    b: str
    status: Status
    compared: int
    equal: int
    findings: list[FindingData]
    notes: list[str]


def compare_weights(a: Weights, b: Weights, ignore: Sequence[str] = ()) -> ComparedData:
    """ignore: globs of names that are left out."""
    names = [
        name for name in dict.fromkeys((*a.tensors, *b.tensors))
        if not any(fnmatchcase(name, glob) for glob in ignore)
    ]  # fmt: skip
    sides = _Sides(a, b)
    findings: list[FindingData] = []
    for name in names:
        findings += sides.check(name)
    findings, scale_notes = _without_scales(findings)
    findings, state_notes = _without_extra_states(findings)
    both = [name for name in names if name in a.tensors and name in b.tensors]
    bad = {finding.name for finding in findings}
    notes = [*_side_notes("A", a, names), *_side_notes("B", b, names), *sides.notes]
    notes += [*scale_notes, *state_notes]
    if not both:
        empty = [side for side, weights in sides.sides.items() if not weights.tensors]
        none = f"no tensor is in {' and in '.join(empty)}"
        notes.insert(0, none if empty else f"no name is in both{_hint(a.tensors, b.tensors)}")
    status: Status = "equal" if both and not findings else "not comparable"
    if both and any(finding.kind != "dtype" for finding in findings):
        status = "differ"
    good = sum(name not in bad for name in both)
    return ComparedData(1, a.title(), b.title(), status, len(both), good, findings, notes)


def check_replicas(side: str, weights: Weights, names: Iterable[str]) -> Iterator[FindingData]:
    """What replicas of one side, and the parts of its tensors, say without the other side."""
    for name in names:
        for tensor in weights.tensors.get(name, ()):
            problems = [] if tensor.why == BUFFERS else tensor.replica_problems()
            for ranks, where, against in problems:
                place = f"{where}: " if where else ""
                text = f"replicas differ: {place}{against}"
                yield FindingData("replicas", name, side, sorted(ranks), text)
            missing = tensor.missing_text()
            if missing and not tensor.why:
                yield FindingData("missing", name, side, [], missing)


def _side_notes(side: str, weights: Weights, names: Sequence[str]) -> Iterator[str]:
    for note in weights.notes:
        yield f"{side}: {note}"
    chosen = [tensor for name in names for tensor in weights.tensors.get(name, ())]
    for why, of in unchecked(chosen).items():
        yield f"{side}: not checked between ranks: {count_text(len(of), 'tensor')}, {why}"
    buffers = [one.name for one in chosen if one.why == BUFFERS and one.replica_problems()]
    if buffers:
        yield f"{side}: {buffers_text(buffers)}"


class _Sides:
    def __init__(self, a: Weights, b: Weights) -> None:
        self.sides = {"A": a, "B": b}
        self.notes: list[str] = []
        self._names = {side: _by_values(weights) for side, weights in self.sides.items()}
        self._tied = {side: _by_first(weights) for side, weights in self.sides.items()}

    def check(self, name: str) -> list[FindingData]:
        findings = [
            finding
            for side, weights in self.sides.items()
            for finding in check_replicas(side, weights, [name])
        ]
        a, b = (weights.tensors.get(name) for weights in self.sides.values())
        if a is None or b is None:
            return findings + self._alone(name, "A" if b is None else "B", (a or b or [])[0])
        pairs = [(first, second) for first in a for second in b]
        differing = [(*pair, *found) for pair in pairs if (found := self._difference(*pair))]
        is_statistics = a[0].kind == STATISTICS and len(differing) < len(pairs)
        is_known = any(finding.kind == "missing" for finding in findings)
        if not differing or is_statistics or is_known:
            return findings
        kind, text = differing[0][2:]
        ranks: set[int] = set()
        for first, second, *_ in differing:
            ranks |= first.ranks if len(a) > 1 else second.ranks if len(b) > 1 else set()
        if ranks and len(differing) < len(pairs):
            text = f"{text} ({ranks_text(ranks, 4)})"
        return [*findings, FindingData(kind, name, "", sorted(ranks), text)]

    def _difference(self, a: Tensor, b: Tensor) -> tuple[Kind, str] | None:
        if a.shape != b.shape:
            return "shape", f"shape {list(a.shape)} in A, {list(b.shape)} in B"
        if a.dtype != b.dtype:
            return "dtype", f"{a.dtype} in A, {b.dtype} in B{self._dtype_hint(a.dtype, b.dtype)}"
        if set(a.totals) & set(b.totals):
            return None
        if not a.totals or not b.totals:
            return "missing", "parts of it are missing on both sides, and were not compared"
        elsewhere = self._elsewhere(a, b)
        if elsewhere:
            return "values", f"values differ; {elsewhere}"
        places = _places(a, b)
        words = "; ".join(places[:_BOXES_SHOWN]) + ("; …" if len(places) > _BOXES_SHOWN else "")
        if not words:
            is_one = a.nbytes <= BLOCK_BYTES or only_block(a.totals[0], b.totals[0]) is not None
            words = "in one block of 4 KiB" if is_one else "in several places"
        return "values", f"values differ: {words}"

    def _tied_with(self, tensor: Tensor, side: str) -> list[str]:
        """The other names of a tensor, any of which may be the one that the other side has."""
        first = tensor.tied or tensor.name
        return [name for name in (first, *self._tied[side][first]) if name != tensor.name]

    def _dtype_hint(self, a: str, b: str) -> str:
        """What to do about two types: a cast to the narrower one, or nothing."""
        order = ("float16", "bfloat16", "float32", "float64")
        if a in order and b in order:
            narrow, wide = sorted((a, b), key=order.index)
            side = "A" if a == wide else "B"
            if self.sides[side].is_checkpoint:
                return f": compare with --dtype {narrow}"
            return f": take the passport of {side} with dtype='{narrow}'"
        one = next((dtype for dtype in (a, b) if _is_scaled(dtype)), "")
        return f": values of {one} are scaled, quantize both sides in the same way" if one else ""

    def _elsewhere(self, a: Tensor, b: Tensor) -> str:
        """Whether a side has the values of the other one under another name, and only there."""
        for side, tensor in (("A", b), ("B", a)):
            others = self._names[side].get(_key(tensor), [])
            if len(others) == 1 and others[0] != tensor.name:
                other = "B" if side == "A" else "A"
                return f"{side} has the values of {other} under the name {others[0]}"
        return ""

    def _alone(self, name: str, side: str, tensor: Tensor) -> list[FindingData]:
        other = "B" if side == "A" else "A"
        text = f"only in {side}"
        for tied in self._tied_with(tensor, side):
            same = self.sides[other].tensors.get(tied)
            if same is not None and set(same[0].totals) & set(tensor.totals):
                self.notes.append(f"{name} is {text}; its values are those of {tied} (tied)")
                return []
        mine = self.sides[side].tensors
        there = [one for one in self._names[other].get(_key(tensor), []) if one not in mine]
        here = [one for one in self._names[side].get(_key(tensor), []) if one != name]
        if len(there) == 1:
            text += f"; {other} has these values under the name {there[0]}"
        elif len(here) == 1:
            text += f"; its values are those of {here[0]}"
        return [FindingData("only", name, side, [], text)]


def _key(tensor: Tensor) -> object:
    return (tensor.dtype, tensor.shape, tensor.totals[0].sums) if tensor.totals else None


def _by_values(weights: Weights) -> dict[object, list[str]]:
    found: dict[object, list[str]] = defaultdict(list)
    for name, same in weights.tensors.items():
        if same[0].totals and not same[0].tied:
            found[_key(same[0])].append(name)
    return found


def _by_first(weights: Weights) -> dict[str, list[str]]:
    """The names that are tied to a first one."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, same in weights.tensors.items():
        if same[0].tied:
            found[same[0].tied].append(name)
    return found


def _places(a: Tensor, b: Tensor) -> list[str]:
    """Where the values differ, as far as it is known."""
    if a.held.keys() != b.held.keys() or len(a.tilings) > 1:
        return list(filter(None, [a.where(a.totals[0], b.totals[0])]))
    differing = [box for box in a.held if a.values[box] != b.values[box]]
    places = (a.where(a.values[box], b.values[box], box) for box in sorted(differing))
    return list(dict.fromkeys(filter(None, places)))


def _is_scaled(dtype: str) -> bool:
    """Whether weights of this type mean nothing without their scales."""
    return dtype.startswith(("float8", "float4")) or dtype in ("int8", "uint8")


def _without_scales(findings: list[FindingData]) -> tuple[list[FindingData], list[str]]:
    """The scales of quantized weights are in one side only where the other side is not quantized:
    no difference of their own, but a note."""
    modules = {
        finding.name.rpartition(".")[0]
        for finding in findings
        if finding.kind == "dtype" and "are scaled" in finding.text
    }

    def is_scale(name: str) -> bool:
        module, _, last = name.rpartition(".")
        return module in modules and _SCALE.search(last) is not None

    kept, scales = _set_apart(findings, is_scale)
    return kept, [f"{side}: not compared: the scales of {count}" for side, count in scales]


def _without_extra_states(findings: list[FindingData]) -> tuple[list[FindingData], list[str]]:
    """What modules save as their extra state are no weights, and often in one side only."""
    kept, states = _set_apart(findings, lambda name: _EXTRA_STATE in name.split("."))
    return kept, [f"{side}: not compared: {count} of extra states" for side, count in states]


def _set_apart(
    findings: list[FindingData], is_apart: Callable[[str], bool]
) -> tuple[list[FindingData], list[tuple[str, str]]]:
    """The other findings, and by side how many tensors are in it only and apart by their name."""
    kept = []
    apart: Counter[str] = Counter()
    for finding in findings:
        if finding.kind == "only" and is_apart(finding.name):
            apart[finding.side] += 1
        else:
            kept.append(finding)
    return kept, [(side, count_text(count, "tensor")) for side, count in apart.items()]


def _hint(a: Iterable[str], b: Iterable[str]) -> str:
    """Whether one side has a prefix more."""
    for names, others in ((list(a), set(b)), (list(b), set(a))):
        for name in names[:100]:
            parts = name.split(".")
            for cut in range(1, len(parts)):
                if ".".join(parts[cut:]) in others:
                    return f": try --map '{'.'.join(parts[:cut])}.*=*'"
    return ""


# --- text ---


def format_lines(data: ComparedData) -> list[str]:
    """At most `LINES_MAX`."""
    lines = [f"A  {data.a}", f"B  {data.b}"]
    if data.status == "equal":
        lines.append(f"equal: {count_text(data.equal, 'tensor')}, bit for bit")
    else:
        lines.append(f"{data.status}: {data.equal:,} of {data.compared:,} common tensors are equal")
    found = finding_lines(data.findings)
    room = LINES_MAX - len(lines) - 1
    notes = data.notes[: max(room - len(found), min(2, len(data.notes)))]
    shown = found[: room - len(notes)]
    lines += [*shown, *notes]
    left = len(found) - len(shown) + len(data.notes) - len(notes)
    return [*lines, f"and {left} more lines: --json has all"] if left else lines


def finding_lines(findings: Iterable[FindingData]) -> list[str]:
    """A line each; those of several tensors with one text are together."""
    together: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for finding in findings:
        key = (finding.side, finding.text, finding.kind)
        together[key].append(finding.name)
    lines = []
    for (side, text, kind), names in together.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        where = f"{side}: " if side and kind != "only" else ""
        lines.append(f"{where}{names[0]}{more}: {text}")
    return lines

"""Matches the calls of one recording with those of the other.

Wrappers add words to the names of modules, a run may make calls that the other does not, and a
model may have been recorded as a part of a larger one. So names are brought to one form first. Then
the outermost calls are paired, and in each pair the calls of every module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from ..recordings.recording import Recording, RootCall, TraceEvent

__all__ = ["Call", "Pair", "align", "plain_name"]

# DistributedDataParallel and DeepSpeed, torch.compile, FSDP 1, activation checkpointing, Fabric.
_WRAPPERS = frozenset(
    ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
)


def plain_name(name: str) -> str:
    """The name of a module without what wrappers add.

    >>> plain_name("module.layers.0._orig_mod.attn")
    'layers.0.attn'
    """
    return ".".join(word for word in name.split(".") if word not in _WRAPPERS)


@dataclass(frozen=True, slots=True)
class Call:
    """A call with the name under which it is searched in the other recording.

    parent: index of the recorded call around it, wrappers left out, or -1.
    """

    name: str
    event: TraceEvent
    parent: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A call as A and as B recorded it, with the outermost calls around it."""

    first: Call
    second: Call
    first_root: RootCall | None
    second_root: RootCall | None


@dataclass(frozen=True, slots=True)
class _Side:
    """The calls of one recording by outermost call and name."""

    roots: list[RootCall | None]
    calls: dict[int, dict[str, list[Call]]]  # by the root's index, -1 for those without

    @property
    def names(self) -> set[str]:
        return {name for calls in self.calls.values() for name in calls}


def align(first: Recording, second: Recording) -> tuple[list[Pair], list[Call], list[Call]]:
    """The pairs in the order in which A's calls ended, and the calls that only A and only B has."""
    sides = [_side(first, ""), _side(second, "")]
    prefixes = _extra_prefixes(sides[0].names, sides[1].names)
    if any(prefixes):
        sides = [_side(first, prefixes[0]), _side(second, prefixes[1])]
    pairs: list[Pair] = []
    only: tuple[list[Call], list[Call]] = ([], [])
    root_keys = [[_root_key(root, side) for root in side.roots] for side in sides]
    for place_a, place_b in pair_up(*root_keys):
        root_a = None if place_a is None else sides[0].roots[place_a]
        root_b = None if place_b is None else sides[1].roots[place_b]
        calls_a = {} if place_a is None else sides[0].calls[-1 if root_a is None else root_a.index]
        calls_b = {} if place_b is None else sides[1].calls[-1 if root_b is None else root_b.index]
        for name in {**calls_a, **calls_b}:
            _pair_calls(calls_a.get(name, []), calls_b.get(name, []), root_a, root_b, pairs, only)
    pairs.sort(key=lambda pair: end_order(pair.first.event))
    return pairs, only[0], only[1]


def end_order(event: TraceEvent) -> tuple[bool, int, int]:
    """Sorts calls by their end; those that never ended come last."""
    return (event.end_index < 0, event.end_index, event.index)


def _side(recording: Recording, prefix: str) -> _Side:
    """Recomputed calls are left out, and of a wrapper and what it wraps the wrapper."""
    roots: list[RootCall | None] = [root for root in recording.roots if root.phase == "forward"]
    calls: dict[int, dict[str, list[Call]]] = {root.index: {} for root in roots if root}
    wrappers = _wrapper_calls(recording)
    for event in recording.events:
        if event.phase != "forward" or event.index in wrappers:
            continue
        if event.root not in calls:
            calls[event.root] = {}
            roots.append(None if event.root < 0 else recording.roots[event.root])
        parent = event.parent
        while parent in wrappers:
            parent = recording.events[parent].parent
        call = Call(_without(prefix, plain_name(event.module)), event, parent)
        calls[event.root].setdefault(call.name, []).append(call)
    return _Side(roots, calls)


def _wrapper_calls(recording: Recording) -> set[int]:
    return {
        event.parent
        for event in recording.events
        if event.parent >= 0
        and plain_name(event.module) == plain_name(recording.events[event.parent].module)
        and event.module != recording.events[event.parent].module
    }


def _without(prefix: str, name: str) -> str:
    if prefix and name == prefix:
        return ""
    return name.removeprefix(prefix + ".") if prefix else name


def _extra_prefixes(first: set[str], second: set[str]) -> tuple[str, str]:
    """What stands before the names of one side only, for a model that is a part of a larger one
    there: the prefix that makes most names equal."""
    in_first, gain_first = _best_prefix(first, second)
    in_second, gain_second = _best_prefix(second, first)
    if max(gain_first, gain_second) <= len(first & second):
        return "", ""
    return (in_first, "") if gain_first >= gain_second else ("", in_second)


def _best_prefix(names: set[str], others: set[str]) -> tuple[str, int]:
    """The prefix without which most of `names` are among `others`, and how many are."""
    found: Counter[str] = Counter()
    for name in names:
        words = name.split(".")
        for cut in range(1, len(words)):
            if ".".join(words[cut:]) in others:
                found[".".join(words[:cut])] += 1
    return max(found.items(), key=lambda item: item[1], default=("", 0))


def _root_key(root: RootCall | None, side: _Side) -> Hashable:
    if root is None:
        return None
    calls = side.calls[root.index]
    outermost = min(
        (call for same in calls.values() for call in same),
        key=lambda call: call.event.index,
        default=None,
    )
    return None if outermost is None else (outermost.name, _input_key(outermost))


def _input_key(call: Call) -> Hashable:
    return tuple((meta.path, meta.hash) for meta in call.event.inputs)


def _pair_calls(
    first: list[Call],
    second: list[Call],
    first_root: RootCall | None,
    second_root: RootCall | None,
    pairs: list[Pair],
    only: tuple[list[Call], list[Call]],
) -> None:
    keys = [list(map(_input_key, calls)) for calls in (first, second)]
    for a, b in pair_up(*keys):
        if b is None:
            assert a is not None
            only[0].append(first[a])
        elif a is None:
            only[1].append(second[b])
        else:
            pairs.append(Pair(first[a], second[b], first_root, second_root))


def pair_up(
    first: Sequence[Hashable], second: Sequence[Hashable]
) -> list[tuple[int | None, int | None]]:
    """Pairs the places of two sequences, in their order.

    Sequences of one length are paired place by place. Of two lengths, equal keys hold the pairing,
    and what lies between is paired in order; None stands for what the other sequence lacks.

    >>> pair_up("abc", "abxc")
    [(0, 0), (1, 1), (None, 2), (2, 3)]
    """
    if len(first) == len(second):
        return [(place, place) for place in range(len(first))]
    pairs: list[tuple[int | None, int | None]] = []
    matcher = SequenceMatcher(a=first, b=second, autojunk=False)
    for _, a, a_end, b, b_end in matcher.get_opcodes():
        both = min(a_end - a, b_end - b)
        pairs += [(a + step, b + step) for step in range(both)]
        pairs += [(place, None) for place in range(a + both, a_end)]
        pairs += [(None, place) for place in range(b + both, b_end)]
    return pairs

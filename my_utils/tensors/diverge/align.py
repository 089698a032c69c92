"""Matches the calls of one recording with those of the other.

Wrappers add words to the names of modules, a run may make calls that the other does not, modules
may have been renamed, and a model may have been recorded as a part of a larger one. So names are
brought to one form first. Then the outermost calls are paired, and in each pair the calls of every
module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from ..recordings.nesting import names_above
from ..recordings.recording import Recording, RootCall, TraceEvent, TraceTensorMeta
from ..wrapper_names import plain_name
from .result import Call, Pair, plain_type


@dataclass(frozen=True, slots=True)
class _Side:
    """The calls of one recording by outermost call and name."""

    recording: Recording
    roots: list[RootCall | None]
    calls: dict[int, dict[str, list[Call]]]  # by the root's index, -1 for those without

    @property
    def modules(self) -> dict[str, Call]:
        """The first call of each module, by name, in the order of the calls."""
        found: dict[str, Call] = {}
        for calls in self.calls.values():
            for name, same in calls.items():
                found.setdefault(name, same[0])
        return found


@dataclass(frozen=True, slots=True)
class Alignment:
    """pairs: in the order in which the calls ended. only_a, only_b: calls without a partner.
    renamed: names of modules in B, and those of the same modules in A."""

    pairs: list[Pair]
    only_a: list[Call]
    only_b: list[Call]
    renamed: dict[str, str]


def align(first: Recording, second: Recording) -> Alignment:
    """Pairs the calls of two recordings."""
    sides = [_side(first), _side(second)]
    prefixes = _extra_prefixes(*(set(side.modules) for side in sides))
    if any(prefixes):
        sides = [_side(first, prefixes[0]), _side(second, prefixes[1])]
    renamed = renames(*(_kinds(side) for side in sides))
    if renamed:
        sides[1] = _renamed(sides[1], renamed)
    if _are_strangers(*sides):
        return Alignment([], _all_calls(sides[0]), _all_calls(sides[1]), {})
    ordered_by = 1 if _is_compiled(first) and not _is_compiled(second) else 0
    pairs: list[Pair] = []
    only: tuple[list[Call], list[Call]] = ([], [])
    root_keys = [[_root_key(root, side) for root in side.roots] for side in sides]
    for place_a, place_b in pair_up(*root_keys):
        root_a = None if place_a is None else sides[0].roots[place_a]
        root_b = None if place_b is None else sides[1].roots[place_b]
        calls_a = {} if place_a is None else sides[0].calls[-1 if root_a is None else root_a.index]
        calls_b = {} if place_b is None else sides[1].calls[-1 if root_b is None else root_b.index]
        for name in {**calls_a, **calls_b}:
            _pair_calls(
                calls_a.get(name, []), calls_b.get(name, []), (root_a, root_b), ordered_by,
                pairs, only,
            )  # fmt: skip
    pairs.sort(key=lambda pair: pair.at.end)
    return Alignment(pairs, only[0], only[1], renamed)


def _are_strangers(first: _Side, second: _Side) -> bool:
    """Whether only the names of the models themselves, which are empty, are equal."""
    names = first.modules.keys(), second.modules.keys()
    if names[0] & names[1] != {""} or min(map(len, names)) < 2:
        return False
    kinds = {plain_type(side.modules[""].event.type) for side in (first, second)}
    return len(kinds) == 2


def _all_calls(side: _Side) -> list[Call]:
    return [call for calls in side.calls.values() for same in calls.values() for call in same]


def _is_compiled(recording: Recording) -> bool:
    return any(event.compiled for event in recording.events)


def _side(recording: Recording, prefix: str = "") -> _Side:
    """Recomputed calls are left out, of a wrapper and what it wraps the wrapper, and what is not
    below `prefix`."""
    wrappers = _wrapper_calls(recording)
    events = [
        event
        for event in recording.events
        if event.phase == "forward" and event.index not in wrappers
    ]
    parents = {event.index: _parent(event, recording, wrappers) for event in events}
    times = _times(events, parents, recording)
    weights = {root.index: _owned_weights(root, events) for root in recording.roots}
    roots: list[RootCall | None] = []
    calls: dict[int, dict[str, list[Call]]] = {}
    for event in events:
        plain = plain_name(event.module)
        name = _below(prefix, plain)
        if name is None:
            continue
        if event.root not in calls:
            calls[event.root] = {}
            roots.append(None if event.root < 0 else recording.roots[event.root])
        begin, end = times[event.index]
        own = {**weights.get(event.root, {}).get(plain, {}), **event.params}
        call = Call(name, event, parents[event.index], begin, end, own)
        calls[event.root].setdefault(name, []).append(call)
    return _Side(recording, roots, calls)


def _parent(event: TraceEvent, recording: Recording, wrappers: set[int]) -> int:
    parent = event.parent
    while parent in wrappers:
        parent = recording.events[parent].parent
    return parent


def _wrapper_calls(recording: Recording) -> set[int]:
    return {
        event.parent
        for event in recording.events
        if event.parent >= 0
        and plain_name(event.module) == plain_name(recording.events[event.parent].module)
        and event.module != recording.events[event.parent].module
    }


def _times(
    events: Sequence[TraceEvent], parents: dict[int, int], recording: Recording
) -> dict[int, tuple[int, int]]:
    """When each call began and ended, by one clock: a child is within its parent, also where it
    was recorded after it, from a compiled graph. A call that never ended ends last."""
    inside: dict[int, list[TraceEvent]] = {}
    known = {event.index for event in events}
    for event in events:
        parent = parents[event.index]
        inside.setdefault(parent if parent in known else -1, []).append(event)
    places = {info.name: place for place, info in enumerate(recording.modules)}
    times: dict[int, tuple[int, int]] = {}
    last = 3 * len(events)  # nothing that ends is so late
    clock = 0

    def walk(event: TraceEvent) -> None:
        nonlocal clock
        begin, clock = clock, clock + 1
        for child in _siblings(inside.get(event.index, []), places):
            walk(child)
        is_open = event.end_index < 0
        times[event.index] = begin, last + event.index if is_open else clock
        clock += 1

    for event in inside.get(-1, []):
        walk(event)
    return times


def _siblings(events: list[TraceEvent], places: dict[str, int]) -> list[TraceEvent]:
    """As they were called; of calls that hooks saw and those from graphs together only the order of
    their modules is known."""
    if len({event.compiled for event in events}) < 2:
        return events
    return sorted(events, key=lambda event: places.get(event.module, 0))


def _owned_weights(
    root: RootCall, events: Sequence[TraceEvent]
) -> dict[str, dict[str, TraceTensorMeta]]:
    """The root's weights by the module that uses them: their owner, or the nearest one around it
    that is called, since the code of that one uses them."""
    called = {plain_name(event.module) for event in events if event.root == root.index}
    owned: dict[str, dict[str, TraceTensorMeta]] = {}
    for name, meta in root.weights.items():
        plain = plain_name(name)
        user = next((above for above in names_above(plain) if above in called), None)
        if user is not None:
            local = plain.removeprefix(f"{user}.") if user else plain
            owned.setdefault(user, {})[local] = meta
    return owned


def _below(prefix: str, name: str) -> str | None:
    """The name as seen from the module `prefix`; None for what is not in it."""
    if not prefix:
        return name
    if name == prefix:
        return ""
    return name.removeprefix(f"{prefix}.") if name.startswith(f"{prefix}.") else None


# --- modules of other names ---


def _kinds(side: _Side) -> dict[str, Hashable]:
    """What distinguishes modules, by name: the class and the shapes of their weights."""
    return {
        name: (plain_type(call.event.type), *sorted(meta.shape for meta in call.weights.values()))
        for name, call in side.modules.items()
    }


def _renamed(side: _Side, names: dict[str, str]) -> _Side:
    calls = {
        root: {
            names.get(name, name): [replace(call, name=names.get(name, name)) for call in same]
            for name, same in by_name.items()
        }
        for root, by_name in side.calls.items()
    }
    return _Side(side.recording, side.roots, calls)


@dataclass(slots=True)
class _Node:
    """A module or a container that is never called; `kind` is None for those."""

    name: str
    kind: Hashable = None
    inside: dict[str, _Node] = field(default_factory=dict)

    @property
    def key(self) -> Hashable:
        return self.kind, sum(1 for _ in self.below())

    def below(self) -> Iterator[_Node]:
        for node in self.inside.values():
            yield node
            yield from node.below()


def renames(first: Mapping[str, Hashable], second: Mapping[str, Hashable]) -> dict[str, str]:
    """Names of modules in the second recording, and those that they have in the first, where they
    differ. The mappings give the kind of each module that was called, in the order of the calls.

    Names are compared as trees of their words. Where two modules are the same, the words below them
    are matched: equal words first, then, in the order of the calls, those that are of one kind
    (class, shapes of the weights) and have equally many modules below them.

    >>> first = {"": "Net", "fc1": "Linear", "act": "ReLU", "h.0.fc": "Linear"}
    >>> second = {"": "Net", "lin": "Linear", "act": "ReLU", "layers.0.fc": "Linear"}
    >>> renames(first, second)
    {'lin': 'fc1', 'layers.0.fc': 'h.0.fc'}
    """
    if first.keys() >= second.keys() or second.keys() >= first.keys():
        return {}
    if any("/" in name for name in first):
        return {}  # operators: "layers.0/aten.mm(forward)" has no modules in it
    found: dict[str, str] = {}
    _match(_tree(first), _tree(second), found)
    return {new: old for new, old in found.items() if new in second and old in first and new != old}


def _tree(kinds: Mapping[str, Hashable]) -> _Node:
    top = _Node("")
    for name, kind in kinds.items():
        node = top
        for word in name.split(".") if name else ():
            path = f"{node.name}.{word}" if node.name else word
            node = node.inside.setdefault(word, _Node(path))
        node.kind = kind
    return top


def _match(first: _Node, second: _Node, found: dict[str, str]) -> None:
    found[second.name] = first.name
    for word in first.inside.keys() & second.inside.keys():
        _match(first.inside[word], second.inside[word], found)
    left = [node for word, node in first.inside.items() if word not in second.inside]
    right = [node for word, node in second.inside.items() if word not in first.inside]
    keys = [node.key for node in left], [node.key for node in right]
    matcher = SequenceMatcher(a=keys[0], b=keys[1], autojunk=False)
    for start_a, start_b, size in matcher.get_matching_blocks():
        for step in range(size):
            _match(left[start_a + step], right[start_b + step], found)


def _extra_prefixes(first: set[str], second: set[str]) -> tuple[str, str]:
    """What is before the names of one side only, for a model that is a part of a larger one
    there: the prefix that makes most names equal."""
    in_first, gain_first = _best_prefix(first, second)
    in_second, gain_second = _best_prefix(second, first)
    if max(gain_first, gain_second) <= len((first & second) - {""}):  # every model has that one
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
        key=lambda call: call.begin,
        default=None,
    )
    return None if outermost is None else (outermost.name, _input_key(outermost))


def _input_key(call: Call) -> Hashable:
    return tuple((meta.path, meta.hash) for meta in call.event.inputs)


def _pair_calls(
    first: list[Call],
    second: list[Call],
    roots: tuple[RootCall | None, RootCall | None],
    ordered_by: int,
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
            at = (first[a], second[b])[ordered_by]
            pairs.append(Pair(first[a], second[b], roots[0], roots[1], at))


def pair_up(
    first: Sequence[Hashable], second: Sequence[Hashable]
) -> list[tuple[int | None, int | None]]:
    """Pairs the places of two sequences, in their order.

    Sequences of one length are paired place by place. Of two lengths, equal keys hold the pairing,
    and what is between is paired in order; None stands for what the other sequence lacks.

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

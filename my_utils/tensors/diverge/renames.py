"""Matches modules that have other names in the two recordings but are the same.

Names are compared as trees of their words. Where two modules are the same, the words below them are
matched: equal words first, then, in the order of the calls, those that are of one kind (class,
shapes of the weights) and have equally many modules below them.

>>> first = {"": "Net", "fc1": "Linear", "act": "ReLU", "h.0.fc": "Linear"}
>>> second = {"": "Net", "lin": "Linear", "act": "ReLU", "layers.0.fc": "Linear"}
>>> renames(first, second)
{'lin': 'fc1', 'layers.0.fc': 'h.0.fc'}
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher


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
    differ. The mappings give the kind of each module that was called, in the order of the calls."""
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

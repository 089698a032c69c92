"""Loads an object from the tree of a dump, whose forms `tree` lists.

Nothing that a file names is imported, and no constructor of a class runs. Classes come from those
that the caller passes and from modules that are imported already. Instances are made by
`object.__new__` and filled. An object that cannot be made that way becomes a `StandIn`.

This file has the walk, and the checks of a node that all readers use. The readers of a family of
types are in the file of its writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import (
    arrays,
    containers,
    images,
    pickles,
    plain,
    standard,
    tensors,
    torch_values,
    user_classes,
)
from .files import DIMS_MAX, DumpFolder, Entry
from .form import TENSORS, TREE, DumpError, StandIn

Reader = Callable[["Decoder", dict[str, Any], Any], Any]


class _Later(NamedTuple):
    """Stands for a tuple that contains itself through something mutable, until it is made."""

    node: int


def blob_digests(nodes: Iterable[dict[str, Any]], path: str) -> dict[str, str]:
    """The digests that a tree wants, by blob."""
    wanted: dict[str, str] = {}
    for node in nodes:
        tag = next(iter(node))
        name = node.get("pixels") if tag == "$image" else node[tag]
        found = node["digest"]
        if type(name) is not str or type(found) is not str:
            raise DumpError(path, f"{tag}: has no name of a blob and digest")
        if wanted.setdefault(name, found) != found:
            raise DumpError(path, f"has two digests of {name!r}")
    return wanted


@dataclass(eq=False, repr=False)
class Decoder:
    """Makes the object of one tree. Used once; not thread-safe."""

    folder: DumpFolder
    document: dict[str, Any]
    blobs: dict[str, Any]
    index: dict[str, Entry]
    classes: dict[str, type]  # by `class_name`
    allow_pickle: bool
    verify: bool
    max_file_bytes: int
    notes: list[str] = field(default_factory=list)
    _built: dict[int, Any] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _fixups: list[tuple[Callable[[Any, Any], None], Any, int]] = field(default_factory=list)

    def decode(self) -> Any:
        """The object. Raises DumpError for whatever the tree has that no dump has."""
        path = self.folder.file(TREE)
        try:
            root = self.node(self.document["root"])
            for store, key, node in self._fixups:
                store(key, self._built[node])
        except DumpError:
            raise
        except RecursionError:
            raise DumpError(path, "is nested too deeply") from None
        except Exception as error:
            # Numbers and texts of the right JSON type of which a constructor of Python, numpy or
            # torch would not make a value; they raise errors of many kinds.
            raise DumpError(path, f"{type(error).__name__}: {error}") from error
        return root

    # --- the walk ---

    def node(self, node: Any) -> Any:
        kind = type(node)
        if kind is dict:
            tag = next(iter(node), "")
            if tag.startswith("$"):
                return self._tagged(tag, node)
            items: dict[str, Any] = {}
            self._built[id(node)] = items
            self.put(items.__setitem__, node.items())
            return items
        if kind is list:
            result: list[Any] = []
            self._built[id(node)] = result
            self.fill(result, node)
            return result
        return node

    def fill(self, result: Any, nodes: list[Any]) -> None:
        """Appends to a list or a deque."""
        decode = self.node
        for node in nodes:
            value = decode(node)
            if type(value) is _Later:
                self._fixups.append((result.__setitem__, len(result), value.node))
            result.append(value)

    def put_mapping(self, store: Callable[[Any, Any], None], node: Any) -> None:
        """`store` of each key and value that `Tree.mapping` wrote: pairs where JSON cannot have the
        keys."""
        if type(node) is not dict:
            raise self.wrong("does not have names and values")
        if next(iter(node), "") == "$dict":
            self.put_pairs(store, node["$dict"])
        else:
            self.put(store, node.items())

    def put(self, store: Callable[[Any, Any], None], items: Iterable[tuple[Any, Any]]) -> None:
        """`store` of each key and the value of the node next to it."""
        for key, inner in items:
            value = self.node(inner)
            if type(value) is _Later:
                self._fixups.append((store, key, value.node))
                value = None
            store(key, value)

    def put_pairs(self, store: Callable[[Any, Any], None], node: Any) -> None:
        """`store` of each of the pairs in a JSON array."""
        self.put(store, map(self._pair, self.array(node)))

    def _pair(self, node: Any) -> tuple[Any, Any]:
        """The key, and the node of the value."""
        if type(node) is not list or len(node) != 2:
            raise self.wrong("does not have pairs")
        return self.whole(self.node(node[0])), node[1]

    def whole(self, value: Any) -> Any:
        if type(value) is _Later:
            raise self.wrong("has a cycle that runs through tuples only")
        return value

    def values(self, node: Any) -> list[Any]:
        """Of something that can only be made when all of them are there."""
        return [self.whole(self.node(inner)) for inner in self.array(node)]

    def _tagged(self, tag: str, node: dict[str, Any]) -> Any:
        read = _READERS.get(tag)
        if read is None:
            raise self.wrong(f"has a form {tag[:50]!r} that is not known here")
        if tag == "$ref":
            return read(self, node, node[tag])
        self._open.add(id(node))
        result = read(self, node, node[tag])
        self._open.discard(id(node))
        self._built[id(node)] = result
        return result

    def made(self, node: dict[str, Any], result: Any) -> Any:
        """Notes a container before it is filled, so that what is in it may refer to it."""
        self._built[id(node)] = result
        return result

    def _ref(self, node: dict[str, Any], pointer: Any) -> Any:
        target = self._resolve(pointer)
        while type(target) is dict and next(iter(target), "") == "$truncated":
            target = target["kept"]
        if id(target) in self._built:
            return self._built[id(target)]
        if id(target) in self._open:
            return _Later(id(target))
        raise self.wrong(f"refers to {pointer[:200]!r}, which does not come before it")

    def _resolve(self, pointer: Any) -> Any:
        target: Any = self.document
        for part in self.text(pointer).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(part) if type(target) is list else part]
            except (LookupError, TypeError, ValueError):
                raise self.wrong(f"refers to {pointer[:200]!r}, which is not there") from None
        if type(target) not in (dict, list):
            raise self.wrong(f"refers to {pointer[:200]!r}, which cannot be referred to")
        return target

    def _truncated(self, node: dict[str, Any], body: Any) -> Any:
        self.notes.append(f"a {self.text(body)} of {node['length']} items was cut when dumped")
        return self.whole(self.node(node["kept"]))

    def _unsupported(self, node: dict[str, Any], body: Any) -> Any:
        reason = f"it could not be dumped: {self.node(node['reason'])}"
        return self.stand_in(self.text(self.node(body)), None, reason)

    # --- what must be in a node ---

    def wrong(self, text: str) -> DumpError:
        return DumpError(self.folder.file(TREE), text)

    def text(self, value: Any) -> str:
        if type(value) is not str:
            raise self.wrong("is not a text")
        return value

    def array(self, node: Any) -> list[Any]:
        if type(node) is not list:
            raise self.wrong("is not a JSON array")
        return node

    def numbers(self, body: Any, count: int, kind: type) -> list[Any]:
        values = self.values(body)
        if len(values) != count or any(type(value) is not kind for value in values):
            raise self.wrong(f"does not have {count} numbers")
        return values

    def size(self, value: Any) -> int:
        if type(value) is not int or not 0 <= value < 2**63:
            raise self.wrong("is not a size")
        return value

    def shape(self, value: Any) -> tuple[int, ...]:
        shape = tuple(map(self.size, self.array(value)))
        if len(shape) > DIMS_MAX:
            raise self.wrong(f"has a shape of {len(shape)} dimensions")
        return shape

    def stored_shape(self, node: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the elements that there are, before they are expanded."""
        if "truncated" in node:
            self.notes.append(f"a tensor of shape {list(shape)} was cut when dumped")
            return (self.size(node["truncated"]),)
        if "expanded_from" not in node:
            return shape
        small = self.shape(node["expanded_from"])
        fits = len(small) == len(shape)
        if not fits or any(a not in (1, b) for a, b in zip(small, shape, strict=True)):
            raise self.wrong("has a shape that does not expand to the other")
        return small

    def blob(self, name: Any, code: str, shape: tuple[Any, ...]) -> Any:
        """The bytes of a blob, which must be of that type and shape."""
        entry = self.index.get(self.text(name))
        if entry is None:
            raise self.wrong(f"names {name[:200]!r}, which {TENSORS} does not hold")
        if entry.code != code or entry.shape != shape:
            has = f"{entry.code} {list(entry.shape)}"
            raise self.wrong(f"{name[:200]!r} should be {code} {list(shape)}, but it is {has}")
        return self.blobs[name]

    def file_name(self, value: Any, kind: str) -> str:
        """A file next to the tree, which the manifest has a size and a digest of."""
        name = self.text(value)
        if not name.startswith(kind) or name not in self.folder.manifest["files"]:
            raise self.wrong(f"names a file {name[:200]!r}, which the manifest does not")
        return name

    def stand_in(self, name: str, value: Any, reason: str = "") -> StandIn:
        reason = reason or "its module is not imported: import it, or pass types=[…]"
        self.notes.append(f"{name} was not made again: {reason}")
        return StandIn(name, reason, value)


_READERS: dict[str, Reader] = {
    "$ref": Decoder._ref,
    "$truncated": Decoder._truncated,
    "$unsupported": Decoder._unsupported,
    **plain.READERS,
    **containers.READERS,
    **user_classes.READERS,
    **standard.READERS,
    **tensors.READERS,
    **torch_values.READERS,
    **arrays.READERS,
    **images.READERS,
    **pickles.READERS,
}

"""Converts an object to the text of tree.json, with the elements of its tensors set aside.

What JSON has is written as it is: None, bool, int, finite float, str, list, and dict with str keys
that do not begin with "$". All else is an object whose first key begins with "$":

    $ref            a JSON pointer (RFC 6901) to where the same object was first
    $dict           pairs of key and value        $float    "nan", "inf", "-inf"; other NaNs' bits
    $tuple $set $frozenset $deque $slice $range $complex $timedelta: the parts, in a list
    $int            hexadecimal, above 2,000 bits  $str      with lone surrogates, escaped
    $bytes $bytearray  hexadecimal; long ones as {"blob": name}
    $tensor         name in tensors.safetensors, with dtype, shape, digest; null: a meta tensor
    $ndarray        the same; $ndarray_object with the elements in the tree; $npscalar
    $sparse $torch_size $torch_dtype $torch_device $torch_layout $torch_memory_format $numpy_dtype
    $image          a file, or the pixels of modes that the file format lacks
    $dataclass $namedtuple $enum   with "module:Class"; fields, values or name
    $ordered_dict $defaultdict $counter $namespace $datetime $date $time $timezone $zone $path
    $decimal $fraction $uuid $ellipsis $not_implemented $tensordict
    $subclass       of a container, "module:Class"; attributes, and items or values
    $token_encoding the JSON of an encoding of tokenizers
    $pickle         a file that only pickle can read, with the tensors in it next to it
    $unsupported    what could not be dumped, with type and reason
    $truncated      what a limit of DumpConfig cut; the kept part is next to it

An object that is in several places is written once, in the first; so are cycles. Identity of str,
bytes, numbers and other plain values is not kept, nor that two tensors share memory.

Here is the walk: what was seen, how deep, what is cut. How a form is written and how it is read
is in the file of its family, which ends in the tables of its writers and readers: a type is
added there, and in the list above.
"""

from __future__ import annotations

import collections
import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from json.encoder import encode_basestring as quote
from typing import Any

from . import (
    arrays,
    containers,
    images,
    plain,
    standard,
    tensors,
    torch_values,
    user_classes,
)
from .blobs import Blobs, shrink_expanded
from .config import DumpConfig
from .form import DumpError, class_name
from .pickles import write_pickle
from .plain import INT_BITS_MAX, str_text

Writer = Callable[["Tree", Any, str], None]
# Of a JSON object: the text of a value, or the method of the tree that writes it, and the value.
Member = str | tuple[Callable[[Any, str], None], Any]

_SCALARS = {int, float, str, bool, type(None)}


class _TooDeepError(DumpError):
    """`reason` is what is in the note."""

    def __init__(self, path: str, max_depth: int) -> None:
        self.reason = f"is nested deeper than max_depth, {max_depth}"
        super().__init__(path, self.reason)


class Tree:
    """The tree of one object. Made, filled by `build`, and read once; not thread-safe.

    `out` are the pieces of the text; the empty ones at `slots` are for the digests of the blobs.
    `files` are the bytes of files next to the tree, or a function that makes them.
    """

    def __init__(self, config: DumpConfig, *, copy: bool) -> None:
        self.config = config
        self.blobs = Blobs(copy=copy)
        self.out: list[str] = []
        self.slots: list[int] = []
        self.files: dict[str, bytes | Callable[[], bytes]] = {}
        self.counts = collections.Counter[str]()
        self.troubles: list[str] = []
        # Where objects are, by their ids, and what keeps the ids from being used again. Texts and
        # no tuples: thousands of small containers would set the garbage collector going.
        self.memo: dict[int, str] = {}
        self.alive: list[Any] = []
        self._newline = "\n "
        self._depth = 0
        # Tuples and the like that are not finished, and whether the place that is being filled
        # can be filled later.
        self._open: set[int] = set()
        self._patchable = True
        self._table = {**_WRITERS, **tensors.make_writers(self)}

    def build(self, obj: Any) -> None:
        self.node(obj, "/root")

    def text(self, digests: list[str]) -> str:
        """The node of the whole object, once the digests of the blobs are known."""
        out = self.out
        for slot, found in zip(self.slots, digests, strict=True):
            out[slot] = found + '"}'
        return "".join(out)

    # --- the walk ---

    def node(self, obj: Any, path: str) -> None:
        write = self._table.get(type(obj))
        if write is None:
            write = self._table[type(obj)] = _writer_of(type(obj))
        if self._is_full:
            self._node_of_no_depth(write, obj, path)
        else:
            write(self, obj, path)

    @property
    def _is_full(self) -> bool:
        """Whether there may be no container here."""
        return self._depth >= self.config.max_depth

    def _node_of_no_depth(self, write: Writer, obj: Any, path: str) -> None:
        """A note where the writer finds that it needs one container more. It has written its own
        beginning until then, which is taken back; a place less deep may have the object whole."""
        at, slots = len(self.out), len(self.slots)
        counts, files = self.counts.copy(), dict(self.files)
        try:
            write(self, obj, path)
        except _TooDeepError as error:
            if len(self.slots) != slots:  # elements are set aside already
                raise
            del self.out[at:]
            self.counts, self.files = counts, files
            self.memo.pop(id(obj), None)
            self.unsupported(obj, path, error.reason)

    def seen(self, obj: Any, path: str) -> bool:
        """Writes a reference where `obj` is in the tree already."""
        found = self.memo.get(id(obj))
        if found is None:
            self.memo[id(obj)] = path
            self.alive.append(obj)
            return False
        if id(obj) in self._open and not self._patchable:
            self.unsupported(obj, path, "a cycle that runs through tuples and sets only")
        else:
            self.out.append(f'{{"$ref": {quote(found)}}}')
        return True

    @contextmanager
    def inside(self, path: str, *, patchable: bool, unfinished: Any = None) -> Iterator[str]:
        """Within a container: gives what begins a line there."""
        newline, was_patchable = self._newline, self._patchable
        if self._is_full:
            raise _TooDeepError(path, self.config.max_depth)
        self._depth += 1
        self._newline = newline + " "
        self._patchable = patchable
        if unfinished is not None:
            self._open.add(id(unfinished))
        try:
            yield self._newline
        finally:
            self._newline, self._patchable = newline, was_patchable
            self._depth -= 1
            self._open.discard(id(unfinished))

    def values(
        self, values: Any, path: str, *, patchable: bool = True, unfinished: Any = None
    ) -> None:
        """A JSON array. Plain numbers and texts share a line."""
        if not values:
            self.out.append("[]")
            return
        if self._plain_values(values):
            return
        append, node = self.out.append, self.node
        with self.inside(path, patchable=patchable, unfinished=unfinished) as newline:
            begin = "[" + newline
            for i, value in enumerate(values):
                append(begin)
                node(value, f"{path}/{i}")
                begin = "," + newline
        append(self._newline + "]")

    def _plain_values(self, values: Any) -> bool:
        kinds = set(map(type, values))
        if not kinds <= _SCALARS:
            return False
        if int in kinds:
            if kinds - {int, bool}:
                return False
            if max(max(values), -min(values)).bit_length() > INT_BITS_MAX:
                return False
        try:
            text = json.dumps(values, ensure_ascii=False, allow_nan=False)
            text.encode("utf-8")
        except ValueError:  # NaN, infinities, surrogates
            return False
        if str in kinds and self.config.max_string is not None:
            return False
        self.out.append(text)
        return True

    def pairs(self, items: Iterable[tuple[Any, Any]], path: str) -> None:
        """A JSON array of arrays of two."""
        append, node = self.out.append, self.node
        first = True
        with self.inside(path, patchable=True) as newline:
            for i, (key, value) in enumerate(items):
                append(("[" if first else ",") + newline + "[")
                self._patchable = False
                node(key, f"{path}/{i}/0")
                self._patchable = True
                append(", ")
                node(value, f"{path}/{i}/1")
                append("]")
                first = False
        append("[]" if first else self._newline + "]")

    def mapping(self, obj: dict[Any, Any], path: str) -> None:
        if not obj:
            self.out.append("{}")
            return
        keys = _plain_keys(obj)
        if keys is None:
            self.out.append('{"$dict": ')
            self.pairs(obj.items(), path + "/$dict")
            self.out.append("}")
            return
        append, node = self.out.append, self.node
        with self.inside(path, patchable=True) as newline:
            begin = "{" + newline
            table = {} if self._is_full else self._table
            for key, value in zip(keys, obj.values(), strict=True):
                append(f"{begin}{quote(key)}: ")
                begin = "," + newline
                if "/" in key or "~" in key:
                    key = _escaped(key)
                write = table.get(type(value))
                if write is None:
                    node(value, f"{path}/{key}")
                else:
                    write(self, value, f"{path}/{key}")
        append(self._newline + "}")

    def form(self, path: str, members: dict[str, Member]) -> None:
        """A JSON object of a few members, whose names are plain."""
        begin = "{"
        for name, member in members.items():
            self.out.append(f'{begin}"{name}": ')
            begin = ", "
            if isinstance(member, str):
                self.out.append(member)
            else:
                write, value = member
                write(value, f"{path}/{name}")
        self.out.append("}")

    def frozen(self, values: Any, obj: Any = None) -> Member:
        """The values of `obj`, which can only be made when all of them are there."""
        return functools.partial(self.values, patchable=False, unfinished=obj), values

    def frozen_node(self, obj: Any, path: str) -> None:
        """The same of one value."""
        with self.inside(path, patchable=False):
            self.node(obj, path)

    def cut(self, obj: Any, path: str, kind: str) -> tuple[Any, str]:
        """The items that are kept of a sequence, and where they are."""
        limit = self.config.max_items
        if limit is None or len(obj) <= limit:
            return obj, path
        self.counts["truncated"] += 1
        self.out.append(f'{{"$truncated": "{kind}", "length": {len(obj)}, "kept": ')
        return obj[:limit], path + "/kept"

    def end_cut(self, obj: Any, kept: Any) -> None:
        if kept is not obj:
            self.out.append("}")

    # --- what is next to the tree, and what cannot ---

    def cut_elements(
        self, data: Any, size: int, in_order: bool, strides: tuple[int, ...]
    ) -> tuple[Any, str]:
        """What is stored of the elements of a tensor or array, and the notes that say so."""
        limit = self.config.max_tensor_elements
        if limit is not None and size > limit:
            self.counts["truncated"] += 1
            return data.reshape(-1)[:limit], f', "truncated": {limit}'
        small = data if in_order or not size else shrink_expanded(data, strides)
        is_cut = small.shape != data.shape
        return small, f', "expanded_from": {list(small.shape)}' if is_cut else ""

    def blob_node(self, opening: str) -> None:
        """A node that ends with the digest of the blob that was added last."""
        self.out.append(f'{opening}, "digest": "')
        self.slots.append(len(self.out))
        self.out.append("")

    def file(self, kind: str, suffix: str) -> str:
        self.counts[kind] += 1
        return f"{kind}_{self.counts[kind] - 1:05d}.{suffix}"

    def unsupported(self, obj: Any, path: str, reason: str) -> None:
        """A note instead of what cannot be dumped."""
        kind = class_name(type(obj))
        self.counts["unsupported"] += 1
        self.troubles.append(f"{path}: {kind} cannot be dumped: {reason}")
        # What had begun to be written of a leaf is nothing yet: writers convert first.
        self.out.append(
            f'{{"$unsupported": {str_text(kind)}, "reason": {str_text(reason[:1000])}}}'
        )


def _plain_keys(obj: dict[Any, Any]) -> list[str] | None:
    """The keys when JSON can have all of them; None otherwise."""
    keys = list(obj)
    if set(map(type, keys)) != {str}:
        return None
    together = "".join(keys)
    if not together.isascii():
        try:
            for key in keys:
                key.encode("utf-8")
        except UnicodeEncodeError:
            return None
    if "$" in together and any(key.startswith("$") for key in keys):
        return None
    return keys


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _writer_of(cls: type) -> Writer:
    for (module, name), late in _LATE_WRITERS.items():
        if cls is getattr(sys.modules.get(module), name, None):
            return late
    for find in _FINDERS:
        write = find(cls)
        if write is not None:
            return write
    return write_pickle


_WRITERS: dict[type, Writer] = {**plain.WRITERS, **containers.WRITERS, **standard.WRITERS}
# For classes of modules that may not be imported.
_LATE_WRITERS: dict[tuple[str, str], Writer] = {
    **arrays.LATE_WRITERS,
    **torch_values.LATE_WRITERS,
    **standard.LATE_WRITERS,
    **containers.LATE_WRITERS,
    **user_classes.LATE_WRITERS,
}
# For subclasses; asked in this order.
_FINDERS = (
    arrays.writer_of,
    tensors.writer_of,
    torch_values.writer_of,
    images.writer_of,
    user_classes.writer_of,
)

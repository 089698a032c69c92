"""From the tree of a dump, whose forms `tree` lists, back to the object.

Nothing that a file names is imported, and no constructor of a class runs: classes are looked up
among those that the caller passes and in modules that are imported already, instances are made by
`object.__new__` and filled. What cannot be made again that way becomes a `StandIn`.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import math
import operator
import pathlib
import pickle
import re
import struct
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .files import DIMS_MAX, DumpFolder
from .form import STORED, TENSORS, TREE, DumpError, Stored
from .tree import IMAGE_MODES, IMAGE_PIXELS_MAX, dataclass_base, factory_names, is_named_tuple

__all__ = ["Decoder", "StandIn", "blob_digests", "refuse_pickle", "torch_from"]

_SIMPLE_DTYPE = re.compile(r"[<>|=]?([biufcmMSUV]\d{0,10})(\[[\w/]{1,24}\])?")
_PATHS = {
    kind.__name__: kind
    for kind in (
        pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath,
    )
}  # fmt: skip
_ITEM_BYTES_MAX = 1 << 31


class StandIn:
    """Stands for an object that a dump holds and that could not be made again.

    type_name: "module:Class" of the object.
    reason: why, and what to do about it.
    value: what the dump has of it: a dict of the fields of a dataclass, a tuple of the values of a
        namedtuple, the value of an enum, None for what could not be dumped.
    """

    __slots__ = ("reason", "type_name", "value")

    def __init__(self, type_name: str, reason: str, value: Any = None) -> None:
        self.type_name = type_name
        self.reason = reason
        self.value = value

    def __repr__(self) -> str:
        return f"<StandIn for {self.type_name}: {self.reason}>"


class _Later:
    """Stands for a tuple that contains itself through something mutable, until it is made."""

    def __init__(self, node: int) -> None:
        self.node = node


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


class Decoder:
    """Makes the object of one tree. Used once; not thread-safe."""

    def __init__(
        self,
        folder: DumpFolder,
        document: dict[str, Any],
        blobs: dict[str, Any],
        index: dict[str, Any],
        *,
        classes: Sequence[type],
        allow_pickle: bool,
        verify: bool,
        max_file_bytes: int,
    ) -> None:
        self.folder = folder
        self.document = document
        self.blobs = blobs
        self.index = index
        self.allow_pickle = allow_pickle
        self.verify = verify
        self.max_file_bytes = max_file_bytes
        self.notes: list[str] = []
        self._classes = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in classes}
        self._built: dict[int, Any] = {}
        self._open: set[int] = set()
        self._fixups: list[tuple[Callable[[Any, Any], None], Any, int]] = []

    def decode(self) -> Any:
        """The object. Raises DumpError for whatever the tree has that no dump has."""
        path = self.folder.file(TREE)
        try:
            root = self._node(self.document["root"])
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

    def _wrong(self, text: str) -> DumpError:
        return DumpError(self.folder.file(TREE), text)

    # --- the walk ---

    def _node(self, node: Any) -> Any:
        kind = type(node)
        if kind is dict:
            tag = next(iter(node), "")
            if tag.startswith("$"):
                return self._tagged(tag, node)
            return self._plain_dict(node)
        if kind is list:
            result: list[Any] = []
            self._built[id(node)] = result
            self._fill(result, node)
            return result
        return node

    def _fill(self, result: Any, nodes: list[Any]) -> None:
        """Appends to a list or a deque."""
        decode = self._node
        for node in nodes:
            value = decode(node)
            if type(value) is _Later:
                self._fixups.append((result.__setitem__, len(result), value.node))
            result.append(value)

    def _plain_dict(self, node: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self._built[id(node)] = result
        self._put_items(result.__setitem__, node)
        return result

    def _put_items(self, store: Callable[[Any, Any], None], node: Any) -> None:
        """`store` of each name and value of a JSON object."""
        if type(node) is not dict:
            raise self._wrong("has something else where names and values should stand")
        for key, inner in node.items():
            value = self._node(inner)
            if type(value) is _Later:
                self._fixups.append((store, key, value.node))
                value = None
            store(key, value)

    def _put_pairs(self, store: Callable[[Any, Any], None], node: Any) -> None:
        """`store` of each of the pairs in a JSON array."""
        for pair in self._array(node):
            if type(pair) is not list or len(pair) != 2:
                raise self._wrong("has something else where pairs should stand")
            key = self._whole(self._node(pair[0]))
            value = self._node(pair[1])
            if type(value) is _Later:
                self._fixups.append((store, key, value.node))
                value = None
            store(key, value)

    def _array(self, node: Any) -> list[Any]:
        if type(node) is not list:
            raise self._wrong("has something else where a JSON array should stand")
        return node

    def _whole(self, value: Any) -> Any:
        if type(value) is _Later:
            raise self._wrong("has a cycle that runs through tuples only")
        return value

    def _values(self, node: Any) -> list[Any]:
        """Of something that can only be made when all of them are there."""
        return [self._whole(self._node(inner)) for inner in self._array(node)]

    def _tagged(self, tag: str, node: dict[str, Any]) -> Any:
        handler = _HANDLERS.get(tag)
        if handler is None:
            raise self._wrong(f"has a form {tag[:50]!r} that is not known here")
        if tag == "$ref":
            return handler(self, node, node[tag])
        self._open.add(id(node))
        result = handler(self, node, node[tag])
        self._open.discard(id(node))
        self._built[id(node)] = result
        return result

    def _made(self, node: dict[str, Any], result: Any) -> Any:
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
        raise self._wrong(f"refers to {pointer[:200]!r}, which does not come before it")

    def _resolve(self, pointer: Any) -> Any:
        target: Any = self.document
        for part in self._text(pointer).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(part) if type(target) is list else part]
            except (LookupError, TypeError, ValueError):
                raise self._wrong(f"refers to {pointer[:200]!r}, which is not there") from None
        if type(target) not in (dict, list):
            raise self._wrong(f"refers to {pointer[:200]!r}, which cannot be referred to")
        return target

    def _text(self, value: Any) -> str:
        if type(value) is not str:
            raise self._wrong("has something else where a text should stand")
        return value

    # --- containers ---

    def _dict(self, node: dict[str, Any], body: Any) -> Any:
        result = self._made(node, {})
        self._put_pairs(result.__setitem__, body)
        return result

    def _tuple(self, node: dict[str, Any], body: Any) -> Any:
        return tuple(self._values(body))

    def _set(self, node: dict[str, Any], body: Any) -> Any:
        result = self._made(node, set())
        result.update(self._values(body))
        return result

    def _frozenset(self, node: dict[str, Any], body: Any) -> Any:
        return frozenset(self._values(body))

    def _deque(self, node: dict[str, Any], body: Any) -> Any:
        maxlen = node["maxlen"]
        if maxlen is not None and len(self._array(body)) > self._size(maxlen):
            raise self._wrong("$deque: has more items than its limit")
        result: collections.deque[Any] = collections.deque(maxlen=maxlen)
        self._made(node, result)
        self._fill(result, self._array(body))
        return result

    def _special_dict(self, node: dict[str, Any], body: Any, result: Any) -> Any:
        self._made(node, result)
        self._put_pairs(functools.partial(dict.__setitem__, result), body)
        if "attributes" in node:
            self._put_items(result.__dict__.__setitem__, node["attributes"])
        return result

    def _ordered_dict(self, node: dict[str, Any], body: Any) -> Any:
        result: Any = collections.OrderedDict()
        self._made(node, result)
        self._put_pairs(result.__setitem__, body)
        if "attributes" in node:
            self._put_items(result.__dict__.__setitem__, node["attributes"])
        return result

    def _counter(self, node: dict[str, Any], body: Any) -> Any:
        return self._special_dict(node, body, collections.Counter())

    def _defaultdict(self, node: dict[str, Any], body: Any) -> Any:
        name = node["factory"]
        factory = None
        if name is not None:
            known = {text: kind for kind, text in factory_names().items()}
            factory = known.get(self._text(name)) or self._classes.get(name)
            if factory is None:
                self.notes.append(f"the factory {name} of a defaultdict was left out")
        return self._special_dict(node, body, collections.defaultdict(factory))

    def _namespace(self, node: dict[str, Any], body: Any) -> Any:
        if body == "argparse:Namespace":
            import argparse

            result: Any = argparse.Namespace()
        elif body == "types:SimpleNamespace":
            result = types.SimpleNamespace()
        else:
            raise self._wrong("$namespace: is of no known class")
        self._made(node, result)
        self._put_items(result.__dict__.__setitem__, node["fields"])
        return result

    def _truncated(self, node: dict[str, Any], body: Any) -> Any:
        self.notes.append(f"a {self._text(body)} of {node['length']} items was cut when dumped")
        return self._whole(self._node(node["kept"]))

    # --- plain values ---

    def _float(self, node: dict[str, Any], body: Any) -> float:
        if body == "nan" and "bits" in node:
            bits = int(self._text(node["bits"]), 16)
            return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
        if body not in ("nan", "inf", "-inf"):
            raise self._wrong("$float: is no such number")
        return float(body)

    def _int(self, node: dict[str, Any], body: Any) -> int:
        return int(self._text(body), 16)

    def _str(self, node: dict[str, Any], body: Any) -> str:
        return self._text(body).encode("ascii").decode("unicode_escape")

    def _complex(self, node: dict[str, Any], body: Any) -> complex:
        real, imag = self._numbers(body, 2, float)
        return complex(real, imag)

    def _numbers(self, body: Any, count: int, kind: type) -> list[Any]:
        values = self._values(body)
        if len(values) != count or any(type(value) is not kind for value in values):
            raise self._wrong(f"has something else where {count} numbers should stand")
        return values

    def _bytes(self, node: dict[str, Any], body: Any) -> bytes:
        if "truncated_from" in node:
            self.notes.append(f"bytes of {node['truncated_from']} were cut when dumped")
        if "blob" not in node:
            return bytes.fromhex(self._text(body))
        return bytes(self._blob(body, "U8", (node["blob"],)))

    def _bytearray(self, node: dict[str, Any], body: Any) -> bytearray:
        return bytearray(self._bytes(node, body))

    def _slice(self, node: dict[str, Any], body: Any) -> slice:
        start, stop, step = self._values(body)
        return slice(start, stop, step)

    def _range(self, node: dict[str, Any], body: Any) -> range:
        return range(*self._numbers(body, 3, int))

    def _timedelta(self, node: dict[str, Any], body: Any) -> datetime.timedelta:
        return datetime.timedelta(*self._numbers(body, 3, int))

    def _date(self, node: dict[str, Any], body: Any) -> datetime.date:
        return datetime.date.fromisoformat(self._text(body))

    def _datetime(self, node: dict[str, Any], body: Any) -> datetime.datetime:
        found = datetime.datetime.fromisoformat(self._text(body))
        return found.replace(fold=node["fold"], tzinfo=self._node(node["zone"]))

    def _time(self, node: dict[str, Any], body: Any) -> datetime.time:
        found = datetime.time.fromisoformat(self._text(body))
        return found.replace(fold=node["fold"], tzinfo=self._node(node["zone"]))

    def _timezone(self, node: dict[str, Any], body: Any) -> datetime.timezone:
        offset = datetime.timedelta(*self._numbers(body, 3, int))
        plain = datetime.timezone(offset)
        if plain == datetime.UTC:
            plain = datetime.UTC
        name = self._text(self._node(node["name"]))
        return plain if plain.tzname(None) == name else datetime.timezone(offset, name)

    def _zone(self, node: dict[str, Any], body: Any) -> Any:
        import zoneinfo

        try:
            return zoneinfo.ZoneInfo(self._text(self._node(body)))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            return StandIn("zoneinfo:ZoneInfo", "this machine does not know the zone", body)

    def _path(self, node: dict[str, Any], body: Any) -> Any:
        kind = _PATHS.get(self._text(node["class"]))
        if kind is None:
            raise self._wrong("$path: is of no known class")
        text = self._text(self._node(body))
        try:
            return kind(text)
        except NotImplementedError:
            return pathlib.PureWindowsPath(text)

    def _decimal(self, node: dict[str, Any], body: Any) -> decimal.Decimal:
        return decimal.Decimal(self._text(body))

    def _fraction(self, node: dict[str, Any], body: Any) -> fractions.Fraction:
        return fractions.Fraction(*self._numbers(body, 2, int))

    def _uuid(self, node: dict[str, Any], body: Any) -> uuid.UUID:
        return uuid.UUID(self._text(body))

    def _ellipsis(self, node: dict[str, Any], body: Any) -> Any:
        return ...

    def _not_implemented(self, node: dict[str, Any], body: Any) -> Any:
        return NotImplemented

    # --- classes of the user's ---

    def _class(self, name: str) -> type | None:
        """Given by the caller, or in a module that is imported; no attribute is computed."""
        if name in self._classes:
            return self._classes[name]
        module_name, _, qualname = name.partition(":")
        found: Any = sys.modules.get(module_name)
        for part in qualname.split("."):
            found = getattr(found, "__dict__", {}).get(part)
        if isinstance(found, type) and f"{found.__module__}:{found.__qualname__}" == name:
            return found
        return None

    def _stand_in(self, name: str, value: Any, reason: str = "") -> StandIn:
        reason = reason or "its module is not imported: import it, or pass types=[…]"
        self.notes.append(f"{name} was not made again: {reason}")
        return StandIn(name, reason, value)

    def _enum(self, node: dict[str, Any], body: Any) -> Any:
        type_name = self._text(self._node(body))
        kind = self._class(type_name)
        value = self._whole(self._node(node["value"]))
        if kind is None or not issubclass(kind, enum.Enum):
            return self._stand_in(type_name, value)
        members = kind.__members__
        name = node["name"]
        if name is not None and type(name) is not str:
            name = self._node(name)
        if name in members:
            return members[name]
        parts = [] if name is None else self._text(name).split("|")
        if issubclass(kind, enum.Flag) and members and all(part in members for part in parts):
            first = next(iter(members.values()))
            nothing = operator.xor(first, first)
            return functools.reduce(operator.or_, (members[part] for part in parts), nothing)
        return self._stand_in(type_name, value, f"it has no member {name} here")

    def _namedtuple(self, node: dict[str, Any], body: Any) -> Any:
        type_name = self._text(self._node(body))
        values = self._values(node["values"])
        kind = self._class(type_name)
        if kind is None:
            return self._stand_in(type_name, tuple(values))
        if not is_named_tuple(kind) or list(kind._fields) != node["names"]:  # type: ignore[attr-defined]
            return self._stand_in(type_name, tuple(values), "its fields are others here")
        if len(values) != len(node["names"]):
            raise self._wrong("$namedtuple: has another number of values than names")
        return tuple.__new__(kind, values)

    def _dataclass(self, node: dict[str, Any], body: Any) -> Any:
        type_name = self._text(self._node(body))
        result, reason = self._new_instance(type_name, node)
        if reason is not None:
            result = self._made(node, self._stand_in(type_name, {}, reason))
            self._put_items(result.value.__setitem__, node["fields"])
        else:
            self._made(node, result)
            self._put_items(functools.partial(object.__setattr__, result), node["fields"])
        target = result.value if reason is not None else getattr(result, "__dict__", None)
        if "attributes" in node and target is not None:
            self._put_items(target.__setitem__, node["attributes"])
        if "items" in node:
            store = _dict_setter(result if reason is None else result.value)
            self._put_pairs(store, node["items"])
        return result

    def _new_instance(self, type_name: str, node: dict[str, Any]) -> tuple[Any, str | None]:
        """An instance without content; or why there can be none."""
        kind = self._class(type_name)
        if kind is None:
            return None, ""
        if not dataclasses.is_dataclass(kind):
            return None, "it is no dataclass here"
        names = {field.name for field in dataclasses.fields(kind)}
        if type(node["fields"]) is not dict or not names >= node["fields"].keys():
            return None, "its fields are others here"
        base = dataclass_base(kind)
        if base is None or (base is not object) != ("items" in node):
            return None, "it derives from something else here"
        try:
            return base.__new__(kind), None  # type: ignore[call-overload]
        except TypeError as error:
            return None, f"there can be no instance: {error}"

    # --- torch ---

    def _size(self, value: Any) -> int:
        if type(value) is not int or not 0 <= value < 2**63:
            raise self._wrong("has something else where a size should stand")
        return value

    def _shape(self, value: Any) -> tuple[int, ...]:
        shape = tuple(map(self._size, self._array(value)))
        if len(shape) > DIMS_MAX:
            raise self._wrong(f"has a shape of {len(shape)} dimensions")
        return shape

    def _blob(self, name: Any, code: str, shape: tuple[Any, ...]) -> Any:
        """The bytes of a blob, which has to be of that type and shape."""
        entry = self.index.get(self._text(name))
        if entry is None:
            raise self._wrong(f"names {name[:200]!r}, which {TENSORS} does not hold")
        if entry.code != code or entry.shape != shape:
            has = f"{entry.code} {list(entry.shape)}"
            raise self._wrong(f"{name[:200]!r} should be {code} {list(shape)}, but it is {has}")
        return self.blobs[name]

    def _stored_shape(self, node: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the elements that there are, before they are expanded."""
        if "truncated" in node:
            self.notes.append(f"a tensor of shape {list(shape)} was cut when dumped")
            return (self._size(node["truncated"]),)
        if "expanded_from" not in node:
            return shape
        small = self._shape(node["expanded_from"])
        fits = len(small) == len(shape)
        if not fits or any(a not in (1, b) for a, b in zip(small, shape, strict=True)):
            raise self._wrong("has a shape that does not expand to the other")
        return small

    def _tensor(self, node: dict[str, Any], body: Any) -> Any:
        import torch

        name, shape = self._text(node["dtype"]), self._shape(node["shape"])
        dtype = getattr(torch, name, None) if name in STORED else None
        if dtype is None:
            raise self._wrong(f"$tensor: has a type {name[:50]!r}, which torch has not here")
        if body is None:
            result = torch.empty(shape, dtype=dtype, device="meta")
        else:
            stored = STORED[name]
            small = self._stored_shape(node, shape)
            extra = (stored.last,) if stored.last else ()
            data = self._blob(body, stored.code, small + extra)
            result = torch_from(data, dtype, small)
            if "expanded_from" in node:
                result = result.expand(shape)
        result = self._on_device(result, node.get("device"))
        requires_grad = node.get("requires_grad", False) is True
        if node.get("parameter") is True:
            return torch.nn.Parameter(result, requires_grad=requires_grad)
        return result.requires_grad_() if requires_grad else result

    def _on_device(self, tensor: Any, device: Any) -> Any:
        if device is None:
            return tensor
        import torch

        try:
            return tensor.to(torch.device(self._text(device)))
        except (AssertionError, RuntimeError):
            self.notes.append(f"there is no device {device[:50]} here: its tensors are on the CPU")
            return tensor

    def _sparse(self, node: dict[str, Any], body: Any) -> Any:
        import torch

        shape = self._shape(node["shape"])
        parts: dict[str, Any] = {}
        self._put_items(parts.__setitem__, node["parts"])
        if body == "coo":
            result = torch.sparse_coo_tensor(
                parts["indices"], parts["values"], shape, check_invariants=True
            )
            result = result._coalesced_(node["coalesced"] is True)
        elif body in ("csr", "csc", "bsr", "bsc"):
            result = torch.sparse_compressed_tensor(
                parts["compressed"], parts["plain"], parts["values"], shape,
                layout=getattr(torch, f"sparse_{body}"), check_invariants=True,
            )  # fmt: skip
        else:
            raise self._wrong("$sparse: is of no known layout")
        return result.requires_grad_() if node.get("requires_grad") is True else result

    def _dtensor(self, node: dict[str, Any], body: Any) -> Any:
        self.notes.append("a DTensor came back as the local shard that was dumped")
        return self._node(node["local"])

    def _torch_size(self, node: dict[str, Any], body: Any) -> Any:
        import torch

        return torch.Size(self._shape(body))

    def _torch_constant(self, node: dict[str, Any], body: Any) -> Any:
        import torch

        tag = next(iter(node))
        if tag == "$torch_device":
            return torch.device(self._text(body))
        kind = getattr(torch, tag.removeprefix("$torch_"))
        found = vars(torch).get(self._text(body))
        if not isinstance(found, kind):
            raise self._wrong(f"{tag}: torch has no {body[:50]!r}")
        return found

    def _torch_return_type(self, node: dict[str, Any], body: Any) -> Any:
        import torch

        values = self._values(node["values"])
        kind = vars(torch.return_types).get(self._text(body))
        if not isinstance(kind, type) or not issubclass(kind, tuple):
            return self._stand_in(f"torch.return_types:{body}", tuple(values), "torch has it not")
        return kind(values)

    def _tensordict(self, node: dict[str, Any], body: Any) -> Any:
        items: dict[str, Any] = {}
        self._put_items(items.__setitem__, node["items"])
        try:
            import tensordict
        except ImportError:
            return self._stand_in("tensordict:TensorDict", items, "tensordict is not installed")
        # Devices of the parts are the dump's business, see save_tensor_cpu.
        device = node["device"] if node["device"] == "cpu" else None
        result = tensordict.TensorDict(
            items, batch_size=self._shape(body), device=device, names=node["names"]
        )
        return result.lock_() if node["locked"] is True else result

    # --- numpy and images ---

    def _dtype(self, descr: Any) -> Any:
        """A numpy type that holds no objects."""
        import numpy

        if type(descr) is str and descr in STORED:
            return numpy.dtype(descr)
        return numpy.lib.format.descr_to_dtype(self._descr(descr, 0))

    def _descr(self, descr: Any, depth: int) -> Any:
        if type(descr) is str:
            found = _SIMPLE_DTYPE.fullmatch(descr)
            if found is None or int(found[1][1:] or 0) > _ITEM_BYTES_MAX:
                raise self._wrong(f"has {descr[:50]!r} where a type of numpy should stand")
            return descr
        if depth > 32 or type(descr) is not list:
            raise self._wrong("has something else where a type of numpy should stand")
        return [self._descr_field(field, depth) for field in descr]

    def _descr_field(self, field: Any, depth: int) -> tuple[Any, ...]:
        if type(field) is not list or len(field) not in (2, 3):
            raise self._wrong("has something else where a field of a type should stand")
        name = field[0]
        if type(name) is list:  # with a title
            if len(name) != 2:
                raise self._wrong("has something else where a field's name should stand")
            name = (self._text(name[0]), self._text(name[1]))
        else:
            name = self._text(name)
        shape = (self._shape(field[2]),) if len(field) == 3 else ()
        return (name, self._descr(field[1], depth + 1), *shape)

    def _ndarray(self, node: dict[str, Any], body: Any) -> Any:
        import numpy

        dtype, shape = self._dtype(node["dtype"]), self._shape(node["shape"])
        stored: Stored | None = None
        if type(node["dtype"]) is str:
            stored = STORED.get(node["dtype"])
        small = self._stored_shape(node, shape)
        extra = () if stored is not None and not stored.last else (dtype.itemsize,)
        if stored is not None and stored.last:
            extra = (stored.last,)
        data = self._blob(body, "U8" if stored is None else stored.code, small + extra)
        result = data.view(dtype).reshape(small) if data.size else numpy.empty(small, dtype)
        return numpy.broadcast_to(result, shape) if "expanded_from" in node else result

    def _ndarray_object(self, node: dict[str, Any], body: Any) -> Any:
        import numpy

        items = self._array(node["items"])
        shape = self._shape(body)
        if math.prod(shape) != len(items):
            raise self._wrong("$ndarray_object: shape and items do not agree")
        flat = numpy.empty(len(items), dtype=object)
        result = self._made(node, flat.reshape(shape))
        for i, inner in enumerate(items):
            value = self._node(inner)
            if type(value) is _Later:
                self._fixups.append((flat.__setitem__, i, value.node))
                continue
            flat[i] = value
        return result

    def _npscalar(self, node: dict[str, Any], body: Any) -> Any:
        import numpy

        data = bytes.fromhex(self._text(node["bytes"]))
        found = numpy.frombuffer(data, dtype=self._dtype(body))
        if len(found) != 1:
            raise self._wrong("$npscalar: is no single value")
        # A structured scalar would be a view of the bytes, which cannot be written.
        return found.copy()[0]

    def _numpy_dtype(self, node: dict[str, Any], body: Any) -> Any:
        import numpy

        return numpy.dtype(object) if body == "|O" else self._dtype(body)

    def _image(self, node: dict[str, Any], body: Any) -> Any:
        mode = self._text(node["mode"])
        size = self._shape(node["size"])
        if len(size) != 2:
            raise self._wrong("$image: has no width and height")
        try:
            from PIL import Image
        except ImportError:
            return self._stand_in("PIL.Image:Image", None, "PIL is not installed")
        if body is None:
            return self._raw_image(node, mode, size, Image)
        name = self._file_name(body, "image")
        kind = name.rpartition(".")[2]
        if kind not in IMAGE_MODES or mode not in IMAGE_MODES[kind]:
            raise self._wrong(f"$image: {name} cannot be of mode {mode[:20]!r}")
        data = self.folder.read(name, self.max_file_bytes, verify=self.verify)
        return _image_from(data, kind, mode, size, self.folder.file(name), Image)

    def _raw_image(self, node: dict[str, Any], mode: str, size: Any, pil: Any) -> Any:
        data = self._blob(node["pixels"], "U8", (node["bytes"],))
        image = pil.frombytes(mode, size, data.tobytes())
        if "palette" in node:
            palette_mode, colours = node["palette"]
            image.putpalette(bytes.fromhex(colours), palette_mode)
        transparency = self._node(node["transparency"])
        if transparency is not None:
            image.info["transparency"] = transparency
        return image

    def _file_name(self, value: Any, kind: str) -> str:
        """A file beside the tree, which the manifest has a size and a digest of."""
        name = self._text(value)
        if not name.startswith(kind) or name not in self.folder.manifest["files"]:
            raise self._wrong(f"names a file {name[:200]!r}, which the manifest does not")
        return name

    # --- what is left ---

    def _pickle(self, node: dict[str, Any], body: Any) -> Any:
        name = self._file_name(body, "pickle")
        type_name = self._text(self._node(node["type"]))
        path = self.folder.file(name)
        if not self.allow_pickle:
            raise refuse_pickle(path, type_name)
        tensors = self._values(node["tensors"])
        data = self.folder.read(name, self.max_file_bytes, verify=self.verify)
        try:
            return _Unpickler(io.BytesIO(data), tensors).load()
        except Exception as error:
            reason = f"{type_name} cannot be unpickled: {type(error).__name__}: {error}"
            raise DumpError(path, reason) from error

    def _unsupported(self, node: dict[str, Any], body: Any) -> Any:
        reason = f"it could not be dumped: {self._node(node['reason'])}"
        return self._stand_in(self._text(self._node(body)), None, reason)


def refuse_pickle(path: str, what: str) -> DumpError:
    return DumpError(
        path,
        f"holds a pickle ({what}), and reading one runs code that its writer chose: "
        "pass allow_pickle=True if you trust them",
    )


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Any]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._tensors):
            raise pickle.UnpicklingError("it wants a tensor that is not there")
        return self._tensors[number]


def _dict_setter(result: Any) -> Callable[[Any, Any], None]:
    base = collections.OrderedDict if isinstance(result, collections.OrderedDict) else dict
    return functools.partial(base.__setitem__, result)


def torch_from(data: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not data.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def _image_from(
    data: bytes, kind: str, mode: str, size: tuple[int, ...], path: str, pil: Any
) -> Any:
    """Decoded by the one decoder that it was written for."""
    try:
        with pil.open(io.BytesIO(data), formats=[kind.upper()]) as image:
            if image.size != size or image.mode != mode:
                raise DumpError(path, f"is {image.mode} {image.size}, not {mode} {size}")
            if size[0] * size[1] > IMAGE_PIXELS_MAX:
                raise DumpError(path, f"has {size[0]} x {size[1]} pixels, too many for a file")
            return image.copy()
    except DumpError:
        raise
    except Exception as error:  # decoders raise whatever they come upon
        raise DumpError(path, f"cannot be decoded: {error}") from error


_HANDLERS: dict[str, Callable[[Decoder, dict[str, Any], Any], Any]] = {
    "$bytearray": Decoder._bytearray,
    "$bytes": Decoder._bytes,
    "$complex": Decoder._complex,
    "$counter": Decoder._counter,
    "$dataclass": Decoder._dataclass,
    "$date": Decoder._date,
    "$datetime": Decoder._datetime,
    "$decimal": Decoder._decimal,
    "$defaultdict": Decoder._defaultdict,
    "$deque": Decoder._deque,
    "$dict": Decoder._dict,
    "$dtensor": Decoder._dtensor,
    "$ellipsis": Decoder._ellipsis,
    "$enum": Decoder._enum,
    "$float": Decoder._float,
    "$fraction": Decoder._fraction,
    "$frozenset": Decoder._frozenset,
    "$image": Decoder._image,
    "$int": Decoder._int,
    "$namedtuple": Decoder._namedtuple,
    "$namespace": Decoder._namespace,
    "$ndarray": Decoder._ndarray,
    "$ndarray_object": Decoder._ndarray_object,
    "$not_implemented": Decoder._not_implemented,
    "$npscalar": Decoder._npscalar,
    "$numpy_dtype": Decoder._numpy_dtype,
    "$ordered_dict": Decoder._ordered_dict,
    "$path": Decoder._path,
    "$pickle": Decoder._pickle,
    "$range": Decoder._range,
    "$ref": Decoder._ref,
    "$set": Decoder._set,
    "$slice": Decoder._slice,
    "$sparse": Decoder._sparse,
    "$str": Decoder._str,
    "$tensor": Decoder._tensor,
    "$tensordict": Decoder._tensordict,
    "$time": Decoder._time,
    "$timedelta": Decoder._timedelta,
    "$timezone": Decoder._timezone,
    "$torch_device": Decoder._torch_constant,
    "$torch_dtype": Decoder._torch_constant,
    "$torch_layout": Decoder._torch_constant,
    "$torch_memory_format": Decoder._torch_constant,
    "$torch_return_type": Decoder._torch_return_type,
    "$torch_size": Decoder._torch_size,
    "$truncated": Decoder._truncated,
    "$tuple": Decoder._tuple,
    "$unsupported": Decoder._unsupported,
    "$uuid": Decoder._uuid,
    "$zone": Decoder._zone,
}

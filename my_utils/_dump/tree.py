"""From an object to the text of tree.json, with the elements of its tensors set aside.

What JSON has stands as it is: None, bool, int, finite float, str, list, and dict with str keys that
do not begin with "$". All else is an object whose first key begins with "$":

    $ref            a JSON pointer (RFC 6901) to where the same object stood first
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
    $pickle         a file that only pickle can read, with the tensors in it beside it
    $unsupported    what could not be dumped, with type and reason
    $truncated      what a limit of DumpConfig cut; the kept part stands beside it

An object that stands in several places is written once, in the first; so are cycles. Identity of
str, bytes, numbers and other plain values is not kept, nor that two tensors share memory.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import json
import math
import pathlib
import pickle
import struct
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .blobs import Blobs, plain_tensor, shrink_expanded
from .form import STORED, DumpError, Stored, quote

if TYPE_CHECKING:
    from ..dump_utils import DumpConfig

__all__ = [
    "IMAGE_MODES",
    "IMAGE_PIXELS_MAX",
    "Tree",
    "dataclass_base",
    "factory_names",
    "is_named_tuple",
]

INT_BITS_MAX = 2000  # Python reads no more than 640 decimal digits where it is told so
INLINE_BYTES_MAX = 64
IMAGE_MODES = {
    "png": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"},
    "tiff": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK"},
    "bmp": {"1", "L", "P", "RGB"},
    "webp": {"RGB", "RGBA"},
    "jpeg": {"L", "RGB", "CMYK"},
}
# Beyond it PIL takes an image for an attack.
IMAGE_PIXELS_MAX = 89_000_000

_SCALARS = {int, float, str, bool, type(None)}
_ROOT = len("/root/")
_QUIET_NAN = 0x7FF8000000000000

Handler = Callable[["Tree", Any, str], None]


# What tensors of one type and shape have in common: text of their node, type and shape in the file,
# bytes, whether they are complex.
_Layout = tuple[str, str, tuple[int, ...], int, bool]


class Tree:
    """The tree of one object. Made, filled by `build`, and read once; not thread-safe.

    `out` are the pieces of the text; the empty ones at `slots` are for the digests of the blobs.
    `files` are the bytes of files beside the tree, or a function that makes them.
    """

    def __init__(self, config: DumpConfig, *, copy: bool) -> None:
        self.config = config
        self.blobs = Blobs(copy=copy)
        self.out: list[str] = []
        self.slots: list[int] = []
        self.files: dict[str, bytes | Callable[[], bytes]] = {}
        self.counts = collections.Counter[str]()
        self.troubles: list[str] = []
        # Where objects stand, by their ids, and what keeps the ids from being used again. Texts
        # and no tuples: thousands of small containers would set the garbage collector going.
        self._memo: dict[int, str] = {}
        self._alive: list[Any] = []
        self._newline = "\n "
        self._depth = 0
        self._table = dict(_HANDLERS)
        self._layouts: dict[Any, _Layout] = {}
        # Tuples and the like that are not finished, and whether the place that is being filled
        # can be filled later.
        self._open: set[int] = set()
        self._patchable = True
        torch = sys.modules.get("torch")
        if torch is not None:
            self._parameter = torch.nn.Parameter
            self._table[torch.Tensor] = self._table[torch.nn.Parameter] = self._tensor_handler()

    def build(self, obj: Any) -> None:
        self._node(obj, "/root")

    def text(self, digests: list[str]) -> str:
        """The node of the whole object, once the digests of the blobs are known."""
        out = self.out
        for slot, found in zip(self.slots, digests, strict=True):
            out[slot] = found + '"}'
        return "".join(out)

    # --- the walk ---

    def _node(self, obj: Any, path: str) -> None:
        handler = self._table.get(type(obj))
        if handler is None:
            handler = self._table[type(obj)] = _handler_of(type(obj))
        handler(self, obj, path)

    def _seen(self, obj: Any, path: str) -> bool:
        """Writes a reference where `obj` stands in the tree already."""
        found = self._memo.get(id(obj))
        if found is None:
            self._memo[id(obj)] = path
            self._alive.append(obj)
            return False
        if id(obj) in self._open and not self._patchable:
            self._unsupported(obj, path, "a cycle that runs through tuples and sets only")
        else:
            self.out.append(f'{{"$ref": {quote(found)}}}')
        return True

    @contextmanager
    def _inside(self, path: str, *, patchable: bool, unfinished: Any = None) -> Iterator[str]:
        """Within a container: gives what begins a line there."""
        newline, was_patchable = self._newline, self._patchable
        self._depth += 1
        if self._depth > self.config.max_depth:
            raise DumpError(path, f"is nested deeper than max_depth, {self.config.max_depth}")
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

    def _values(
        self, values: Any, path: str, *, patchable: bool = True, unfinished: Any = None
    ) -> None:
        """A JSON array. Plain numbers and texts share a line."""
        if not values:
            self.out.append("[]")
            return
        if self._plain_values(values):
            return
        append, node = self.out.append, self._node
        with self._inside(path, patchable=patchable, unfinished=unfinished) as newline:
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

    def _pairs(self, items: Iterable[tuple[Any, Any]], path: str) -> None:
        """A JSON array of arrays of two."""
        append, node = self.out.append, self._node
        first = True
        with self._inside(path, patchable=True) as newline:
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

    def _fields(self, fields: dict[str, Any], path: str, *, patchable: bool = True) -> None:
        """A JSON object with names that are known to be plain."""
        append, node = self.out.append, self._node
        if not fields:
            append("{}")
            return
        with self._inside(path, patchable=patchable) as newline:
            begin = "{" + newline
            for name, value in fields.items():
                append(f"{begin}{quote(name)}: ")
                node(value, f"{path}/{_escaped(name)}")
                begin = "," + newline
        append(self._newline + "}")

    def _cut(self, obj: Any, path: str, kind: str) -> tuple[Any, str]:
        """The items that are kept of a sequence, and where they stand."""
        limit = self.config.max_items
        if limit is None or len(obj) <= limit:
            return obj, path
        self.counts["truncated"] += 1
        self.out.append(f'{{"$truncated": "{kind}", "length": {len(obj)}, "kept": ')
        return obj[:limit], path + "/kept"

    def _end_cut(self, obj: Any, kept: Any) -> None:
        if kept is not obj:
            self.out.append("}")

    # --- plain values ---

    def _constant(self, obj: Any, path: str) -> None:
        self.out.append(_CONSTANTS[obj])

    def _int(self, obj: int, path: str) -> None:
        plain = obj.bit_length() <= INT_BITS_MAX
        self.out.append(str(obj) if plain else f'{{"$int": "{obj:#x}"}}')

    def _float(self, obj: float, path: str) -> None:
        self.out.append(_float_text(obj))

    def _complex(self, obj: complex, path: str) -> None:
        self.out.append(f'{{"$complex": [{_float_text(obj.real)}, {_float_text(obj.imag)}]}}')

    def _str(self, obj: str, path: str) -> None:
        limit = self.config.max_string
        if limit is not None and len(obj) > limit:
            self.counts["truncated"] += 1
            kept = _str_text(obj[:limit])
            self.out.append(f'{{"$truncated": "str", "length": {len(obj)}, "kept": {kept}}}')
        else:
            self.out.append(_str_text(obj))

    def _bytes(self, obj: bytes | bytearray, path: str) -> None:
        tag = "$bytearray" if type(obj) is bytearray else "$bytes"
        if tag == "$bytearray" and self._seen(obj, path):
            return
        limit = self.config.max_string
        data = bytes(obj)
        length = ""
        if limit is not None and len(data) > limit:
            self.counts["truncated"] += 1
            length = f', "truncated_from": {len(data)}'
            data = data[:limit]
        if len(data) <= INLINE_BYTES_MAX:
            self.out.append(f'{{"{tag}": "{data.hex()}"{length}}}')
            return
        name = self.blobs.add_bytes(_blob_name(path), data)
        self._blob_node(f'{{"{tag}": {quote(name)}, "blob": {len(data)}{length}')

    def _blob_node(self, opening: str) -> None:
        """A node that ends with the digest of the blob that was added last."""
        self.out.append(f'{opening}, "digest": "')
        self.slots.append(len(self.out))
        self.out.append("")

    # --- containers ---

    def _list(self, obj: list[Any], path: str) -> None:
        if not self._seen(obj, path):
            kept, place = self._cut(obj, path, "list")
            self._values(kept, place)
            self._end_cut(obj, kept)

    def _tagged_values(
        self, tag: str, obj: Any, values: Any, path: str, *, patchable: bool, extra: str = ""
    ) -> None:
        if self._seen(obj, path):
            return
        kept, place = self._cut(values, path, tag[1:])
        self.out.append(f'{{"{tag}": ')
        unfinished = None if patchable else obj
        self._values(kept, f"{place}/{tag}", patchable=patchable, unfinished=unfinished)
        self.out.append(extra + "}")
        self._end_cut(values, kept)

    def _tuple(self, obj: tuple[Any, ...], path: str) -> None:
        if not obj:
            self.out.append('{"$tuple": []}')  # there is one empty tuple
        else:
            self._tagged_values("$tuple", obj, obj, path, patchable=False)

    def _set(self, obj: set[Any], path: str) -> None:
        self._tagged_values("$set", obj, _in_order(obj), path, patchable=False)

    def _frozenset(self, obj: frozenset[Any], path: str) -> None:
        self._tagged_values("$frozenset", obj, _in_order(obj), path, patchable=False)

    def _deque(self, obj: collections.deque[Any], path: str) -> None:
        length = "null" if obj.maxlen is None else str(obj.maxlen)
        extra = f', "maxlen": {length}'
        self._tagged_values("$deque", obj, list(obj), path, patchable=True, extra=extra)

    def _dict(self, obj: dict[Any, Any], path: str) -> None:
        if self._seen(obj, path):
            return
        limit = self.config.max_items
        if limit is not None and len(obj) > limit:
            self.counts["truncated"] += 1
            self.out.append(f'{{"$truncated": "dict", "length": {len(obj)}, "kept": ')
            self._mapping(dict(list(obj.items())[:limit]), path + "/kept")
            self.out.append("}")
        else:
            self._mapping(obj, path)

    def _mapping(self, obj: dict[Any, Any], path: str) -> None:
        if not obj:
            self.out.append("{}")
            return
        keys = _plain_keys(obj)
        if keys is None:
            self.out.append('{"$dict": ')
            self._pairs(obj.items(), path + "/$dict")
            self.out.append("}")
            return
        append, table, node = self.out.append, self._table, self._node
        with self._inside(path, patchable=True) as newline:
            begin = "{" + newline
            for key, value in zip(keys, obj.values(), strict=True):
                append(f"{begin}{quote(key)}: ")
                begin = "," + newline
                if "/" in key or "~" in key:
                    key = _escaped(key)
                handler = table.get(type(value))
                if handler is None:
                    node(value, f"{path}/{key}")
                else:
                    handler(self, value, f"{path}/{key}")
        append(self._newline + "}")

    def _special_dict(self, tag: str, obj: Any, path: str, extra: str = "") -> None:
        if self._seen(obj, path):
            return
        self.out.append(f'{{"{tag}": ')
        self._pairs(obj.items(), f"{path}/{tag}")
        attributes = getattr(obj, "__dict__", None)
        if attributes:
            self.out.append(', "attributes": ')
            self._mapping(dict(attributes), path + "/attributes")
        self.out.append(extra + "}")

    def _ordered_dict(self, obj: Any, path: str) -> None:
        self._special_dict("$ordered_dict", obj, path)

    def _counter(self, obj: Any, path: str) -> None:
        self._special_dict("$counter", obj, path)

    def _defaultdict(self, obj: Any, path: str) -> None:
        factory = obj.default_factory
        name = None if factory is None else _name(factory)
        if isinstance(factory, type):
            name = factory_names().get(factory, name)
        self._special_dict("$defaultdict", obj, path, f', "factory": {_optional_text(name)}')

    def _namespace(self, obj: Any, path: str) -> None:
        if self._seen(obj, path):
            return
        self.out.append(f'{{"$namespace": "{_name(type(obj))}", "fields": ')
        self._mapping(vars(obj), path + "/fields")
        self.out.append("}")

    # --- classes of the user's ---

    def _enum(self, obj: enum.Enum, path: str) -> None:
        self.out.append(
            f'{{"$enum": {_str_text(_name(type(obj)))}, "name": {_optional_text(obj.name)}, '
            '"value": '
        )
        with self._inside(path, patchable=False):
            self._node(obj.value, path + "/value")
        self.out.append("}")

    def _named_tuple(self, obj: Any, path: str) -> None:
        if self._seen(obj, path):
            return
        self.out.append(
            f'{{"$namedtuple": {_str_text(_name(type(obj)))}, '
            f'"names": {json.dumps(obj._fields)}, "values": '
        )
        values = tuple(obj)
        self._values(values, path + "/values", patchable=False, unfinished=obj)
        self.out.append("}")

    def _dataclass(self, obj: Any, path: str) -> None:
        if self._seen(obj, path):
            return
        names = [field.name for field in dataclasses.fields(obj)]
        fields = {name: getattr(obj, name) for name in names if hasattr(obj, name)}
        others = {k: v for k, v in getattr(obj, "__dict__", {}).items() if k not in fields}
        self.out.append(f'{{"$dataclass": {_str_text(_name(type(obj)))}, "fields": ')
        self._fields(fields, path + "/fields")
        if others:
            self.out.append(', "attributes": ')
            self._mapping(others, path + "/attributes")
        if isinstance(obj, dict):
            self.out.append(', "items": ')
            self._pairs(dict.items(obj), path + "/items")
        self.out.append("}")

    # --- small types of the standard library ---

    def _parts(self, tag: str, parts: Iterable[Any], path: str) -> None:
        self.out.append(f'{{"{tag}": ')
        self._values(list(parts), f"{path}/{tag}", patchable=False)
        self.out.append("}")

    def _slice(self, obj: slice, path: str) -> None:
        self._parts("$slice", (obj.start, obj.stop, obj.step), path)

    def _range(self, obj: range, path: str) -> None:
        self._parts("$range", (obj.start, obj.stop, obj.step), path)

    def _timedelta(self, obj: datetime.timedelta, path: str) -> None:
        self._parts("$timedelta", (obj.days, obj.seconds, obj.microseconds), path)

    def _date(self, obj: datetime.date, path: str) -> None:
        self.out.append(f'{{"$date": "{obj.isoformat()}"}}')

    def _datetime(self, obj: Any, path: str) -> None:
        """A datetime or a time; the zone stands beside it."""
        tag = "$datetime" if isinstance(obj, datetime.datetime) else "$time"
        text = obj.replace(tzinfo=None).isoformat()
        self.out.append(f'{{"{tag}": "{text}", "fold": {obj.fold}, "zone": ')
        self._node(obj.tzinfo, path + "/zone")
        self.out.append("}")

    def _timezone(self, obj: datetime.timezone, path: str) -> None:
        offset = obj.utcoffset(None)
        self.out.append(
            f'{{"$timezone": [{offset.days}, {offset.seconds}, {offset.microseconds}], '
            f'"name": {_str_text(obj.tzname(None))}}}'
        )

    def _zone(self, obj: Any, path: str) -> None:
        if obj.key is None:
            self._pickle(obj, path)
        else:
            self.out.append(f'{{"$zone": {_str_text(obj.key)}}}')

    def _path(self, obj: pathlib.PurePath, path: str) -> None:
        self.out.append(f'{{"$path": {_str_text(str(obj))}, "class": "{type(obj).__name__}"}}')

    def _text(self, tag: str, text: str) -> None:
        self.out.append(f'{{"{tag}": {_str_text(text)}}}')

    def _decimal(self, obj: decimal.Decimal, path: str) -> None:
        self._text("$decimal", str(obj))

    def _fraction(self, obj: fractions.Fraction, path: str) -> None:
        self._parts("$fraction", (obj.numerator, obj.denominator), path)

    def _uuid(self, obj: uuid.UUID, path: str) -> None:
        self._text("$uuid", str(obj))

    def _ellipsis(self, obj: Any, path: str) -> None:
        self.out.append('{"$ellipsis": true}')

    def _not_implemented(self, obj: Any, path: str) -> None:
        self.out.append('{"$not_implemented": true}')

    # --- torch ---

    def _tensor_handler(self) -> Handler:
        """Tensors come in thousands: those that lie in order on the CPU take a short way.

        It is a closure, whose variables Python finds faster than attributes.
        """
        from safetensors import TensorSpec

        memo, layouts, blobs = self._memo, self._layouts, self.blobs
        specs, sources, parameter = blobs.specs, blobs.sources, self._parameter
        out, slots = self.out, self.slots

        def handle(tree: Tree, obj: Any, path: str) -> None:
            if id(obj) in memo:
                tree._seen(obj, path)
                return
            memo[id(obj)] = path
            try:
                layout = layouts.get((obj.dtype, obj.shape))
                address = 0 if layout is None else obj.data_ptr()
                if layout is None or not address or not obj.is_cpu or not obj.is_contiguous():
                    tree._any_tensor(obj, path)
                    return
            except RuntimeError:  # sparse, nested, wrapped: they have no pointer
                tree._any_tensor(obj, path)
                return
            text, code, shape, size, is_complex = layout
            if obj.is_neg() or (is_complex and obj.is_conj()):
                tree._any_tensor(obj, path)
                return
            name = path[_ROOT:]
            if not name or name in specs or name == "__metadata__":
                name = blobs.unique(name)
            specs[name] = TensorSpec(dtype=code, shape=shape, data_ptr=address, data_len=size)
            sources.append(obj)
            if obj.requires_grad or type(obj) is parameter:
                text += tree._tensor_notes(obj)
            out.append(f'{{"$tensor": {quote(name)}, {text}, "digest": "')
            slots.append(len(out))
            out.append("")

        return handle

    def _tensor_notes(self, obj: Any) -> str:
        if type(obj) is self._parameter:
            return f', "parameter": true, "requires_grad": {_CONSTANTS[obj.requires_grad]}'
        return ', "requires_grad": true' if obj.requires_grad else ""

    def _any_tensor(self, obj: Any, path: str) -> None:
        import torch

        self._alive.append(obj)

        with torch.no_grad():
            try:
                stored = plain_tensor(obj)
                if stored is not None:
                    self._strided_tensor(obj, path, stored)
                elif obj.is_meta:
                    self._meta_tensor(obj)
                elif obj.layout in _sparse_layouts():
                    self._sparse_tensor(obj, path)
                else:
                    self._pickle(obj, path)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                self._unsupported(obj, path, str(error))

    def _strided_tensor(self, obj: Any, path: str, stored: Stored) -> None:
        shape = list(obj.shape)
        notes = self._tensor_notes(obj)
        if not self.config.save_tensor_cpu and obj.device.type != "cpu":
            notes += f', "device": "{obj.device}"'
        data = obj.detach().resolve_conj().resolve_neg()
        limit = self.config.max_tensor_elements
        if limit is not None and data.numel() > limit:
            self.counts["truncated"] += 1
            data = data.reshape(-1)[:limit]
            notes += f', "truncated": {limit}'
        elif not data.is_contiguous():
            data = shrink_expanded(data, data.stride())
            if list(data.shape) != shape:
                notes += f', "expanded_from": {list(data.shape)}'
        if stored.last or stored.name != str(data.dtype).removeprefix("torch."):
            notes += f', "stored": "{stored.code}"'
        dtype = str(obj.dtype).removeprefix("torch.")
        text = f'"dtype": "{dtype}", "shape": {shape}'
        if stored.name == dtype and list(data.shape) == shape and not self.blobs.copy:
            size = data.numel() * stored.item_bytes
            is_complex = obj.dtype.is_complex
            self._layouts[obj.dtype, obj.shape] = text, stored.name, tuple(shape), size, is_complex
        name = self.blobs.add_tensor(_blob_name(path), data, stored)
        self._blob_node(f'{{"$tensor": {quote(name)}, {text}{notes}')

    def _meta_tensor(self, obj: Any) -> None:
        dtype = str(obj.dtype).removeprefix("torch.")
        notes = self._tensor_notes(obj)
        self.out.append(
            f'{{"$tensor": null, "dtype": "{dtype}", "shape": {list(obj.shape)}{notes}}}'
        )

    def _sparse_tensor(self, obj: Any, path: str) -> None:
        import torch

        layout = str(obj.layout).removeprefix("torch.sparse_")
        if obj.layout is torch.sparse_coo:
            parts = {"indices": obj._indices(), "values": obj._values()}
        elif obj.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = {"compressed": obj.crow_indices(), "plain": obj.col_indices()}
            parts["values"] = obj.values()
        else:
            parts = {"compressed": obj.ccol_indices(), "plain": obj.row_indices()}
            parts["values"] = obj.values()
        coalesced = _CONSTANTS[obj.layout is torch.sparse_coo and obj.is_coalesced()]
        self.out.append(
            f'{{"$sparse": "{layout}", "shape": {list(obj.shape)}, '
            f'"coalesced": {coalesced}{self._tensor_notes(obj)}, "parts": '
        )
        self._fields({k: v.detach() for k, v in parts.items()}, path + "/parts")
        self.out.append("}")

    def _dtensor(self, obj: Any, path: str) -> None:
        """The local shard, with a note of what it is a part of."""
        if self._seen(obj, path):
            return
        self.out.append(
            f'{{"$dtensor": {{"shape": {list(obj.shape)}, '
            f'"placements": {quote(str(obj.placements))}}}, "local": '
        )
        self._node(obj.to_local().detach(), path + "/local")
        self.out.append("}")

    def _torch_size(self, obj: Any, path: str) -> None:
        self.out.append(f'{{"$torch_size": {list(obj)}}}')

    def _torch_return_type(self, obj: Any, path: str) -> None:
        """What `x.max(dim=0)` and the like return."""
        kind = quote(type(obj).__name__)
        if self._seen(obj, path):
            return
        self.out.append(f'{{"$torch_return_type": {kind}, "values": ')
        self._values(tuple(obj), path + "/values", patchable=False, unfinished=obj)
        self.out.append("}")

    def _torch_constant(self, obj: Any, path: str) -> None:
        kind = type(obj).__name__
        self._text(f"$torch_{kind}", str(obj).removeprefix("torch."))

    def _tensordict(self, obj: Any, path: str) -> None:
        if self._seen(obj, path):
            return
        device = None if obj.device is None else str(obj.device)
        self.out.append(
            f'{{"$tensordict": {json.dumps(list(obj.batch_size))}, '
            f'"device": {json.dumps(device)}, "names": {json.dumps(_dimension_names(obj))}, '
            f'"locked": {_CONSTANTS[obj.is_locked]}, "items": '
        )
        self._mapping({key: obj[key] for key in obj.keys()}, path + "/items")  # noqa: SIM118
        self.out.append("}")

    # --- numpy and images ---

    def _array(self, obj: Any, path: str) -> None:
        if self._seen(obj, path):
            return
        dtype = obj.dtype
        if dtype.char == "O":
            self.out.append(f'{{"$ndarray_object": {list(obj.shape)}, "items": ')
            self._values(obj.ravel().tolist(), path + "/items")
            self.out.append("}")
        elif dtype.hasobject or dtype.isbuiltin == 2 or not dtype.itemsize or dtype.kind == "T":
            self._pickle(obj, path)
        else:
            self._plain_array(obj, path)

    def _plain_array(self, obj: Any, path: str) -> None:
        import numpy

        shape, notes = list(obj.shape), ""
        limit = self.config.max_tensor_elements
        data = obj.view(numpy.ndarray)
        if limit is not None and data.size > limit:
            self.counts["truncated"] += 1
            data = data.reshape(-1)[:limit]
            notes = f', "truncated": {limit}'
        elif not data.flags.c_contiguous and data.size:
            data = shrink_expanded(data, data.strides)
            if list(data.shape) != shape:
                notes = f', "expanded_from": {list(data.shape)}'
        if not data.flags.c_contiguous:
            data = data.copy(order="C")
        stored = STORED.get(data.dtype.name) if data.dtype.isnative else None
        if data.dtype.names is not None or data.dtype.kind not in "biufc":
            stored = None
        if stored is None:
            dtype_text = json.dumps(numpy.lib.format.dtype_to_descr(data.dtype))
            notes += ', "stored": "U8"'
            item, code = data.dtype.itemsize, "uint8"
        else:
            dtype_text, item, code = quote(data.dtype.name), stored.last, stored.name
            if item:
                notes += f', "stored": "{stored.code}"'
        if item:
            data = data.reshape(-1).view(code).reshape((*data.shape, item))
        name = self.blobs.add_array(_blob_name(path), data, code)
        self._blob_node(
            f'{{"$ndarray": {quote(name)}, "dtype": {dtype_text}, "shape": {shape}{notes}'
        )

    def _numpy_scalar(self, obj: Any, path: str) -> None:
        import numpy

        array = numpy.asarray(obj)
        if array.dtype.kind in "US" and not array.dtype.itemsize:
            array = array.astype(array.dtype.kind + "1")  # the empty text
        dtype = array.dtype
        if dtype.hasobject or dtype.isbuiltin == 2 or not dtype.itemsize:
            self._pickle(obj, path)
            return
        descr = json.dumps(numpy.lib.format.dtype_to_descr(dtype))
        data = array.tobytes().hex()
        self.out.append(
            f'{{"$npscalar": {descr}, "value": {_str_text(str(obj))}, "bytes": "{data}"}}'
        )

    def _numpy_dtype(self, obj: Any, path: str) -> None:
        import numpy

        if obj.isbuiltin == 2 or obj.kind == "T" or (obj.hasobject and obj.names is not None):
            self._pickle(obj, path)
            return
        descr = "|O" if obj.hasobject else numpy.lib.format.dtype_to_descr(obj)
        self.out.append(f'{{"$numpy_dtype": {json.dumps(descr)}}}')

    def _image(self, obj: Any, path: str) -> None:
        if self._seen(obj, path):
            return
        kind = self.config.image_format
        width, height = obj.size
        mode = obj.mode
        notes = f'"mode": "{mode}", "size": [{width}, {height}]'
        fits = mode in IMAGE_MODES[kind] and 0 < width * height <= IMAGE_PIXELS_MAX
        palette_mode = obj.palette.mode if obj.palette is not None else "RGB"
        if fits and palette_mode == "RGB" and "transparency" not in obj.info:
            name = self._file("image", kind)
            image = obj.copy() if self.blobs.copy else obj
            self.files[name] = lambda: _image_bytes(image, kind)
            self.out.append(f'{{"$image": "{name}", {notes}}}')
            return
        if obj.palette is not None and mode in ("P", "PA"):
            palette = bytes(obj.getpalette(obj.palette.mode) or b"").hex()
            notes += f', "palette": ["{obj.palette.mode}", "{palette}"]'
        self.out.append(f'{{"$image": null, {notes}, "transparency": ')
        self._node(obj.info.get("transparency"), path + "/transparency")
        data = obj.tobytes()
        name = self.blobs.add_bytes(_blob_name(path), data)
        self._blob_node(f', "pixels": {quote(name)}, "bytes": {len(data)}')

    # --- what is left ---

    def _file(self, kind: str, suffix: str) -> str:
        self.counts[kind] += 1
        return f"{kind}_{self.counts[kind] - 1:05d}.{suffix}"

    def _pickle(self, obj: Any, path: str) -> None:
        """Pickled whole, but for tensors and arrays, which go where all others are."""
        found = self._memo.get(id(obj))
        if (found is None or found != path) and self._seen(obj, path):
            return
        tensors: list[Any] = []
        data = io.BytesIO()
        try:
            _Pickler(data, self._extracted, tensors).dump(obj)
        except Exception as error:  # whatever __reduce__ of any class raises
            self._unsupported(obj, path, f"pickle: {type(error).__name__}: {error}")
            return
        name = self._file("pickle", "pkl")
        self.files[name] = data.getvalue()
        kind = _str_text(_name(type(obj)))
        self.out.append(f'{{"$pickle": "{name}", "type": {kind}, "tensors": ')
        self._values(tensors, path + "/tensors")
        self.out.append("}")

    def _extracted(self, obj: Any) -> bool:
        """Whether pickle should leave the object to us."""
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter):
            return plain_tensor(obj) is not None
        return _is_plain_array(obj)

    def _unsupported(self, obj: Any, path: str, reason: str) -> None:
        """A note in the place of what cannot be dumped."""
        kind = _name(type(obj))
        self.counts["unsupported"] += 1
        self.troubles.append(f"{path}: {kind} cannot be dumped: {reason}")
        # What had begun to be written of a leaf is nothing yet: handlers convert first.
        self.out.append(
            f'{{"$unsupported": {_str_text(kind)}, "reason": {_str_text(reason[:1000])}}}'
        )


class _Pickler(pickle.Pickler):
    """Leaves tensors and arrays out; their number is what stands in the pickle."""

    def __init__(self, file: io.BytesIO, wanted: Callable[[Any], bool], found: list[Any]) -> None:
        super().__init__(file, protocol=4)
        self._wanted = wanted
        self._found = found
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not self._wanted(obj):
            return None
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self._found)
            self._found.append(obj)
        return number


# --- texts of plain values ---

_CONSTANTS: dict[Any, str] = {None: "null", True: "true", False: "false"}


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    if not math.isnan(value):
        return f'{{"$float": "{value}"}}'
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return '{"$float": "nan"}' if bits == _QUIET_NAN else f'{{"$float": "nan", "bits": "{bits:x}"}}'


def _str_text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return f'{{"$str": {quote(text.encode("unicode_escape").decode("ascii"))}}}'
    return str(quote(text))


def _optional_text(text: str | None) -> str:
    return "null" if text is None else _str_text(text)


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


def _blob_name(path: str) -> str:
    return path[_ROOT:]


def _name(cls: Any) -> str:
    module = getattr(cls, "__module__", None) or "?"
    return f"{module}:{getattr(cls, '__qualname__', type(cls).__qualname__)}"


def _in_order(items: Iterable[Any]) -> list[Any]:
    """Sorted where that is possible, so that trees of equal sets are equal."""
    values = list(items)
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= {int, str, float, bytes}:
        values.sort()
    return values


def factory_names() -> dict[Any, str]:
    """Factories of a defaultdict that are made again without a question."""
    plain = (list, dict, set, int, float, str, tuple, bool, bytes, frozenset, complex)
    names: dict[Any, str] = {kind: kind.__name__ for kind in plain}
    names[collections.OrderedDict] = "OrderedDict"
    return names


# --- images ---


def _image_bytes(image: Any, kind: str) -> bytes:
    data = io.BytesIO()
    options = {"lossless": True, "exact": True} if kind == "webp" else {}
    image.save(data, format=kind.upper(), **options)
    return data.getvalue()


# --- which handler a type gets ---


def _is_plain_array(obj: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or type(obj) is not numpy.ndarray:
        return False
    dtype = obj.dtype
    return bool(
        not dtype.hasobject and dtype.isbuiltin != 2 and dtype.itemsize and dtype.kind != "T"
    )


def _sparse_layouts() -> tuple[Any, ...]:
    import torch

    return (
        torch.sparse_coo,
        torch.sparse_csr,
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
    )


def _dimension_names(obj: Any) -> list[str | None] | None:
    try:
        names = list(obj.names) if obj._has_names() else None
    except (AttributeError, RuntimeError):
        return None
    return names


def dataclass_base(cls: type) -> type | None:
    """object, dict or OrderedDict for classes whose instances are made of nothing else."""
    for base in cls.__mro__:
        if base in (object, dict, collections.OrderedDict):
            return base
        if not base.__flags__ & 1 << 9:  # a type made in C
            return None
    return None


def is_named_tuple(cls: type) -> bool:
    fields = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple)
        and cls.__mro__[1] is tuple
        and isinstance(fields, tuple)
        and all(type(name) is str for name in fields)
    )


def _handler_of(cls: type) -> Handler:
    for found in (_numpy_handler, _torch_handler, _tensordict_handler, _plain_handler):
        handler = found(cls)
        if handler is not None:
            return handler
    return Tree._pickle


def _plain_handler(cls: type) -> Handler | None:
    pil = sys.modules.get("PIL.Image")
    if issubclass(cls, enum.Enum):
        return Tree._enum
    if pil is not None and issubclass(cls, pil.Image):
        return Tree._image
    if is_named_tuple(cls):
        return Tree._named_tuple
    if dataclasses.is_dataclass(cls) and dataclass_base(cls) is not None:
        return Tree._dataclass
    zoneinfo = sys.modules.get("zoneinfo")
    if zoneinfo is not None and cls is zoneinfo.ZoneInfo:
        return Tree._zone
    argparse = sys.modules.get("argparse")
    if argparse is not None and cls is argparse.Namespace:
        return Tree._namespace
    return None


def _numpy_handler(cls: type) -> Handler | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if issubclass(cls, numpy.generic):
        return Tree._numpy_scalar
    if cls is numpy.ndarray or cls is numpy.memmap:
        return Tree._array
    if issubclass(cls, numpy.dtype):
        return Tree._numpy_dtype
    return None


def _torch_handler(cls: type) -> Handler | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if cls is torch.Size:
        return Tree._torch_size
    if cls in (torch.dtype, torch.device, torch.layout, torch.memory_format):
        return Tree._torch_constant
    if cls.__module__ == "torch.return_types" and issubclass(cls, tuple):
        return Tree._torch_return_type
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and issubclass(cls, distributed.DTensor):
        return Tree._dtensor
    return None


def _tensordict_handler(cls: type) -> Handler | None:
    tensordict = sys.modules.get("tensordict")
    if tensordict is not None and cls is tensordict.TensorDict:
        return Tree._tensordict
    return None


_HANDLERS: dict[type, Handler] = {
    type(None): Tree._constant,
    bool: Tree._constant,
    int: Tree._int,
    float: Tree._float,
    complex: Tree._complex,
    str: Tree._str,
    bytes: Tree._bytes,
    bytearray: Tree._bytes,
    list: Tree._list,
    tuple: Tree._tuple,
    set: Tree._set,
    frozenset: Tree._frozenset,
    dict: Tree._dict,
    collections.deque: Tree._deque,
    collections.OrderedDict: Tree._ordered_dict,
    collections.defaultdict: Tree._defaultdict,
    collections.Counter: Tree._counter,
    types.SimpleNamespace: Tree._namespace,
    slice: Tree._slice,
    range: Tree._range,
    datetime.datetime: Tree._datetime,
    datetime.time: Tree._datetime,
    datetime.date: Tree._date,
    datetime.timedelta: Tree._timedelta,
    datetime.timezone: Tree._timezone,
    pathlib.PosixPath: Tree._path,
    pathlib.PurePosixPath: Tree._path,
    pathlib.WindowsPath: Tree._path,
    pathlib.PureWindowsPath: Tree._path,
    decimal.Decimal: Tree._decimal,
    fractions.Fraction: Tree._fraction,
    uuid.UUID: Tree._uuid,
    type(...): Tree._ellipsis,
    type(NotImplemented): Tree._not_implemented,
}

"""Arrays, scalars and types of numpy."""

from __future__ import annotations

import json
import math
import re
import sys
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING, Any

from ..dtypes import STORED
from .blobs import blob_name, plain_dtype
from .pickles import write_pickle
from .plain import str_text

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Tree, Writer


_SIMPLE_DTYPE = re.compile(r"[<>|=]?([biufcmMSUV]\d{0,10})(\[[\w/]{1,24}\])?")
_ITEM_BYTES_MAX = 1 << 31


def write_array(tree: Tree, obj: Any, path: str) -> None:
    if tree.seen(obj, path):
        return
    dtype = obj.dtype
    if dtype.char == "O":
        items = tree.values, obj.ravel().tolist()
        tree.form(path, {"$ndarray_object": str(list(obj.shape)), "items": items})
    elif plain_dtype(dtype):
        _write_plain_array(tree, obj, path)
    else:
        write_pickle(tree, obj, path)


def _write_plain_array(tree: Tree, obj: Any, path: str) -> None:
    import numpy

    data, shape = obj.view(numpy.ndarray), list(obj.shape)
    data, notes = tree.cut_elements(data, data.size, data.flags.c_contiguous, data.strides)
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
    name = tree.blobs.add_array(blob_name(path), data, code)
    tree.blob_node(f'{{"$ndarray": {quote(name)}, "dtype": {dtype_text}, "shape": {shape}{notes}')


def read_array(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import numpy

    dtype, shape = _dtype(decoder, node["dtype"]), decoder.shape(node["shape"])
    stored = STORED.get(node["dtype"]) if type(node["dtype"]) is str else None
    code, last = ("U8", dtype.itemsize) if stored is None else (stored.code, stored.last)
    small = decoder.stored_shape(node, shape)
    data = decoder.blob(body, code, (*small, last) if last else small)
    result = data.view(dtype).reshape(small) if data.size else numpy.empty(small, dtype)
    return numpy.broadcast_to(result, shape) if "expanded_from" in node else result


def read_object_array(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import numpy

    items = decoder.array(node["items"])
    shape = decoder.shape(body)
    if math.prod(shape) != len(items):
        raise decoder.wrong("$ndarray_object: shape and items do not agree")
    flat = numpy.empty(len(items), dtype=object)
    result = decoder.made(node, flat.reshape(shape))
    decoder.put(flat.__setitem__, enumerate(items))
    return result


def write_scalar(tree: Tree, obj: Any, path: str) -> None:
    import numpy

    array = numpy.asarray(obj)
    if array.dtype.kind in "US" and not array.dtype.itemsize:
        array = array.astype(array.dtype.kind + "1")  # the empty text
    if not plain_dtype(array.dtype):
        write_pickle(tree, obj, path)
        return
    descr = json.dumps(numpy.lib.format.dtype_to_descr(array.dtype))
    data = array.tobytes().hex()
    tree.out.append(f'{{"$npscalar": {descr}, "value": {str_text(str(obj))}, "bytes": "{data}"}}')


def read_scalar(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import numpy

    data = bytes.fromhex(decoder.text(node["bytes"]))
    found = numpy.frombuffer(data, dtype=_dtype(decoder, body))
    if len(found) != 1:
        raise decoder.wrong("$npscalar: is not a single value")
    # A structured scalar would be a view of the bytes, which cannot be written.
    return found.copy()[0]


def write_dtype(tree: Tree, obj: Any, path: str) -> None:
    import numpy

    if obj.isbuiltin == 2 or obj.kind == "T" or (obj.hasobject and obj.names is not None):
        write_pickle(tree, obj, path)
        return
    descr = "|O" if obj.hasobject else numpy.lib.format.dtype_to_descr(obj)
    tree.out.append(f'{{"$numpy_dtype": {json.dumps(descr)}}}')


def read_dtype(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import numpy

    return numpy.dtype(object) if body == "|O" else _dtype(decoder, body)


def _dtype(decoder: Decoder, descr: Any) -> Any:
    """A numpy type that holds no objects."""
    import numpy

    if type(descr) is str and descr in STORED:
        return numpy.dtype(descr)
    return numpy.lib.format.descr_to_dtype(_descr(decoder, descr, 0))


def _descr(decoder: Decoder, descr: Any, depth: int) -> Any:
    if type(descr) is str:
        found = _SIMPLE_DTYPE.fullmatch(descr)
        if found is None or int(found[1][1:] or 0) > _ITEM_BYTES_MAX:
            raise decoder.wrong(f"has {descr[:50]!r} instead of a type of numpy")
        return descr
    if depth > 32 or type(descr) is not list:
        raise decoder.wrong("is not a type of numpy")
    return [_descr_field(decoder, field, depth) for field in descr]


def _descr_field(decoder: Decoder, field: Any, depth: int) -> tuple[Any, ...]:
    if type(field) is not list or len(field) not in (2, 3):
        raise decoder.wrong("is not a field of a type")
    name = field[0]
    if type(name) is list:  # with a title
        if len(name) != 2:
            raise decoder.wrong("is not a field's name")
        name = (decoder.text(name[0]), decoder.text(name[1]))
    else:
        name = decoder.text(name)
    shape = (decoder.shape(field[2]),) if len(field) == 3 else ()
    return (name, _descr(decoder, field[1], depth + 1), *shape)


def writer_of(cls: type) -> Writer | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if issubclass(cls, numpy.generic):
        return write_scalar
    return write_dtype if issubclass(cls, numpy.dtype) else None


LATE_WRITERS: dict[tuple[str, str], Writer] = {
    ("numpy", "ndarray"): write_array,
    ("numpy", "memmap"): write_array,
}

READERS: dict[str, Reader] = {
    "$ndarray": read_array,
    "$ndarray_object": read_object_array,
    "$npscalar": read_scalar,
    "$numpy_dtype": read_dtype,
}

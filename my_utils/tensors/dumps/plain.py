"""Numbers, texts and bytes."""

from __future__ import annotations

import math
import struct
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING, Any

from .blobs import blob_name

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Tree, Writer


INT_BITS_MAX = 2000  # Python can be configured to read no more than 640 decimal digits
INLINE_BYTES_MAX = 64
CONSTANTS: dict[Any, str] = {None: "null", True: "true", False: "false"}
_QUIET_NAN = 0x7FF8000000000000


def write_int(tree: Tree, obj: int, path: str) -> None:
    plain = obj.bit_length() <= INT_BITS_MAX
    tree.out.append(str(obj) if plain else f'{{"$int": "{obj:#x}"}}')


def float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    if not math.isnan(value):
        return f'{{"$float": "{value}"}}'
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return '{"$float": "nan"}' if bits == _QUIET_NAN else f'{{"$float": "nan", "bits": "{bits:x}"}}'


def read_float(decoder: Decoder, node: dict[str, Any], body: Any) -> float:
    if body == "nan" and "bits" in node:
        bits = int(decoder.text(node["bits"]), 16)
        return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
    if body not in ("nan", "inf", "-inf"):
        raise decoder.wrong("$float: is not a number")
    return float(body)


def write_complex(tree: Tree, obj: complex, path: str) -> None:
    tree.out.append(f'{{"$complex": [{float_text(obj.real)}, {float_text(obj.imag)}]}}')


def write_str(tree: Tree, obj: str, path: str) -> None:
    limit = tree.config.max_string
    if limit is not None and len(obj) > limit:
        tree.counts["truncated"] += 1
        kept = str_text(obj[:limit])
        tree.out.append(f'{{"$truncated": "str", "length": {len(obj)}, "kept": {kept}}}')
    else:
        tree.out.append(str_text(obj))


def str_text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return f'{{"$str": {quote(text.encode("unicode_escape").decode("ascii"))}}}'
    return str(quote(text))


def optional_text(text: str | None) -> str:
    return "null" if text is None else str_text(text)


def read_str(decoder: Decoder, node: dict[str, Any], body: Any) -> str:
    return decoder.text(body).encode("ascii").decode("unicode_escape")


def write_bytes(tree: Tree, obj: bytes | bytearray, path: str) -> None:
    tag = "$bytearray" if type(obj) is bytearray else "$bytes"
    if tag == "$bytearray" and tree.seen(obj, path):
        return
    limit = tree.config.max_string
    data = bytes(obj)
    length = ""
    if limit is not None and len(data) > limit:
        tree.counts["truncated"] += 1
        length = f', "truncated_from": {len(data)}'
        data = data[:limit]
    if len(data) <= INLINE_BYTES_MAX:
        tree.out.append(f'{{"{tag}": "{data.hex()}"{length}}}')
        return
    name = tree.blobs.add_bytes(blob_name(path), data)
    tree.blob_node(f'{{"{tag}": {quote(name)}, "blob": {len(data)}{length}')


def read_bytes(decoder: Decoder, node: dict[str, Any], body: Any) -> bytes:
    if "truncated_from" in node:
        decoder.notes.append(f"bytes of {node['truncated_from']} were cut when dumped")
    if "blob" not in node:
        return bytes.fromhex(decoder.text(body))
    return bytes(decoder.blob(body, "U8", (node["blob"],)))


WRITERS: dict[type, Writer] = {
    type(None): lambda tree, obj, path: tree.out.append("null"),
    bool: lambda tree, obj, path: tree.out.append(CONSTANTS[obj]),
    int: write_int,
    float: lambda tree, obj, path: tree.out.append(float_text(obj)),
    complex: write_complex,
    str: write_str,
    bytes: write_bytes,
    bytearray: write_bytes,
}

READERS: dict[str, Reader] = {
    "$int": lambda decoder, node, body: int(decoder.text(body), 16),
    "$float": read_float,
    "$complex": lambda decoder, node, body: complex(*decoder.numbers(body, 2, float)),
    "$str": read_str,
    "$bytes": read_bytes,
    "$bytearray": lambda decoder, node, body: bytearray(read_bytes(decoder, node, body)),
}

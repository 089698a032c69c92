"""The format of a dump, for its writer and its reader: names, versions, digests.

A dump is a folder with these files, and no others:

    manifest.json        what the dump is of, and size and digest of each file; the last line is the
                         digest of the lines before it
    tree.json            the object, as a person reads it (`tree.py` lists the forms)
    tensors.safetensors  the elements of all tensors and arrays, and long bytes; where there are any
    image_00000.png …    images
    pickle_00000.pkl …   what only pickle can take

A digest is the content digest of `my_utils.tensors.tensor_hash`: 32 hexadecimal digits. Those of
the tensors are in the tree beside dtype and shape, the one of the header of the safetensors file
in the manifest, so that each byte is under one digest and none is read twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from ... import _core
from ...core.public import public

FORMAT = "my_utils.dump"
VERSION = 2
"""Dumps of version 1 have digests of the tensor hash, version 1."""
MANIFEST = "manifest.json"
TREE = "tree.json"
TENSORS = "tensors.safetensors"
FILE_NAME = re.compile(r"(tree\.json|tensors\.safetensors|(image|pickle)_\d{5,9}\.[a-z0-9]{1,8})")
UNFINISHED = ".unfinished-"

_NAME_BYTES_MAX = 60
_UNSAFE = re.compile(r"[^\w.+=@,-]+|__+")
OF_VERSION_1 = "holds digests of the tensor hash, version 1; write it anew"
_HEAD_OF_VERSION_1 = b'{\n "format": "my_utils.dump",\n "version": 1,'
_SEAL = re.compile(rb'"digest": "([0-9a-f]{32})"\n\}\n')
_SEAL_BYTES = len(b'"digest": ""\n}\n') + 32


@public("my_utils.dump_utils")
class DumpError(ValueError):
    """A dump that could not be written, or is not to be trusted: the file and the reason."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


@public("my_utils.dump_utils")
class StandIn:
    """Replaces an object of a dump that could not be recreated.

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


def digest(data: bytes | bytearray | memoryview) -> str:
    """The content digest of bytes."""
    return str(_core.tensor_hash(data).content)


def safe_name(value: object, otherwise: str = "none") -> str:
    """A part of a file name out of any text: no separators, no dots in front, 60 bytes at most.

    >>> safe_name("../../etc/passwd")
    'etc_passwd'
    >>> safe_name("after tokenize"), safe_name(None), safe_name(42)
    ('after_tokenize', 'none', '42')
    """
    if value is None:
        return otherwise
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    text = _UNSAFE.sub("_", text).strip("._")
    text = text.encode("utf-8")[:_NAME_BYTES_MAX].decode("utf-8", "ignore").rstrip("_")
    return text or otherwise


def key_name(key: object) -> str:
    """A file name for the key: other keys have other names."""
    text = str(key)
    name = safe_name(text)
    mark = digest(text.encode("utf-8", "surrogatepass"))[:8]
    return name if name == text else f"{name}-{mark}"


def class_name(cls: Any) -> str:
    module = getattr(cls, "__module__", None) or "?"
    return f"{module}:{getattr(cls, '__qualname__', type(cls).__qualname__)}"


def seal(body: dict[str, Any]) -> bytes:
    """The bytes of a manifest: its entries, and their digest in the last line."""
    text = json.dumps(body, indent=1, ensure_ascii=True)
    entries = text[: -len("\n}")].encode("ascii") + b",\n"
    return entries + f'"digest": "{digest(entries)}"\n}}\n'.encode("ascii")


def unseal(data: bytes, path: str) -> dict[str, Any]:
    """The entries of a manifest whose digest is right."""
    found = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    if found is None:
        raise DumpError(path, "has no digest at its end: it is cut off or changed")
    if data.startswith(_HEAD_OF_VERSION_1):
        raise DumpError(path, OF_VERSION_1)
    if digest(data[:-_SEAL_BYTES]) != found[1].decode("ascii"):
        raise DumpError(path, "does not match its digest: it was changed")
    body = parse_json(data, path)
    if not isinstance(body, dict):
        raise DumpError(path, "is not a JSON object")
    return body


def parse_tree(data: bytes, path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The JSON of a tree, and those of its nodes that have the digest of a blob."""
    hashed = []

    def note(node: dict[str, Any]) -> dict[str, Any]:
        if "digest" in node and next(iter(node)).startswith("$"):
            hashed.append(node)
        return node

    document = parse_json(data, path, note)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DumpError(path, "is not a tree of a dump")
    if document.get("version") != VERSION or "root" not in document:
        raise DumpError(path, "has no root, or a version that is not known here")
    return document, hashed


def parse_json(data: bytes, path: str, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Strict JSON in UTF-8: no NaN, no Infinity, no byte order mark."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(data.decode("utf-8"), parse_constant=refuse, object_hook=hook)
    except RecursionError:
        raise DumpError(path, "is nested too deeply") from None
    except ValueError as error:
        raise DumpError(path, f"is not JSON: {error}") from None

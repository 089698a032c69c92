"""Objects that only pickle supports: a separate file, with their tensors stored like all others.

Reading one runs code that its writer chose, so that the caller has to allow it.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import TYPE_CHECKING, Any

from .blobs import plain_dtype, plain_tensor
from .form import DumpError, class_name
from .plain import str_text

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Tree


def write_pickle(tree: Tree, obj: Any, path: str) -> None:
    """Pickled whole, except for tensors and arrays, which go where all others are."""
    found = tree.memo.get(id(obj))
    if (found is None or found != path) and tree.seen(obj, path):
        return
    tensors: list[Any] = []
    data = io.BytesIO()
    try:
        _Pickler(data, tensors).dump(obj)
    except Exception as error:  # whatever __reduce__ of any class raises
        tree.unsupported(obj, path, f"pickle: {type(error).__name__}: {error}")
        return
    name = tree.file("pickle", "pkl")
    tree.files[name] = data.getvalue()
    kind = str_text(class_name(type(obj)))
    tree.form(path, {"$pickle": f'"{name}"', "type": kind, "tensors": (tree.values, tensors)})


def _is_kept_apart(obj: Any) -> bool:
    """Whether pickle should leave the object to us."""
    torch = sys.modules.get("torch")
    if torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter):
        return plain_tensor(obj) is not None
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(obj) is numpy.ndarray and plain_dtype(obj.dtype)


class _Pickler(pickle.Pickler):
    """Leaves tensors and arrays out; their number is what is in the pickle."""

    def __init__(self, file: io.BytesIO, found: list[Any]) -> None:
        super().__init__(file, protocol=4)
        self._found = found
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not _is_kept_apart(obj):
            return None
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self._found)
            self._found.append(obj)
        return number


def read_pickle(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    name = decoder.file_name(body, "pickle")
    type_name = decoder.text(decoder.node(node["type"]))
    path = decoder.folder.file(name)
    if not decoder.allow_pickle:
        raise refuse_pickle(path, type_name)
    tensors = decoder.values(node["tensors"])
    data = decoder.folder.read(name, decoder.max_file_bytes, verify=decoder.verify)
    try:
        return _Unpickler(io.BytesIO(data), tensors).load()
    except Exception as error:
        reason = f"{type_name} cannot be unpickled: {type(error).__name__}: {error}"
        raise DumpError(path, reason) from error


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


READERS: dict[str, Reader] = {"$pickle": read_pickle}

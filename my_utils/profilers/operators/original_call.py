"""Reads inputs that torch_musa's own `CompareWithCPU` wrote: `pickle.dump` of a dict with `args`
and `kwargs`, of tensors on the CPU.

Only what rebuilds tensors, and torch's own words such as dtypes, is made from such a file: nothing
in it is executed.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...core.plain_files import OutOfBounds, PlainFileError, check_pickle
from ...core.printable import printable
from ...core.trusted_open import open_filled, open_without_waiting

_UNTYPED, _BYTES = b"ctorch.storage\nUntypedStorage\n", b"ctorch\nByteStorage\n"


def _storage(data: bytes) -> Any:
    """What torch puts into a pickle for the memory of a tensor is a file of `torch.save`. The
    loader of plain values does not know memory without a dtype, which is the same as bytes."""
    data = data.replace(_UNTYPED, _BYTES, 1)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


_MADE: dict[tuple[str, str], Callable[..., Any]] = {
    ("builtins", "complex"): complex,
    ("builtins", "slice"): slice,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    # Of dtypes that have no class of storage, such as float8 and uint16.
    ("torch._utils", "_rebuild_tensor_v3"): torch._utils._rebuild_tensor_v3,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch.storage", "_load_from_bytes"): _storage,
}


def _word(name: str) -> Any:
    """A dtype or memory format, such as "torch.channels_last": pickle writes it with the first
    module that knows torch, which may be any."""
    found = vars(torch).get(name.removeprefix("torch."))
    return found if isinstance(found, torch.dtype | torch.memory_format) else None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        made = _MADE.get((module, name)) or _word(name)
        if made is None:
            raise PlainFileError(f"holds {module}.{name}, which is not made from a file")
        return made


def is_pickle(path: str | Path) -> bool:
    """Whether it is no file of `torch.save`, which is a zip file, but begins as a pickle does."""
    with open(path, "rb", opener=open_without_waiting) as file:
        return file.read(1) == pickle.PROTO


def load_original_inputs(path: str | Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """args and kwargs. PlainFileError (a ValueError) if it is another file."""
    with open(path, "rb", opener=open_filled) as file:
        data = file.read()
    try:
        check_pickle(data, newer=True)
        found = _Unpickler(io.BytesIO(data)).load()
    except (PlainFileError, OutOfBounds) as error:
        raise PlainFileError(f"{path}: {error}") from None
    except Exception as error:  # what unpickling damaged data raises
        reason = printable(str(error).strip().partition("\n")[0][:300])
        raise PlainFileError(
            f"{path}: cannot be read as inputs of an operator ({reason})"
        ) from None
    args = found.get("args") if isinstance(found, dict) else None
    kwargs = found.get("kwargs") if isinstance(found, dict) else None
    if not isinstance(args, tuple | list) or not isinstance(kwargs, dict):
        raise PlainFileError(f"{path}: holds no inputs of an operator")
    return tuple(args), kwargs

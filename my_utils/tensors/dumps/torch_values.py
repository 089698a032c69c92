"""torch values other than tensors: sizes, types, devices, multi-part results, TensorDict."""

from __future__ import annotations

import json
import sys
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING, Any

from .plain import CONSTANTS

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Member, Tree, Writer


def write_size(tree: Tree, obj: Any, path: str) -> None:
    tree.out.append(f'{{"$torch_size": {list(obj)}}}')


def read_size(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import torch

    return torch.Size(decoder.shape(body))


def write_constant(tree: Tree, obj: Any, path: str) -> None:
    name = quote(str(obj).removeprefix("torch."))
    tree.out.append(f'{{"$torch_{type(obj).__name__}": {name}}}')


def read_constant(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import torch

    tag = next(iter(node))
    if tag == "$torch_device":
        return torch.device(decoder.text(body))
    kind = getattr(torch, tag.removeprefix("$torch_"))
    found = vars(torch).get(decoder.text(body))
    if not isinstance(found, kind):
        raise decoder.wrong(f"{tag}: torch has no {body[:50]!r}")
    return found


def write_return_type(tree: Tree, obj: Any, path: str) -> None:
    """What `x.max(dim=0)` and the like return."""
    if not tree.seen(obj, path):
        kind, values = quote(type(obj).__name__), tree.frozen(tuple(obj), obj)
        tree.form(path, {"$torch_return_type": kind, "values": values})


def read_return_type(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import torch

    values = decoder.values(node["values"])
    kind = vars(torch.return_types).get(decoder.text(body))
    if not isinstance(kind, type) or not issubclass(kind, tuple):
        return decoder.stand_in(f"torch.return_types:{body}", tuple(values), "torch has it not")
    return kind(values)


def write_tensordict(tree: Tree, obj: Any, path: str) -> None:
    if tree.seen(obj, path):
        return
    items = {key: obj[key] for key in obj.keys()}  # noqa: SIM118
    members: dict[str, Member] = {
        "$tensordict": json.dumps(list(obj.batch_size)),
        "device": json.dumps(None if obj.device is None else str(obj.device)),
        "names": json.dumps(_dimension_names(obj)),
        "locked": CONSTANTS[obj.is_locked],
        "items": (tree.mapping, items),
    }
    tree.form(path, members)


def _dimension_names(obj: Any) -> list[str | None] | None:
    try:
        names = list(obj.names) if obj._has_names() else None
    except (AttributeError, RuntimeError):
        return None
    return names


def read_tensordict(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    items: dict[str, Any] = {}
    decoder.put_mapping(items.__setitem__, node["items"])
    try:
        import tensordict
    except ImportError:
        return decoder.stand_in("tensordict:TensorDict", items, "tensordict is not installed")
    # Devices of the parts are the dump's business, see save_tensor_cpu.
    device = node["device"] if node["device"] == "cpu" else None
    result = tensordict.TensorDict(
        items, batch_size=decoder.shape(body), device=device, names=node["names"]
    )
    return result.lock_() if node["locked"] is True else result


def writer_of(cls: type) -> Writer | None:
    torch = sys.modules.get("torch")
    is_result = cls.__module__ == "torch.return_types" and issubclass(cls, tuple)
    return write_return_type if torch is not None and is_result else None


LATE_WRITERS: dict[tuple[str, str], Writer] = {
    ("torch", "Size"): write_size,
    ("torch", "dtype"): write_constant,
    ("torch", "device"): write_constant,
    ("torch", "layout"): write_constant,
    ("torch", "memory_format"): write_constant,
    ("tensordict", "TensorDict"): write_tensordict,
}

READERS: dict[str, Reader] = {
    "$torch_size": read_size,
    "$torch_dtype": read_constant,
    "$torch_device": read_constant,
    "$torch_layout": read_constant,
    "$torch_memory_format": read_constant,
    "$torch_return_type": read_return_type,
    "$tensordict": read_tensordict,
}

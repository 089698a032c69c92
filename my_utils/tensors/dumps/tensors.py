"""Tensors: dense, sparse, without elements, and the local shards of distributed ones."""

from __future__ import annotations

import sys
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING, Any

from ... import _core
from ..dtypes import STORED, Stored, dtype_name
from ..tensor_kinds import as_bytes, stored_parts
from .blobs import RESERVED, ROOT_CHARS, blob_name, head_of, plain_tensor
from .pickles import write_pickle
from .plain import CONSTANTS

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Tree, Writer


# What tensors of one type and shape have in common: the text of their node, their head in the file,
# their bytes, and whether they are complex.
_Layout = tuple[str, str, int, bool]


def make_writers(tree: Tree) -> dict[type, Writer]:
    """Tensors come in thousands: those that are in order on the CPU take a short way.

    Their writer is a closure, whose variables Python finds faster than attributes.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    memo, blobs, out, slots = tree.memo, tree.blobs, tree.out, tree.slots
    places, add, parameter = blobs.places, blobs.add_head, torch.nn.Parameter
    layouts: dict[Any, _Layout] = {}

    def write(tree: Tree, obj: Any, path: str) -> None:
        number = id(obj)
        if number in memo:
            tree.seen(obj, path)
            return
        memo[number] = path
        try:
            layout = layouts.get((obj.dtype, obj.shape))
            address = 0 if layout is None else obj.data_ptr()
            if (
                layout is None
                or not address
                or not obj.is_cpu
                or not obj.is_contiguous()
                or (obj.storage_offset() and not _core.has_memory(obj))
            ):
                _write_any(tree, obj, path, layouts)
                return
        except RuntimeError:  # sparse, nested, wrapped: they have no pointer
            _write_any(tree, obj, path, layouts)
            return
        text, head, size, is_complex = layout
        if obj.is_neg() or (is_complex and obj.is_conj()):
            _write_any(tree, obj, path, layouts)
            return
        name = path[ROOT_CHARS:]
        if not name or name in places or name == RESERVED:
            name = blobs.unique(name)
        add(name, head, address, size, obj)
        if obj.requires_grad or type(obj) is parameter:
            text += _notes(obj, parameter)
        out.append(f'{{"$tensor": {quote(name)}, {text}, "digest": "')
        slots.append(len(out))
        out.append("")

    return {torch.Tensor: write, parameter: write}


def _notes(obj: Any, parameter: Any) -> str:
    if type(obj) is parameter:
        return f', "parameter": true, "requires_grad": {CONSTANTS[obj.requires_grad]}'
    return ', "requires_grad": true' if obj.requires_grad else ""


def _write_any(tree: Tree, obj: Any, path: str, layouts: dict[Any, _Layout]) -> None:
    import torch

    tree.alive.append(obj)
    with torch.no_grad():
        try:
            stored = plain_tensor(obj)
            if stored is not None:
                _write_strided(tree, obj, path, stored, layouts)
            elif obj.is_meta:
                _write_meta(tree, obj)
            elif str(obj.layout).startswith("torch.sparse_"):
                _write_sparse(tree, obj, path)
            else:
                write_pickle(tree, obj, path)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            tree.unsupported(obj, path, str(error))


def _write_strided(
    tree: Tree, obj: Any, path: str, stored: Stored, layouts: dict[Any, _Layout]
) -> None:
    import torch

    shape = list(obj.shape)
    notes = _notes(obj, torch.nn.Parameter)
    if not tree.config.save_tensor_cpu and obj.device.type != "cpu":
        notes += f', "device": "{obj.device}"'
    data = as_bytes(obj.detach().resolve_conj().resolve_neg())
    data, cut = tree.cut_elements(data, data.numel(), data.is_contiguous(), data.stride())
    notes += cut
    dtype = dtype_name(obj.dtype)
    if stored.last or stored.name != dtype:
        notes += f', "stored": "{stored.code}"'
    text = f'"dtype": "{dtype}", "shape": {shape}'
    if stored.name == dtype and list(data.shape) == shape and not tree.blobs.copy:
        size = data.numel() * stored.item_bytes
        is_complex = obj.dtype.is_complex
        head = head_of(stored.name, tuple(shape))
        layouts[obj.dtype, obj.shape] = text, head, size, is_complex
    name = tree.blobs.add_tensor(blob_name(path), data, stored)
    tree.blob_node(f'{{"$tensor": {quote(name)}, {text}{notes}')


def _write_meta(tree: Tree, obj: Any) -> None:
    import torch

    dtype = dtype_name(obj.dtype)
    notes = _notes(obj, torch.nn.Parameter)
    tree.out.append(f'{{"$tensor": null, "dtype": "{dtype}", "shape": {list(obj.shape)}{notes}}}')


def read_tensor(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import torch

    name, shape = decoder.text(node["dtype"]), decoder.shape(node["shape"])
    dtype = getattr(torch, name, None) if name in STORED else None
    if dtype is None:
        raise decoder.wrong(f"$tensor: has a type {name[:50]!r}, which torch has not here")
    if body is None:
        result = torch.empty(shape, dtype=dtype, device="meta")
    else:
        stored = STORED[name]
        small = decoder.stored_shape(node, shape)
        extra = (stored.last,) if stored.last else ()
        data = decoder.blob(body, stored.code, small + extra)
        result = torch_from(data, dtype, small)
        if "expanded_from" in node:
            result = result.expand(shape)
    result = _on_device(decoder, result, node.get("device"))
    requires_grad = node.get("requires_grad", False) is True
    if node.get("parameter") is True:
        return torch.nn.Parameter(result, requires_grad=requires_grad)
    return result.requires_grad_() if requires_grad else result


def torch_from(data: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not data.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def _on_device(decoder: Decoder, tensor: Any, device: Any) -> Any:
    if device is None:
        return tensor
    import torch

    try:
        return tensor.to(torch.device(decoder.text(device)))
    except (AssertionError, RuntimeError):
        decoder.notes.append(f"no device {device[:50]} here: its tensors are on the CPU")
        return tensor


def _write_sparse(tree: Tree, obj: Any, path: str) -> None:
    import torch

    layout = str(obj.layout).removeprefix("torch.sparse_")
    names = ("indices", "values") if layout == "coo" else ("compressed", "plain", "values")
    parts = dict(zip(names, stored_parts(obj), strict=True))
    coalesced = CONSTANTS[layout == "coo" and obj.is_coalesced()]
    tree.out.append(
        f'{{"$sparse": "{layout}", "shape": {list(obj.shape)}, '
        f'"coalesced": {coalesced}{_notes(obj, torch.nn.Parameter)}, "parts": '
    )
    tree.mapping({k: v.detach() for k, v in parts.items()}, path + "/parts")
    tree.out.append("}")


def read_sparse(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    import torch

    shape = decoder.shape(node["shape"])
    parts: dict[str, Any] = {}
    decoder.put_mapping(parts.__setitem__, node["parts"])
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
        raise decoder.wrong("$sparse: is of no known layout")
    return result.requires_grad_() if node.get("requires_grad") is True else result


def write_dtensor(tree: Tree, obj: Any, path: str) -> None:
    """The local shard, with a note of what it is a part of."""
    if not tree.seen(obj, path):
        whole = f'{{"shape": {list(obj.shape)}, "placements": {quote(str(obj.placements))}}}'
        tree.form(path, {"$dtensor": whole, "local": (tree.node, obj.to_local().detach())})


def read_dtensor(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    decoder.notes.append("a DTensor is loaded as the local shard that was dumped")
    return decoder.node(node["local"])


def writer_of(cls: type) -> Writer | None:
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and issubclass(cls, distributed.DTensor):
        return write_dtensor
    return None


READERS: dict[str, Reader] = {
    "$tensor": read_tensor,
    "$sparse": read_sparse,
    "$dtensor": read_dtensor,
}

"""The tensors of nested values by name: those of a state dict, of a file of torch.save, and those
that a module keeps in packed objects, where no parameter or buffer shows them."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...core.plain_files import DEPTH_MAX
from ...core.signals import is_of_a_signal

if TYPE_CHECKING:
    from torch import Tensor, nn

_Named = list[tuple[str, Any]]

VALUES_MAX = 4_000_000  # of a checkpoint, each as often as something holds it


def find_leaves(
    value: Any, name: str = "", depth: int = 0, numbers: Iterator[int] | None = None
) -> tuple[_Named, _Named]:
    """The tensors and modules in nested mappings, lists, tuples and packed objects, and the other
    values, of which a list without a tensor is one.

    The name of a value is that of its container, a dot, and its key or place, as
    torch.distributed.checkpoint names them. ValueError for what is nested too deep, and for more
    than VALUES_MAX values. numbers: of all values, one after the other.

    >>> import torch
    >>> find_leaves({"ema": [torch.ones(1)], "step": 3})
    ([('ema.0', tensor([1.]))], [('step', 3)])
    """
    import torch

    numbers = itertools.count() if numbers is None else numbers
    if next(numbers) == VALUES_MAX:
        raise ValueError(f"{name[:60]}… is one of more than {VALUES_MAX:,} values")
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return [(name, value)], []
    inner = _inside(value)
    if inner is None:
        return [], [(name, value)]
    if depth == DEPTH_MAX:
        raise ValueError(f"{name[:60]}… is nested deeper than {DEPTH_MAX}, or holds itself")
    found: _Named = []
    others: _Named = []
    for key, item in inner:
        more, rest = find_leaves(item, f"{name}.{key}" if name else str(key), depth + 1, numbers)
        found += more
        others += rest
    is_plain = not isinstance(value, Mapping) and not any(is_opaque(one) for _, one in others)
    return found, [(name, value)] if is_plain and not found else others


def _inside(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """The keys or places, and the values there; None for what is no container."""
    import torch

    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    return _unpacked(value) if isinstance(value, torch.ScriptObject) else None


def _unpacked(value: Any) -> Iterable[tuple[int, Any]] | None:
    """value: an object of a class in C++, as torch keeps quantized weights in."""
    for method in ("unpack", "__getstate__"):
        if value._has_method(method):
            state = getattr(value, method)()
            return enumerate(state if isinstance(state, tuple) else (state,))
    return None


def is_opaque(value: object) -> bool:
    """Whether a value that is no tensor may have some in it."""
    import torch

    return isinstance(value, (torch.ScriptObject, io.IOBase, bytes, bytearray))


def unwrap_parts(name: str, tensor: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensor; of one that wraps others, as those of torchao do, these, by the names of its
    attributes; of a quantized one of torch its integers and scales, by the names of the methods
    that give them. Of None nothing."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if tensor is None:
        return
    is_sharded = hasattr(tensor, "placements") or hasattr(tensor, "local_shards")
    if is_sharded or tensor.is_nested:  # which a ShardedTensor does not know
        yield name, tensor
    elif tensor.is_quantized:
        yield from ((f"{name}.{method}", part) for method, part in _of_quantized(tensor))
    elif is_traceable_wrapper_subclass(tensor):
        for attribute in tensor.__tensor_flatten__()[0]:
            yield from unwrap_parts(f"{name}.{attribute}", getattr(tensor, attribute))
    else:
        yield name, tensor


def _of_quantized(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    import torch

    yield "int_repr", tensor.detach().int_repr()
    is_per_tensor = tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
    methods = ("q_scale", "q_zero_point") if is_per_tensor else (
        "q_per_channel_scales", "q_per_channel_zero_points", "q_per_channel_axis"
    )  # fmt: skip
    for method in methods:
        value = getattr(tensor, method)()
        dtype = torch.float64 if isinstance(value, float) else None
        yield method, torch.as_tensor(value, dtype=dtype)


# --- what is beside parameters and buffers ---


def stored_beside(
    module: nn.Module, prefix: str, known: set[str]
) -> tuple[list[tuple[str, Tensor]], list[str]]:
    """What the state dict of a module has beside its parameters and buffers, and what it keeps in
    packed objects. Of its own, not of the modules in it; known: the names that it has already.
    Also the names of values that cannot be read."""
    import torch

    is_script = isinstance(module, torch.jit.ScriptModule)
    try:
        values = _of_script(module) if is_script else _saved(module)
    except Exception as error:  # whatever code of the module raises
        if is_of_a_signal(error):
            raise
        return [], [f"what {prefix or 'the model'} saves beside parameters"]
    tensors: list[tuple[str, Tensor]] = []
    hidden: list[str] = []
    for key, value in values.items():
        if key in module._parameters or key in module._buffers:
            continue
        found, others = find_leaves(value, f"{prefix}.{key}" if prefix else key)
        parts = (part for name, tensor in found for part in unwrap_parts(name, tensor))
        tensors += (part for part in parts if part[0] not in known)
        hidden += (name for name, other in others if is_opaque(other))
    return tensors, hidden


def _saved(module: nn.Module) -> dict[str, Any]:
    """By their keys in the state dict of the module. Where it saves as all modules do, its packed
    objects."""
    import torch

    usual, of = torch.nn.Module, type(module)
    is_usual = (
        of._save_to_state_dict is usual._save_to_state_dict
        and of.get_extra_state is usual.get_extra_state
    )
    if is_usual:
        return {k: v for k, v in vars(module).items() if isinstance(v, torch.ScriptObject)}
    saved: dict[str, Any] = {}
    module._save_to_state_dict(saved, "", True)
    return saved


def _of_script(module: Any) -> dict[str, Any]:
    """Packed objects that are attributes of a compiled module, and what was frozen into its graph.
    Other constants of a graph are values of the code, not weights."""
    import torch

    try:
        graph = module.graph
    except (AttributeError, RuntimeError):  # it has no forward
        return {}
    found: dict[str, Any] = {}
    reached = {next(graph.inputs()).debugName(): ("", module)}
    for node in graph.findAllNodes("prim::GetAttr"):
        path, owner = reached.get(node.inputsAt(0).debugName(), ("", None))
        key = node.s("name")
        value = getattr(owner, key, None)
        reached[node.output().debugName()] = f"{path}{key}.", value
        if isinstance(value, torch.ScriptObject):
            found[f"{path}{key}"] = value
    for node in graph.findAllNodes("prim::Constant"):
        name = node.output().debugName()
        if name.startswith("self."):
            found[name.removeprefix("self.")] = node.output().toIValue()
    return found

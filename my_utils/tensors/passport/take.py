"""`passport`: the sums of what this rank has of a model, without a collective or a copy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...core.arguments import check_int, wrong_type
from ...core.ranks import current_rank, world_size
from ..wrapper_names import plain_names
from .stored import find_leaves, is_opaque, stored_beside, unwrap_parts
from .words import names_text, no_tensors_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from .file import GroupData
    from .placements import Placed

_IGNORED = "tensors that DDP is told to ignore"
_BY_DESIGN = "statistics of BatchNorm, which differ between replicas by design"


class Passport:
    """The sums of the tensors of a model that this rank has. `data` is the content of its file."""

    def __init__(self, data: Any) -> None:
        """data: a `PassportData`."""
        self.data = data

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes the file, which appears whole or not at all; folders are made as needed.

        path: `{rank}` in it becomes the rank. A folder may hold the files of all ranks of a step,
            and of several steps. Returns the path. OSError if it cannot be written.
        """
        from .file import write_passport

        target = os.fspath(path).replace("{rank}", str(self.data.rank))
        write_passport(self.data, target)
        return target

    def __repr__(self) -> str:
        data = self.data
        return f"<Passport of {len(data.tensors)} tensors, rank {data.rank} of {data.world_size}>"


def passport(
    model: Any,
    dtype: Any = None,
    layout: Any = None,
    *,
    step: int | None = None,
) -> Passport:
    """The sums of a model's parameters and persistent buffers, by name and place.

    Each rank hashes what it has, where it is: shards of DTensors (FSDP2, tensor parallelism, HSDP;
    uneven and strided ones too), replicas of DDP, plain tensors. No collective, no gather. Call it
    between steps: what an optimizer or a loader writes meanwhile is hashed half old, half new.

    Args:
        model: a module, or a mapping of names to tensors, modules, lists and mappings of them;
            other values in it are left out, which a note says. Parts that wrappers add to names
            (`module.`, `_orig_mod.` …) are removed.
        dtype: casts floating-point tensors of 16 bits and more, in pieces of 64 MiB: to compare
            float32 weights with an engine's bfloat16. None hashes what is there.
        layout: what the names and shapes of an engine's or trainer's tensors mean, such as
            `vllm_layout(config, tp_rank, tp_size)`.
        step: of the training, for `my_utils passport history`.

    Weights that a module keeps in packed objects, as quantized ones of torch do, and what else its
    state dict has, are unpacked. What cannot be is named in the notes.

    Raises:
        TypeError: an argument of another type, or a tensor without memory (meta, sparse …).
        ValueError: no dtype; a shape that does not fit the layout; a model of FSDP 1.

    Thread-safe, and changes no tensor, gradient or random generator.

    >>> import torch
    >>> from my_utils.tensors import passport
    >>> passport(torch.nn.Linear(2, 3), dtype="bfloat16", step=100)
    <Passport of 2 tensors, rank 0 of 1>
    """
    import torch

    from .builder import Builder
    from .layouts import Layout
    from .placements import check_not_flat

    if not isinstance(model, (torch.nn.Module, Mapping)):
        raise wrong_type("model", "a module or a mapping of tensors", model)
    if layout is not None and not isinstance(layout, Layout):
        raise wrong_type("layout", "a Layout or None", layout)
    if step is not None:
        check_int("step", step, 0, or_none=True)
    builder = Builder(torch_dtype(dtype), layout)
    values, others = find_leaves(model)
    named: list[tuple[str, Tensor, GroupData | None]] = []
    hidden = [name for name, value in others if is_opaque(value)]
    for name, value in values:
        if isinstance(value, torch.nn.Module):
            check_not_flat(value)
            named += find_tensors(value, name, hidden)
        else:
            named += ((full, part, None) for full, part in unwrap_parts(name, value))
    builder.notes += _notes(len(others), hidden)
    _add_all(builder, named, layout is not None)
    where = type(model).__name__
    return Passport(builder.finish(where, step, current_rank(), world_size()))


def _notes(others: int, hidden: list[str]) -> Iterator[str]:
    """others: how many values are no tensors. hidden: the names of those that have some in them."""
    if others:
        yield no_tensors_text(others)
    if hidden:
        yield f"not in it, because their values are hidden: {names_text(hidden)}"


def torch_dtype(dtype: object) -> torch.dtype | None:
    """TypeError or ValueError unless it is a floating-point type of torch, or its name."""
    if dtype is None:
        return None
    import torch

    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        error = ValueError if isinstance(dtype, str) else TypeError
        raise error(f"dtype must be a dtype of torch such as 'bfloat16', not {dtype!r:.100}")
    if not found.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, not {found}")
    return found


def _add_all(
    builder: Any, named: list[tuple[str, Tensor, GroupData | None]], has_layout: bool
) -> None:
    """Where there is a layout, a name means the same tensor on all ranks."""
    from .builder import Found
    from .file import GroupData

    if has_layout:
        named = [(name, tensor, GroupData()) for name, tensor, _ in named]
    for name, _, placed, tied in placed_tensors(named):
        for values, at in placed.locals:
            builder.add(Found(name, placed.shape, at, values, placed.group, tied))
        if placed.group.why and not placed.locals:
            builder.notes.append(f"{name} was left out: {placed.group.why}")


def placed_tensors(
    named: list[tuple[str, Tensor, GroupData | None]],
) -> Iterator[tuple[str, Tensor, Placed, str]]:
    """Each tensor by its plain name, with what this rank has of it, and the name of the one whose
    memory it shares, "" if that is none. named: with the ranks that have replicas of it."""
    from torch.nn.parameter import is_lazy

    from .placements import place

    names = plain_names([name for name, _, _ in named])
    first: dict[tuple[object, ...], str] = {}
    rank, size = current_rank(), world_size()
    for given, tensor, replicas in named:
        name = names[given]
        if is_lazy(tensor):
            raise TypeError(f"{name}: an {type(tensor).__name__} has no values before a forward")
        placed = place(tensor, replicas, rank, size)
        memory = [_memory(values) for values, _ in placed.locals if values.numel()]
        tied = first.setdefault(tuple(memory), name) if memory else name
        yield name, tensor, placed, "" if tied == name else tied


def _memory(values: Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same one."""
    try:
        where = values.data_ptr(), str(values.device)
    except RuntimeError:  # it has no memory, which is said when it is hashed
        return (id(values),)
    return *where, tuple(values.shape), values.stride(), values.dtype


def _of_buffer(group: GroupData | None) -> GroupData | None:
    from .file import BUFFERS, GroupData

    return group if group is None or group.why else GroupData(group.ranks, BUFFERS)


def find_tensors(
    model: nn.Module, name: str = "", hidden: list[str] | None = None
) -> Iterator[tuple[str, Tensor, GroupData | None]]:
    """Each parameter and persistent buffer by each of its names, with the ranks that have
    replicas of it. Statistics of BatchNorm, and what DDP ignores, are in groups of their own: each
    replica has others. Other buffers may be so, which their group says.

    name: of the model, "" if it has none. hidden: takes the names of values that cannot be read.
        With it come the tensors that are in a state dict beside these, or in packed objects.
    """
    from torch.nn.modules.batchnorm import _NormBase

    from .placements import group_of, ignored_by, replicated_by

    own, left_alone = (
        group_of([current_rank()], why) if world_size() > 1 else None
        for why in (_BY_DESIGN, _IGNORED)
    )
    replicas: dict[str, GroupData] = {}
    ignored: set[str] = set()
    names: set[str] = set()
    for prefix, module in model.named_modules(prefix=name, remove_duplicate=False):
        known = replicas.get(prefix.rpartition(".")[0] if prefix else "")
        wrapped = replicated_by(module)
        if wrapped is not None:
            known, inside = wrapped, f"{prefix}." if prefix else ""
            ignored = {each for each in ignored if not each.startswith(inside)}
            ignored |= {f"{inside}{each}" for each in ignored_by(module)}
        if known is not None:
            replicas[prefix] = known
        parameters = list(module._parameters.items())
        buffers = [
            item for item in module._buffers.items()
            if item[0] not in module._non_persistent_buffers_set
        ]  # fmt: skip
        for key, tensor in (*parameters, *buffers):
            path = ".".join(filter(None, (prefix, key)))
            group = left_alone if path in ignored else known
            if key in module._buffers:
                group = own if isinstance(module, _NormBase) else _of_buffer(group)
            for full, part in unwrap_parts(path, tensor):
                names.add(full)
                yield full, part, group
        if hidden is not None:
            beside, opaque = stored_beside(module, prefix, names)
            hidden += opaque
            yield from ((full, part, known) for full, part in beside)

"""What a rank hashes: the tensors that other ranks must have equal, by the rules of the passport,
and for all others why they are not checked."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.printable import escaped
from ...core.ranges import parse_ranks
from ...core.units import count_text
from ..dtypes import dtype_name
from ..passport.file import BUFFERS, GroupData
from ..passport.placements import Placed, place
from ..passport.take import find_tensors, placed_tensors
from ..wrapper_names import plain_name
from .file import KIND_OF_BUFFERS, ClassData, TrackedData

if TYPE_CHECKING:
    from torch import Tensor, nn

KINDS = ("parameters", "gradients", "optimizer state", KIND_OF_BUFFERS)
_ALONE = "no other rank has these parts"
_UNREDUCED = "gradients that are not reduced (no_sync)"
_LAZY = "no values before a forward"
_QUANTIZED = "quantized tensors of torch"


class Source(NamedTuple):
    """Where a tensor is found again: in a mapping, or as the gradient of a tensor. It keeps neither
    the tensor nor its memory: gradients and states are let go of between two checks.

    reference: gives the tensor, None for a gradient that is not there. pointer: to its memory when
    it was found. view: size, strides and offset of the box of it that is hashed; None is all of it.
    """

    owner: Any
    key: Any
    reference: Callable[[], Tensor | None]
    pointer: int
    view: tuple[Any, ...] | None

    @property
    def tensor(self) -> Tensor | None:
        return self.reference()

    def is_there(self) -> bool:
        tensor = self.tensor
        return _found(self.owner, self.key) is tensor and _pointer(tensor) == self.pointer

    @property
    def values(self) -> Tensor | None:
        """What is hashed, where it is in memory."""
        tensor = self.tensor
        if tensor is None:
            return None
        local: Tensor = _local(tensor).detach()
        return local if self.view is None else local.as_strided(*self.view)


def _source(owner: Any, key: Any, tensor: Tensor | None, values: Tensor) -> Source:
    """values: a box of the tensor, or what takes its place where there is none."""
    if tensor is None:
        return Source(owner, key, _nothing, 0, None)
    is_whole = values.shape == _local(tensor).shape
    view = None if is_whole else (values.size(), values.stride(), values.storage_offset())
    return Source(owner, key, weakref.ref(tensor), _pointer(tensor), view)


class Tracked(NamedTuple):
    """classes: as in the file. sources: of their tensors, in the same order. notes: what is not
    checked, and why."""

    classes: list[ClassData]
    sources: list[Source]
    notes: list[str]


_Named = tuple[str, str, Any, Any, "Tensor | None", Placed]
"""The kind, the name, the owner and the key, the tensor, and what this rank has of it."""


class Finder:
    """Finds the tensors of models, and whether they are still those that were found. Keeps no model
    alive, and forgets the tensors once one of the models is gone.

    models: modules by a name, which is "" where there is one.
    """

    def __init__(
        self, models: Mapping[str, nn.Module], optimizer: Any, *, gradients: bool, rank: int,
        world_size: int,
    ) -> None:  # fmt: skip
        self._models = {
            name: weakref.ref(outermost(model), self._forget) for name, model in models.items()
        }
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else _nothing
        self._gradients = gradients
        self._rank, self._world_size = rank, world_size
        self._parts: list[tuple[weakref.ref[Any], list[Any]]] = []
        self._untracked = self._tracked = Tracked([], [], [])

    @property
    def is_over(self) -> bool:
        """Whether a model is gone."""
        return any(model() is None for model in self._models.values())

    def tracked(self) -> Tracked:
        """Of now. The same object as long as nothing has changed."""
        models = {name: model() for name, model in self._models.items()}
        parts = ((before, _held_by(thing())) for thing, before in self._parts)
        is_same = bool(self._parts) and all(
            len(before) == len(now) and all(map(_is, before, now)) for before, now in parts
        )
        if not (is_same and all(source.is_there() for source in self._tracked.sources)):
            self._tracked = self._find(models)
        return self._tracked

    def _forget(self, model: object) -> None:
        """At the end of the interpreter, too, where this module has lost its names."""
        self._parts, self._tracked = [], self._untracked

    def _find(self, models: Mapping[str, Any]) -> Tracked:
        modules = [each for model in models.values() for each in model.modules()]
        things = [*modules, *filter(None, [self._optimizer()])]
        self._parts = [(weakref.ref(thing), _held_by(thing)) for thing in things]
        classes: dict[tuple[str, str, str], ClassData] = {}
        sources: dict[tuple[str, str, str], list[Source]] = defaultdict(list)
        left_out: dict[str, list[str]] = defaultdict(list)
        left_out.update(_lazy_ones(models))
        for kind, name, owner, key, tensor, placed in self._named(models, modules):
            why = "" if kind == KIND_OF_BUFFERS else placed.replicas.why
            if not why and not _is_shared(placed.replicas.ranks):
                why = _ALONE
            if why:
                left_out[why].append(name)
                continue
            ranks = placed.replicas.ranks
            of = kind, ranks, name if kind == KIND_OF_BUFFERS else ""
            known = classes.setdefault(of, ClassData(kind, ranks, []))
            for values, at in placed.locals:
                if not values.numel():
                    continue
                known.tensors.append(TrackedData(
                    escaped(name), dtype_name(values.dtype), placed.shape, at, tuple(values.shape)
                ))  # fmt: skip
                sources[of].append(_source(owner, key, tensor, values))
        order = sorted((of for of in classes if classes[of].tensors), key=_order)
        notes = [
            f"{count_text(len(names), 'tensor')} not checked: {why} ({names[0]}"
            f"{', …' if len(names) > 1 else ''})"
            for why, names in left_out.items()
        ]
        return Tracked(
            [classes[of] for of in order],
            [source for of in order for source in sources[of]],
            list(map(escaped, notes)),
        )

    def _named(self, models: Mapping[str, Any], modules: list[Any]) -> Iterator[_Named]:
        from torch.nn.parameter import is_lazy

        is_reduced = all(flag for each in modules for flag in _syncs(each))
        named = [
            (f"{prefix}.{name}" if prefix else name, tensor, group)
            for prefix, model in models.items()
            for name, tensor, group in find_tensors(model)
            if not is_lazy(tensor)
        ]
        replicas = {id(tensor): group for _, tensor, group in named}
        owners = {
            id(tensor): (owner, key)
            for module in modules
            for part in (module._buffers, module._parameters)
            for owner, key, tensor in _owned(part)
        }
        for name, tensor, placed, tied in placed_tensors(named):
            if tied:
                continue
            if id(tensor) not in owners:
                placed = placed._replace(replicas=GroupData("", _QUANTIZED))
                yield "parameters", name, None, None, tensor, placed
                continue
            kind = KIND_OF_BUFFERS if placed.replicas.why == BUFFERS else "parameters"
            yield kind, name, *owners[id(tensor)], tensor, placed
            group = replicas[id(tensor)]
            if self._gradients and tensor.requires_grad:
                of = placed
                if tensor.grad is not None:
                    of = place(tensor.grad, group, self._rank, self._world_size)
                if not is_reduced:
                    of = of._replace(replicas=GroupData(of.replicas.ranks, _UNREDUCED))
                yield "gradients", f"gradient of {name}", tensor, None, tensor.grad, of
            state = _State(self._optimizer, tensor)
            for key, value in state.mapping().items():
                if _is_tensor(value):
                    of = place(value, group, self._rank, self._world_size)
                    yield "optimizer state", f"{key} of {name}", state, key, value, of


def _lazy_ones(models: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of parameters that get their shape in their first forward, by the reason."""
    from torch.nn.parameter import is_lazy

    named = (item for model in models.values() for item in model.named_parameters())
    names = [plain_name(name) for name, parameter in named if is_lazy(parameter)]
    return {_LAZY: names} if names else {}


def outermost(model: nn.Module) -> nn.Module:
    """The DistributedDataParallel that wraps a model, which knows its replicas; else the model."""
    from torch.nn.parallel import DistributedDataParallel

    for thing in gc.get_objects():
        if issubclass(type(thing), DistributedDataParallel):
            wrapper: nn.Module = thing
            inner = wrapper.module
            if inner is model or getattr(inner, "_orig_mod", None) is model:
                return wrapper
    return model


def _nothing() -> None:
    """In the place of a reference to an optimizer or a tensor."""


def _held_by(thing: Any) -> list[Any]:
    """What changes where a module gets other tensors, or an optimizer other states."""
    if not hasattr(thing, "_modules"):
        states = getattr(thing, "state", {})
        return [len(states), *(len(state) for state in states.values())]
    parts = (thing._modules, thing._parameters, thing._buffers)
    return [*(value for part in parts for value in part.values()), *_syncs(thing)]


def _syncs(module: Any) -> tuple[bool, bool]:
    """Whether DDP reduces gradients now, and whether it does so after the newest forward: after
    `no_sync` the gradients of the ranks differ until the next backward."""
    return (
        getattr(module, "require_backward_grad_sync", True),
        getattr(module, "require_forward_param_sync", True),
    )


class _State(NamedTuple):
    """What an optimizer has of a parameter, which `load_state_dict` puts others in the place of."""

    optimizer: Callable[[], Any]
    parameter: Tensor

    def mapping(self) -> Mapping[Any, Any]:
        states = getattr(self.optimizer(), "state", None) or {}
        found = states.get(self.parameter)
        return found if isinstance(found, Mapping) else {}

    def get(self, key: Any) -> Any:
        return self.mapping().get(key)


class _Attributes:
    """Those of a tensor that wraps others, as a mapping."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def get(self, key: str) -> Any:
        return getattr(self._tensor, key, None)


def _owned(owner: Any, keys: Iterable[str] | None = None) -> Iterator[tuple[Any, str, Any]]:
    """The tensors of a mapping, and those that they wrap, with where each is."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    for key in owner if keys is None else keys:
        tensor = owner.get(key)
        yield owner, key, tensor
        if is_traceable_wrapper_subclass(tensor):
            yield from _owned(_Attributes(tensor), tensor.__tensor_flatten__()[0])


def _is(one: Any, other: Any) -> bool:
    return one is other or (type(one) is int and one == other)


def _found(owner: Any, key: Any) -> Any:
    return owner.grad if key is None else owner.get(key)


def _pointer(tensor: Any) -> int:
    if tensor is None:
        return 0
    try:
        return int(_local(tensor).data_ptr())
    except RuntimeError:  # it has no memory, which is said when it is hashed
        return 0


def _local(tensor: Any) -> Any:
    """The shard of a DTensor."""
    return getattr(tensor, "_local_tensor", tensor)


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_shared(ranks: str) -> bool:
    return bool(ranks) and len(parse_ranks(ranks)) > 1


def _order(of: tuple[str, str, str]) -> tuple[int, str, str]:
    return KINDS.index(of[0]), *of[1:]

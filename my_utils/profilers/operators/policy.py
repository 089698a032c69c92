"""Decides which operators a mode checks, which it repeats, and why it ignores the others.

The plan of each overload is made once, and cached.

>>> import torch
>>> policy = OpPolicy(OpOptions(white_list=["torch.ops.aten.addmm"]))
>>> policy.plan(torch.ops.aten.addmm.default).reason
'is in white_list'
>>> policy.plan(torch.ops.aten.mm.default).action
<Action.COMPARE: 'compare'>
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch

from .options import NAMESPACES, OpOptions

# Their result is whatever was in memory. There is no tag for it.
UNINITIALISED = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized"),
        *("new_empty", "new_empty_strided", "_empty_affine_quantized"),
        *("_empty_per_channel_affine_quantized", "_efficientzerotensor"),
        *("resize", "resize_", "resize_as", "resize_as_", "_resize_output", "_resize_output_"),
    )
)

# They change what a tensor is made of, or are about memory of one device, not about values.
ABOUT_MEMORY = frozenset(
    (
        *("set", "set_", "set_data", "resize_storage_bytes_", "record_stream"),
        *("pin_memory", "_pin_memory", "is_pinned", "_reinterpret_tensor"),
    )
)

# They write to inputs that their schema gives as read only.
_BATCH_NORMS = (
    *("native_batch_norm", "batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
    *("_native_batch_norm_legit", "_batch_norm_impl_index", "instance_norm"),
)
HIDDEN_WRITES = dict.fromkeys(_BATCH_NORMS, ("running_mean", "running_var"))

# Results that are memory of a kernel for its backward, or the state of a generator: by their names
# in the schema, or by their places where they have none.
SCRATCH_NAMES = frozenset(
    (
        *("reserve", "reserveSpace", "workspace", "rng_state", "unused", "debug_attn_mask"),
        *("philox_seed", "philox_offset", "log_alpha"),
    )
)
SCRATCH_PLACES = {
    "mkldnn_rnn_layer": (3,),
    "_cudnn_rnn": (3, 4),
    "miopen_rnn": (3, 4),
    "_lstm_mps": (3, 4, 5),
    "cudnn_batch_norm": (3,),
    "_batch_norm_with_update": (3,),
    "_batch_norm_with_update_functional": (3,),
    "_ctc_loss": (1,),
    "_embedding_bag": (1,),
    "_embedding_bag_forward_only": (1,),
}

# Results that are one of many right ones, by their places: an eigenvector times any number of
# length one is one, too; so are singular vectors in pairs.
AMBIGUOUS_PLACES = {"_linalg_eigh": (1,), "linalg_eig": (1,), "_linalg_svd": (0, 2)}

# What they give is defined by the dtype of their inputs: the largest number, or the next one.
OF_DTYPE = frozenset(("nan_to_num", "nan_to_num_", "nextafter", "nextafter_"))

# Their results are there later, or are memory that a collective fills.
ASYNCHRONOUS = frozenset(
    ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "fsdp", "profiler")
)

COLLECTIVES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))

HIGHER_ORDER = "higher_order"  # the namespace of `torch.cond` and others that take functions

# They make constants and masks, where an infinity is meant.
CONSTANTS = frozenset(
    (
        *("full", "full_like", "new_full", "scalar_tensor", "fill", "fill_", "lift_fresh"),
        *("masked_fill", "masked_fill_", "where", "triu", "tril", "constant_pad_nd"),
    )
)


class Action(enum.Enum):
    """COMPARE: run twice. VIEW: shares memory with its input, so that shape, strides and place are
    all there is to it. PASS: run once, with a line in the log that says why. IGNORE: run once."""

    COMPARE = "compare"
    VIEW = "view"
    PASS = "pass"
    IGNORE = "ignore"


class OpPlan:
    """What is known of an overload.

    name: as in lists and logs, "torch.ops.aten.addmm". short: "aten.addmm". overload:
    "aten.addmm.default".
    reason: why it is left out: "is in white_list". writes: (position, name) of the arguments
    that it writes to. may_draw: it can take numbers from a generator. constant: infinities in its
    result are meant. is_collective: it exchanges data with other ranks. scratch: the places of
    results that mean nothing outside of a kernel. scratch_inputs: arguments that are such, by their
    places and names. uncompared: the places of results that are scratch or ambiguous. of_dtype:
    other dtypes would give another result. passed: calls that were left out without a line.
    """

    __slots__ = (
        *("action", "constant", "func", "is_collective", "may_draw", "name", "overload", "passed"),
        *("of_dtype", "reason", "scratch", "scratch_inputs", "short"),
        *("uncompared", "writes"),
    )

    def __init__(self, func: Any, action: Action, reason: str) -> None:
        self.func = func
        self.short, self.overload = _names(func)
        self.name = f"torch.ops.{self.short}"
        self.action = action
        self.reason = reason
        has_schema = isinstance(func, torch._ops.OpOverload)
        self.writes = _writes(func) if has_schema else ()
        self.may_draw = has_schema and _may_draw(func)
        self.passed = 0
        self.constant = has_schema and func._opname in CONSTANTS
        self.is_collective = func.namespace in COLLECTIVES
        self.scratch = _scratch(func) if has_schema else frozenset()
        self.scratch_inputs = _scratch_inputs(func) if has_schema else frozenset()
        self.uncompared = self.scratch
        if has_schema and func.namespace == "aten":
            self.uncompared |= frozenset(AMBIGUOUS_PLACES.get(func._opname, ()))
        self.of_dtype = has_schema and func._opname in OF_DTYPE

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments of a call that the operator writes to: tensors, lists of them, or None."""
        return [
            args[place] if place < len(args) else kwargs.get(name) for place, name in self.writes
        ]

    def read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The arguments of a call without scratch, and without `out=`, whose old values nobody
        reads."""
        unread = self.scratch_inputs.union(
            name for _, name in self.writes if name.startswith("out")
        )
        if not unread:
            return args, kwargs
        kept = [value for place, value in enumerate(args) if str(place) not in unread]
        return kept, {name: value for name, value in kwargs.items() if name not in unread}

    def results(self, result: Any) -> Any:
        """What a call returned, without scratch."""
        if not self.scratch or not isinstance(result, tuple):
            return result
        return tuple(item for place, item in enumerate(result) if place not in self.scratch)


def _names(func: Any) -> tuple[str, str]:
    """ "aten.addmm" and "aten.addmm.default"; both the same for what has no overloads."""
    if isinstance(func, torch._ops.OpOverload):
        packet = f"{func.namespace}.{func._opname}"
        return packet, f"{packet}.{func._overloadname}"
    name = f"{func.namespace}.{func.name()}"
    return name, name


def _why_never(namespace: str, operator: str) -> str:
    """Why an operator is never compared; "" where it may be."""
    if namespace in ASYNCHRONOUS:
        return "is complete later only"
    if namespace == HIGHER_ORDER:
        return "runs other operators, which are not seen"
    if namespace == "aten" and operator in UNINITIALISED:
        return "returns uninitialized memory"
    if namespace == "aten" and operator in ABOUT_MEMORY:
        return "is about memory, not values"
    return ""


def _writes(func: Any) -> tuple[tuple[int, str], ...]:
    hidden = HIDDEN_WRITES.get(func._opname, ()) if func.namespace == "aten" else ()
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or argument.name in hidden
    )


def _scratch(func: Any) -> frozenset[int]:
    if func.namespace != "aten":
        return frozenset()
    named = {place for place, one in enumerate(func._schema.returns) if one.name in SCRATCH_NAMES}
    return frozenset(named.union(SCRATCH_PLACES.get(func._opname, ())))


def _scratch_inputs(func: Any) -> frozenset[str]:
    if func.namespace != "aten":
        return frozenset()
    named = [(str(place), one.name) for place, one in enumerate(func._schema.arguments)]
    return frozenset(key for keys in named if keys[1] in SCRATCH_NAMES for key in keys)


def _may_draw(func: Any) -> bool:
    """In torch's own operators the tag is complete; others may draw without saying so."""
    return (
        torch.Tag.nondeterministic_seeded in func.tags
        or func.namespace not in NAMESPACES
        or any(argument.name == "generator" for argument in func._schema.arguments)
    )


def _is_divided(name: str) -> bool:
    """Whether torch mostly runs other operators instead of this one, as for `aten.linear`."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    namespace, operator, *overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    every = [] if packet is None else packet.overloads()
    kinds = overload or [kind for kind in every if not kind.endswith("out")]
    full = [f"{namespace}::{operator}{'' if kind == 'default' else '.' + kind}" for kind in kinds]
    return bool(full) and all(has_kernel(one, "CompositeImplicitAutograd") for one in full)


def _is_view(func: Any) -> bool:
    """Whether the result always shares memory with an input; `reshape` and its like may copy."""
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )
    return func.is_view and not func._schema.is_mutable and not composite


class OpPolicy:
    """What becomes of each operator.

    With targets, all else is ignored. Operators outside of aten and prims are tested where the
    options name their namespace; those of any, by a tool that runs nothing twice.
    """

    def __init__(self, options: OpOptions, *, any_namespace: bool = False) -> None:
        argument, self.targets = options.targets
        self._white_list = options.white_list
        self._namespaces = options.namespaces - NAMESPACES
        self._any_namespace = any_namespace
        self._plans: dict[int, OpPlan] = {}
        self._seen: set[str] = set()
        for target in sorted(self.targets or ()):
            namespace, operator, *_ = (*target.split("."), "")
            why = self._why_left_out(namespace, operator, (target, f"{namespace}.{operator}"))
            if why:
                raise ValueError(f"{argument}: torch.ops.{target} cannot be tested: it {why}")

    def plan(self, func: Any) -> OpPlan:
        # An overload lives as long as its plan. Its own hash takes longer than this lookup.
        known = self._plans.get(id(func))
        if known is None:
            known = self._plans[id(func)] = self._make(func)
        return known

    @property
    def plans(self) -> list[OpPlan]:
        """Those of all operators that were seen."""
        return list(self._plans.values())

    def unseen_text(self) -> str:
        """Which targets did not run so far; "" where all did."""
        unseen = sorted((self.targets or frozenset()) - self._seen)
        if not unseen:
            return ""
        names = ", ".join(f"torch.ops.{name}" for name in unseen)
        divided = ", ".join(f"torch.ops.{name}" for name in unseen if _is_divided(name))
        why = f" ({divided}: torch runs others in its place)" if divided else ""
        return f"{names} did not run in the block; nothing was tested of it{why}"

    def _why_left_out(self, namespace: str, operator: str, names: tuple[str, ...]) -> str:
        if not self._white_list.isdisjoint(names):
            return "is in white_list"
        return "" if namespace in self._namespaces else _why_never(namespace, operator)

    def _make(self, func: Any) -> OpPlan:
        names = _names(func)
        self._seen.update(names)
        if self.targets is not None and self.targets.isdisjoint(names):
            return OpPlan(func, Action.IGNORE, "is not in target_list")
        namespace, operator = names[0].split(".", 1)
        why = self._why_left_out(namespace, operator, names)
        is_asked_for = self._any_namespace or self.targets is not None
        if not why and not is_asked_for and namespace not in self._namespaces | NAMESPACES:
            why = "is outside of aten and prims"
        if why:
            return OpPlan(func, Action.PASS, why)
        return OpPlan(func, Action.VIEW if _is_view(func) else Action.COMPARE, "")

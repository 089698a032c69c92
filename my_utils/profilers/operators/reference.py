"""The reference of an operator's result: the operator on another device, or a user's function. It
gets the random numbers that the operator drew, and leaves no trace in the generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .check import ANY_FLOAT
from .inputs import (
    WIDER,
    converted,
    copied,
    device_of,
    is_converted,
    map_tensors,
    map_values,
    tensors_in,
)
from .policy import OpPlan

ReferenceFunction = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_DOUBLE: dict[torch.dtype, torch.dtype] = {
    **{dtype: torch.float64 for dtype in (*WIDER, torch.float32) if not dtype.is_complex},
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


class NotComparable(Exception):
    """There is nothing to compare a call with; the text says why."""


class OpCopy:
    """What an operator is called with, copied before it runs. tensors: the originals."""

    __slots__ = ("args", "device", "kwargs", "plan", "tensors")

    def __init__(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> None:
        self.plan = plan
        self.tensors: list[Tensor] = tensors_in(args)
        if kwargs:
            self.tensors += tensors_in(kwargs)
        self.device = device_of(self.tensors, kwargs)
        self.args, self.kwargs = copied((args, kwargs))

    def again(self) -> OpCopy:
        """A copy of the copies."""
        return OpCopy(self.plan, self.args, self.kwargs)

    def changed(self, change: Callable[[Any], Any]) -> OpCopy:
        """A copy with other values: `change` gets each tensor and each float."""
        args, kwargs = map_values((self.args, self.kwargs), change)
        return OpCopy(self.plan, args, kwargs)


class _OfDevice:
    """The default generator of a device, for devices that give no object for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)

    def get_state(self) -> torch.Tensor:
        state: torch.Tensor = self._module.get_rng_state(self._device)
        return state

    def set_state(self, state: torch.Tensor) -> None:
        self._module.set_rng_state(state, self._device)


class Draws:
    """The numbers that one call takes from a generator: it drew some if the generator's state
    differs before and after it.

    Make it before the call and ask `changed` after it.
    """

    def __init__(self, args: Any, kwargs: dict[str, Any], device: torch.device) -> None:
        values = (*kwargs.values(), *args)
        given: Any = next((item for item in values if isinstance(item, torch.Generator)), None)
        self.device = device if given is None else given.device
        if given is None:
            given = torch.default_generator if device.type == "cpu" else _OfDevice(device)
        self._generator = given
        self._before: torch.Tensor = self._generator.get_state()
        self._after: torch.Tensor | None = None

    def changed(self) -> bool:
        self._after = self._generator.get_state()
        return not torch.equal(self._before, self._after)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """The same numbers within the block; what comes after them behind it."""
        after = self._generator.get_state() if self._after is None else self._after
        self._generator.set_state(self._before)
        try:
            yield
        finally:
            self._generator.set_state(after)


@contextlib.contextmanager
def kept_stream() -> Iterator[None]:
    """The default generator of the CPU continues behind the block where it was before it."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


class Expected(NamedTuple):
    """What came out of the reference.

    result: what it returned. written: the arguments that it wrote to, as in `OpPlan.written`.
    dtypes: which dtypes others stood for. notes: lines for the log.
    """

    result: Any
    written: list[Any]
    dtypes: Mapping[torch.dtype, torch.dtype]
    notes: list[str]


class Reference:
    """Runs operators a second time.

    given: a device ("cpu", "cuda:1", `torch.device`), "float64" (on the same device), or a function
    `(func, args, kwargs) -> result`, whose result is compared with that of `func(*args, **kwargs)`.
    """

    def __init__(self, given: Any = "cpu") -> None:
        self.function: ReferenceFunction | None = None
        self._device: torch.device | None = None
        self._dtypes: Mapping[torch.dtype, torch.dtype] = {}
        self._unable: set[tuple[int, tuple[torch.dtype, ...]]] = set()
        if given == "float64" or given is torch.float64:
            self._dtypes = _DOUBLE
            self.name = "float64"
        elif isinstance(given, str | torch.device):
            self._device = _device("reference", given)
            self.name = str(given)
        elif callable(given):
            self.function = given
            self.name = getattr(given, "__name__", "reference")
        else:
            raise TypeError(
                "reference must be a device, 'float64' or a function (func, args, kwargs), "
                f"not {given!r:.100}"
            )

    def is_same_device(self, device: torch.device) -> bool:
        return self._device is None or self._device.type == device.type

    def has_same_strides(self, device: torch.device) -> bool:
        """Whether kernels of one kind ran: those of other dtypes may choose other layouts."""
        return self.is_same_device(device) and not self._dtypes

    def is_a_repetition(self, device: torch.device) -> bool:
        """Whether the very same operator runs on the very same device."""
        wanted = self._device
        if wanted is None or wanted.type != device.type:
            return False
        return wanted.type == "cpu" or (wanted.index or 0) == (device.index or 0)

    def run(self, call: OpCopy, draws: Draws | None) -> Expected:
        """Runs the operator on the copies, which it may write to. draws: what the first run drew,
        None if it drew nothing.

        NotComparable where it cannot be run, or would draw other numbers.
        """
        if draws is not None and (self._dtypes or not self.is_same_device(call.device)):
            raise NotComparable(f"takes random numbers, which {self.name} has others of")
        if draws is not None:
            with draws.again():
                return self._run(call, True)
        if call.plan.may_draw or self.function is not None:
            with kept_stream():
                return self._run(call, False)
        return self._run(call, False)

    def _run(self, call: OpCopy, drew: bool) -> Expected:
        if self.function is not None:
            return _called(self.function, call)
        target = call.device if self._device is None else self._device
        if call.plan.of_dtype:
            return _computed(call, target, {}, [])
        if self._dtypes:
            return _computed(call, target, self._dtypes, [])
        if not drew and any(tensor.dtype in WIDER for tensor in call.tensors):
            return self._run_halves(call, target)
        return _computed(call, target, {}, [])

    def _run_halves(self, call: OpCopy, target: torch.device) -> Expected:
        """As they are where the reference can; in float32 where it cannot."""
        key = (id(call.plan.func), tuple(tensor.dtype for tensor in call.tensors))
        notes = []
        if key not in self._unable:
            first = call.again() if call.plan.writes else call
            try:
                return _computed(first, target, {}, [])
            except NotComparable as error:
                self._unable.add(key)
                notes = [str(error)]
        notes.append("Convert to float32 ...")
        return _computed(call, target, WIDER, notes)


def _device(name: str, given: Any) -> torch.device:
    try:
        return torch.device(given)
    except RuntimeError as error:
        raise ValueError(f"{name} must be a device, not {given!r:.100} ({error})") from None


def _called(function: ReferenceFunction, call: OpCopy) -> Expected:
    # Without a gradient, for functions of users that may call `Tensor.numpy`.
    args, kwargs = map_tensors(
        (call.args, call.kwargs),
        lambda tensor: tensor.detach() if tensor.requires_grad else tensor,
    )
    try:
        result = function(call.plan.func, args, kwargs)
    except Exception as error:
        raise NotComparable(f"the reference raised {_first_line(error)}") from error
    return Expected(result, call.plan.written(args, kwargs), ANY_FLOAT, [])


def _computed(
    call: OpCopy,
    device: torch.device,
    dtypes: Mapping[torch.dtype, torch.dtype],
    notes: list[str],
) -> Expected:
    args, kwargs = call.args, call.kwargs
    try:
        if dtypes or not is_converted(call.tensors, kwargs, device):
            args, kwargs = converted((args, kwargs), device, dtypes)
        result = call.plan.func(*args, **kwargs)
    except Exception as error:  # what a backend raises for what it cannot do has no kind
        raise NotComparable(_first_line(error)) from error
    return Expected(result, call.plan.written(args, kwargs), dtypes, notes)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0][:300]}" if lines else type(error).__name__

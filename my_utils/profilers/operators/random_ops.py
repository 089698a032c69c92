"""Runs random operators a second time with the same random numbers, and without side effects.

An operator drew random numbers if the generator's state differs before and after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def _generator_in(args: Any, kwargs: dict[str, Any]) -> torch.Generator | None:
    for value in (*kwargs.values(), *args):
        if isinstance(value, torch.Generator):
            return value
    return None


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


def _default_generator(device: torch.device) -> Any:
    if device.type == "cpu":
        return torch.default_generator
    return _OfDevice(device)


class Draws:
    """The numbers that one call takes from a generator.

    Make it before the call and ask `changed` after it.
    """

    def __init__(self, args: Any, kwargs: dict[str, Any], device: torch.device) -> None:
        given = _generator_in(args, kwargs)
        self.device = device if given is None else given.device
        self._generator: Any = _default_generator(device) if given is None else given
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

"""Iterations of a training whose optimizer steps are not visible: compiled ones, or none.

A parameter that a backward has reached is watched. When its version has changed since the last
backward, or its gradient is gone, an update came. Such an iteration ends at the next forward with
gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from ... import _core
from .iterations import Iterations
from .roots import find_parameter

BACKWARDS_OF_A_RANK = 8
_WATCHED_FROM = 2


class HiddenUpdates:
    """Counts backwards as long as no optimizer step is seen. Not thread-safe.

    become_rank: called at the end of the eighth backward.
    """

    def __init__(
        self, stages: _core.RunStages, iterations: Iterations, become_rank: Callable[[], object]
    ) -> None:
        self.counts = False
        """Whether iterations are counted by updates."""
        self._stages = stages
        self._iterations = iterations
        self._become_rank = become_rank
        self._backwards = 0
        self._ends: list[int] = []  # of the first backwards
        self._updated: list[bool] = []  # before each of them
        self._watched: torch.Tensor | None = None
        self._version = 0
        self._last = 0  # where the records of the last backward end
        self._is_new = False  # a backward came since the last forward

    def __repr__(self) -> str:
        return f"HiddenUpdates({self._backwards} backwards)"

    def after_backward(self) -> None:
        """Called by the stages."""
        self._backwards += 1
        updated = self._was_updated()
        position = self._stages.position()
        if self.counts:
            if updated and self._is_new:
                self._iterations.updated_at([self._last])
        elif self._backwards <= BACKWARDS_OF_A_RANK:
            self._ends.append(position)
            self._updated.append(updated)
            if self._backwards == _WATCHED_FROM:
                self._watched = find_parameter()
        elif updated:
            self._iterations.updated_at([self._last])
            self._count_updates()
        self._is_new = True
        self._last = position
        self._look()
        if self._backwards == BACKWARDS_OF_A_RANK:
            self._look_back()
            self._become_rank()

    def _was_updated(self) -> bool:
        watched = self._watched
        if watched is None:
            return False
        gradient = None if self._gradient is None else self._gradient()
        return watched._version != self._version or (
            self._gradient is not None and watched.grad is not gradient
        )

    def _look(self) -> None:
        if self._watched is not None:
            self._version = self._watched._version
            gradient = self._watched.grad
            self._gradient = None if gradient is None else weakref.ref(gradient)

    def _look_back(self) -> None:
        known = self._updated[_WATCHED_FROM:]
        if self._watched is None:
            known = [True] * len(known)  # nothing says otherwise
        if any(known):
            updated = [all(known)] * (_WATCHED_FROM - 1) + known
            self._iterations.updated_at(
                [end for end, new in zip(self._ends[:-1], updated, strict=True) if new]
            )
            self._count_updates()

    def _count_updates(self) -> None:
        self.counts = True
        self._stages.on_forward = self._before_forward

    def _before_forward(self) -> None:
        if self._is_new and (self._watched is None or self._was_updated()):
            self._iterations.updated()
            self._is_new = False
            self._look()

    def finish(self) -> None:
        """The training ends: the last backward ended an iteration."""
        if self.counts and self._is_new:
            self._iterations.end_at(self._last)

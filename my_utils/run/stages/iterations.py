"""Assigns records to iterations, from the steps of the optimizers.

The first optimizer that steps leads. An iteration ends at the last step of any optimizer before the
leader steps again. When that was is known only afterwards, so the end is predicted from the length
of the iteration before, and where the prediction was wrong, the records since the last step get the
right number. A run with one optimizer is always predicted right.

An optimizer that steps more than eight times without the leader takes over, and the iterations
since the leader's last step are counted by it. Where no step is visible, backwards are counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from ... import _core
from .roots import find_parameters

BACKWARDS_OF_A_RANK = 8
LEADS_AFTER = 8
REMEMBERED = 1024
_WATCHED_FROM = 2  # backwards
_PATIENCE = 8  # backwards without an update, before another parameter is looked for


class Records(Protocol):
    """What the training thread has recorded; positions rise with every record."""

    def position(self) -> int:
        """Where the next record goes."""

    def change_step(self, begin: int, end: int, step: int, /) -> int:
        """Gives the records between two positions another step."""

    def set_step(self, step: int) -> None:
        """The step of the records from here on."""


class Iterations:
    """Counts the iterations of a training and numbers its records. Not thread-safe."""

    __slots__ = ("_cycle", "_ends", "_leader", "_length", "_moved_on", "_records", "number",
                 "varies")  # fmt: skip

    def __init__(self, records: Records) -> None:
        self.number = 0
        """The step that records get now."""
        self.varies = False
        """Whether a prediction was wrong once the second iteration was over."""
        self._records = records
        self._leader: object = None
        self._cycle = 1  # steps of the last complete iteration
        self._length = 0  # steps of this one
        self._moved_on = False  # `number` is that of the next iteration already
        # The optimizers that stepped since the leader did, the leader first, and where the records
        # of a step end.
        self._ends: list[tuple[object, int]] = [(None, 0)]

    def __repr__(self) -> str:
        return f"Iterations({self.count} complete)"

    @property
    def count(self) -> int:
        """How many iterations are complete, as far as it is known."""
        return self.number if self._moved_on or not self._length else self.number + 1

    @property
    def current(self) -> int:
        """The iteration that the last step belongs to."""
        return self.number - self._moved_on

    @property
    def leader(self) -> object:
        """The optimizer that leads; None before its first step."""
        return self._leader

    @property
    def is_regular(self) -> bool:
        """Whether each step of the leader is an iteration, as far as it is known."""
        return self._cycle == 1 == self._length and self._moved_on and self._leader is not None

    def resume(self, number: int, end: int) -> None:
        """Others have counted regular iterations: `number` comes next, and the records of the last
        one end at `end`."""
        self.number = number
        self._ends = [(self._leader, end)]

    def lead_anew(self) -> None:
        """The optimizer that steps next leads, as the script goes on with it."""
        self._leader = None

    def stepped(self, optimizer: object) -> bool:
        """An optimizer has stepped. True when the step of all records so far is known for good."""
        position = self._records.position()
        leads = self._leader == optimizer or self._leader is None
        if leads:
            self._lead(optimizer, position)
        else:
            self._follow(optimizer, position)
        self._moved_on = self._length >= self._cycle
        if self._moved_on:
            self.number += 1
        self._records.set_step(self.number)
        return leads

    def _lead(self, optimizer: object, position: int) -> None:
        if self._length:
            if not self._moved_on:
                self._move_tail(position, self.number + 1)
            self._cycle = self._length
        self._leader = optimizer
        self._length = 1
        self._ends = [(optimizer, position)]

    def _follow(self, optimizer: object, position: int) -> None:
        if self._moved_on:
            self._move_tail(position, self.number - 1)
        self._length += 1
        self._ends.append((optimizer, position))
        if sum(who == optimizer for who, _ in self._ends) > LEADS_AFTER:
            self._take_over(optimizer)
        elif len(self._ends) > REMEMBERED:
            del self._ends[1 : REMEMBERED // 2]

    def _move_tail(self, position: int, number: int) -> None:
        """The records since the last step belong to iteration `number`."""
        self._records.change_step(self._ends[-1][1], position, number)
        self.number = number
        self.varies = self.varies or number > 2

    def _take_over(self, optimizer: object) -> None:
        """The leader's iteration ended as the one before it did; from there `optimizer` leads."""
        length, leads = 0, False
        for place in range(1, len(self._ends)):
            who, end = self._ends[place]
            if place == self._cycle or (place > self._cycle and leads and who == optimizer):
                self.number += 1
                length, leads = 0, False
            length += 1
            leads = leads or who == optimizer
            self._records.change_step(self._ends[place - 1][1], end, self.number)
        self._leader = optimizer
        self._cycle = self._length = length
        self._ends = [self._ends[-1]]

    def updated(self) -> None:
        """The parameters were updated by what cannot be seen: an iteration has ended here."""
        self.number += 1
        self._records.set_step(self.number)

    def updated_at(self, positions: list[int]) -> None:
        """The same of places that are back."""
        ends = [*positions[1:], self._records.position()]
        for begin, end in zip(positions, ends, strict=True):
            self.number += 1
            self._records.change_step(begin, end, self.number)
        self._records.set_step(self.number)

    def end_at(self, position: int) -> None:
        """The last iteration ended at a place that is back."""
        self._ends = [(None, position)]
        self._length, self._moved_on = 1, False

    def finish(self) -> int:
        """The training ends: records since the last step belong to no iteration, which is step -1.
        Returns how many iterations there were."""
        if self._length:
            self._records.change_step(self._ends[-1][1], self._records.position(), -1)
            return self.count
        return self.number


class HiddenUpdates:
    """Iterations of a training whose optimizer steps are not visible: compiled ones, or none.
    Counts backwards as long as no optimizer step is seen. Not thread-safe.

    A parameter that a backward has reached is watched, by a weak reference. When its version has
    changed since the last backward, or its gradient or itself is gone, an update came. Such an
    iteration ends at the next forward with gradients. Another parameter is taken where this one is
    gone or does not change any more, as when the script goes on with another model.

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
        self._watched: weakref.ref[torch.Tensor] | None = None
        self._version = 0
        self._gradient: weakref.ref[torch.Tensor] | None = None
        self._unchanged = 0  # backwards since the last update
        self._patience = _PATIENCE
        self._before: list[tuple[weakref.ref[torch.Tensor], object]] = []
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
        elif updated:
            self._iterations.updated_at([self._last])
            self._count_updates()
        self._is_new = True
        self._last = position
        self._choose(updated)
        self._look()
        if self._backwards == BACKWARDS_OF_A_RANK:
            self._look_back()
            self._become_rank()

    def _was_updated(self) -> bool:
        if self._watched is None:
            return False
        watched = self._watched()
        if watched is None:
            return True
        gradient = None if self._gradient is None else self._gradient()
        return watched._version != self._version or (
            self._gradient is not None and watched.grad is not gradient
        )

    def _choose(self, updated: bool) -> None:
        """What is watched from here on."""
        if self._backwards == _WATCHED_FROM or (self._watched and self._watched() is None):
            self._watched = _first(p for p in find_parameters() if p.grad is not None)
        elif self._before:
            self._watched = _reached(self._before) or self._watched
            self._before = []
        self._unchanged = 0 if updated else self._unchanged + 1
        if self._unchanged > self._patience:
            self._unchanged = 0
            self._patience *= 2  # a search takes time, and gradients may be summed up for long
            self._before = [(weakref.ref(p), _state(p)) for p in find_parameters()]

    def _look(self) -> None:
        watched = None if self._watched is None else self._watched()
        if watched is not None:
            self._version = watched._version
            gradient = watched.grad
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
            self._unchanged = 0
            self._look()

    def finish(self) -> None:
        """The training ends: the last backward ended an iteration."""
        if self.counts and self._is_new:
            self._iterations.end_at(self._last)


def _first(parameters: Iterable[torch.Tensor]) -> weakref.ref[torch.Tensor] | None:
    return next((weakref.ref(parameter) for parameter in parameters), None)


def _state(parameter: torch.Tensor) -> object:
    """What a backward that reaches the parameter changes."""
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)


def _reached(
    before: Iterable[tuple[weakref.ref[torch.Tensor], object]],
) -> weakref.ref[torch.Tensor] | None:
    """A parameter that a backward has reached since then."""
    alive = ((reference(), state) for reference, state in before)
    return _first(p for p, state in alive if p is not None and _state(p) not in (None, state))

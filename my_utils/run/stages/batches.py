"""The batches of a training: their samples and tokens, and which are for evaluation."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import UserDict
from collections.abc import Sequence
from typing import Any

import torch

from ... import _core
from . import names

_TOKENS = ("input_ids", "tokens", "input_tokens")
_WHOLE = frozenset((torch.int64, torch.int32))
_DEPTH = 3
_PAIR = slice(2)  # inputs and labels
_VALUES = 8
_KNOWN_MAX = 256  # iterators and datasets


def batch_size(batch: Any) -> tuple[int, int]:
    """(samples, tokens) of a batch; 0 if it does not show. Reads shapes only, never values,
    and calls no code of the batch's own class.

    The samples are the first dimension of the first tensor. A whole-number tensor of two dimensions
    holds tokens.

    >>> batch_size([torch.zeros(4, 3), torch.zeros(4)])
    (4, 0)
    >>> batch_size({"input_ids": torch.ones(2, 7, dtype=torch.int64)})
    (2, 14)
    """
    tensor = _first_tensor(batch, _DEPTH)
    if tensor is None:
        return 0, 0
    if tensor.is_nested:  # its other sizes differ
        return tensor.size(0), 0
    shape = tensor.shape
    if not shape:
        return 0, 0
    tokens = tensor.dtype in _WHOLE and len(shape) == 2
    return shape[0], shape[0] * shape[1] if tokens else 0


def _first_tensor(batch: Any, depth: int) -> torch.Tensor | None:
    kind = type(batch)
    if kind is torch.Tensor:
        found: torch.Tensor = batch
        return found
    if not depth:
        return None
    for part in _parts(batch, kind):
        tensor = _first_tensor(part, depth - 1)
        if tensor is not None:
            return tensor
    return None


def _parts(batch: Any, kind: type) -> Sequence[Any]:
    if kind is list:
        return batch[_PAIR]  # type: ignore[no-any-return]
    if issubclass(kind, tuple):
        return tuple.__getitem__(batch, _PAIR)
    held = _held(batch, kind)
    if held is None:
        return ()
    for name in _TOKENS:
        if (tokens := dict.get(held, name)) is not None:
            return (tokens,)
    return tuple(itertools.islice(dict.values(held), _VALUES))


def _held(batch: Any, kind: type) -> dict[Any, Any] | None:
    """The dict in which a mapping holds its values. None of any other mapping: it may compute them
    when it is asked, with random numbers, for example."""
    if issubclass(kind, dict):
        return batch  # type: ignore[no-any-return]
    if UserDict in kind.__mro__:  # as transformers' BatchEncoding is
        name = "data"
    elif kind is getattr(sys.modules.get("tensordict"), "TensorDict", None):
        name = "_tensordict"
    else:
        return None
    held = object.__getattribute__(batch, "__dict__").get(name)
    return held if issubclass(type(held), dict) else None


class LoaderUses:
    """Which loaders a training evaluates with: what they give is not its input.

    A batch is trained with if a backward or a step of an optimizer comes before the next batch, and
    evaluated if a forward comes without. The first batch of an iterator counts as those of the last
    iterator over the same dataset did. Where nothing is known, what is loaded without gradients
    counts as evaluated.

    Remembers iterators and datasets by weak references. Only what the training thread loads counts.
    """

    def __init__(self, stages: _core.RunStages) -> None:
        self._stages = stages
        self._trains: dict[int, tuple[weakref.ref[Any], bool]] = {}  # by id()
        # Of the batches since the last use the iterator and the dataset, by the iterator's id().
        self._unused: dict[int, tuple[weakref.ref[Any], weakref.ref[Any] | None]] = {}
        self._counts = stages.counts()  # after the last load

    def stage_of(self, iterator: object, dataset: object) -> int:
        """INPUT or EVAL, for what is loaded next."""
        if self._stages.thread != threading.get_ident():
            return names.INPUT
        self._look_back()
        trains = self._known(iterator)
        if trains is None:
            trains = self._known(dataset)
        if trains is None:
            trains = torch.is_grad_enabled()
        return names.INPUT if trains else names.EVAL

    def loaded(self, iterator: object, dataset: object) -> None:
        """A batch or a sample has come; called after `ended`."""
        if (reference := _reference(iterator)) is not None:
            if len(self._unused) >= _KNOWN_MAX:
                self._unused.clear()
            self._unused[id(iterator)] = reference, _reference(dataset)

    def ended(self) -> None:
        """A load is over, with a batch or without."""
        self._counts = self._stages.counts()

    def _look_back(self) -> None:
        """What the batches since then were used for."""
        if not self._unused:
            return
        before, now = self._counts, self._stages.counts()
        trained = now["backward"] > before["backward"] or now["optimizer"] > before["optimizer"]
        evaluated = now["eval"] > before["eval"]
        if not trained and not evaluated and now["forward"] == before["forward"]:
            return
        for references in self._unused.values():
            iterator = references[0]()
            # Losses of several batches may have one backward.
            if trained or evaluated or not self._known(iterator):
                for reference in references:
                    self._learn(reference, trained)
                if not trained:
                    self._stages.forget_newest_batch()
        self._unused.clear()

    def _learn(self, reference: weakref.ref[Any] | None, trains: bool) -> None:
        thing = None if reference is None else reference()
        if reference is not None and thing is not None:
            if len(self._trains) >= _KNOWN_MAX:
                self._trains.clear()
            self._trains[id(thing)] = reference, trains

    def _known(self, thing: object) -> bool | None:
        reference, trains = self._trains.get(id(thing), (None, None))
        return trains if reference is not None and reference() is thing else None


def _reference(thing: object) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(thing)
    except TypeError:  # a list, for example
        return None

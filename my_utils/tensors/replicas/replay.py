"""Runs one batch twice from the same state, and says what does not repeat itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ..._core import tensor_hash
from ..diverge.compare import compare_recordings
from ..random_states.control_random import capture, restore
from ..recordings.module_hook import ForwardTraceRecorder
from ..recordings.recording import Recording
from ..tensor_kinds import resolve
from .replayed import Replayed


class _State(NamedTuple):
    """What a run begins with. values: the tensors of the models, and copies of them."""

    values: list[tuple[torch.Tensor, torch.Tensor]]
    gradients: list[tuple[torch.Tensor, torch.Tensor | None]]
    random: dict[str, Any]

    def put_back(self) -> None:
        with torch.no_grad():
            for tensor, copy in self.values:
                tensor.copy_(copy)
        for tensor, gradient in self.gradients:
            tensor.grad = None if gradient is None else gradient.clone()
        restore(self.random)


def replay(models: Mapping[str, torch.nn.Module], step_fn: Callable[[], Any]) -> Replayed:
    """As `ReplicaWatch.replay`."""
    named = [
        (f"{prefix}.{name}".strip("."), tensor)
        for prefix, model in models.items()
        for pairs in (model.named_parameters(), model.named_buffers())
        for name, tensor in pairs
    ]
    state = _copy_state([tensor for _, tensor in named])
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        first, second = (_run(models, state, named, step_fn) for _ in range(2))
    finally:
        state.put_back()
    differing = [name for name in first.hashes if first.hashes[name] != second.hashes.get(name)]
    both = zip(first.recordings, second.recordings, strict=True)
    found = (compare_recordings(*recordings).difference for recordings in both)
    difference = next((one for one in found if one is not None and one.call is not None), None)
    return Replayed(differing, difference, deterministic=deterministic)


def _copy_state(tensors: list[torch.Tensor]) -> _State:
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [
        (tensor, None if tensor.grad is None else tensor.grad.detach().clone())
        for tensor in tensors
        if tensor.requires_grad
    ]
    return _State(values, gradients, capture())


class _Run(NamedTuple):
    """What a run left. hashes: by the name of a tensor. recordings: of its modules."""

    hashes: dict[str, str]
    recordings: list[Recording]


def _run(
    models: Mapping[str, torch.nn.Module],
    state: _State,
    named: list[tuple[str, torch.Tensor]],
    step_fn: Callable[[], Any],
) -> _Run:
    state.put_back()
    with contextlib.ExitStack() as recording:
        recorders = [
            recording.enter_context(ForwardTraceRecorder(model)) for model in models.values()
        ]
        loss = step_fn()
    hashes = dict(_hashes("loss", loss))
    for name, tensor in named:
        hashes |= _hashes(name, tensor)
        hashes |= _hashes(f"gradient of {name}", tensor.grad)
    return _Run(hashes, [recorder.snapshot() for recorder in recorders])


def _hashes(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, torch.Tensor):
        yield name, tensor_hash(resolve(value.detach(), name)).combined

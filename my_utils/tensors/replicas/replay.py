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
    """What a run begins with. values: the tensors of the models, and copies of them. places: where
    modules hold them, and which ones: a forward may put others there."""

    values: list[tuple[torch.Tensor, torch.Tensor]]
    places: list[tuple[dict[str, Any], dict[str, Any]]]
    gradients: list[tuple[torch.Tensor, torch.Tensor | None]]
    random: dict[str, Any]

    def put_back(self) -> None:
        for place, held in self.places:
            place.clear()
            place.update(held)
        with torch.no_grad():
            for tensor, copy in self.values:
                tensor.copy_(copy)
        for tensor, gradient in self.gradients:
            tensor.grad = None if gradient is None else gradient.clone()
        restore(self.random)


def replay(models: Mapping[str, torch.nn.Module], step_fn: Callable[[], Any]) -> Replayed:
    """As `ReplicaWatch.replay`."""
    state = _copy_state(models)
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        first, second = (_run(models, state, step_fn) for _ in range(2))
    finally:
        state.put_back()
    names = dict.fromkeys((*first.hashes, *second.hashes))
    differing = [name for name in names if first.hashes.get(name) != second.hashes.get(name)]
    both = zip(first.recordings, second.recordings, strict=True)
    found = (compare_recordings(*recordings).difference for recordings in both)
    difference = next((one for one in found if one is not None and one.call is not None), None)
    return Replayed(differing, difference, deterministic=deterministic)


def _named(models: Mapping[str, torch.nn.Module]) -> list[tuple[str, torch.Tensor]]:
    """Of now."""
    return [
        (f"{prefix}.{name}".strip("."), tensor)
        for prefix, model in models.items()
        for pairs in (model.named_parameters(), model.named_buffers())
        for name, tensor in pairs
    ]


def _copy_state(models: Mapping[str, torch.nn.Module]) -> _State:
    tensors = [tensor for _, tensor in _named(models)]
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [
        (tensor, None if tensor.grad is None else tensor.grad.detach().clone())
        for tensor in tensors
        if tensor.requires_grad
    ]
    modules = [module for model in models.values() for module in model.modules()]
    held = [place for each in modules for place in (each._parameters, each._buffers)]
    # Those of a compiled module of TorchScript are no dict, and its forward changes none of them.
    places = [(place, dict(place)) for place in held if isinstance(place, dict)]
    return _State(values, places, gradients, capture())


class _Run(NamedTuple):
    """What a run left. hashes: by the name of a tensor. recordings: of its modules."""

    hashes: dict[str, str]
    recordings: list[Recording]


def _run(
    models: Mapping[str, torch.nn.Module],
    state: _State,
    step_fn: Callable[[], Any],
) -> _Run:
    state.put_back()
    with contextlib.ExitStack() as recording:
        recorders = [
            recording.enter_context(ForwardTraceRecorder(model)) for model in models.values()
        ]
        loss = step_fn()
    hashes = dict(_hashes("loss", loss))
    for name, tensor in _named(models):
        hashes |= _hashes(name, tensor)
        if tensor.is_leaf:
            hashes |= _hashes(f"gradient of {name}", tensor.grad)
    return _Run(hashes, [recorder.snapshot() for recorder in recorders])


def _hashes(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, torch.Tensor):
        yield name, tensor_hash(resolve(value.detach(), name)).combined

"""A step that is run twice from one state: what does not repeat itself is named."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from my_utils.tensors import ReplicaWatch
from my_utils.tensors.replicas.replayed import Replayed


class Unsteady(torch.nn.Module):
    """Gives another result each time."""

    def __init__(self, *, forward: bool) -> None:
        super().__init__()
        self.is_in_forward, self.calls = forward, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.is_in_forward:
            return x * (1 + self.calls / 1000)
        if x.requires_grad:
            factor = 1 + self.calls / 1000
            x.register_hook(lambda gradient: gradient * factor)
        return x


def model_with(*middle: torch.nn.Module) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), *middle,
        torch.nn.Linear(8, 1),
    )  # fmt: skip


def replayed(model: torch.nn.Module) -> Replayed:
    x = torch.randn(16, 4)

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        return loss

    return ReplicaWatch(model).replay(step)


def test_a_step_with_dropout_and_statistics_repeats_itself() -> None:
    """And leaves everything as it was."""
    model = model_with()
    weight, bias = model[0].parameters()
    weight.grad = torch.ones_like(weight)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    found = replayed(model)
    torch.set_rng_state(random)
    draws = torch.rand(3)
    assert found.is_same, str(found)
    assert str(found) == "the step repeats itself, bit for bit"
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert weight.grad.eq(1).all()
    assert bias.grad is None
    torch.set_rng_state(random)
    assert torch.equal(draws, torch.rand(3))


def test_the_first_module_with_another_result_is_named() -> None:
    found = replayed(model_with(Unsteady(forward=True)))
    assert (found.is_same, found.module, found.deterministic) == (False, "3", False)
    assert "loss" in found.differing
    text = str(found)
    assert "first 3 (Unsteady): different result from the same inputs" in text
    assert "deterministic algorithms are off" in text


def test_a_backward_alone_that_differs() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        found = replayed(model_with(Unsteady(forward=False)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert "loss" not in found.differing
    assert found.differing[0] == "gradient of 0.weight"
    assert "deterministic algorithms" not in str(found)


class Average(torch.nn.Module):
    """Puts another tensor in the place of its buffer, and makes a further one."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = x - self.average
        self.average = 0.9 * self.average + 0.1 * found.mean(0)
        self.register_buffer("newest", found.detach())
        return found


@pytest.mark.filterwarnings("error")
def test_a_buffer_in_whose_place_another_one_comes() -> None:
    model = model_with(Average())
    average = model.get_buffer("3.average")
    assert replayed(model).is_same
    assert model.get_buffer("3.average") is average
    assert average.eq(0).all()
    assert "3.newest" not in model.state_dict()


def test_such_a_buffer_that_differs_is_named() -> None:
    found = replayed(model_with(Unsteady(forward=True), Average()))
    assert {"4.average", "4.newest"} <= set(found.differing)


def test_the_random_state_is_that_of_before() -> None:
    model = model_with()
    torch.manual_seed(5)
    x = torch.randn(16, 4)
    before = torch.get_rng_state()
    ReplicaWatch(model).replay(lambda: model(x).sum())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_that_raises_leaves_the_state() -> None:
    model = model_with()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def step() -> None:
        model(torch.randn(16, 4))
        raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"):
        ReplicaWatch(model).replay(step)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="step_fn must be a function, not 3"):
        ReplicaWatch(model_with()).replay(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model must be a module"):
        ReplicaWatch().replay(lambda: None)

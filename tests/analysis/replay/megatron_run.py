"""A training over the groups of Megatron's `parallel_state`, on ranks that sleep; one is slow.

torchrun megatron_run.py SLOW_RANK
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region

STEPS, USUAL_S, SLOW_S = 40, 0.006, 0.046


class Layer(torch.nn.Module):
    """The tensor-parallel half of a layer: its forward ends in Megatron's all-reduce."""

    def __init__(self, takes_s: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.takes_s = takes_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.takes_s)
        reduced: torch.Tensor = reduce_from_tensor_model_parallel_region(self.linear(x))
        return reduced


def train(model: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    is_first = parallel_state.is_pipeline_first_stage()
    next_rank = parallel_state.get_pipeline_model_parallel_next_rank()
    last_rank = parallel_state.get_pipeline_model_parallel_prev_rank()
    for _ in range(STEPS):
        x = torch.ones(4, 16, requires_grad=True)
        if is_first:
            y = model(x)
            dist.send(y.detach(), next_rank)
            gradient = torch.empty(4, 16)
            dist.recv(gradient, next_rank)
            y.backward(gradient)
        else:
            with torch.no_grad():
                dist.recv(x, last_rank)
            model(x).square().mean().backward()
            assert x.grad is not None
            dist.send(x.grad, last_rank)
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=parallel_state.get_data_parallel_group())
        optimizer.step()
        optimizer.zero_grad()


def main(slow: int) -> None:
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=2
    )
    train(Layer(SLOW_S if dist.get_rank() == slow else USUAL_S))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))

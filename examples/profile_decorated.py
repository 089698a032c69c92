"""Three steps of a training loop under torch's profiler, when the command line asks for it.

    python examples/profile_decorated.py --profile

prints the operators that took longest, with their FLOPs, and leaves profiler_logs/trace_rank_0.json
for https://ui.perfetto.dev. The same under torchrun, with a trace for each rank.
"""

import argparse

import torch

from my_utils.profiling.decorator import (
    add_profiler_args,
    profiler,
    profiler_options,
    step_profiler,
)

parser = argparse.ArgumentParser()
add_profiler_args(parser)
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()


@profiler(**profiler_options(args))
def train(steps: int) -> float:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 16 * 16, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(steps):
        images, labels = torch.randn(32, 3, 16, 16), torch.randint(10, (32,))
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step_profiler()
    return loss.item()


print(f"last loss {train(args.steps):.3f}")

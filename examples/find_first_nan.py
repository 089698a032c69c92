"""Finds the operator that produces the first NaN, in the backward pass of one layer.

A norm divides by the square root of a sum of squares, and adds an epsilon only after the root. Its
forward pass is right; the gradient of the root, where a row is zero, is zero divided by zero.
`NanInfTracker` names the operator and the layer. The log goes to `nan/NanInfTracker.log`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from my_utils.compare_tool import NanInfTracker, open_module_tracker

WIDTH = 16


class Norm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        length = x.square().sum(-1, keepdim=True).sqrt()
        return x / length.clamp(min=1e-6)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        kept: Tensor = self.drop(self.fc(self.norm(x)).relu())
        return kept


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(x)
        return y


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tool = NanInfTracker(should_log_to_file=True, output_dir="nan")
    with open_module_tracker(model), tool:
        for step in range(20):
            x = torch.randn(8, WIDTH)
            if step == 5:
                x[3] = 0.0  # a sample of padding only
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            tool.step()
            if tool.first is not None:
                break
    found = tool.first
    if found is None:
        print("no NaN")
        return
    print(f"step {found.step}: {found.title}")
    print(f"{found.nan} of {found.elements} elements are NaN; it is a {found.role}")


if __name__ == "__main__":
    main()

"""Runs every operator of a training step twice, and finds the one that is wrong.

A custom operator, registered with torch like that of a library, computes a GELU with a formula that
has a small error for large inputs. `CompareWithCPU` compares it with the expected result, and all
other operators with the CPU, or, as here on the CPU, with the same operator in float64. The failing
call is written to `dump/`, and run again from there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from my_utils.compare_tool import (
    CompareError,
    CompareWithCPU,
    compare_for_single_op,
    open_module_tracker,
)

library = torch.library.Library("example", "DEF")
library.define("fast_gelu(Tensor x) -> Tensor")


def fast_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)  # good to 0.02, and not to what float32 allows


library.impl("fast_gelu", fast_gelu, "CPU")


def as_it_should_be(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is torch.ops.example.fast_gelu.default:
        return nn.functional.gelu(args[0].double())
    return func(*args, **kwargs)


class FastGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.example.fast_gelu(x)
        return y


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), FastGELU(), nn.Linear(32, 4))
    x = torch.randn(8, 16)
    open_module_tracker(model)

    # Against the same operators in float64: what is aten's own is right.
    with CompareWithCPU(verbose=False, reference="float64", should_log_to_file=True,
                        output_dir="compare") as compare:  # fmt: skip
        model(x).square().mean()
    print(compare.summary.by_op().table(5))

    # Operators of other libraries run twice only where that is asked for.
    try:
        with CompareWithCPU(verbose=False, reference=as_it_should_be, namespaces=["example"],
                            dump_error_data=True, output_dir="dump",
                            should_log_to_file=True):  # fmt: skip
            model(x)
    except CompareError as error:
        print(f"\nfound: {error}")

    correct, *_ = compare_for_single_op(
        "dump/torch.ops.example.fast_gelu_inputs.pkl",
        torch.ops.example.fast_gelu,
        reference=as_it_should_be,
        namespaces=["example"],
    )
    print(f"and again from the file: {'agrees' if correct else 'differs'}")


if __name__ == "__main__":
    main()

"""What a call of an operator costs that torch's dispatcher knows.

The peers are the two ways that torch offers to make an operator of a Python function; theirs do
nothing but allocate the result. All sides take a tensor of 64 floats, which is hashed in a few ns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness import Claim, take_turns

CALLS = 1000


def repeated(operator: Callable[..., object], *arguments: object) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            operator(*arguments)

    return run


def make_peers() -> tuple[Any, dict[str, Callable[..., object]]]:
    """What must be kept while the peers are called, and the peers by name."""
    import torch

    def kernel(x: Any) -> Any:
        return torch.empty(2, dtype=torch.int64)

    signature = "(Tensor x) -> Tensor"
    library = torch.library.Library("my_utils_peers", "FRAGMENT")
    library.define("library_impl" + signature)
    library.impl("library_impl", kernel, "CPU")
    torch.library.custom_op("my_utils_peers::custom_op", kernel, mutates_args=(), schema=signature)
    peers = torch.ops.my_utils_peers
    by_name: dict[str, Callable[..., object]] = {
        "torch.library.custom_op": peers.custom_op,
        "Library.impl": peers.library_impl,
    }
    return library, by_name


def run(smoke: bool) -> list[Claim]:
    try:
        import torch

        from my_utils.tensors.torch_ops import register
    except ImportError as error:
        print(f"operators left out: {error}")
        return []
    register()
    operators = torch.ops.my_utils
    x = torch.arange(64.0)
    rows = torch.zeros(4, 2, dtype=torch.int64)
    _library, peers = make_peers()
    sides = {
        "tensor_hash": repeated(operators.tensor_hash, x),
        "hash_into": repeated(operators.hash_into, x, rows, 2),
        "stats": repeated(operators.stats, x),
        "nan_inf_count": repeated(operators.nan_inf_count, x),
        **{name: repeated(operator, x) for name, operator in peers.items()},
    }
    figures = take_turns(sides, calls=CALLS, rounds=1 if smoke else 51)
    bounds = {"torch.library.custom_op": 5.0, "Library.impl": 1.5}
    return [
        Claim(f"torch.ops.my_utils.{name}, 64 floats", figures[name], peer, figures[peer], "ns",
              bound, faster=True)
        for name in ("tensor_hash", "hash_into", "stats", "nan_inf_count")
        for peer, bound in bounds.items()
    ]  # fmt: skip

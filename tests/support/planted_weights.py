"""The weights of a small model, and twenty differences to plant in them, with what a comparison
says of each."""

from __future__ import annotations

from collections.abc import Callable

import torch

Values = dict[str, torch.Tensor]


def model() -> Values:
    generator = torch.Generator().manual_seed(1)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    values = {"embed": weight(64, 32)}
    for layer in range(2):
        for name in ("q", "k", "v", "o"):
            values[f"layers.{layer}.{name}_proj.weight"] = weight(32, 32)
        values[f"layers.{layer}.up.weight"] = weight(96, 32)
        values[f"layers.{layer}.norm.weight"] = torch.ones(32)
        for expert in range(3):
            values[f"layers.{layer}.experts.{expert}.weight"] = weight(16, 32)
    return values


Q, K, UP = "layers.1.q_proj.weight", "layers.1.k_proj.weight", "layers.1.up.weight"
EXPERT = "layers.0.experts.1.weight"


def one_element(values: Values) -> None:
    values[UP][40, 7] += 1e-6


def one_bit_of_a_scalar_row(values: Values) -> None:
    values["layers.0.norm.weight"][31] = 1.0000001


def swapped(values: Values) -> None:
    values[Q], values[K] = values[K], values[Q]


def missing_expert(values: Values) -> None:
    del values[EXPERT]


def stale(values: Values) -> None:
    values[UP] = values[UP] * 0.5


def transposed(values: Values) -> None:
    values[Q] = values[Q].T.contiguous()


def transposed_shape(values: Values) -> None:
    values[UP] = values[UP].T.contiguous()


def other_dtype(values: Values) -> None:
    values["embed"] = values["embed"].bfloat16()


def other_expert(values: Values) -> None:
    values[EXPERT] = values["layers.1.experts.1.weight"].clone()


def renamed(values: Values) -> None:
    values["layers.1.query.weight"] = values.pop(Q)


def negative_zero(values: Values) -> None:
    values["layers.0.norm.weight"][:] = 0.0


def fewer_rows(values: Values) -> None:
    values["embed"] = values["embed"][:60].contiguous()


def last_element(values: Values) -> None:
    values["embed"][63, 31] = -values["embed"][63, 31]


def one_nan(values: Values) -> None:
    values[UP].view(torch.int32)[90, 3] = 0x7FC00001


def rolled_rows(values: Values) -> None:
    values["embed"] = values["embed"].roll(1, 0)


def halves_swapped(values: Values) -> None:
    values[UP] = torch.cat(values[UP].chunk(2)[::-1])


def layer_twice(values: Values) -> None:
    values[UP] = values["layers.0.up.weight"].clone()


def never_loaded(values: Values) -> None:
    values["layers.0.v_proj.weight"].zero_()


def experts_rotated(values: Values) -> None:
    names = [f"layers.0.experts.{expert}.weight" for expert in range(3)]
    for name, value in zip(names, [values[name] for name in names[1:] + names[:1]], strict=True):
        values[name] = value


def one_more(values: Values) -> None:
    values["layers.1.experts.3.weight"] = torch.full((16, 32), 0.5)


PLANTED: list[tuple[Callable[[Values], None], list[str]]] = [
    (one_element, [f"{UP}: values differ: rows 32-63"]),
    (one_bit_of_a_scalar_row, ["layers.0.norm.weight: values differ"]),
    (
        swapped,
        [
            f"{Q}: values differ; A has the values of B under the name {K}",
            f"{K}: values differ; A has the values of B under the name {Q}",
        ],
    ),
    (missing_expert, [f"{EXPERT}: only in A"]),
    (stale, [f"{UP}: values differ: in several places"]),
    (transposed, [f"{Q}: values differ"]),
    (transposed_shape, [f"{UP}: shape [96, 32] in A, [32, 96] in B"]),
    (other_dtype, ["embed: float32 in A, bfloat16 in B: compare with --dtype bfloat16"]),
    (
        other_expert,
        [
            f"{EXPERT}: values differ; A has the values of B under the name "
            "layers.1.experts.1.weight"
        ],
    ),
    (
        renamed,
        [
            f"{Q}: only in A; B has these values under the name layers.1.query.weight",
            f"layers.1.query.weight: only in B; A has these values under the name {Q}",
        ],
    ),
    (negative_zero, ["layers.0.norm.weight: values differ"]),
    (fewer_rows, ["embed: shape [64, 32] in A, [60, 32] in B"]),
    (last_element, ["embed: values differ: rows 32-63"]),
    (one_nan, [f"{UP}: values differ: rows 64-95"]),
    (rolled_rows, ["embed: values differ: in several places"]),
    (halves_swapped, [f"{UP}: values differ: in several places"]),
    (
        layer_twice,
        [f"{UP}: values differ; A has the values of B under the name layers.0.up.weight"],
    ),
    (never_loaded, ["layers.0.v_proj.weight: values differ: in one block of 4 KiB"]),
    (
        experts_rotated,
        [
            f"layers.0.experts.{expert}.weight: values differ; A has the values of B under the "
            f"name layers.0.experts.{(expert + 1) % 3}.weight"
            for expert in range(3)
        ],
    ),
    (one_more, ["layers.1.experts.3.weight: only in B"]),
]


def check_named(found: list[str], wanted: list[str]) -> None:
    """That the lines of a comparison begin as is wanted, and that there are no others."""
    assert len(found) == len(wanted), found
    for line, text in zip(sorted(found), sorted(wanted), strict=True):
        assert line.startswith(text), found

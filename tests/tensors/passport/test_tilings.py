"""Passports of random tilings of random tensors: all say what the definition of the hash says of
the whole, and a single element that differs is placed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from my_utils.tensors import sums_digest, tensor_sums
from my_utils.tensors.passport import compare_weights, read_weights
from my_utils.tensors.passport.boxes import Box, whole_of
from my_utils.tensors.passport.file import (
    FORMAT,
    GroupData,
    PassportData,
    TensorData,
    part_data,
    write_passport,
)
from my_utils.tensors.passport.weights import Weights

from ...support import tensor_hash_oracle as oracle
from ...support.tilings import Made, block_text, random_tensor, random_tiling, view_of

Check = Callable[[int, Path], None]


def written(made: Made, boxes: Sequence[Box], rng: random.Random, folder: Path) -> Weights:
    """The boxes are dealt to a few ranks, each of which writes its passport."""
    world = rng.randint(1, 4)
    by_rank: list[list[Box]] = [[] for _ in range(world)]
    for box in rng.sample(boxes, len(boxes)):
        by_rank[rng.randrange(world)].append(box)
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    shape = tuple(made.tensor.shape)
    for rank, mine in enumerate(by_rank):
        parts = [
            part_data(box, tensor_sums(view_of(made.tensor, box), shape, box.at)) for box in mine
        ]
        data = PassportData(
            FORMAT, 1, 2, "test", rank, world, "", None, "", "", [GroupData()],
            [TensorData("x", made.name, shape, parts)], [],
        )  # fmt: skip
        write_passport(data, folder / f"rank{rank}.json")
    return read_weights(str(folder))


def answer(a: Weights, b: Weights) -> tuple[str, list[str]]:
    found = compare_weights(a, b)
    return found.status, [finding.text for finding in found.findings]


def check_equal(seed: int, folder: Path) -> None:
    """All tilings add up to what plain Python computes from the bytes."""
    rng = random.Random(seed)
    made = random_tensor(rng)
    shape, data = tuple(made.tensor.shape), made.data
    tilings = [[whole_of(shape)], random_tiling(shape, rng), random_tiling(shape, rng)]
    sides = [written(made, boxes, rng, folder / str(i)) for i, boxes in enumerate(tilings)]
    for side in sides:
        (total,) = side.tensors["x"][0].totals
        assert total.sums == oracle.sums(data)
        assert total.cut == ()
        assert answer(sides[0], side) == ("equal", [])
    content = oracle.content(data)
    digest = sums_digest(total, made.name, shape)
    assert digest.content == oracle.to_hex(content)
    assert digest.combined == oracle.to_hex(oracle.combined(content, made.name, shape))


def check_place(seed: int, folder: Path) -> None:
    """One bit of one element is changed: sides of other tilings name its block, sides of one tiling
    name what the element's box has of the block."""
    rng = random.Random(seed)
    made = random_tensor(rng, is_repeated=False)
    shape, item = tuple(made.tensor.shape), made.tensor.element_size()
    boxes, others = random_tiling(shape, rng), random_tiling(shape, rng)
    old = written(made, boxes, rng, folder / "old")
    index = made.change(rng)
    same = written(made, boxes, rng, folder / "same")
    other = written(made, others, rng, folder / "other")
    assert answer(same, other) == ("equal", [])

    box = next(one for one in boxes if has(one, index))
    place = block_text(index, shape, item, box) or "in one block of 4 KiB"
    assert answer(old, same) == ("differ", [f"values differ: {place}"])
    if set(boxes) != set(others):
        place = block_text(index, shape, item) or "in one block of 4 KiB"
    assert answer(old, other) == ("differ", [f"values differ: {place}"])


def has(box: Box, index: Sequence[int]) -> bool:
    return all(at <= i < at + size for at, size, i in zip(*box, index, strict=True))


def failures(check: Check, seeds: range, folder: Path) -> list[str]:
    found = []
    for seed in seeds:
        try:
            check(seed, folder)
        except AssertionError as error:
            found.append(f"seed {seed}: {str(error)[:500]}")
    return found


@pytest.mark.parametrize("check", [check_equal, check_place])
def test_some_tilings(check: Check, tmp_path: Path) -> None:
    assert failures(check, range(40), tmp_path) == []


@pytest.mark.thorough
@pytest.mark.parametrize("check", [check_equal, check_place])
def test_a_thousand_tilings(check: Check, tmp_path: Path) -> None:
    assert failures(check, range(1000), tmp_path) == []


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("check", [check_equal, check_place])
def test_ten_thousand_tilings(check: Check, tmp_path: Path) -> None:
    """With seeds that nothing was mended by."""
    assert failures(check, range(1_000_000, 1_010_000), tmp_path) == []

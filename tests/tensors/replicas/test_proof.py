"""Many trainings of real ranks: none is accused that is clean, and each planted fault is named with
its tensor, rows, rank and interval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from .trainings import found_in, run

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3600)]

CLEAN, FLIPS, UNREDUCED, SHARDED = 100, 60, 30, 60

PLANT = """
import json

def planted(name, draw, wrap=DDP, optimizer=adamw):
    # One bit of the mantissa of one weight, or its sign.
    step, who = draw.randrange(2, 40), draw.randrange(world)
    weight = draw.choice(("up.weight", "down.weight"))
    row, column, bit = draw.random(), draw.random(), draw.choice((*range(12, 23), 31))
    planted = {}

    def fault(at, net, update):
        tensor = dict(net.named_parameters())[weight]
        rows, columns = local(tensor).shape
        place = int(row * rows), int(column * columns)
        if (at, rank) == (step, who):
            flip(tensor, *place, bit)
            begin = tensor.shape[0] // 2 if rank % 2 and wrap is hsdp else 0
            planted.update(step=step, who=who, weight=weight, row=begin + place[0])

    train(name, wrap, optimizer, fault, seed=draw.randrange(1 << 20), checks_state=False)
    if rank == who:
        open(f"{name}/planted.json", "w").write(json.dumps(planted))
"""


def interval(step: int) -> tuple[int, int]:
    """The last check before it, and the first one after it; the first step is checked, too."""
    first = -(-step // 10) * 10
    return max(first - 10, 1), first


def rows_of(place: str) -> range:
    first, _, last = place.removeprefix("rows ").partition("-")
    return range(int(first), int(last or first) + 1)


def is_named(folder: Path, against: str) -> bool:
    planted = json.loads((folder / "planted.json").read_text())
    equal, first = interval(planted["step"])
    for one in found_in(folder)["differences"]:
        tensor = one["tensors"][0]
        if (one["equal"], one["first"], tensor["name"]) == (equal, first, planted["weight"]):
            in_place = planted["row"] in rows_of(tensor["place"]) and len(one["tensors"]) == 1
            return in_place and tensor["text"] == against.format(**planted)
    return False


def test_clean_trainings_are_silent(tmp_path: Path) -> None:
    program = f"""
for number in range({CLEAN // 4}):
    train(f"adamw{{number}}", seed=number, steps=30, every=5)
    train(f"sgd{{number}}", optimizer=sgd, seed=number, steps=30, every=5)
"""
    for world in (2, 4):
        folder = tmp_path / str(world)
        folder.mkdir()
        run(program, world, folder, timeout_s=1700)
        found = {path.name: found_in(path)["status"] for path in folder.iterdir()}
        assert len(found) == CLEAN // 2
        assert set(found.values()) == {"equal"}, found


def test_flipped_bits_are_named(tmp_path: Path) -> None:
    program = f"""{PLANT}
for number in range({FLIPS}):
    planted(f"flip{{number}}", random.Random(number), optimizer=(adamw, sgd)[number % 2])
"""
    run(program, 4, tmp_path, timeout_s=1700)
    folders = sorted(tmp_path.iterdir())
    missed = [
        path.name for path in folders if not is_named(path, "rank {who} against the 3 others")
    ]
    assert (len(folders), missed) == (FLIPS, [])


def test_gradients_left_out_of_the_reduction_are_named(tmp_path: Path) -> None:
    program = f"""{PLANT}
for number in range({UNREDUCED}):
    draw = random.Random(number)
    step, who = draw.randrange(2, 40), draw.randrange(world)
    which = draw.choice(("up.weight", "down.weight", "head.weight"))
    train(f"left{{number}}", optimizer=(adamw, sgd)[number % 2], seed=number,
          unreduced=[(step, who, which)], checks_state=False)
    if rank == 0:
        planted = dict(step=step, who=who, weight=which)
        open(f"left{{number}}/planted.json", "w").write(json.dumps(planted))
"""
    run(program, 4, tmp_path, timeout_s=1700)
    for number in range(UNREDUCED):
        folder = tmp_path / f"left{number}"
        planted = json.loads((folder / "planted.json").read_text())
        one = found_in(folder)["differences"][0]
        assert (one["equal"], one["first"]) == interval(planted["step"]), number
        assert (one["tensors"][0]["name"], one["ranks"]) == (planted["weight"], [planted["who"]])


def test_flipped_bits_of_shards_are_named(tmp_path: Path) -> None:
    """The optimizer may round a bit away before the next check."""
    program = f"""{PLANT}
for number in range({SHARDED}):
    planted(f"flip{{number}}", random.Random(number), hsdp)
"""
    run(program, 4, tmp_path, timeout_s=1700)
    named = []
    for number in range(SHARDED):
        folder = tmp_path / f"flip{number}"
        low = json.loads((folder / "planted.json").read_text())["who"] % 2
        named.append(is_named(folder, f"rank {low} against rank {low + 2}"))
    assert sum(named) >= SHARDED - 2, named

"""Checkpoints and passports with random damage, and those that were made to take long: each is read
or refused with an error that names the file, in bounded time and memory."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import struct
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_parts

from my_utils.cli.command import main
from my_utils.tensors import passport, tensor_sums
from my_utils.tensors.passport import PassportError, compare_weights, read_weights
from my_utils.tensors.passport.boxes import Box
from my_utils.tensors.passport.file import (
    FORMAT,
    GroupData,
    PassportData,
    TensorData,
    part_data,
    write_passport,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

VALUES = {"w": torch.randn(7, 9), "b": torch.randn(5).bfloat16(), "t": torch.randn(6, 4)}
WORDS = (
    b"-1", b"0", b"9" * 19, b"9" * 40, b"1e999", b"2.5", b"null", b"true", b"NaN", b"[]", b"{}",
    b"[[1]]", b'"x"',
)  # fmt: skip


class Target(NamedTuple):
    """file: what is damaged. path: what is read. data: the file as it was."""

    file: Path
    path: Path
    data: bytes


def targets(folder: Path) -> list[Target]:
    places = {name: {"saved_offsets": [0] * value.dim()} for name, value in VALUES.items()}
    places["w"] = {"saved_offsets": [3, 0]}
    parts = folder / "parts"
    parts.mkdir()
    save_file(VALUES, parts / "x.safetensors", {"DCP_SHARDING_INFO": json.dumps(places)})
    torch.save(VALUES, folder / "x.pt")
    save_parts(VALUES, checkpoint_id=folder / "dcp")
    taken = Path(passport({**VALUES, "odd": torch.zeros(5, 7).bool()}).save(folder / "x.json"))
    pairs = [
        (parts / "x.safetensors", parts), (parts / "x.safetensors", parts / "x.safetensors"),
        (folder / "x.pt", folder / "x.pt"), (folder / "dcp" / ".metadata", folder / "dcp"),
        (next((folder / "dcp").glob("*.distcp")), folder / "dcp"), (taken, taken),
    ]  # fmt: skip
    return [Target(file, path, file.read_bytes()) for file, path in pairs]


def damaged(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(found) + 1)
        words = list(re.finditer(rb'-?\d+|"[^"]*"|\[[^\[\]]*\]', bytes(found[:3000])))
        match rng.randrange(5):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at : at + rng.randrange(1, 40)]
            case 2:
                found[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3 if words:
                word = rng.choice(words)
                found[word.start() : word.end()] = rng.choice(WORDS)
            case _:
                del found[at:]
    return bytes(found)


def with_length(data: bytes) -> bytes:
    """A header of safetensors whose length is right again."""
    end = data.rfind(b"}", 8, 1500) + 1
    return struct.pack("<Q", max(end - 8, 0)) + data[8:]


def check_damage(seeds: range, folder: Path) -> None:
    every = targets(folder)
    wrong = []
    refused = 0
    for seed in seeds:
        rng = random.Random(seed)
        target = rng.choice(every)
        data = damaged(target.data, rng)
        if target.file.suffix == ".safetensors" and rng.random() < 0.7:
            data = with_length(data)
        target.file.write_bytes(data)
        try:
            weights = read_weights(str(target.path))
            compare_weights(weights, weights)
        except (PassportError, OSError) as error:
            refused += 1
            if str(target.path) not in str(error) and str(target.file) not in str(error):
                wrong.append((seed, repr(error)))
        except Exception as error:
            wrong.append((seed, repr(error)))
        target.file.write_bytes(target.data)
    assert wrong == []
    assert refused > len(seeds) / 2


def test_some_damage(tmp_path: Path) -> None:
    check_damage(range(2650, 2750), tmp_path)


@pytest.mark.parametrize(("key", "value"), [("rank", -1), ("world_size", 0), ("world_size", 2**40)])
def test_a_world_that_cannot_be(key: str, value: int, tmp_path: Path) -> None:
    """Who looks for the ranks that are missing would count them all."""
    taken = tmp_path / "x.json"
    passport(VALUES).save(taken)
    fields = json.loads(taken.read_bytes())
    taken.write_text(json.dumps(fields | {key: value}), encoding="utf-8")
    with pytest.raises(PassportError, match=f"x.json: .*{key}"):
        read_weights(str(taken))


@pytest.mark.slow
def test_more_damage(tmp_path: Path) -> None:
    check_damage(range(2000), tmp_path)


def test_more_names_of_a_tensor_than_a_model_ties(tmp_path: Path) -> None:
    """It is hashed for each of them."""
    path = tmp_path / "x.safetensors"
    save_file({"w": VALUES["w"]}, path, {f"w{number}": "w" for number in range(65)})
    with pytest.raises(PassportError, match=r"x.safetensors: w: more than 64 other names"):
        read_weights(str(path))


def overlapping(count: int) -> list[Box]:
    """Boxes of which each is in all that come before."""
    return [Box((row, 0), (count - row, 1)) for row in range(count)]


def test_many_overlaps_are_refused_in_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To look for the gaps between these takes a time that grows with the square."""
    count = 20_000
    zeros = torch.zeros(count, 1)
    part = tensor_sums(zeros[:0], (count, 1))
    parts = [part_data(box, part) for box in overlapping(count)]
    data = PassportData(
        FORMAT, 1, 2, "x", 0, 1, "", None, "", "", [GroupData()],
        [TensorData("layers.3.w", "float32", (count, 1), parts)], [],
    )  # fmt: skip
    path = tmp_path / "x.json"
    write_passport(data, path)
    words = ["passport", "diff", str(path), str(path), "--quiet"]
    assert main(words) == 2
    assert "layers.3.w: its parts overlap in too many ways" in capsys.readouterr().err


def test_a_grid_of_many_boxes_is_a_tiling() -> None:
    from my_utils.tensors.passport.boxes import tilings

    side = 128
    grid = [Box((4 * row, 2 * column), (4, 2)) for row in range(side) for column in range(side)]
    assert len(tilings(grid, (4 * side, 2 * side))) == 1
    assert tilings(grid[1:], (4 * side, 2 * side)) == []


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    values = {f"w{i}": torch.full((3,), float(i)) for i in range(80)}
    save_parts(values, storage_writer=FileSystemWriter(tmp_path / "dcp", False))
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 80
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    read_weights(str(tmp_path / "dcp"))  # what it imports and opens once
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 30, limits[1]))
    try:
        weights = read_weights(str(tmp_path / "dcp"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(weights.tensors) == 80


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"v": {"saved_offsets": [0, 0]}}, "v: has a place, but is not in the file"),
        ({"w": {"saved_offsets": [0]}}, r"w: \[0\] is no place of a part of shape \[7, 9\]"),
        ({"w": {"saved_offsets": [-1, 0]}}, r"w: \[-1, 0\] is no place of a part"),
        ({"w": {"saved_offsets": [2**62, 0]}}, r"w: .*2\^63"),
    ],
)
def test_wrong_places_of_parts(places: object, message: str, tmp_path: Path) -> None:
    info = {"DCP_SHARDING_INFO": json.dumps(places)}
    save_file({"w": VALUES["w"]}, tmp_path / "x.safetensors", info)
    with pytest.raises(PassportError, match=message) as caught:
        read_weights(str(tmp_path))
    assert str(tmp_path) in str(caught.value)

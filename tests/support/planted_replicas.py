"""What ranks leave of their replicas, written by one process: tensors are planted step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from my_utils.core.run_files.files import REPLICAS_FOLDER
from my_utils.tensors import tensor_sums
from my_utils.tensors.replicas.differences import Neighbours
from my_utils.tensors.replicas.file import (
    FORMAT,
    SUMS,
    ClassData,
    SumsWriter,
    TrackedData,
    WatchData,
    stem_of,
)

ROWS, COLUMNS = 64, 256  # of float32: a row has 1 KiB, so that four are a block of the hash
SHAPE = (ROWS, COLUMNS)


def parameters(ranks: str, *names: str) -> ClassData:
    tracked = [TrackedData(name, "float32", SHAPE, (0, 0), SHAPE) for name in names]
    return ClassData("parameters", ranks, tracked)


class PlantedRank:
    """Writes as a watch does, but at once. classes: of what it has."""

    def __init__(
        self, log_dir: Path, rank: int, classes: list[ClassData], *, world_size: int = 4,
        attempt: int = 1, generation: int = 0, notes: list[str] | None = None, launch: int = 0,
    ) -> None:  # fmt: skip
        (log_dir / REPLICAS_FOLDER).mkdir(parents=True, exist_ok=True)
        data = WatchData(FORMAT, 1, 2, rank, world_size, attempt, 10, classes, notes or [], launch)
        self.stem = stem_of(str(log_dir), rank, data.number, generation)
        self._writer = SumsWriter(self.stem, data)
        self._neighbours = Neighbours(str(log_dir), data, generation)
        self._names = [tensor.name for one in classes for tensor in one.tensors]

    def check(self, step: int, values: Mapping[str, bytes], *, keeps: bool = True) -> None:
        sums = b"".join(SUMS.pack(*tensor_sums(values[name]).sums) for name in self._names)
        check = self._writer.add(step, sums)
        for number in self._neighbours.new_differences(check) if keeps else ():
            self._writer.keep(number)

    def close(self) -> None:
        self._writer.close()


def flipped(values: bytes, row: int, column: int = 3) -> bytes:
    """With the lowest bit of an element of a [ROWS, COLUMNS] tensor changed."""
    changed = bytearray(values)
    changed[4 * (row * COLUMNS + column)] ^= 1
    return bytes(changed)

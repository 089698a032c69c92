"""The files in which a rank leaves the sums of its replicas, in the folder `replicas` of a run.

`rank_3.412345678.json` says what is in `rank_3.412345678.sums`; the second number is one on which
all ranks of a launch have agreed, or the attempt of the rank where they could not, a third one says
that the tensors have changed. The sums are numbers of 64 bits, the least byte first:

- `SLOTS` slots, of the newest checks, and `KEPT` of those at which a difference began: the step and
  1 (0: the slot is empty), and for each tensor the eight sums of the tensor hash (zeros: there was
  none);
- the log: for each check its step, and for each class a digest of 16 bytes of its tensors' sums.

A slot is what it should be if the digests of its sums are those in the log. So a reader may come at
any time.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..._core import tensor_hash
from ...core.bounded_read import describe, read_whole
from ...core.checked_json import decoded
from ...core.files import atomic_write
from ...core.ranges import SET_MAX, parse_ranks
from ...core.run_files.files import REPLICAS_FOLDER
from ...core.run_files.hosts import with_hosts
from ...core.trusted_open import open_without_waiting
from ..dtypes import ITEM_BYTES
from ..passport.file import HASH, check_box, check_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = "my_utils replicas"
VERSION = 1
KIND_OF_BUFFERS = "buffers"
SLOTS = 64
KEPT = 8
SUMS = struct.Struct("<8Q")
DIGEST_BYTES = 16
HEADER_BYTES_MAX = 1 << 28
LOG_BYTES_MAX = 1 << 30
TENSORS_MAX = 1 << 20
_STEP = struct.Struct("<q")
_NAME = re.compile(r"rank_(\d{1,10})\.(\d{1,10})(?:\.(\d{1,4}))?\.json")


class TrackedData(msgspec.Struct):
    """A box of a tensor: dtype by torch's name, the shape of the whole, where the box begins in it,
    and its size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: tuple[int, ...]
    size: tuple[int, ...]


class ClassData(msgspec.Struct):
    """Tensors that the same ranks must have equal. kind: "parameters", "gradients", "optimizer
    state" or "buffers", of which each is a class. ranks: such as "0-3"."""

    kind: str
    ranks: str
    tensors: list[TrackedData]


class WatchData(msgspec.Struct):
    """hash: the version of the tensor hash. every: how many steps are between two checks. classes:
    in the order of their sums. notes: what is not checked, and why. launch: the number on which its
    ranks have agreed; 0 if there is none."""

    format: str
    version: int
    hash: int
    rank: int
    world_size: int
    attempt: int
    every: int
    classes: list[ClassData]
    notes: list[str]
    launch: int = 0

    @property
    def number(self) -> int:
        """That of the files which are compared with each other."""
        return self.launch or self.attempt


class Check(NamedTuple):
    """number: of the record in the log. digests: one a class."""

    number: int
    step: int
    digests: tuple[bytes, ...]


class Layout:
    """Where things are in a file of sums."""

    def __init__(self, classes: Sequence[ClassData]) -> None:
        self.counts = [len(one.tensors) for one in classes]
        self.slot_bytes = _STEP.size + SUMS.size * sum(self.counts)
        self.log_at = (SLOTS + KEPT) * self.slot_bytes
        self.record_bytes = _STEP.size + DIGEST_BYTES * len(self.counts)

    def digests(self, sums: bytes) -> tuple[bytes, ...]:
        """Of the sums of all tensors, one a class."""
        found, at = [], 0
        for count in self.counts:
            piece = sums[at : at + SUMS.size * count]
            at += len(piece)
            found.append(bytes.fromhex(tensor_hash(piece).content))
        return tuple(found)

    def check(self, number: int, record: bytes) -> Check:
        (step,) = _STEP.unpack_from(record)
        ends = range(_STEP.size, self.record_bytes, DIGEST_BYTES)
        return Check(number, step, tuple(record[at : at + DIGEST_BYTES] for at in ends))


class SumsWriter:
    """OSError if something cannot be written. Not thread-safe."""

    def __init__(self, stem: str, data: WatchData) -> None:
        self.layout = Layout(data.classes)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(f"{stem}.sums", flags, 0o666)
        self._checks = self._kept = 0
        with atomic_write(f"{stem}.json") as file:
            file.write(msgspec.json.encode(data) + b"\n")

    def add(self, step: int, sums: bytes) -> Check:
        """The slot comes before the log, which says that it is there."""
        check = Check(self._checks, step, self.layout.digests(sums))
        slot = _STEP.pack(step + 1) + sums
        self._write(slot, check.number % SLOTS * self.layout.slot_bytes)
        record = _STEP.pack(step) + b"".join(check.digests)
        self._write(record, self.layout.log_at + check.number * self.layout.record_bytes)
        self._checks += 1
        return check

    def keep(self, number: int) -> None:
        """Copies the slot of a check to where it stays, while there is room."""
        if self._kept < KEPT and self._checks - number <= SLOTS:
            slot_bytes = self.layout.slot_bytes
            slot = os.pread(self._file, slot_bytes, number % SLOTS * slot_bytes)
            self._write(slot, (SLOTS + self._kept) * slot_bytes)
            self._kept += 1

    def close(self) -> None:
        os.close(self._file)

    def _write(self, data: bytes, at: int) -> None:
        while data:
            count = os.pwrite(self._file, data, at)
            data, at = data[count:], at + count


class SumsReader:
    """One rank's files. ValueError if they are none, OSError if they cannot be read."""

    def __init__(self, path: str) -> None:
        """path: of the JSON file."""
        text, _ = read_whole(path, HEADER_BYTES_MAX, "a file of replicas")
        self.data = decoded(text, WatchData)
        _check(self.data)
        self.layout = Layout(self.data.classes)
        self._path = _sums_path(path)

    def checks(self, first: int = 0) -> list[Check]:
        """From this number on; one that is being written is left out."""
        size = self.layout.record_bytes
        with open(self._path, "rb", opener=open_without_waiting) as file:
            file.seek(self.layout.log_at + first * size)
            log = file.read(LOG_BYTES_MAX)
        count = len(log) // size
        records = (log[at * size : (at + 1) * size] for at in range(count))
        return [self.layout.check(first + at, record) for at, record in enumerate(records)]

    def log(self) -> NDArray[Any]:
        """The whole log: arrays `step` and `digests`, of which the latter has two numbers of 64
        bits for each class."""
        import numpy as np

        record = np.dtype([("step", "<i8"), ("digests", "<u8", (len(self.layout.counts), 2))])
        with open(self._path, "rb", opener=open_without_waiting) as file:
            file.seek(self.layout.log_at)
            data = file.read(LOG_BYTES_MAX)
        return np.frombuffer(data, record, len(data) // record.itemsize)

    def check(self, number: int) -> Check:
        """One of the log."""
        with open(self._path, "rb", opener=open_without_waiting) as file:
            file.seek(self.layout.log_at + number * self.layout.record_bytes)
            return self.layout.check(number, file.read(self.layout.record_bytes))

    def steps_with_sums(self) -> set[int]:
        """Those of the slots, which may be being written."""
        found = set()
        with open(self._path, "rb", buffering=0, opener=open_without_waiting) as file:
            for place in range(SLOTS + KEPT):
                begin = os.pread(file.fileno(), _STEP.size, place * self.layout.slot_bytes)
                if len(begin) == _STEP.size:
                    found.add(_STEP.unpack(begin)[0] - 1)
        return found

    def sums(self, check: Check) -> bytes | None:
        """Those of all tensors at a check; None if they are not there any more."""
        places = [check.number % SLOTS, *range(SLOTS, SLOTS + KEPT)]
        with open(self._path, "rb", opener=open_without_waiting) as file:
            for place in places:
                file.seek(place * self.layout.slot_bytes)
                slot = file.read(self.layout.slot_bytes)
                if slot[: _STEP.size] != _STEP.pack(check.step + 1):
                    continue
                found = slot[_STEP.size :]
                if self.layout.digests(found) == check.digests:
                    return found
        return None


def _check(data: WatchData) -> None:
    """ValueError unless the numbers of a file can be trusted."""
    if data.format != FORMAT:
        raise ValueError("not a file of replicas")
    if (data.version, data.hash) != (VERSION, HASH):
        raise ValueError(f"has version {data.version} and sums {data.hash}, not {VERSION}, {HASH}")
    tracked = [tensor for one in data.classes for tensor in one.tensors]
    if len(tracked) > TENSORS_MAX:
        raise ValueError(f"more than {TENSORS_MAX:,} tensors")
    for one in data.classes:
        if not 2 <= len(parse_ranks(one.ranks)) <= SET_MAX:
            raise ValueError(f"a class of ranks {one.ranks!r:.100}")
    for tensor in tracked:
        if tensor.dtype not in ITEM_BYTES:
            raise ValueError(f"{tensor.name}: unknown dtype {tensor.dtype!r:.100}")
        check_shape(tensor.name, tensor.shape, ITEM_BYTES[tensor.dtype])
        check_box(tensor.at, tensor.size, tensor.shape)


def stem_of(folder: str, rank: int, number: int, generation: int) -> str:
    """The paths of a rank's files without their endings. number: of its launch or attempt.
    generation: 0 for the first ones."""
    later = f".{generation}" if generation else ""
    return os.path.join(folder, REPLICAS_FOLDER, f"rank_{rank}.{number}{later}")


class Named(NamedTuple):
    """A file by its name."""

    path: str
    rank: int
    number: int
    generation: int


def files_in(log_dirs: Sequence[str]) -> Iterator[Named]:
    """Those of all ranks, by rank, number and generation. Folders without any are left out."""
    for log_dir in with_hosts(log_dirs):
        folder = os.path.join(log_dir, REPLICAS_FOLDER)
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        matches = filter(None, map(_NAME.fullmatch, names))
        found = (
            Named(os.path.join(folder, match[0]), int(match[1]), int(match[2]), int(match[3] or 0))
            for match in matches
        )
        yield from sorted(found, key=lambda one: one[1:])


def _sums_path(path: str) -> str:
    return f"{path.removesuffix('.json')}.sums"


def sums_bytes(path: str) -> int:
    """How many there are beside the JSON file, which grow with each check."""
    try:
        return os.stat(_sums_path(path)).st_size
    except OSError:
        return 0


def reason(error: Exception) -> str:
    """What is wrong with a file, in one line."""
    return " ".join(describe(error).split())[:200]

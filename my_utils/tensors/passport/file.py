"""The file of a passport: JSON of the sums of tensors, checked when it is read.

A passport holds no values of weights, except the bytes of quads that a part shares with others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import prod
from typing import Annotated, Any

import msgspec

from ..._core import TensorSums
from ...core.bounded_read import describe, read_whole
from ...core.checked_json import decoded
from ...core.files import atomic_write
from ...core.ranges import parse_ranks
from ...core.run_files.state import WORLD_SIZE_MAX
from ..dtypes import ITEM_BYTES
from .boxes import Box

FORMAT = "my_utils passport"
VERSION = 1
HASH = 2
FILE_BYTES_MAX = 1 << 29
PARTS_MAX = 1 << 16  # of one tensor and rank
DIMS_MAX = 64
# Why ranks of a group may have other values of a tensor: observers and averages are such buffers,
# tables are not, and nothing says which is which.
BUFFERS = "buffers, which may depend on the data of a rank"
_HEX = 16 * 8  # digits of the eight sums


class PassportError(ValueError):
    """A passport or checkpoint that cannot be used. The message names the file and the part."""


class PartData(msgspec.Struct, omit_defaults=True):
    """A box of a tensor.

    at: its first index, one number a dimension. size: its shape. sums: S0 to S3 and T0 to T3 of
    the tensor hash, 16 hexadecimal digits each. cut: the bytes of quads that it shares with other
    parts: the number of the first byte, and the bytes in hexadecimal digits. source: the tensor
    that it was read from and the rule of the layout, where it was one.
    """

    at: tuple[int, ...]
    size: tuple[int, ...]
    sums: str
    cut: list[tuple[int, str]] = []
    source: str = ""


class TensorData(msgspec.Struct, omit_defaults=True):
    """What a rank has of a tensor.

    name: without what wrappers add. dtype: torch's name. shape: of the whole tensor. parts: what
    this rank has of it. kind: "statistics" are those of BatchNorm, which differ between replicas
    by design. group: the index in `groups`. tied: the name of the tensor whose memory it shares.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: list[PartData]
    kind: str = ""
    group: int = 0
    tied: str = ""


class GroupData(msgspec.Struct, omit_defaults=True):
    """Ranks whose parts of a name are parts of one tensor, so that equal boxes are replicas.

    ranks: such as "0-3"; "" for all ranks. why: the reason if other ranks were not compared.
    """

    ranks: str = ""
    why: str = ""


class PassportData(msgspec.Struct):
    """The sums of what one rank, or a checkpoint, has of a model's tensors.

    format: "my_utils passport". hash: the version of the tensor hash. where: the model, or the
    path of the checkpoint. rank: of the writer. world_size: ranks of its job. run_id: of its job,
    "" if unknown. step: null if unknown. dtype: the type to which floating-point tensors were cast,
    "" if none was. layout: the name of the layout, "" if there was none. groups: ranks that have
    parts of one tensor. tensors: in the order of the model or the file. notes: what was left out.
    """

    format: str
    version: int
    hash: int
    where: str
    rank: Annotated[int, msgspec.Meta(ge=0, lt=WORLD_SIZE_MAX)]
    world_size: Annotated[int, msgspec.Meta(ge=1, le=WORLD_SIZE_MAX)]
    run_id: str
    step: int | None
    dtype: str
    layout: str
    groups: list[GroupData]
    tensors: list[TensorData]
    notes: list[str]


# --- sums as text ---


def part_data(box: Box, sums: TensorSums, source: str = "") -> PartData:
    cut = [(first, data.hex()) for first, data in sums.cut]
    return PartData(box.at, box.size, "".join(f"{one:016x}" for one in sums.sums), cut, source)


def parse_sums(part: PartData, tensor: TensorData) -> TensorSums:
    """ValueError if they are none of such a part."""
    if len(part.sums) != _HEX:
        raise ValueError(f"sums must have {_HEX} digits, not {len(part.sums)}")
    numbers = bytes.fromhex(part.sums)
    sums = [int.from_bytes(numbers[at : at + 8], "big") for at in range(0, len(numbers), 8)]
    item = ITEM_BYTES[tensor.dtype]
    cut = [(first, bytes.fromhex(digits)) for first, digits in part.cut]
    return TensorSums(tuple(sums), item * prod(part.size), item * prod(tensor.shape), tuple(cut))


# --- files ---


def write_passport(data: PassportData, path: str | os.PathLike[str]) -> None:
    """A tensor a line, so that texts of passports can be compared. OSError if it cannot be
    written."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with atomic_write(path) as file:
        file.write(encoded(data))


def encoded(data: PassportData) -> bytes:
    fields = msgspec.structs.asdict(data)
    tensors = b",\n".join(map(msgspec.json.encode, fields.pop("tensors")))
    head = msgspec.json.encode(fields)
    return head[:-1] + b',"tensors":[\n' + tensors + b"\n]}\n"


def read_passport(path: str | os.PathLike[str]) -> PassportData:
    """OSError if it cannot be read, PassportError if it is none."""
    try:
        text, _ = read_whole(path, FILE_BYTES_MAX, "a passport")
        head: dict[str, Any] = decoded(text, dict[str, msgspec.Raw])
        if msgspec.json.decode(head.get("format", b"null")) != FORMAT:
            raise ValueError("not a passport")
        _check_versions(head)
        data = decoded(text, PassportData)
        for tensor in data.tensors:
            _check_tensor(tensor, len(data.groups))
        for group in data.groups:
            if group.ranks:
                parse_ranks(group.ranks, "ranks of a group")
    except (ValueError, TypeError) as error:
        raise PassportError(f"{os.fsdecode(path)}: {describe(error)}") from None
    return data


def _check_versions(head: dict[str, Any]) -> None:
    version, hash_version = (
        msgspec.json.decode(head.get(key, b"null")) for key in ("version", "hash")
    )
    if version != VERSION:
        raise ValueError(f"has version {version}; this my_utils reads {VERSION}")
    if hash_version != HASH:
        raise ValueError(
            f"has sums of version {hash_version} of the tensor hash, which cannot be compared with "
            f"version {HASH}: make it again"
        )


def _check_tensor(tensor: TensorData, groups: int) -> None:
    if tensor.dtype not in ITEM_BYTES:
        raise ValueError(f"{tensor.name}: unknown dtype {tensor.dtype!r}")
    if not 0 <= tensor.group < groups:
        raise ValueError(f"{tensor.name}: group {tensor.group} of {groups}")
    if len(tensor.parts) > PARTS_MAX:
        raise ValueError(f"{tensor.name}: more than {PARTS_MAX} parts")
    check_shape(tensor.name, tensor.shape, ITEM_BYTES[tensor.dtype])
    for number, part in enumerate(tensor.parts):
        try:
            check_box(part.at, part.size, tensor.shape)
            parse_sums(part, tensor)
        except ValueError as error:
            raise ValueError(f"{tensor.name}, part {number}: {error}") from None


def check_shape(name: str, shape: Sequence[int], item_bytes: int) -> None:
    """ValueError unless a tensor can have it."""
    if len(shape) > DIMS_MAX or any(size < 0 for size in shape):
        raise ValueError(f"{name}: no shape of a tensor: {list(shape)!r:.100}")
    if prod(shape) * item_bytes >= 2**63:
        raise ValueError(f"{name}: more than 2^63 bytes in shape {list(shape)!r:.100}")
    if prod(size or 1 for size in shape) >= 2**63:  # which the strides of an empty one count, too
        raise ValueError(f"{name}: no shape of a tensor: {list(shape)!r:.100}")


def check_box(at: Sequence[int], size: Sequence[int], shape: Sequence[int]) -> None:
    """ValueError unless it is within the tensor."""
    if not len(at) == len(size) == len(shape):
        raise ValueError(f"{len(at)} and {len(size)} numbers for {len(shape)} dimensions")
    for first, length, whole in zip(at, size, shape, strict=True):
        if first < 0 or length < 0 or first + length > whole:
            raise ValueError(f"at {list(at)!r:.100}, size {list(size)!r:.100} is not in the tensor")


def boxes_of(tensor: TensorData) -> Iterator[tuple[Box, TensorSums, str]]:
    for part in tensor.parts:
        yield Box(part.at, part.size), parse_sums(part, tensor), part.source

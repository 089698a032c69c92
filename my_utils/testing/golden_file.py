"""The golden file: what is kept of tensors, as TOML that is read in a review.

digest: of the elements' bits. parts: the first digits of the digests of eight parts, in row-major
order; tensors whose sample is all of them have none. sample: some elements, the same ones for each
tensor of that size, as bytes in little-endian order, zlib and base64.
"""

from __future__ import annotations

import base64
import itertools
import json
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.bounded_read import read_regular
from ..core.files import atomic_write
from ..tensors import stats, tensor_hash
from ..tensors.recordings.sample import Sampler
from ..tensors.tensor_kinds import resolve

FORMAT_VERSION = 1
HASH_VERSION = 2  # of tensor_hash: docs/correctness/tensor-hash.md
UPDATE = "--my-utils-update"

SAMPLE_MAX = 64  # elements
PARTS = 8
_PART_DIGITS = 8
_GROUPS = {
    "values": ("min", "max", "mean", "std", "abs_max"),
    "norms": ("l1", "l2"),
    "counts": ("count", "zeros", "nans", "pos_infs", "neg_infs"),
}
_HEADER = f"# Written by tensor_golden of my_utils. To write it again: pytest {UPDATE}\n"
_SAMPLE_BYTES_MAX = 16 * SAMPLE_MAX


class GoldenError(ValueError):
    """A file that is no golden file of this version; the text says what to do."""


@dataclass(frozen=True)
class GoldenTensor:
    """What is kept of a tensor. sample: on the CPU, one dimension."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    parts: tuple[str, ...]
    stats: dict[str, float | int]
    sample: torch.Tensor


def describe(tensor: torch.Tensor, place: str = "tensor") -> GoldenTensor:
    """Of a DTensor the local shard. TypeError, which names the place, for a tensor without
    memory."""
    plain = resolve(tensor, place)
    digest = tensor_hash(plain)
    sample = Sampler("rand", SAMPLE_MAX).take(plain)
    assert sample is not None
    return GoldenTensor(
        digest.dtype,
        digest.shape,
        digest.content,
        _parts(plain),
        stats(plain).as_dict(),
        sample.cpu(),
    )


def part_edges(elements: int) -> list[int]:
    """Where the parts of a tensor begin, and the last one ends.

    >>> part_edges(100)
    [0, 12, 25, 37, 50, 62, 75, 87, 100]
    """
    return [elements * part // PARTS for part in range(PARTS + 1)]


def _parts(tensor: torch.Tensor) -> tuple[str, ...]:
    if tensor.numel() <= SAMPLE_MAX:
        return ()
    flat = tensor.detach().reshape(-1)
    pieces = [flat[begin:end] for begin, end in itertools.pairwise(part_edges(len(flat)))]
    return tuple(digest.content[:_PART_DIGITS] for digest in tensor_hash(pieces))


# --- reading ---


def read_golden(path: Path) -> dict[str, GoldenTensor]:
    """By their names in the file; empty where there is no file. GoldenError for another version, or
    what cannot be read."""
    try:
        text = read_regular(path)
    except FileNotFoundError:
        return {}
    try:
        tables = tomllib.loads(text.decode("utf-8"))
        versions = tables["golden"], tables["hash"]
        if versions == (FORMAT_VERSION, HASH_VERSION):
            return {name: _parse_tensor(table) for name, table in tables.get("tensor", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, zlib.error) as error:
        raise GoldenError(f"{path} is not a golden file ({error}): write it by {UPDATE}") from None
    raise GoldenError(
        f"{path} is of version {versions[0]} with hash {versions[1]}, and this is {FORMAT_VERSION} "
        f"with hash {HASH_VERSION}: write it again by {UPDATE}"
    )


def _parse_tensor(table: Mapping[str, Any]) -> GoldenTensor:
    figures = {name: table[group][name] for group, names in _GROUPS.items() for name in names}
    return GoldenTensor(
        str(table["dtype"]),
        tuple(map(int, table["shape"])),
        str(table["digest"]),
        tuple(str(table.get("parts", "")).split()),
        figures,
        _parse_sample(table["sample"], table["dtype"]),
    )


def _parse_sample(text: str, dtype: str) -> torch.Tensor:
    unpacker = zlib.decompressobj()
    data = bytearray(unpacker.decompress(base64.b64decode(text, validate=True), _SAMPLE_BYTES_MAX))
    kind = getattr(torch, dtype)
    return torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)


# --- writing ---


def write_golden(path: Path, tensors: Mapping[str, GoldenTensor]) -> None:
    """Makes the folder."""
    versions = f"golden = {FORMAT_VERSION}\nhash = {HASH_VERSION}\n"
    tables = (_table(name, tensor) for name, tensor in tensors.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write("\n".join([_HEADER + versions, *tables]).encode())


def _table(name: str, tensor: GoldenTensor) -> str:
    lines = [
        f"[tensor.{json.dumps(name, ensure_ascii=False)}]",
        f'dtype = "{tensor.dtype}"',
        f"shape = {list(tensor.shape)}",
        f'digest = "{tensor.digest}"',
    ]
    if tensor.parts:
        lines.append(f'parts = "{" ".join(tensor.parts)}"')
    for group, names in _GROUPS.items():
        pairs = (f"{name} = {tensor.stats[name]!r}" for name in names)
        lines.append(f"{group} = {{{', '.join(pairs)}}}")
    lines.append(f'sample = "{_packed(tensor.sample)}"')
    return "\n".join(lines) + "\n"


def _packed(sample: torch.Tensor) -> str:
    raw = sample.contiguous().view(torch.uint8).numpy().tobytes() if len(sample) else b""
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")

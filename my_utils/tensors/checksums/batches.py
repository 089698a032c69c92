"""Checksums that travel with a batch and show for each sample whether it arrived unchanged.

The signature is one int64 tensor under one reserved key, with one row for each sample. A row can be
checked without the others:

- column 0: a constant, which every cast changes;
- column 1: a digest of the columns after it, which shows damage to the row itself;
- then six columns for each leaf of the payload: 32 bytes for the name, and 16 for the tensor hash
  of this sample's values. The hash is the combined one, of the bits, the dtype and the shape.

The first letter of a name says how the leaf was hashed: "r" is one row of it for each sample, "w"
is the whole leaf, with the same hash in all rows. Each row holds the digests of all leaves. So
samples and checksums stay together when the batch is cut, shuffled or concatenated, and a key that
is shuffled alone is found.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ... import _core
from ...core.arguments import check_bool
from ...core.environment import switch_at_import
from ...core.public import public
from ...core.ranges import as_ranges, ranges_text
from ...core.reprs import short_repr
from .leaves import (
    KEY,
    NAME_BYTES,
    Arrived,
    Digest,
    Leaves,
    Signed,
    add_leaves,
    batch_size,
    decode,
    is_array,
    is_signature_item,
    is_tensordict,
    items,
    on_cpu,
    split_digests,
)

if TYPE_CHECKING:
    import numpy as np
    import torch

    _Rows = np.ndarray[Any, np.dtype[np.int64]]

_Payload = TypeVar("_Payload")
_Problem = Literal["differs", "moved", "length", "missing", "cast", "damaged", "unsigned"]

_VERSION_2 = 0x6D75_5332_C5C3_3A5D  # no float32 or float64 holds it, nor an int32
_VERSION_1 = 0x6D75_5331_C5C3_3A5D  # of the tensor hash, version 1
_OF_VERSION_1 = "its checksums are of the tensor hash, version 1; sign it anew"
_NAME_COLUMNS = NAME_BYTES // 8
_LEAF_COLUMNS = _NAME_COLUMNS + 2


class Mismatch(NamedTuple):
    """One thing that is not as it was signed.

    key: the place in the batch, such as "labels" or "inputs.pixels[2]"; "" where it is the whole.
        Keys that are not strings, or hold a "." or "[", are in brackets: "[1]", "['a.b']".
    sample: its index along dim 0; None if it is not a single sample.
    problem: "differs" (other bits, dtype or shape), "moved" (what another sample was signed with),
        "length" (not one row a sample), "missing" (the key was signed and is gone), "cast" (the
        checksums themselves are not int64 any more), "damaged" (they were changed), "unsigned"
        (there are none).
    detail: the same in words.
    """

    key: str
    sample: int | None
    problem: _Problem
    detail: str


@dataclass(slots=True)
class Verification:
    """What `ChecksumUtils.verify` found; true where nothing is wrong.

    batch: the batch without its checksums: the object that was given wherever it can be changed.
    mismatches: all that is wrong.
    checked: False where checking is off.
    """

    batch: Any = field(repr=False)
    mismatches: list[Mismatch] = field(default_factory=list)
    checked: bool = True

    @property
    def ok(self) -> bool:
        return not self.mismatches

    def __bool__(self) -> bool:
        return not self.mismatches


class DataConsistencyError(RuntimeError):
    """Raised by `verify(strict=True)`; `verification` has what was found."""

    def __init__(self, verification: Verification) -> None:
        super().__init__("\n".join(_lines(verification.mismatches)))
        self.verification = verification

    def __reduce__(self) -> tuple[type[DataConsistencyError], tuple[Verification]]:
        return type(self), (self.verification,)


@public("my_utils.utils")
class ChecksumUtils:
    """Signs the batches that leave a process, and verifies them where they arrive.

    On with DEBUG_DATA_CONSISTENCY=1 in the environment of every process; otherwise `sign` returns
    the payload itself and `verify` an empty result, after a read of one attribute. `enabled` may
    be set at any time. It then holds for this process and its forked children.

    >>> import torch
    >>> ChecksumUtils.enabled = True
    >>> batch = ChecksumUtils.sign({"x": torch.arange(6.0).reshape(3, 2), "y": torch.arange(3)})
    >>> part = {key: value[1:] for key, value in batch.items()}
    >>> bool(ChecksumUtils.verify(part))
    True
    >>> sorted(part)
    ['x', 'y']
    >>> batch["y"] = batch["y"].flip(0)
    >>> quiet = logging.getLogger("quiet")
    >>> quiet.disabled = True
    >>> [found[:3] for found in ChecksumUtils.verify(batch, quiet).mismatches]
    [('y', 0, 'moved'), ('y', 2, 'moved')]
    >>> ChecksumUtils.enabled = False

    `sign` and `verify` are thread-safe, and neither changes the payload's tensors.
    """

    KEY = KEY
    enabled: bool = switch_at_import("DEBUG_DATA_CONSISTENCY")

    @staticmethod
    def sign(payload: _Payload, *, batched: bool = True) -> _Payload:
        """A shallow copy of `payload` with a checksum of every sample.

        payload: a dict or other mapping, a TensorDict (also a locked one), or a list or tuple, of
            tensors, numpy arrays, numbers, strings and bytes, nested as you like. Other objects in
            it are left alone. A mapping gets the checksums under `ChecksumUtils.KEY`, a list or
            tuple as one more item, a dict of that key alone.
        batched: True for a batch: dim 0 of its tensors is the samples (the size that most of them
            have; `batch_size[0]` of a TensorDict). A list of that many items, such as texts, has
            one item per sample. Values of another size, numbers and 0-dim tensors belong to all
            samples. False for a single sample, which a collate function is yet to put into a batch.

        Padding, casts and any other change after signing show as mismatches: sign what is final.
        Tensors on a GPU are copied to the CPU, which waits for the GPU. TypeError for a payload
        that cannot take a key.
        """
        if not ChecksumUtils.enabled:
            return payload
        signed: _Payload = _sign(payload, batched)
        return signed

    @staticmethod
    def verify(
        batch: Any, logger: logging.Logger | None = None, *, strict: bool = False
    ) -> Verification:
        """Whether every sample of a signed batch is what it was; takes the checksums out.

        batch: what `sign` returned, or was made of it by slicing, shuffling, splitting, stacking,
            concatenating or collating. The checksums are removed from the object itself, so that
            `model(**batch)` works; only a tuple or another object that cannot be changed keeps
            them: continue with the result's `batch` then.
        logger: gets one error per key, with the samples; None is that of `GlobalLogger`.
        strict: raises DataConsistencyError if something is wrong; otherwise training continues.
        """
        if not ChecksumUtils.enabled:
            return Verification(batch, checked=False)
        return _verify(batch, logger, strict)

    def __repr__(self) -> str:
        return short_repr(self)


# --- signing ---------------------------------------------------------------------------------


def _sign(payload: Any, batched: bool) -> Any:
    _check_payload(payload)
    check_bool("batched", batched)
    size = batch_size(payload) if batched else None
    leaves: Leaves = {}
    for name, value in items(payload):
        add_leaves(value, name, size, leaves)
    rows = _signature(leaves, 1 if size is None else size)
    return _with_key(payload, rows[0] if size is None else rows)


def _check_payload(payload: object) -> None:
    if isinstance(payload, (Mapping, list)) or is_tensordict(payload):
        return
    if isinstance(payload, tuple) and not hasattr(payload, "_fields"):
        return
    hint = ""
    if isinstance(payload, tuple):
        hint = "; pass x._asdict()"
    elif is_array(payload):
        hint = "; pass {'x': x}"
    raise TypeError(
        f"payload must be a mapping, a TensorDict, a list or a tuple, not "
        f"{type(payload).__name__}{hint}"
    )


def _signature(leaves: Leaves, size: int) -> torch.Tensor:
    """The int64 tensor [size, columns]."""
    import numpy as np
    import torch

    rows = np.empty((size, 2 + _LEAF_COLUMNS * len(leaves)), np.int64)
    rows[:, 0] = _VERSION_2
    for number, (name, digests) in enumerate(sorted(leaves.items())):
        at = 2 + _LEAF_COLUMNS * number
        behind = at + _NAME_COLUMNS
        rows[:, at:behind] = np.frombuffer(name, np.int64)
        rows[:, behind : behind + 2] = np.frombuffer(b"".join(digests), np.int64).reshape(-1, 2)
    rows[:, 1] = _join_digests(rows)
    return torch.from_numpy(rows)


def _join_digests(rows: _Rows) -> _Rows:
    """The digest of each row's columns from the third on: its low half."""
    import numpy as np

    halves = np.frombuffer(_core.row_hashes(rows[:, 2:], False), ">u8").reshape(-1, 2)
    return halves[:, 1].astype(np.uint64).view(np.int64)


def _with_key(payload: Any, rows: torch.Tensor) -> Any:
    if is_tensordict(payload):
        return _tensordict_with_key(payload, rows)
    if isinstance(payload, (list, tuple)):
        kept = [item for item in payload if not is_signature_item(item)]
        kept.append({KEY: rows})
        return tuple(kept) if isinstance(payload, tuple) else kept
    signed = copy.copy(payload)
    if not isinstance(signed, MutableMapping):
        return {**payload, KEY: rows}
    signed[KEY] = rows
    return signed


def _tensordict_with_key(payload: Any, rows: torch.Tensor) -> Any:
    """Every entry of a TensorDict has its batch size, so a row is repeated over the dimensions
    behind the first."""
    if rows.dim() == 1 and payload.batch_dims > 0:
        raise ValueError(
            f"payload is one sample, but a TensorDict of batch size {list(payload.batch_size)}; "
            "pass one of batch size [], or batched=True"
        )
    for size in payload.batch_size[1:]:
        rows = rows.unsqueeze(-2).expand(*rows.shape[:-1], size, rows.shape[-1])
    signed = payload.clone(recurse=False)
    signed[KEY] = rows
    return signed


# --- verifying -------------------------------------------------------------------------------


def _verify(batch: Any, logger: logging.Logger | None, strict: bool) -> Verification:
    _check_payload(batch)
    if logger is not None:
        _log_level(logger)
    signature, rest = _take_key(batch)
    result = Verification(rest, list(_mismatches(rest, signature)))
    if result.mismatches:
        log = _log_level(logger)
        for line in _lines(result.mismatches):
            log("data inconsistency: %s", line)
    if strict and result.mismatches:
        raise DataConsistencyError(result)
    return result


def _log_level(logger: logging.Logger | None) -> Callable[..., object]:
    if logger is None:
        from ...record.log.logger import get_global_logger

        logger = get_global_logger()
    error: Callable[..., object] | None = getattr(logger, "error", None)
    if not callable(error):
        raise TypeError(f"logger must be a logging.Logger, not {type(logger).__name__}")
    return error


def _take_key(batch: Any) -> tuple[Any, Any]:
    """The signature, None if there is none, and the batch without it."""
    if isinstance(batch, (list, tuple)):
        for index, item in enumerate(batch):
            if is_signature_item(item):
                if isinstance(batch, tuple):
                    return item[KEY], batch[:index] + batch[index + 1 :]
                del batch[index]
                return item[KEY], batch
        return None, batch
    if KEY not in batch.keys():  # noqa: SIM118 - `in` of a TensorDict works differently
        return None, batch
    signature = batch[KEY]
    if is_tensordict(batch):
        return signature, _tensordict_without_key(batch)
    try:
        del batch[KEY]
    except Exception:  # read-only, or a class that allows no removal
        return signature, {key: value for key, value in batch.items() if key != KEY}
    return signature, batch


def _tensordict_without_key(batch: Any) -> Any:
    if not batch.is_locked:
        del batch[KEY]
        return batch
    try:
        with batch.unlock_():
            del batch[KEY]
    except RuntimeError:  # a part of a larger one that is locked
        return batch.exclude(KEY)
    return batch


def _mismatches(batch: Any, signature: Any) -> Iterator[Mismatch]:
    if signature is None:
        yield Mismatch("", None, "unsigned", "the batch carries no checksums")
        return
    if not isinstance(signature, (list, tuple)):
        signature = [signature]
    for part in signature:
        if _dtype_name(part) != "int64":
            detail = f"the checksums are {_dtype_name(part)}, not int64: they were cast"
            yield Mismatch("", None, "cast", detail)
            return
    single = len(signature) == 1 and signature[0].ndim == 1
    yield from _compare(batch, _all_rows(signature), single)


def _dtype_name(part: Any) -> str:
    return str(getattr(part, "dtype", type(part).__name__)).removeprefix("torch.")


def _all_rows(signature: Sequence[Any]) -> list[_Rows]:
    """The rows, in arrays of rows of one width; a collate function may have left them in a list."""
    import numpy as np

    found: list[_Rows] = []
    for part in signature:
        rows = np.asarray(on_cpu(part))
        while rows.ndim > 2:  # of a TensorDict: a row is repeated over the inner dimensions
            rows = rows[:, 0] if rows.shape[1] else rows.reshape(0, rows.shape[-1])
        found.append(np.atleast_2d(rows))
    widths = {rows.shape[1] for rows in found}
    return [np.concatenate(found)] if len(found) > 1 and len(widths) == 1 else found


def _compare(batch: Any, blocks: list[_Rows], single: bool) -> Iterator[Mismatch]:
    """Whatever differs. `single`: one sample, which is not in a batch."""
    signed, sound = _signed_leaves(blocks)
    if not all(sound):
        yield from _damaged(blocks, sound, single)
    if not sound and batch_size(batch):
        yield Mismatch("", None, "length", f"{batch_size(batch)} samples, and no checksums")
    if not any(sound):
        return
    arrived = Arrived(batch, signed, len(sound), single)
    for name, wanted in signed.items():
        if name in arrived.wrong_lengths:
            count = arrived.wrong_lengths[name]
            detail = f"{count or 'no'} samples, and checksums of {len(sound)}"
            yield Mismatch(decode(name), None, "length", detail)
        elif name not in arrived.leaves:
            yield Mismatch(decode(name), None, "missing", "was signed, and is not there")
        else:
            for found in _compare_leaf(name, arrived, wanted):
                yield found._replace(sample=None) if single else found


def _damaged(blocks: list[_Rows], sound: list[bool], single: bool) -> Iterator[Mismatch]:
    rows = itertools.chain.from_iterable(blocks)
    for sample, (row, is_sound) in enumerate(zip(rows, sound, strict=True)):
        if not is_sound:
            old = len(row) > 0 and row[0] == _VERSION_1
            detail = "its checksums themselves were changed" if not old else _OF_VERSION_1
            yield Mismatch("", None if single else sample, "damaged", detail)


def _signed_leaves(blocks: list[_Rows]) -> tuple[Signed, list[bool]]:
    """What was signed, by name, None for a sample whose row is not sound; and which rows are sound:
    as they were written, and with the names of the first such one."""
    written = [_are_written(rows) for rows in blocks]
    both = list(zip(blocks, written, strict=True))
    first = next((rows[flags][:1] for rows, flags in both if flags.any()), None)
    if first is None:
        return {}, [False] * sum(map(len, blocks))
    names = _make_columns(first)[0, :, :_NAME_COLUMNS]
    digests: list[list[Digest | None]] = [[] for _ in names]
    sound: list[bool] = []
    for rows, flags in both:
        pieces: list[Digest] = []
        has_names = rows.shape[1] == first.shape[1]
        if has_names:
            columns = _make_columns(rows)
            flags = flags & (columns[:, :, :_NAME_COLUMNS] == names).all(axis=(1, 2))
            pieces = split_digests(columns[:, :, _NAME_COLUMNS:].transpose(1, 0, 2).tobytes())
        is_sound = flags.tolist() if has_names else [False] * len(rows)
        for number, found in enumerate(digests):
            if all(is_sound):
                found += pieces[number * len(rows) : (number + 1) * len(rows)]
            else:
                at = number * len(rows)
                found += (pieces[at + i] if ok else None for i, ok in enumerate(is_sound))
        sound += is_sound
    return {name.tobytes(): found for name, found in zip(names, digests, strict=True)}, sound


def _are_written(rows: _Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are as they were written."""
    import numpy as np

    if rows.shape[1] < 2 or rows.shape[1] % _LEAF_COLUMNS != 2:
        return np.zeros(len(rows), bool)
    written: np.ndarray[Any, np.dtype[np.bool_]] = rows[:, 0] == _VERSION_2
    written &= rows[:, 1] == _join_digests(rows)
    return written


def _make_columns(rows: _Rows) -> _Rows:
    """By row and leaf."""
    return rows[:, 2:].reshape(len(rows), (rows.shape[1] - 2) // _LEAF_COLUMNS, _LEAF_COLUMNS)


def _compare_leaf(name: bytes, batch: Arrived, wanted: list[Digest | None]) -> Iterator[Mismatch]:
    key, found = decode(name), batch.leaves[name]
    if len(found) == 1:  # one for all samples
        found = found * len(wanted)
    if found == wanted:
        return
    sources: dict[Digest | None, int] = {}
    for sample, digest in enumerate(wanted):
        sources.setdefault(digest, sample)
    for sample, (arrived, signed) in enumerate(zip(found, wanted, strict=True)):
        if signed is None or arrived == signed:
            continue
        if arrived in sources:
            detail = f"has the data of sample {sources[arrived]}"
            yield Mismatch(key, sample, "moved", detail)
        else:
            detail = f"differs from the signed data; arrived as {batch.kind_of(name, sample)}"
            yield Mismatch(key, sample, "differs", detail)


# --- messages --------------------------------------------------------------------------------


def _lines(mismatches: Sequence[Mismatch]) -> list[str]:
    """A line for each key and problem, with all samples it was found in."""
    groups: dict[tuple[str, str], list[Mismatch]] = {}
    for found in mismatches:
        groups.setdefault((found.key, found.problem), []).append(found)
    return [_line(key, problem, group) for (key, problem), group in groups.items()]


def _line(key: str, problem: str, group: list[Mismatch]) -> str:
    where = f"key {key!r}, " if key else ""
    samples = [found.sample for found in group if found.sample is not None]
    if not samples:
        return f"{where}{group[0].detail}"
    listed = ranges_text(as_ranges(samples), separator=", ")
    where += f"sample {listed}" if len(samples) == 1 else f"samples {listed}"
    if problem == "moved" and len(samples) > 1:
        sources = ", ".join(found.detail.rpartition(" ")[2] for found in group)
        return f"{where}: they have the data of samples {sources}"
    several = problem == "differs" and len({found.detail for found in group}) > 1
    first = group[0].detail
    return f"{where}: {first.replace('; arrived', '; the first arrived') if several else first}"

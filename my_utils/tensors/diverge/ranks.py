"""Recordings by rank: read from a file or a directory, matched between runs, and put together
where one run had one rank and the other had several."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..recordings.recording import (
    Recording,
    RecordingError,
    TraceEvent,
    TraceTensorMeta,
    load_recording,
)
from ..wrapper_names import plain_name

_SUMS = ("count", "finite", "l1", "zeros", "nans", "pos_infs", "neg_infs")


@dataclass(slots=True)
class Side:
    """One of the two runs. `notes` says what of the directory was left out, and why."""

    path: Path
    ranks: dict[int, Recording] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_side(path: str | os.PathLike[str]) -> Side:
    """The recording in a file, or one for each rank in a directory's `*.pt` files.

    OSError and RecordingError for a file. In a directory files that are not recordings are left out
    with a note; RecordingError when none is left, or two are of the same rank.
    """
    side = Side(Path(path))
    if not side.path.is_dir():
        recording = load_recording(side.path)
        side.ranks[recording.rank] = recording
        return side
    for file in sorted(side.path.glob("*.pt")):
        try:
            recording = load_recording(file)
        except RecordingError as error:
            side.notes.append(f"left out: {error}")
            continue
        if recording.rank in side.ranks:
            raise RecordingError(f"{file}: a second recording of rank {recording.rank}")
        side.ranks[recording.rank] = recording
    if not side.ranks:
        raise RecordingError("; ".join([f"{side.path}: no recording in it", *side.notes]))
    return side


# --- several ranks as one ---


def join_ranks(ranks: Sequence[Recording]) -> Recording:
    """One recording that stands for those of all ranks.

    A tensor that all ranks have with the same bits stays what it is. Of others, which hold a part
    each, the statistics are put together; they do not depend on which rank held which part.
    Calls and tensors that a rank does not have are left out.
    """
    first = ranks[0]
    others = [{_key(event): event for event in rank.events} for rank in ranks[1:]]
    events = [
        _join_events([event, *(other.get(_key(event)) for other in others)])
        for event in first.events
    ]
    roots = []
    for root in first.roots:
        same = [rank.roots[root.index : root.index + 1] for rank in ranks[1:]]
        tables = [root.weights, *(found[0].weights if found else {} for found in same)]
        roots.append(replace(root, weights=_joined_by_name(tables)))
    return replace(
        first,
        events=events,
        roots=roots,
        param_grads=_joined([rank.param_grads for rank in ranks]),
    )


def _key(event: TraceEvent) -> tuple[str, str, int]:
    return plain_name(event.module), event.phase, event.call


def _join_events(events: Sequence[TraceEvent | None]) -> TraceEvent:
    """A call that some rank did not make keeps nothing to compare."""
    first = events[0]
    assert first is not None
    present = [event for event in events if event is not None]
    if len(present) < len(events):
        return replace(
            first, inputs=[], outputs=[], written=[], params={}, buffers={}, grads=[],
            error="not every rank made this call",
        )  # fmt: skip
    return replace(
        first,
        inputs=_joined([event.inputs for event in present]),
        outputs=_joined([event.outputs for event in present]),
        written=_joined([event.written for event in present]),
        grads=_joined([event.grads for event in present]),
        params=_joined_by_name([event.params for event in present]),
        buffers=_joined_by_name([event.buffers for event in present]),
    )


def _joined(lists: Sequence[list[TraceTensorMeta]]) -> list[TraceTensorMeta]:
    named = [{(meta.path, place): meta for place, meta in enumerate(metas)} for metas in lists]
    return [
        _join_tensors([table[key] for table in named])
        for key in named[0]
        if all(key in table for table in named)
    ]


def _joined_by_name(tables: Sequence[dict[str, TraceTensorMeta]]) -> dict[str, TraceTensorMeta]:
    return {
        name: _join_tensors([table[name] for table in tables])
        for name in tables[0]
        if all(name in table for table in tables)
    }


def _join_tensors(metas: Sequence[TraceTensorMeta]) -> TraceTensorMeta:
    first = metas[0]
    if first.hash is not None and all(
        meta.hash == first.hash and meta.shape == first.shape for meta in metas
    ):
        return first
    stats = _join_stats([meta.stats for meta in metas])
    shape = first.global_shape or _joined_shape([meta.shape for meta in metas])
    return replace(
        first,
        shape=shape,
        placements=None,
        stats=stats,
        hash=None,
        hash_kind=None,
        sample=None,
        note=f"put together from {len(metas)} ranks: compared by statistics",
    )


def _joined_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Of parts of a batch, which are one behind the other along the first dimension."""
    if not shapes[0]:
        return (len(shapes),)
    return (sum(shape[0] for shape in shapes if shape), *shapes[0][1:])


def _join_stats(parts: Sequence[dict[str, float | int] | None]) -> dict[str, float | int] | None:
    """The statistics of all parts together; None if a part has none.

    Means and deviations by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances" (1979).
    """
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    joined: dict[str, float | int] = {
        name: sum(part.get(name, 0) for part in known) for name in _SUMS
    }
    filled = [part for part in known if part.get("finite")]
    joined["l2"] = math.hypot(*(part["l2"] for part in known))
    joined["min"] = min((part["min"] for part in filled), default=math.nan)
    joined["max"] = max((part["max"] for part in filled), default=math.nan)
    joined["abs_max"] = max((part["abs_max"] for part in filled), default=math.nan)
    count, mean, squares = 0.0, 0.0, 0.0
    for part in filled:
        n, delta = float(part["finite"]), part["mean"] - mean
        spread = part["std"] ** 2 * (n - 1) if n > 1 else 0.0
        squares += spread + delta * delta * count * n / (count + n)
        mean += delta * n / (count + n)
        count += n
    joined["mean"] = mean if count else math.nan
    joined["std"] = math.sqrt(squares / (count - 1)) if count > 1 else math.nan
    return joined

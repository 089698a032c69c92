"""What a rank stays in its sends and receives, as in a pipeline: there it meets one other rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...core.run_files.state import COLLECTIVES_TAG
from ..verdict.rank_files import Columns, RankStages, place_of
from ..verdict.recorded_rank import PEERS, WAIT
from .calls import calls_within
from .sweep import Integers, Segments


class PeerStays(NamedTuple):
    """The sends to another rank, or the receives from it, in the order of time. segment: in which
    each is; own_ns: what it takes there, or the wait for it where it is waited for."""

    segment: Integers
    own_ns: Integers


Peer = tuple[str, int]  # `SEND` or `RECEIVE`, and the number of the other rank
SEND, RECEIVE = PEERS


def stays_with_peers(
    rank: RankStages, stages: Columns, segments: Segments, steps: Integers
) -> dict[Peer, PeerStays]:
    """Those of the training thread inside its stages. steps: of the segments."""
    if COLLECTIVES_TAG not in rank.tags:
        return {}
    calls, at = calls_within(rank, stages, segments)
    order = np.argsort(calls["begin_ns"], kind="stable")
    path, begin_ns, end_ns = (calls[name][order] for name in ("path", "begin_ns", "end_ns"))
    at = at[order]
    own_ns = np.minimum(end_ns, segments.begin_ns[at + 1]) - begin_ns
    found = {}
    for number, peer in _peers(rank):
        called = np.flatnonzero(path == number)
        waited = np.flatnonzero(path == _number(rank.paths, WAIT + rank.paths[number]))
        kept = _one_for_each(called, waited, steps[at])
        if len(kept):
            found[peer] = PeerStays(at[kept], own_ns[kept])
    return found


def _peers(rank: RankStages) -> Iterator[tuple[int, Peer]]:
    """With the number of its path."""
    for number, path in enumerate(rank.paths):
        kind, _, place = path.partition(" ")
        other = place_of(place)
        if kind in PEERS and other is not None:
            yield number, (kind, other)


def _number(paths: list[str], path: str) -> int:
    return paths.index(path) if path in paths else -1


def _one_for_each(called: Integers, waited: Integers, step: Integers) -> Integers:
    """The waits of the steps in which each call is waited for, and the calls of those in which none
    is; which of them was waited for in other steps is not known. step: of each row."""
    steps, places = np.unique(step[np.concatenate([called, waited])], return_inverse=True)
    call_at, wait_at = places[: len(called)], places[len(called) :]
    calls, waits = (np.bincount(at, minlength=len(steps)) for at in (call_at, wait_at))
    kept = [called[(waits == 0)[call_at]], waited[(waits == calls)[wait_at]]]
    return np.sort(np.concatenate(kept))

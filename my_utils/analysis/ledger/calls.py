"""The stages inside which a rank called collectives: there it meets the members of the groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.run_files.state import COLLECTIVES_TAG
from ..verdict.rank_files import Columns, RankStages, chosen
from ..verdict.recorded_rank import PEERS, WAIT
from .sweep import Integers, Segments

INSIDE = "inside"  # a kind of meetings


def meetings_inside(
    rank: RankStages, stages: Columns, on_host: Callable[[], Segments]
) -> list[tuple[str, str, str]]:
    """Stage, members and kind, each once. stages: of the training thread, and on_host cuts them;
    calls of others count nowhere. Of many steps some have no rows of their calls, but the same
    stages."""
    if COLLECTIVES_TAG not in rank.tags:
        return []
    members = {
        note.pairs.get("label", ""): note.pairs.get("members", "")
        for note in rank.notes
        if note.name == "my_utils.group"
    }
    found = (
        (rank.paths[stage], members.get(_parse_group(rank.paths[call]), ""))
        for stage, call in _stages_and_calls(rank, stages, on_host())
    )
    return [(stage, ranks, INSIDE) for stage, ranks in dict.fromkeys(found) if ranks]


def _parse_group(call: str) -> str:
    """The label of its group: of "wait all_reduce tp" it is "tp". "" for a send or a receive."""
    kind, _, place = call.removeprefix(WAIT).partition(" ")
    return "" if kind in PEERS else place


def _stages_and_calls(rank: RankStages, stages: Columns, segments: Segments) -> list[list[int]]:
    """The paths of the innermost stage and of the call in it, each pair once."""
    calls, at = calls_within(rank, stages, segments)
    pairs = np.stack([stages["path"][segments.owner[at]], calls["path"]])
    found: list[list[int]] = np.unique(pairs, axis=1).T.tolist()
    return found


def calls_within(rank: RankStages, stages: Columns, segments: Segments) -> tuple[Columns, Integers]:
    """The calls that begin in a stage, and the segment of each. There must be a tag for them."""
    is_call = rank.stages["tag"] == rank.tags.index(COLLECTIVES_TAG)
    calls = chosen(rank.stages, is_call & np.isin(rank.stages["tid"], np.unique(stages["tid"])))
    at = np.searchsorted(segments.begin_ns, calls["begin_ns"], "right") - 1
    is_within = (at >= 0) & (at < len(segments.owner))
    is_within[is_within] = segments.owner[at[is_within]] >= 0
    return chosen(calls, is_within), at[is_within]

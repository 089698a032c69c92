"""Whether a run hangs: which ranks have stood still for long, and for which they wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.run_files.state import Rank
from ..verdict.kinds import kind_of_stage
from .suspects import Suspect, Usual, find_suspects

PATIENCE = 20.0  # times what a rank may stand still
FORWARD = "forward"


@dataclass(frozen=True)
class Hang:
    """Whether a run hangs whose ranks may stand still for `after_s`.

    A rank stands still while no stage of its main thread begins or ends. The run hangs when a
    living rank has stood still for so long, or one is gone or silent for so long.
    """

    after_s: float
    suspects: tuple[Suspect, ...]  # that hold the others up
    waiting: tuple[Rank, ...]  # that stand still, and are not suspects
    missing: tuple[int, ...]  # ranks without files, where others wait
    since_ns: int | None  # when the first of them stood still; Unix time
    longest: Rank | None  # of the living ranks, the one that has stood still longest

    @property
    def hung(self) -> bool:
        return bool(self.suspects or self.waiting)

    @property
    def crowd(self) -> tuple[int | None, tuple[str, ...]] | None:
        """Step and stack where most of the waiting ranks are."""
        places = Counter((rank.step, rank.stack) for rank in self.waiting)
        return places.most_common(1)[0][0] if places else None


def find_hang(
    ranks: Sequence[Rank], missing: Sequence[int], after_s: float, usual: Usual | None = None
) -> Hang:
    """Workers are left out: they come and go as their ranks do."""
    main = [rank for rank in ranks if rank.worker == 0]
    suspects = [s for s in find_suspects(main, after_s, usual) if _stands(s.rank, after_s)]
    if suspects and all(takes_long(one.rank, after_s) for one in suspects):
        suspects, main = [], [rank for rank in main if not rank.alive]
    held = {suspect.rank.label for suspect in suspects}
    waiting = [
        rank
        for rank in main
        if rank.alive and rank.label not in held and (rank.still_s or 0.0) >= after_s
    ]
    standing = [suspect.rank for suspect in suspects] + waiting
    moments = [rank.moved_ns for rank in standing if rank.moved_ns is not None]
    return Hang(
        after_s=after_s,
        suspects=tuple(suspects),
        waiting=tuple(waiting),
        missing=tuple(missing) if waiting else (),
        since_ns=min(moments, default=None),
        longest=max(
            (rank for rank in main if rank.alive and rank.still_s is not None),
            key=lambda rank: rank.still_s or 0.0,
            default=None,
        ),
    )


def takes_long(rank: Rank, after_s: float) -> bool:
    """Whether the rank lives and is in a checkpoint, in an evaluation, or in the forward of its
    first step, which may compile: that may take 20 times as long, and others may wait for it."""
    if rank.state != "running" or rank.main is None or rank.call is not None:
        return False
    if (rank.still_s or 0.0) >= PATIENCE * after_s:
        return False
    kinds = {kind_of_stage(stage) for stage in rank.stack}
    compiles = rank.stack == (FORWARD,) and rank.step == 0
    return compiles or bool(kinds & {"checkpoint", "eval"})


def _stands(rank: Rank, after_s: float) -> bool:
    """Whether the rank has been gone, silent or still for so long. True as well if none of its
    stages is known."""
    if not rank.alive:
        return True
    if rank.state == "silent" and (rank.beat_age_s is None or rank.beat_age_s >= after_s):
        return True
    return rank.still_s is None or rank.still_s >= after_s

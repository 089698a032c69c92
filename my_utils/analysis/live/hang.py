"""Whether a run hangs: which ranks have made no progress for long, and for which they wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.run_files.state import Rank
from .waits.places import takes_long
from .waits.standing import Suspect


@dataclass(frozen=True)
class Hang:
    """Whether a run hangs in which a rank may be without progress for `after_s`.

    A rank makes no progress while no stage of its main thread begins or ends. The run hangs when a
    living rank has made no progress for so long, or one is gone or silent for so long.
    """

    after_s: float
    suspects: tuple[Suspect, ...]  # that hold the others up
    waiting: tuple[Rank, ...]  # that make no progress, and are not suspects
    missing: tuple[int, ...]  # ranks without files, where others wait
    since_ns: int | None  # when the first of them last made progress; Unix time
    longest: Rank | None  # of the living ranks, the one without progress for longest
    had_hung: bool = False  # by its dumps, when all ranks ended; their stages do not say it

    @property
    def hung(self) -> bool:
        return bool(self.suspects or self.waiting or self.had_hung)

    @property
    def crowd(self) -> tuple[int | None, tuple[str, ...]] | None:
        """Step and stack where most of the waiting ranks are."""
        places = Counter((rank.step, rank.stack) for rank in self.waiting)
        return places.most_common(1)[0][0] if places else None

    @property
    def elsewhere(self) -> list[Rank]:
        """The waiting ranks that are in another place than most."""
        crowd = self.crowd
        return [rank for rank in self.waiting if (rank.step, rank.stack) != crowd]


def find_hang(
    ranks: Sequence[Rank], missing: Sequence[int], after_s: float, suspects: Sequence[Suspect]
) -> Hang:
    """suspects: who holds the others up; the run hangs by those that make no progress themselves.
    Ranks that only wait for one that may take long, as for a checkpoint, do not hang. Workers are
    left out: they come and go as their ranks do."""
    main = [rank for rank in ranks if rank.worker == 0]
    suspects = [one for one in suspects if _is_stuck(one.rank, after_s)]
    held = {suspect.rank.label for suspect in suspects}
    working = {rank.label for rank in main if takes_long(rank, after_s)}
    waiting = [
        rank
        for rank in main
        if rank.alive
        and rank.label not in held | working
        and (rank.still_s or 0.0) >= after_s
        and (suspects or not working)
        and (rank.stack or len(main) > 1)  # alone in no stage: between its trainings
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


def _is_stuck(rank: Rank, after_s: float) -> bool:
    """Whether the rank has been gone, silent or still for so long. True as well if none of its
    stages is known."""
    if not rank.alive:
        return True
    if rank.state == "silent" and (rank.beat_age_s is None or rank.beat_age_s >= after_s):
        return True
    return rank.still_s is None or rank.still_s >= after_s

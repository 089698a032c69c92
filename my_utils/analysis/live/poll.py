"""One snapshot of a run: what its ranks do, which rank holds them up, and this as plain data."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ...core.arguments import check_seconds
from ...core.run_files.ranks import find_ranks
from ...core.run_files.state import Found, Rank, Thread
from .collectives import (
    Collectives,
    cause_as_data,
    collectives_as_data,
    dumps_in,
    find_collectives,
    problem_as_data,
)
from .hang import Hang, find_hang
from .ras import DEAD, ask_ras
from .recorded import Recorded
from .result import HangData, RankData, SnapshotData, SuspectData, ThreadData, WaitingData
from .root_causes import (
    RootCause,
    at_their_end,
    drop_cleared,
    find_root_causes,
    gone_ranks,
)
from .waits.places import Usual, missing_ranks
from .waits.standing import Standing, Suspect, Waiting

SCHEMA_VERSION: Literal[1] = 1
STUCK_AFTER_S = 10.0
SILENT_AFTER_S = 10.0

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class SnapshotRequest:
    """What a snapshot covers, and after what time a rank counts as stuck. `hung_after_s` adds
    whether the run hangs; `flight_recorder`, the place of dumps, adds in which collective."""

    log_dirs: tuple[str, ...]
    ranks: Collection[int] | None
    stuck_after_s: float
    hung_after_s: float | None = None
    flight_recorder: str | None = None
    processes: int = 1  # to read dumps with


@dataclass(frozen=True)
class Snapshot:
    """One snapshot."""

    log_dirs: tuple[str, ...]
    found: Found
    suspects: Sequence[Suspect]
    missing: Sequence[int]
    hang: Hang | None
    collectives: Collectives | None
    standing: Standing
    causes: Sequence[RootCause] = ()
    waiting: Sequence[Waiting] = ()


def snapshot(
    log_dir: _Path | Sequence[_Path],
    *,
    ranks: Collection[int] | None = None,
    stuck_after_s: float = STUCK_AFTER_S,
    hung_after_s: float | None = None,
    flight_recorder: _Path | None = None,
) -> SnapshotData:
    """What the ranks of a run do, as plain data that goes into JSON.

    log_dir: the log directory of the run, or several if its ranks write to different ones.
    ranks: the ranks to include; all by default.
    stuck_after_s: seconds without a sign of life after which a rank counts as silent (at least 1 s
        where its journal is read, 4 s elsewhere: two of its beats). If no stage begins or ends for
        `stuck_after_s`, the ranks are searched for one that the others wait for.
    hung_after_s: check whether the run hangs. Suspects are then only ranks that are gone, or that
        have been silent or without progress for this many seconds. It replaces `stuck_after_s`.
    flight_recorder: a directory with dumps of torch's flight recorder, one a rank, or the beginning
        of their paths, as in TORCH_FR_DUMP_TEMP_FILE. Nothing in them is executed: only plain data
        is read from pickles.

    `SnapshotData` and the types in its file, `analysis/live/result.py`, say what the keys mean;
    docs/schema/live.json is the same as a JSON Schema. Later versions only add keys (`version` is
    1).

    Raises OSError when a directory cannot be read, TypeError and ValueError for wrong arguments.
    Nothing in the directories is changed. Thread-safe.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     snapshot(folder)["ranks"]
    []
    """
    check_seconds("stuck_after_s", stuck_after_s)
    if hung_after_s is not None:
        check_seconds("hung_after_s", hung_after_s)
    given = [log_dir] if isinstance(log_dir, str | os.PathLike) else log_dir
    if not given:
        raise ValueError("log_dir must name at least one directory")
    log_dirs = tuple(os.fspath(path) for path in given)
    dumps = None if flight_recorder is None else os.fspath(flight_recorder)
    request = SnapshotRequest(log_dirs, ranks, stuck_after_s, hung_after_s, dumps)
    return as_data(take_snapshot(request))


def take_snapshot(request: SnapshotRequest, usual: Usual | None = None) -> Snapshot:
    """Reads the directories. OSError when one of them cannot be listed. usual: what is known of the
    run; None reads from the profile CSVs where its ranks meet."""
    if usual is None:
        usual = make_usual(Recorded(request.log_dirs))
    hung_after_s = request.hung_after_s
    silent_after_s = request.stuck_after_s
    if hung_after_s is not None:
        silent_after_s = min(SILENT_AFTER_S, hung_after_s)
    found = find_ranks(
        request.log_dirs, only=request.ranks, silent_after_s=silent_after_s, looks_again=True
    )
    chosen = request.ranks
    missing = [n for n in missing_ranks(found.ranks) if chosen is None or n in chosen]
    after_s = request.stuck_after_s if hung_after_s is None else hung_after_s
    ranks: Sequence[Rank] = found.ranks
    standing = Standing(ranks, after_s, usual)
    at_end = standing
    if hung_after_s is not None and ranks and not any(one.alive for one in ranks):
        at_end = Standing(at_their_end(ranks), after_s, usual)
    notes: dict[int, str] = {}
    if hung_after_s is not None and standing.stuck_here:
        notes = ask_ras(found.ranks)
    gone = gone_ranks(ranks) | {rank for rank, note in notes.items() if note == DEAD}
    collectives = _read_dumps(request, gone, at_end)
    named = find_root_causes(standing, collectives, after_s, notes)
    if at_end is not standing:
        then = find_root_causes(at_end, collectives, after_s, {})
        if then.causes or find_hang(at_end.ranks, missing, after_s, ()).hung:
            ranks, named, standing = at_end.ranks, then, at_end
    hang = None
    suspects = named.suspects
    if hung_after_s is not None:
        hang = find_hang(ranks, missing, hung_after_s, suspects)
        suspects = _as_now(hang.suspects, found.ranks)
        if not hang.hung and not any(one.alive for one in found.ranks):
            hang = _as_dumps_say(hang, named.causes, found.ranks, usual)
    return Snapshot(
        log_dirs=request.log_dirs,
        found=found,
        suspects=suspects,
        missing=missing,
        hang=hang,
        collectives=named.collectives,
        standing=standing,
        causes=drop_cleared(named.causes, suspects),
        waiting=standing.find_waiting(suspects),
    )


def make_usual(recorded: Recorded, steps_a_second: float = 0.0) -> Usual:
    return Usual(recorded.names(), steps_a_second, recorded.members, recorded.error)


def ended_in_order(ranks: Sequence[Rank], usual: Usual) -> bool:
    """Whether all have ended cleanly, so that what took so long has ended, too."""
    return bool(ranks) and all(one.state == "closed" and not usual.error(one) for one in ranks)


def made_others_wait(seen: Snapshot) -> bool:
    """Whether a rank held up others, and not only ended."""
    return seen.hang is not None and bool(
        seen.hang.waiting or any(one.waiting for one in seen.causes)
    )


def _read_dumps(
    request: SnapshotRequest, gone: Collection[int], standing: Standing
) -> Collectives | None:
    """Those that are asked for; else, to know whether the run hangs, those that it wrote itself.
    standing: of the ranks as they are, or were when the run was ended."""
    place, asked = request.flight_recorder, request.flight_recorder is not None
    if not asked and request.hung_after_s is not None:
        place = dumps_in(request.log_dirs)
    if place is None:
        return None
    try:
        waits = standing.recorded_waits()
        return find_collectives(place, standing.ranks, request.processes, gone, waits)
    except OSError:
        if asked:
            raise
        return None


def _as_dumps_say(
    hang: Hang, causes: Sequence[RootCause], ranks: Sequence[Rank], usual: Usual
) -> Hang:
    """Of a run that is over: an exception, as Ctrl-C is one, closes the stages that were open."""
    waits = [one.node.call.created_ns for one in causes if one.node is not None and one.waiting]
    if not waits or ended_in_order(ranks, usual):
        return hang
    return dataclasses.replace(hang, had_hung=True, since_ns=min(waits))


def _as_now(suspects: Sequence[Suspect], ranks: Sequence[Rank]) -> list[Suspect]:
    """Those that held up the others when the run was ended, in the state in which they are now."""
    by_label = {rank.label: rank for rank in ranks}
    return [dataclasses.replace(one, rank=by_label[one.rank.label]) for one in suspects]


def as_data(seen: Snapshot) -> SnapshotData:
    """A snapshot as `my_utils.analysis.live.snapshot` describes it."""
    found = seen.found
    data: SnapshotData = {
        "version": SCHEMA_VERSION,
        "log_dir": seen.log_dirs[0],
        "log_dirs": list(seen.log_dirs),
        "time": time.time(),
        "ranks": [_rank_as_data(rank) for rank in found.ranks],
        "suspects": [_suspect_as_data(suspect) for suspect in seen.suspects],
        "causes": [cause_as_data(cause) for cause in seen.causes],
        "waiting": [_waiting_as_data(waiting) for waiting in seen.waiting],
        "missing_ranks": list(seen.missing),
        "earlier_run": [
            {"rank": rank.rank, "worker": rank.worker, "label": rank.label, "state": rank.state}
            for rank in found.earlier
        ],
        "problems": [problem_as_data(problem) for problem in found.problems],
    }
    if seen.hang is not None:
        data["hang"] = _hang_as_data(seen.hang)
    if seen.collectives is not None:
        causes = [cause for cause in seen.causes if cause.node is not None]
        data["flight_recorder"] = collectives_as_data(seen.collectives, causes)
    return data


def _rank_as_data(rank: Rank) -> RankData:
    return {
        "label": rank.label,
        "rank": rank.rank,
        "worker": rank.worker,
        "world_size": rank.world_size,
        "host": rank.host,
        "pid": rank.pid,
        "attempt": rank.attempt,
        "state": rank.state,
        "source": rank.source,
        "beat_age_s": rank.beat_age_s,
        "began_s": rank.began_s,
        "time_offset_s": rank.time_offset_s,
        "clock_ahead_s": rank.clock_ahead_s,
        "dropped": rank.dropped,
        "step": rank.step,
        "stack": list(rank.stack),
        "open_s": rank.open_s,
        "moved_ns": rank.moved_ns,
        "still_s": rank.still_s,
        "threads": [_thread_as_data(thread) for thread in rank.threads],
    }


def _thread_as_data(thread: Thread) -> ThreadData:
    """By hand: `dataclasses.asdict` takes longer than reading the files."""
    return {
        "tid": thread.tid,
        "name": thread.name,
        "tag": thread.tag,
        "step": thread.step,
        "open": [
            {"name": s.name, "step": s.step, "since_ns": s.since_ns, "open_s": s.open_s}
            for s in thread.open
        ],
        "last": [
            {
                "name": s.name,
                "step": s.step,
                "start_ns": s.start_ns,
                "duration_ms": s.duration_ms,
            }
            for s in thread.last
        ],
    }


def _suspect_as_data(suspect: Suspect) -> SuspectData:
    rank = suspect.rank
    return {
        "rank": rank.rank,
        "worker": rank.worker,
        "label": rank.label,
        "host": rank.host,
        "state": rank.state,
        "step": rank.step,
        "stack": list(rank.stack),
        "moved_ns": rank.moved_ns,
        "still_s": rank.still_s,
        "kinds": list(suspect.kinds),
        "reasons": list(suspect.reasons),
    }


def _waiting_as_data(waiting: Waiting) -> WaitingData:
    return {
        "rank": waiting.rank.rank,
        "label": waiting.rank.label,
        "waits_for": waiting.suspect.rank,
        "stage": waiting.stage,
    }


def _hang_as_data(hang: Hang) -> HangData:
    step, stack = hang.crowd or (None, ())
    return {
        "after_s": hang.after_s,
        "hung": hang.hung,
        "since_ns": hang.since_ns,
        "waiting": [rank.rank for rank in hang.waiting],
        "waiting_step": step,
        "waiting_stack": list(stack),
        "missing": list(hang.missing),
        "longest_still_s": hang.longest.still_s if hang.longest else None,
    }

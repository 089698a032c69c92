"""Which processes of a run are alive, and how it ended if that was not as it should."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.bounded_read import describe
from ...core.process_end import status_text
from ...core.ranges import ranks_text
from ...core.run_files.ranks import find_ranks
from ...core.run_files.run_file import RUN_FILE, read_run_file
from .rank_cells import RankCells
from .rank_files import RUN_END
from .run_data import CLOSED, Process

NAMED_MAX = 2
HUNG_S = 30.0  # below it a checkpoint or an evaluation is more likely
MEAN_STEPS = 5.0
EXITED, KILLED = "exit", "killed or crashed"


def hangs_after_s(step_s: float, least_s: float = HUNG_S) -> float:
    """How long a rank may make no progress before it counts as hung, in seconds: five mean steps,
    and `least_s` at least. step_s: what a step takes in the mean, 0.0 where that is not known.

    >>> hangs_after_s(0.2), hangs_after_s(120.0)
    (30.0, 600.0)
    """
    return max(least_s, MEAN_STEPS * step_s)


def run_file_of(paths: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What `my_utils run` wrote down next to the files; {} where it did not. And why files of that
    name were not read."""
    problems: list[str] = []
    for path in paths:
        try:
            return read_run_file(path), problems
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{os.path.join(path, RUN_FILE)}: {describe(error)}")
    return {}, problems


def read_command(run_file: Mapping[str, Any]) -> tuple[str, ...]:
    """The command in a `run.json`; () where it has none."""
    command = run_file.get("command")
    is_command = isinstance(command, list) and all(isinstance(word, str) for word in command)
    return tuple(command) if command and is_command else ()


def find_processes(paths: Sequence[str]) -> tuple[dict[int, Process], bool]:
    """The last process of each rank that left a journal or a heartbeat; and whether there are some
    and all of them ended normally, those of forked children too."""
    # The run's problems name those that cannot be listed.
    folders = [path for path in paths if os.path.isdir(path) and os.access(path, os.R_OK)]
    found: dict[int, Process] = {}
    all_closed = False
    with contextlib.suppress(OSError):
        ranks = find_ranks(folders).ranks
        all_closed = bool(ranks) and all(one.state == CLOSED for one in ranks)
        for one in ranks:
            if not one.worker:
                age_ns = round((one.beat_age_s or 0.0) * 1e9)
                found[one.rank] = Process(one.state, one.seen_ns - age_ns)
    return found, all_closed


def find_states(
    processes: Mapping[int, Process], ranks: npt.NDArray[np.int64]
) -> tuple[tuple[bool, ...], bool]:
    """Of each rank whether its process ended normally, and whether any of them lives. A rank
    that left neither journal nor heartbeat counts as one that ended."""
    known = [processes[rank].state if rank in processes else CLOSED for rank in ranks.tolist()]
    return tuple(state == CLOSED for state in known), "running" in known


def describe_ending(
    ranks: Sequence[RankCells], has_ended: Mapping[int, bool], run_file: Mapping[str, Any]
) -> str:
    """ "" where all processes ended by themselves, and without an exception.

    has_ended: of a rank, whether its process ended normally; one that is missing did. run_file: as
    of `run_file_of`. The first to end is named first, as its end may have ended the others.
    """
    statuses = run_file.get("exit_statuses")
    known = statuses if isinstance(statuses, dict) else {}
    ends = []
    for one in ranks:
        step = max((attempt.last for attempt in one.attempts.values()), default=0)
        what = _how(one, has_ended, known)
        ends.append((one.metadata.end_ns, what, one.metadata.rank, step))
    ends.sort()
    bad = [place for place, (_, what, _, _) in enumerate(ends) if what != EXITED]
    # A rank that exits before another fails is why that one fails.
    ends = [one for place, one in enumerate(ends) if bad and (place < bad[0] or place in bad)]
    texts = [f"{what} on rank {rank} in step {step}" for _, what, rank, step in ends[:NAMED_MAX]]
    if len(ends) > NAMED_MAX:
        others = [rank for _, _, rank, _ in ends[NAMED_MAX:]]
        texts.append(f"then {ranks_text(sorted(others), 8)}")
    texts.append(command_ending(run_file))
    return "; ".join(filter(None, texts))


def command_ending(run_file: Mapping[str, Any]) -> str:
    """How the command of a run ended, "" where with 0 or where nothing is known.

    >>> command_ending({"exit_status": -9})
    'the command ended by SIGKILL'
    """
    status = run_file.get("exit_status")
    return f"the command ended {status_text(status)}" if isinstance(status, int) and status else ""


def _how(rank: RankCells, has_ended: Mapping[int, bool], statuses: Mapping[str, Any]) -> str:
    """statuses: as run.json has them, by the rank's number as text."""
    if error := _find_error(rank):
        return error
    status = statuses.get(str(rank.metadata.rank))
    if isinstance(status, int) and status:
        return f"exit status {status}" if status > 0 else f"killed {status_text(status)}"
    return EXITED if has_ended.get(rank.metadata.rank, True) else KILLED


def _find_error(rank: RankCells) -> str:
    """The name of the exception that ended the last attempt of its process. One that was killed
    has rows of its beginning, and none of its end."""
    last = max((one.attempt for one in rank.notes), default=0)
    ends = [one for one in rank.notes if one.name == RUN_END and one.attempt == last]
    return ends[-1].pairs.get("error", "") if ends else ""

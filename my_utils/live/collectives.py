"""The collectives in which a run hangs, from the dumps of torch's flight recorder."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from ..common.reader_process import Reader, ReaderEnded
from ..run_files.state import Problem, Rank
from .flight_files import Call, Dump, is_pickle, list_dumps, read_dump
from .flight_match import Stalled, find_stalled
from .result import CallData, FlightRecorderData, LastCallData, ProblemData

POOL_ABOVE = 64  # dumps; fewer are read before other processes are up
EARLIER_S = 60.0  # between a file server's clock and a host's


@dataclass(frozen=True)
class Collectives:
    """What the dumps of a directory say."""

    place: str
    dumps: Sequence[int]  # the ranks of which there is one
    without_dump: Sequence[int]
    stalled: Sequence[Stalled]
    problems: Sequence[Problem]


def find_collectives(place: str, ranks: Sequence[Rank], processes: int = 1) -> Collectives:
    """Reads the dumps in a directory, or those whose paths begin as `place` does, with so many
    processes. `ranks` are those of the run. OSError when there is no such directory."""
    dumps: list[Dump] = []
    problems: list[Problem] = []
    began_s = {rank.rank: rank.began_s for rank in ranks if rank.worker == 0}
    for result in _read_all(list_dumps(place), processes):
        if isinstance(result, Dump) and result.written_s + EARLIER_S < (
            began_s.get(result.rank) or 0.0
        ):
            problems.append(Problem(result.file, f"written before rank {result.rank} began"))
        elif isinstance(result, Dump):
            dumps.append(result)
        elif result is not None:
            problems.append(result)
    size = max((rank.world_size for rank in ranks), default=0)
    seen = {dump.rank for dump in dumps}
    return Collectives(
        place=place,
        dumps=[dump.rank for dump in dumps],
        without_dump=[rank for rank in range(size) if rank not in seen],
        stalled=find_stalled(dumps, size),
        problems=problems,
    )


_Read = Dump | Problem | None


def _read_all(files: Mapping[int, str], processes: int) -> list[_Read]:
    """Pickles are read by children: see reader_process."""
    count = processes if len(files) > POOL_ABOVE else 1
    free: queue.SimpleQueue[Reader] = queue.SimpleQueue()

    def read(rank: int, path: str) -> _Read:
        if not is_pickle(path):
            return read_dump(rank, path)
        reader = free.get()
        try:
            return cast("_Read", reader.read(path, rank))
        except ReaderEnded as error:
            return Problem(path, f"damaged, or made to do harm: {error}")
        finally:
            free.put(reader)

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            free.put(stack.enter_context(Reader(f"{read_dump.__module__}:{read_dump.__name__}")))
        return list(pool.map(read, files.keys(), files.values()))


def collectives_as_data(found: Collectives) -> FlightRecorderData:
    """As `my_utils.live.snapshot` describes it."""
    return {
        "place": found.place,
        "dumps": list(found.dumps),
        "ranks_without_dump": list(found.without_dump),
        "stalled": [_stalled_as_data(stalled) for stalled in found.stalled],
        "problems": [problem_as_data(problem) for problem in found.problems],
    }


def problem_as_data(problem: Problem) -> ProblemData:
    return {"file": problem.file, "reason": problem.reason}


def _stalled_as_data(stalled: Stalled) -> CallData:
    return {
        "group": stalled.group,
        "description": stalled.description,
        "members": list(stalled.members),
        **_call_as_data(stalled.call),
        "since_ns": stalled.since_ns,
        "verdict": stalled.verdict,
        "waiting": stalled.waiting,
        "missing": stalled.missing,
        "no_dump": stalled.no_dump,
        "unknown": stalled.unknown,
        "calls": stalled.others,
        "last_calls": {
            str(rank): _call_as_data(call) if call else None
            for rank, call in stalled.last_calls.items()
        },
    }


def _call_as_data(call: Call) -> LastCallData:
    return {
        "seq": call.seq,
        "name": call.name,
        "sizes": call.sizes,
        "place": call.place,
        "started": call.started,
    }


def call_text(call: Call) -> str:
    """A collective for people.

    >>> call_text(Call(7, "all_reduce", "[4096] Float", 0, False, "train.py:88 in step"))
    'all_reduce #7 [4096] Float at train.py:88 in step'
    """
    text = " ".join(filter(None, [call.name, f"#{call.seq}", call.sizes]))
    return f"{text} at {call.place}" if call.place else text


def missing_last(stalled: Stalled) -> Iterator[tuple[int, str]]:
    """Where the ranks that never entered it were last in the group."""
    for rank, call in stalled.last_calls.items():
        text = "it has called none of this group" if call is None else f"last {call_text(call)}"
        yield rank, text

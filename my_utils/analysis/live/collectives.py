"""Who holds up a run that hangs, and in which calls, from the dumps of torch's flight recorder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ...core.reader_process import ReaderError, Readers
from ...core.run_files.files import FLIGHTS_FOLDER
from ...core.run_files.hosts import host_folders, with_hosts
from ...core.run_files.state import Problem, Rank
from .flight_files import Call, Dump, is_pickle, list_dumps, read_dump
from .result import CallData, CauseData, FlightRecorderData, LastCallData, ProblemData
from .waits.calls import Node, RecordedWait, Standstill
from .waits.causes import Cause, find_causes

if TYPE_CHECKING:
    from .root_causes import RootCause

POOL_ABOVE = 64  # dumps; fewer are read before other processes are up
EARLIER_S = 60.0  # between a file server's clock and a host's


@dataclass(frozen=True)
class Collectives:
    """What the dumps of a directory say."""

    place: str
    dumps: Sequence[int]  # the ranks of which there is one
    without_dump: Sequence[int]
    causes: Sequence[Cause]
    still: Standstill
    problems: Sequence[Problem]

    @property
    def named(self) -> frozenset[int]:
        """The ranks that hold the others up for certain."""
        return frozenset(r for cause in self.causes if cause.decided for r in cause.ranks)

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that wait for these."""
        found = {r for cause in self.causes if cause.decided for r in cause.waiting}
        return frozenset(found - self.named)

    @property
    def nodes(self) -> list[Node]:
        """The calls in which ranks wait, the one that has waited longest first."""
        nodes = {id(node): node for node in self.still.nodes.values()}.values()
        return sorted(nodes, key=lambda node: node.call.created_ns)


def find_collectives(
    place: str,
    ranks: Sequence[Rank],
    processes: int = 1,
    gone: Collection[int] = (),
    recorded: Mapping[int, RecordedWait] | None = None,
) -> Collectives:
    """Reads the dumps in a directory, or those whose paths begin as `place` does, with so many
    processes. `ranks` are those of the run; gone: those whose processes ended before the others.
    recorded: where ranks wait by the rows of the run.
    OSError when there is no such directory."""
    dumps: list[Dump] = []
    problems: list[Problem] = []
    main = {rank.rank: rank for rank in ranks if rank.worker == 0}
    size = max((rank.world_size for rank in ranks), default=0)
    for result in _read_all(_dumps_of_run(place), processes):
        if isinstance(result, Dump) and (reason := _not_of_run(result, main, size)):
            problems.append(Problem(result.file, reason))
        elif isinstance(result, Dump):
            dumps.append(_until_now(result, main.get(result.rank)))
        elif result is not None:
            problems.append(result)
    causes, still = find_causes(dumps, size, gone, recorded)
    missing = {rank for node in still.nodes.values() for rank in node.unknown}
    missing.update(set(range(size)).difference(still.dumps))
    return Collectives(
        place=place,
        dumps=[dump.rank for dump in dumps],
        without_dump=sorted(missing),
        causes=causes,
        still=still,
        problems=problems,
    )


def _not_of_run(dump: Dump, main: Mapping[int, Rank], size: int) -> str:
    """Why the dump is not of the process that the rank has now; "" where it is. A process that was
    started again has the number of the one before, whose dump lasts until it writes one. main: the
    ranks of the run, by number. size: how many there are, 0 where it is not known."""
    rank = main.get(dump.rank)
    if rank is None and dump.rank >= size > 0:
        return f"of rank {dump.rank}, in a run of {size} ranks"
    began_s = 0.0 if rank is None else rank.began_s or 0.0
    # Calls have the time of the host, as the start has; a file has that of its server.
    is_earlier = 0.0 < dump.newest_s < began_s or dump.written_s + EARLIER_S < began_s
    return f"written before rank {dump.rank} began" if is_earlier else ""


def _until_now(dump: Dump, rank: Rank | None) -> Dump:
    """Of a rank that has made no progress since, it still says where it is."""
    if rank is None or not rank.alive or rank.moved_ns is None:
        return dump
    offset_ns = rank.time_offset_s * 1e9
    if (rank.moved_ns - offset_ns) / 1e9 > dump.written_s:
        return dump
    until_s = (rank.seen_ns - offset_ns) / 1e9
    return dataclasses.replace(dump, written_s=max(dump.written_s, until_s))


def _dumps_of_run(place: str) -> dict[int, str]:
    """With those that other hosts have sent, where it is the run's own folder of dumps."""
    found = list_dumps(place)
    if os.path.basename(place) == FLIGHTS_FOLDER:
        for host in host_folders(os.path.dirname(place)):
            with contextlib.suppress(OSError):  # it has sent none, or one vanished
                for rank, path in list_dumps(os.path.join(host, FLIGHTS_FOLDER)).items():
                    found[rank] = max(found.get(rank, path), path, key=os.path.getmtime)
    return found


def dumps_in(log_dirs: Sequence[str]) -> str | None:
    """Where the run has written dumps of torch's flight recorder itself."""
    places = (os.path.join(folder, FLIGHTS_FOLDER) for folder in with_hosts(log_dirs))
    return next(filter(os.path.isdir, places), None)


_Read = Dump | Problem | None


def _read_all(files: Mapping[int, str], processes: int) -> list[_Read]:
    """Pickles are read by children: see reader_process."""
    count = processes if len(files) > POOL_ABOVE else 1

    def read(rank: int, path: str) -> _Read:
        if not is_pickle(path):
            return read_dump(rank, path)
        try:
            return cast("_Read", readers.read(path, rank))
        except ReaderError as error:
            return Problem(path, f"not read: {error}")

    with ThreadPoolExecutor(count) as pool, Readers(read_dump, count, bounded=True) as readers:
        return list(pool.map(read, files.keys(), files.values()))


def collectives_as_data(found: Collectives, causes: Sequence[RootCause]) -> FlightRecorderData:
    """As `my_utils.analysis.live.snapshot` describes it. causes: those by the dumps."""
    return {
        "place": found.place,
        "dumps": list(found.dumps),
        "ranks_without_dump": list(found.without_dump),
        "causes": [cause_as_data(cause) for cause in causes],
        "stalled": [_node_as_data(node) for node in found.nodes],
        "stale": sorted(found.still.stale),
        "problems": [problem_as_data(problem) for problem in found.problems],
    }


def problem_as_data(problem: Problem) -> ProblemData:
    return {"file": problem.file, "reason": problem.reason}


def cause_as_data(cause: RootCause) -> CauseData:
    data: CauseData = {
        "kind": cause.kind,
        "ranks": list(cause.ranks),
        "decided": cause.decided,
        "waited_s": cause.waited_s,
        "waiting_directly": list(cause.direct),
        "waiting": list(cause.waiting),
        "reasons": list(cause.reasons),
    }
    if cause.node is not None:
        data["call"] = _node_as_data(cause.node)
    return data


def _node_as_data(node: Node) -> CallData:
    if node.kinds:
        verdict = "different calls"
    else:
        verdict = "never entered" if node.absent else "not finished"
    last = {rank: node.group.calls.get(rank) for rank in node.absent}
    return {
        "group": node.group.name,
        "description": node.group.description,
        "members": list(node.group.members),
        **_call_as_data(node.call),
        "since_ns": node.call.created_ns,
        "verdict": verdict,
        "waiting": sorted([*node.inside, *node.behind]),
        "missing": node.absent,
        "no_dump": node.unknown,
        "unknown": node.unclear,
        "calls": node.kinds,
        "last_calls": {
            str(rank): _call_as_data(calls.newest) if calls and calls.newest else None
            for rank, calls in last.items()
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

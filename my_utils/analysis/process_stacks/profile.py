"""Joins sampled profiles of ranks with their stages by time: where each stage spends its time.

A sample counts for the innermost stage that its thread was in. A stage that had not ended when the
profile was read is not known, and so is one of another thread: such samples have no stage.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ...core.bounded_read import read_whole
from ...profilers.capture.on_demand.control_file import captures_folder
from ..verdict.rank_files import RankStages, find_rank_files, read_rank
from .record import RECORD_BYTES_MAX, Frame, StackRecord, read_record

NO_STAGE = "(no stage)"
OUTLIER_POINTS = 0.10  # a function's share above that of the other ranks
OUTLIER_ERRORS = 3.0  # that the two shares must be apart, in standard errors of their difference
OF_95_PERCENT = 1.96
TIME_PARTS = 20  # of a profile, by which one sees how a share changes with time
OUTLIERS_SHOWN = 5
TOP_SHOWN = 3
_SUFFIX = ".stacks.json"

Interval = tuple[int, int, str]  # begin_ns, end_ns, path
StagesByThread: TypeAlias = dict[int, list[Interval]]


@dataclass(frozen=True)
class Sample:
    """frames: outermost first."""

    rank: int
    tid: int
    is_main: bool
    time_ns: int
    stage: str
    frames: tuple[Frame, ...]


def read_samples(record: StackRecord, log_dirs: Sequence[str]) -> list[Sample]:
    """The samples of a rank's profile in the order of time, each with its stage."""
    found: StagesByThread = {}
    for file_set in find_rank_files(log_dirs, {record.rank})[0]:
        found = stages_around(record, read_rank(file_set))
    return samples_in(record, found)


def samples_in(record: StackRecord, stages: StagesByThread) -> list[Sample]:
    """The same with stages that have been read."""
    by_thread: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for time_ns, tid, stack, _ in record.samples:
        by_thread[tid].append((time_ns, stack))
    found = []
    for tid, moments in by_thread.items():
        names = _joined([time_ns for time_ns, _ in moments], stages.get(tid, []))
        for (time_ns, stack), stage in zip(moments, names, strict=True):
            frames = record.stack(stack)[::-1]
            found.append(Sample(record.rank, tid, tid == record.pid, time_ns, stage, frames))
    return sorted(found, key=lambda sample: (sample.time_ns, sample.tid))


def stages_around(record: StackRecord, read: RankStages) -> StagesByThread:
    """The finished stages of the rank that its samples can be in, by thread and sorted by their
    begin, parents first."""
    found: StagesByThread = defaultdict(list)
    moments = [moment for moment, *_ in record.samples]
    if not moments:
        return found
    stages = read.stages
    here = (stages["begin_ns"] <= max(moments)) & (stages["end_ns"] > min(moments))
    columns = [stages[name][here].tolist() for name in ("begin_ns", "end_ns", "tid", "path")]
    for begin_ns, end_ns, tid, path in zip(*columns, strict=True):
        found[tid].append((begin_ns, end_ns, read.paths[path]))
    for own in found.values():
        own.sort(key=lambda stage: (stage[0], -stage[1]))
    return found


def _joined(times: Iterable[int], stages: Sequence[Interval]) -> Iterator[str]:
    """The innermost stage at each moment; both are sorted."""
    inside: list[Interval] = []
    at = 0
    for time_ns in times:
        while at < len(stages) and stages[at][0] <= time_ns:
            inside.append(stages[at])
            at += 1
        inside = [stage for stage in inside if stage[1] > time_ns]
        yield inside[-1][2] if inside else NO_STAGE


# --- those that `my_utils capture --stacks` has stored in the folders of a run ---


@dataclass
class StoredProfile:
    """The profile of one request. records: a rank each, by its number. problems: what could not be
    read."""

    id: str = ""
    records: list[StackRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def newest_profile(
    log_dirs: Sequence[str | os.PathLike[str]], ranks: Collection[int] | None = None
) -> StoredProfile | None:
    """The newest profile of a rank or more; None if there is none. ranks: only these."""
    files: dict[str, list[Path]] = {}
    for log_dir in log_dirs:
        folder = captures_folder(log_dir)
        is_reachable = os.path.isdir(folder)  # Path.is_dir raises below a folder that is closed
        for path in sorted(folder.glob(f"*{_SUFFIX}")) if is_reachable else ():
            files.setdefault(path.name.partition("__")[0], []).append(path)
    for id in sorted(files, reverse=True):  # an id begins with its time
        found = StoredProfile(id)
        for path in files[id]:
            _add(path, ranks, found)
        if found.records:
            found.records.sort(key=lambda record: record.rank)
            return found
    return None


def _add(path: Path, ranks: Collection[int] | None, found: StoredProfile) -> None:
    try:
        record = read_record(read_whole(path, RECORD_BYTES_MAX, "a profile")[0])
    except (OSError, ValueError) as error:
        found.problems.append(f"the profile {path} cannot be read: {error}")
        return
    is_profile = record.samples and record.kind == "profile" and not record.refused
    if is_profile and (ranks is None or record.rank in ranks):
        found.records.append(record)


# --- files to look at ---


def speedscope(samples: Sequence[Sample], interval_ns: int, name: str) -> str:
    """The file of https://www.speedscope.app: a profile for each stage of each rank."""
    numbers: dict[Frame, int] = {}
    groups: dict[tuple[int, bool, str], list[list[int]]] = defaultdict(list)
    for sample in samples:
        stack = [numbers.setdefault(frame, len(numbers)) for frame in sample.frames]
        groups[sample.rank, sample.is_main, sample.stage].append(stack)
    seconds = interval_ns * 1e-9
    profiles = [
        {
            "type": "sampled",
            "name": f"rank {rank}: {stage}{'' if is_main else ' (other threads)'}",
            "unit": "seconds",
            "startValue": 0,
            "endValue": len(stacks) * seconds,
            "samples": stacks,
            "weights": [seconds] * len(stacks),
        }
        for (rank, is_main, stage), stacks in sorted(
            groups.items(), key=lambda item: (item[0][0], not item[0][1], -len(item[1]))
        )
    ]
    frames = [{"name": frame.function, "file": frame.file, "line": frame.line} for frame in numbers]
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "my_utils",
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return json.dumps(content)


def trace_events(samples: Sequence[Sample], interval_ns: int) -> str:
    """A trace in Chrome's format, which Perfetto opens: a slice for each run of samples that share
    a frame at the same depth, below a slice for the stage."""
    begin_ns = min((sample.time_ns for sample in samples), default=0)
    threads: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        threads[sample.rank, sample.tid].append(sample)
    events: list[dict[str, object]] = []
    for (rank, tid), own in threads.items():
        events.append(
            {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        )
        events += _slices(own, rank, tid, begin_ns, interval_ns)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _slices(
    samples: Sequence[Sample], rank: int, tid: int, begin_ns: int, interval_ns: int
) -> Iterator[dict[str, object]]:
    open_ones: list[tuple[str, int]] = []  # name, since; outermost first
    last_ns = 0
    for sample in samples:
        names = [sample.stage, *(frame_title(frame) for frame in sample.frames)]
        is_next = sample.time_ns - last_ns <= 2 * interval_ns
        shared = shared_names([name for name, _ in open_ones], names) if is_next else 0
        end_ns = min(last_ns + interval_ns, sample.time_ns)
        yield from _closed(open_ones[shared:], end_ns, rank, tid, begin_ns)
        open_ones = [*open_ones[:shared], *((name, sample.time_ns) for name in names[shared:])]
        last_ns = sample.time_ns
    yield from _closed(open_ones, last_ns + interval_ns, rank, tid, begin_ns)


def shared_names(before: Sequence[str], now: Sequence[str]) -> int:
    """How many names both begin with."""
    pairs = zip(before, now, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(now)))


def _closed(
    items: Sequence[tuple[str, int]], end_ns: int, rank: int, tid: int, begin_ns: int
) -> Iterator[dict[str, object]]:
    for name, since_ns in items:
        yield {
            "ph": "X", "pid": rank, "tid": tid, "name": name,
            "ts": (since_ns - begin_ns) / 1000, "dur": max(0, end_ns - since_ns) / 1000,
        }  # fmt: skip


def frame_title(frame: Frame) -> str:
    """The function and the name of its file."""
    return f"{frame.function} {frame.file.rpartition('/')[2]}"


# --- text ---


def share_lines(samples: Sequence[Sample]) -> Iterator[str]:
    """First the functions in which one rank spends much more of a stage than the others do, then
    what each stage spends its time in, over all ranks. Of first threads alone."""
    stages = by_stage(samples)
    for stage, by_rank in stages.items():
        yield from outlier_lines(stage, by_rank)
    for stage, by_rank in stages.items():
        own = [sample for ranks in by_rank.values() for sample in ranks]
        leaves = Counter(frame_title(sample.frames[-1]) for sample in own if sample.frames)
        top = ", ".join(
            f"{count / len(own):.0%} {name}" for name, count in leaves.most_common(TOP_SHOWN)
        )
        yield f"{stage} ({len(own)} samples): {top}"


def by_stage(samples: Iterable[Sample]) -> dict[str, dict[int, list[Sample]]]:
    """Those of first threads by stage and rank, the stage with most samples first."""
    stages: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.is_main:
            stages[sample.stage][sample.rank].append(sample)
    counts = {stage: sum(map(len, by_rank.values())) for stage, by_rank in stages.items()}
    return {stage: dict(stages[stage]) for stage in sorted(counts, key=lambda one: -counts[one])}


def function_shares(samples: Sequence[Sample]) -> dict[str, float]:
    """In which share of the samples a function is, itself or what it calls."""
    found: Counter[str] = Counter()
    for sample in samples:
        found.update({frame_title(frame) for frame in sample.frames})
    return {name: count / len(samples) for name, count in found.items()}


def outlier_lines(stage: str, by_rank: Mapping[int, Sequence[Sample]]) -> Iterator[str]:
    """The functions in which one rank spends much more of the stage than the others do, each share
    with its interval of 95 %. Of a chain of functions that stand out together, the innermost is
    named. What is in no stage is of many kinds: nothing is said of it."""
    if len(by_rank) < 2 or stage == NO_STAGE:
        return
    shares = {rank: function_shares(samples) for rank, samples in by_rank.items()}
    found = []
    for rank, own in shares.items():
        depth = _depths(by_rank[rank])
        others = [other for other in shares if other != rank]
        count = statistics.median_low(len(by_rank[other]) for other in others)
        for name, share in own.items():
            usual = statistics.median(shares[other].get(name, 0.0) for other in others)
            if share - usual < OUTLIER_POINTS:
                continue
            error = _standard_error(name, share, by_rank[rank])
            if share - usual >= OUTLIER_ERRORS * math.hypot(error, _least_error(usual, count)):
                found.append(
                    (round(share - usual, 2), depth[name], rank, name, share, usual, error)
                )
    named: set[int] = set()
    for _, _, rank, name, share, usual, error in sorted(found, reverse=True):
        if rank not in named and len(named) < OUTLIERS_SHOWN:
            named.add(rank)
            yield (
                f"rank {rank} spends {share:.0%} ± {OF_95_PERCENT * error:.0%} of `{stage}` in "
                f"`{name}`, the others {usual:.0%}"
            )


def _standard_error(name: str, share: float, samples: Sequence[Sample]) -> float:
    """The standard error of a function's share. Samples that follow each other are often of one
    call, so it is that between equal parts of the time, if that is larger."""
    begin_ns = min(sample.time_ns for sample in samples)
    part_ns = (max(sample.time_ns for sample in samples) - begin_ns) / TIME_PARTS + 1
    apart: dict[int, float] = defaultdict(float)
    for sample in samples:
        is_in = any(frame_title(frame) == name for frame in sample.frames)
        apart[int((sample.time_ns - begin_ns) / part_ns)] += is_in - share
    squares = sum(one**2 for one in apart.values())
    between = math.sqrt(squares * len(apart) / max(len(apart) - 1, 1)) / len(samples)
    return max(between, _least_error(share, len(samples)))


def _least_error(share: float, count: int) -> float:
    """Of `count` samples that do not depend on each other (Agresti and Coull's, which is not 0 for
    a share of 0).

    >>> round(_least_error(0.4, 100), 3), round(_least_error(0.0, 4), 3)
    (0.048, 0.153)
    """
    near = (share * count + 2) / (count + 4)
    return math.sqrt(near * (1 - near) / (count + 4))


def _depths(samples: Sequence[Sample]) -> dict[str, int]:
    found: dict[str, int] = {}
    for sample in samples:
        for depth, frame in enumerate(sample.frames):
            name = frame_title(frame)
            found[name] = max(found.get(name, 0), depth)
    return found

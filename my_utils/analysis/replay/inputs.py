"""The verdict on any files, and which of them hold operations; readers are imported when needed."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...core.arguments import check_int
from ...core.run_files.newest import is_run
from ...core.run_files.run_file import RUN_FILE
from ..timeline.timeline import Timeline, timeline_of
from ..verdict.causes import causes_of, causes_of_all
from ..verdict.finding_causes import KINDS, host_of, known_part
from ..verdict.load import NothingToJudge, load_run
from ..verdict.loss import LEAST_SHARE
from ..verdict.result import Verdict
from ..verdict.rules import judge as judge_by_rules, set_throughput, slower_ranks_of
from ..verdict.run_data import RunData
from ..verdict.shown import about
from .operations import Operations
from .result import ReplayFinding, ReplayVerdict
from .table_files import SUFFIXES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ledger.read import LedgerReader

TRACES = (".json", ".json.gz")
NSYS = (".sqlite",)
OF_A_RUN = ("heartbeat.json", "state.json")


def holds_operations(paths: Sequence[str]) -> bool:
    """Whether this is a table of operations, a folder of traces, or Nsight's databases, and not
    the files of a run."""
    return bool(paths) and all(_kind_of(path) for path in paths)


def traces_in(paths: Sequence[str]) -> list[str]:
    """The traces of torch.profiler that were named, or are in folders that were."""
    return _files_in([path for path in paths if _kind_of(path) == "traces"], TRACES)


def read_operations(paths: str | Sequence[str]) -> Operations:
    """Reads the operations of a run from files of other tools.

    paths: one table (CSV or Parquet), or folders and files of torch.profiler's traces, one a rank,
    or databases of Nsight Systems, one a rank. Only the columns stay in memory.

    Raises ValueError for a file that holds no operations, OSError for a table or a database that
    cannot be read, and ImportError where pyarrow is needed and absent. A trace that cannot be read
    is left out, and a note says so; ValueError where no other is left. Thread-safe.
    """
    names = [paths] if isinstance(paths, str) else list(paths)
    kinds = {_kind_of(name) for name in names}
    if kinds == {"table"} and len(names) == 1:
        from .read_table import read_table

        return read_table(names[0])
    if kinds == {"traces"}:
        from .read_traces import read_traces

        return read_traces(_files_in(names, TRACES))
    if kinds == {"nsys"}:
        from .read_nsys import read_nsys

        return read_nsys(_files_in(names, NSYS))
    raise ValueError(
        f"paths must be one table of operations, or traces alone, or Nsight's databases alone, "
        f"not {names!r}"
    )


def judge(
    run: RunData, warmup: int | None = None, within: tuple[int, int] | None = None
) -> Verdict:
    """What bounds a run: by replay where its ranks recorded that they meet inside a stage, else by
    the rules.

    warmup: how many steps at the beginning are left out; by default those that clearly take longer,
    see `docs/runs/verdict.md`. within: of the rest only these steps, a half-open range.
    Thread-safe; the run is not changed.

    Raises TypeError and ValueError for a warmup that is not a whole number from 0 up.

    >>> from my_utils.analysis.why import RunData, judge
    >>> import numpy as np
    >>> step_ns = np.full((1, 50), 10e6)
    >>> begins = np.cumsum(step_ns, axis=1) - step_ns
    >>> run = RunData(
    ...     ranks=np.array([0]), hosts=["a"], world_size=1, steps=np.arange(50),
    ...     stages=["input", "forward"], step_begins=begins, step_ns=step_ns,
    ...     begins=np.stack([begins, begins + 6e6], axis=2),
    ...     ends=np.stack([begins + 6e6, begins + 10e6], axis=2),
    ...     totals=np.full((1, 50, 2), [6e6, 4e6]),
    ... )
    >>> verdict = judge(run)
    >>> verdict.status, verdict.findings[0].kind, round(verdict.findings[0].share, 2)
    ('found', 'input', 0.6)
    """
    if warmup is not None:
        check_int("warmup", operator.index(warmup), 0)
    return _replayed(run, warmup, within) or judge_by_rules(run, warmup, within)


def _replayed(run: RunData, warmup: int | None, within: tuple[int, int] | None) -> Verdict | None:
    """None where nothing was recorded for a replay, or it does not give the measured steps."""
    if not any(one.meets_inside for one in run.recorded):
        return None
    from .judge import judge_operations
    from .read_run import operations_of_run

    operations = operations_of_run(run.recorded)
    if operations is None:
        return None
    steps = run.steps
    if within is not None:
        steps, warmup = steps[(steps >= within[0]) & (steps < within[1])], 0
    operations = operations.kept(np.isin(operations.step, steps))
    workers = run.workload.get("num_workers", "")
    operations.num_workers = int(workers) if workers.isdecimal() else None
    operations.world_size = run.world_size
    verdict = judge_operations(operations, run.paths, warmup, LEAST_SHARE)
    if verdict.status == "not judged":
        return None
    verdict.command, verdict.running = tuple(run.command), run.running
    verdict.ending = run.ending
    _add_recorded_causes(run, verdict)
    verdict.attempts, verdict.older_attempts = run.attempts, run.older_attempts
    verdict.notes += run.problems
    judged = (run.steps >= (verdict.first_step or 0)) & (run.steps <= (verdict.last_step or 0))
    columns = np.flatnonzero(judged & np.isfinite(run.step_ns).all(0))
    set_throughput(verdict, run, columns)
    verdict.findings += slower_ranks_of(run, columns, verdict.findings)
    return verdict


def _add_recorded_causes(run: RunData, verdict: ReplayVerdict) -> None:
    """Adds "causes", and "cause" where one has half of the time, to the findings."""
    first, last = verdict.first_step or 0, verdict.last_step or 0
    columns = np.flatnonzero((run.steps >= first) & (run.steps <= last))
    for one in verdict.findings:
        is_known = one.kind in (*KINDS, "host hiccups") and one.since_step is None
        if not is_known or not isinstance(one, ReplayFinding):
            continue
        host, rows = host_of(run, one.ranks, columns)
        cost_ns = one.saves_ns_a_step
        if one.steps and len(one.steps) < verdict.judged_steps:
            there = np.isin(run.steps[columns], one.steps)
            each_ns = cost_ns * verdict.judged_steps / len(one.steps)
            found = causes_of(host, np.tile(np.where(there, each_ns, 0.0), (len(rows), 1)))
        else:
            found = causes_of_all(host, cost_ns, verdict.step_ns)
        one.detail |= known_part(found)


def verdict_of(
    paths: str | Sequence[str],
    ranks: set[int] | None = None,
    steps: tuple[int, int] | None = None,
    warmup: int | None = None,
    ledger: LedgerReader | None = None,
    newest_bytes: int | None = None,
    whole: bool = False,
) -> Verdict:
    """The verdict of `answer_of`."""
    return answer_of(paths, ranks, steps, warmup, ledger, newest_bytes, whole).verdict


class Answer(NamedTuple):
    """What bounds a run. timeline: when what held; None where nothing is judged, and for files of
    other tools."""

    verdict: Verdict
    timeline: Timeline | None = None


def answer_of(
    paths: str | Sequence[str],
    ranks: set[int] | None = None,
    steps: tuple[int, int] | None = None,
    warmup: int | None = None,
    ledger: LedgerReader | None = None,
    newest_bytes: int | None = None,
    whole: bool = False,
) -> Answer:
    """The answer on a run, or on files of other tools.

    paths, steps, newest_bytes, whole: as for `load_run`; warmup: as for `judge`. ranks: the run is
    judged whole, and of the findings those are kept that concern these ranks. ledger: takes the
    rows of all ranks of a run, too. Operations are replayed: those in files of other tools, and
    those of a run whose ranks meet inside a stage. All else is judged by the rules. "not judged"
    with the reason where nothing can be read. Thread-safe.
    """
    names = [paths] if isinstance(paths, str) else list(paths)
    if holds_operations(names):
        return Answer(_of_other_files(names, ranks, steps, warmup))
    try:
        on_rank = None if ledger is None else ledger.add
        run = load_run(names, None, steps, on_rank=on_rank, newest_bytes=newest_bytes, whole=whole)
    except NothingToJudge as error:
        reason, *more = str(error).splitlines()
        return Answer(Verdict("not judged", reason=reason, notes=more, paths=tuple(names)))
    if ledger is not None:
        ledger.choose(run)
    answer = answer_on(run, warmup)
    if ranks is None:
        return answer
    return answer._replace(verdict=about(answer.verdict, ranks, run.ranks.tolist()))


def answer_on(run: RunData, warmup: int | None = None) -> Answer:
    """The verdict on a run, and its parts. Where nothing stands out in all steps together, it is
    the verdict on the part that loses most: what some steps lose is little in all of them."""
    verdict = judge(run, warmup)
    if verdict.status == "not judged":
        return Answer(verdict)
    timeline = timeline_of(run, lambda run, steps: judge(run, warmup, steps), warmup)
    if verdict.status == "ok" and timeline.worst is not None:
        verdict = replace(timeline.worst.verdict, warmup=verdict.warmup)
    return Answer(verdict, timeline)


def _of_other_files(
    paths: Sequence[str], ranks: set[int] | None, steps: tuple[int, int] | None, warmup: int | None
) -> Verdict:
    from .judge import judge_operations

    try:
        operations = chosen_operations(paths, None, steps)
    except (OSError, ValueError, ImportError) as error:
        return ReplayVerdict("not judged", reason=str(error), paths=tuple(paths))
    verdict = judge_operations(operations, paths, warmup)
    there = np.unique(operations.rank).tolist()
    return verdict if ranks is None else about(verdict, ranks, there)


def chosen_operations(
    paths: Sequence[str], ranks: Collection[int] | None, steps: tuple[int, int] | None
) -> Operations:
    """Those of these ranks and steps, None for all; raises as `read_operations`."""
    operations = read_operations(paths)
    if ranks is not None:
        operations = operations.kept(np.isin(operations.rank, sorted(ranks)))
    if steps is not None:
        kept = (operations.step >= steps[0]) & (operations.step < steps[1])
        operations = operations.kept(kept)
    return operations


def _kind_of(path: str) -> str:
    if os.path.isdir(path):
        try:
            if _files_in([path], TRACES) and not is_run(path):
                return "traces"
            return "nsys" if _files_in([path], NSYS) else ""
        except OSError:
            return ""  # a run, and its reader says why that fails
    if not os.path.exists(path):
        return ""
    if not os.path.isfile(path):  # a profile CSV may be a pipe, and nothing else
        return "nsys" if path.endswith(NSYS) else "table" if path.endswith(".parquet") else ""
    if path.endswith(SUFFIXES):
        from .read_table import has_operations

        try:
            return "table" if has_operations(path) else ""
        except (OSError, ValueError):
            return ""
        except ImportError:
            return "table"  # its reader says what has to be installed
    if path.endswith(TRACES):
        return "traces"
    return "nsys" if path.endswith(NSYS) else ""


def _files_in(paths: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    """Files of that kind, in folders not those that a run keeps there."""
    found = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        for name in sorted(os.listdir(path)):
            file = os.path.join(path, name)
            if name.endswith(suffixes) and not name.endswith(OF_A_RUN) and name != RUN_FILE:
                found += [file] if os.path.isfile(file) else []  # a FIFO has no end
    return found

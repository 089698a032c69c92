"""The verdict on any files, and which of them hold operations; readers are imported when needed."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import numpy as np

from ...core.run_files.newest import is_run
from ...core.run_files.run_file import RUN_FILE
from ..verdict.result import Verdict
from ..verdict.shown import about
from .operations import Operations
from .result import ReplayVerdict
from .run_answer import Answer, answer_of_run
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
    return bool(paths) and all(_detect_kind(path) for path in paths)


def traces_in(paths: Sequence[str]) -> list[str]:
    """The traces of torch.profiler and the databases of Nsight Systems that were named, or are in
    folders that were."""
    kinds = {path: _detect_kind(path) for path in paths}
    traces = _files_in([path for path in paths if kinds[path] == "traces"], TRACES)
    return traces + _files_in([path for path in paths if kinds[path] == "nsys"], NSYS)


def read_operations(paths: str | Sequence[str]) -> Operations:
    """Reads the operations of a run from files of other tools.

    paths: one table (CSV or Parquet), or folders and files of torch.profiler's traces, one a rank,
    or databases of Nsight Systems, one a rank. Only the columns stay in memory.

    Raises ValueError for a file that holds no operations, OSError for a table or a database that
    cannot be read, and ImportError where pyarrow is needed and absent. A trace that cannot be read
    is left out, and a note says so; ValueError where no other is left. Thread-safe.
    """
    names = [paths] if isinstance(paths, str) else list(paths)
    kinds = {_detect_kind(name) for name in names}
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


def answer_of(
    paths: str | Sequence[str],
    ranks: set[int] | None = None,
    steps: tuple[int, int] | None = None,
    warmup: int | None = None,
    ledger: LedgerReader | None = None,
    newest_bytes: int | None = None,
    whole: bool = False,
    at: int | None = None,
) -> Answer:
    """The answer on a run, or on files of other tools.

    The arguments are those of `answer_of_run`. Operations in files of other tools are replayed.
    "not judged" with the reason where nothing can be read. Thread-safe.
    """
    names = [paths] if isinstance(paths, str) else list(paths)
    if holds_operations(names):
        return Answer(_of_other_files(names, ranks, steps, warmup))
    return answer_of_run(names, ranks, steps, warmup, ledger, newest_bytes, whole, at)


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


def _detect_kind(path: str) -> str:
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
        names = [name for name in os.listdir(path) if name.endswith(suffixes)]
        for name in sorted(names):
            if not name.endswith(OF_A_RUN) and name != RUN_FILE:
                file = os.path.join(path, name)
                found += [file] if os.path.isfile(file) else []  # a FIFO has no end
    return found

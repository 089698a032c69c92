"""Which files hold operations, and the verdict on them; the readers are imported when needed."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ..run_files.newest import is_run
from .operations import Operations
from .result import ReplayVerdict
from .table_files import is_table

TRACES = (".json", ".json.gz")
NSYS = (".sqlite",)


def holds_operations(paths: Sequence[str]) -> bool:
    """Whether this is a table of operations, a folder of traces, or Nsight's databases, and not
    the files of a run."""
    return bool(paths) and all(_kind_of(path) for path in paths)


def read_operations(paths: str | Sequence[str]) -> Operations:
    """The operations of a run in files of other tools.

    paths: one table (CSV or Parquet), or folders and files of torch.profiler's traces, one a rank,
    or databases of Nsight Systems, one a rank. In memory are the columns alone.

    Raises ValueError for a file that holds no operations, OSError where it cannot be read, and
    ImportError where pyarrow is needed and absent. Thread-safe.
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


def verdict_of_files(
    paths: Sequence[str], ranks: set[int] | None = None, steps: tuple[int, int] | None = None,
    warmup: int | None = None,
) -> ReplayVerdict:  # fmt: skip
    """The verdict by replay; "not judged" with the reason where nothing can be read."""
    from .judge import judge_operations

    try:
        operations = read_operations(paths)
    except (OSError, ValueError, ImportError) as error:
        return ReplayVerdict("not judged", reason=str(error), paths=tuple(paths))
    if ranks is not None:
        operations = operations.kept(np.isin(operations.rank, sorted(ranks)))
    if steps is not None:
        first, last = steps
        operations = operations.kept((operations.step >= first) & (operations.step < last))
    return judge_operations(operations, paths, warmup)


def _kind_of(path: str) -> str:
    if os.path.isdir(path):
        if _files_in([path], TRACES) and not is_run(path):
            return "traces"
        return "nsys" if _files_in([path], NSYS) else ""
    if is_table(path):
        from .read_table import has_operations

        try:
            return "table" if has_operations(path) else ""
        except (OSError, ValueError):
            return ""
    if path.endswith(TRACES) and os.path.isfile(path):
        return "traces"
    return "nsys" if path.endswith(NSYS) and os.path.isfile(path) else ""


def _files_in(paths: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    """Files of that kind, in folders not those that a run keeps there (heartbeats, states)."""
    found = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        for name in sorted(os.listdir(path)):
            if name.endswith(suffixes) and not name.endswith(("heartbeat.json", "state.json")):
                found.append(os.path.join(path, name))
    return found

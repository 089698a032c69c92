"""Profiles a block when an environment variable names its task, with figures of chosen operators.

>>> import os, tempfile, torch
>>> os.environ["PROFILE_TASK_TYPES"] = "DIT, VAE"
>>> folder = tempfile.TemporaryDirectory()
>>> with create_profiler_context(
...     "DIT", ops_to_analyze={"aten::mm": "self_cuda_time_total"}, output=folder.name
... ) as profiler:
...     _ = torch.ones(8, 8) @ torch.ones(8, 8)
>>> [path.name for path in profiler.paths]
['DIT__rank0_trace.json', 'DIT__rank0_summary.txt', 'DIT__rank0_operators.json']
>>> with create_profiler_context("text encoder") as profiler:
...     print(profiler)
None
>>> folder.cleanup()
>>> del os.environ["PROFILE_TASK_TYPES"]
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ...core.arguments import check_bool, check_int, check_logger, check_path, check_str
from ...core.file_names import file_name, numbered
from ...core.files import atomic_write
from ...core.public import public
from ...core.ranks import check_ranks, current_rank, is_chosen, own_name
from ...core.reprs import short_repr
from ...core.tables import write_text
from .operator_figures import analysis, check_figure, check_operators, operator_table
from .torch_profile import (
    TorchProfile,
    check_activities,
    device_time,
    export_trace,
    on_this_machine,
    tolerated,
    write_each,
)

VARIABLE = b"PROFILE_TASK_TYPES"

_logger = logging.getLogger("my_utils")
_off: contextlib.nullcontext[None] = contextlib.nullcontext()
# What os.environ keeps, by bytes. Its own `get` of a variable that is not set raises and catches an
# exception, which takes longer than all the rest of a block that is not profiled.
_environment: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)


@functools.lru_cache(maxsize=8)
def _tasks(listed: bytes) -> frozenset[str]:
    """The tasks of the variable's value."""
    return frozenset(filter(None, map(str.strip, os.fsdecode(listed).split(","))))


def create_profiler_context(
    current_task_type: str,
    logger: logging.Logger | None = None,
    ops_to_analyze: Mapping[str, str] | Iterable[str] | None = None,
    **options: Any,
) -> FlexibleProfiler | contextlib.nullcontext[None]:
    """A context that profiles its block if `PROFILE_TASK_TYPES` lists `current_task_type`.

    The variable is a list with commas, such as `PROFILE_TASK_TYPES=DIT,VAE`; blanks around its
    parts are ignored, case matters. It is read at each call. Where the task is not listed the
    context does nothing, `as` gives None, the other arguments are ignored and torch is not
    imported.

    Where it is listed, `as` gives a `FlexibleProfiler`; see there for the arguments and the files.
    """
    if _environment is None:
        listed = os.environb.get(VARIABLE)
    else:
        listed = _environment.get(VARIABLE)
    if not listed or current_task_type not in _tasks(listed):
        return _off
    return FlexibleProfiler(current_task_type, logger, ops_to_analyze, **options)


@public("my_utils.DITProfiler")
class FlexibleProfiler:
    """Profiles its `with` blocks: a trace, a summary and an analysis of chosen operators for each.

    task_type: the name of the work, which the files' names begin with.
    logger: takes the summary, the logger "my_utils" by default.
    ops_to_analyze: operators by name, each with the figure that its statistics are of:
        {"aten::matmul": "self_cuda_time_total"}. Figures have the names of torch's tables, old ones
        with `cuda` included. Names alone get the time on the device itself. A figure without
        children ("self_…") does not hold what an operator calls: `aten::matmul` calls `aten::mm`.
    output: where the files go; created if missing.
    ranks: which ranks profile: an int or several; None means all.
    record_shapes, with_stack, profile_memory, activities: as for `torch.profiler.profile`; the
        first two are on, as the analysis lists them for each call.
    row_limit, sort_by: of the summary; None means time on the device itself.
    calls_max: how many calls of an operator are listed; statistics are of all.
    enabled: False makes it do nothing.

    | File | |
    |---|---|
    | `<task>__rank<rank>_trace.json` | Chrome trace |
    | `<task>__rank<rank>_summary.txt` | the table of operators that is logged, too |
    | `<task>__rank<rank>_operators.json` | each call of `ops_to_analyze`: shapes, durations, stack;
      statistics of all and by shape |

    What is not a letter, digit or one of `._+-` in the task becomes `_`, and a long one is cut,
    with a digest at its end. Where files of that name are there, all three are numbered:
    `DIT__rank0.2_trace.json`. `paths` lists what the last block wrote. Without device time the
    figures of the CPU are used, and the files say so.

    An exception of the block is not caught, and the files contain everything until then.
    While another profiler runs, the block runs unprofiled, with a warning; so does a block inside a
    block. Trouble in writing is one warning. A forked child writes nothing for a block of its
    parent. One that is open when the process exits is written then.

    TypeError and ValueError at once for wrong arguments. Not for use from several threads at once;
    each may have its own, and the first one profiles.
    """

    def __init__(
        self,
        task_type: str,
        logger: logging.Logger | None = None,
        ops_to_analyze: Mapping[str, str] | Iterable[str] | None = None,
        *,
        output: str | os.PathLike[str] = ".",
        ranks: int | Iterable[int] | None = None,
        record_shapes: bool = True,
        with_stack: bool = True,
        profile_memory: bool = False,
        activities: Iterable[Any] | None = None,
        row_limit: int = 20,
        sort_by: str | None = None,
        calls_max: int = 10_000,
        enabled: bool = True,
    ) -> None:
        if not check_str("task_type", task_type):
            raise ValueError("task_type must not be empty")
        check_logger("logger", logger)
        self.task_type = task_type
        self.logger = _logger if logger is None else logger
        self.ops_to_analyze = check_operators("ops_to_analyze", ops_to_analyze)
        self.output = check_path("output", output)
        self.row_limit = check_int("row_limit", row_limit, 1)
        self.sort_by = check_figure("sort_by", sort_by or "self_device_time_total")
        self.calls_max = check_int("calls_max", calls_max, 1)
        self.enabled = check_bool("enabled", enabled)
        self.paths: list[Path] = []
        self._ranks = check_ranks("ranks", ranks)
        self._options: dict[str, Any] = {
            "activities": check_activities(activities),
            "record_shapes": check_bool("record_shapes", record_shapes),
            "with_stack": check_bool("with_stack", with_stack),
            "profile_memory": check_bool("profile_memory", profile_memory),
        }
        self._blocks: list[TorchProfile] = []

    def __repr__(self) -> str:
        return short_repr(self, "task_type", "output", "enabled")

    @property
    def profiler(self) -> Any:
        """The `torch.profiler.profile` of the innermost open block, or None."""
        return next((block.profiler for block in self._blocks[::-1] if block.running), None)

    @property
    def _owner(self) -> str:
        return f"FlexibleProfiler {self.task_type!r}"

    def __enter__(self) -> FlexibleProfiler:
        block = TorchProfile(self._owner, self._write, **self._options)
        self._blocks.append(block)
        if self.enabled and is_chosen(self._ranks):
            with tolerated(self._owner, "the profiler could not be started"):
                block.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with tolerated(self._owner, "nothing could be written"):
            self._blocks.pop().stop()

    def _write(self, profile: TorchProfile) -> None:
        self.paths = []
        stem = self._free_stem()
        writers: list[Callable[[Any, Path], object]]
        writers = [export_trace, self._write_summary]
        if self.ops_to_analyze:
            writers.append(self._write_analysis)
        files = {
            self.output / f"{stem}_{suffix}": functools.partial(write, profile.profiler)
            for suffix, write in zip(_SUFFIXES, writers, strict=False)
        }
        self.paths = write_each(self._owner, files)

    def _free_stem(self) -> str:
        """A beginning of names that no file here has."""
        self.output.mkdir(parents=True, exist_ok=True)
        taken = set(os.listdir(self.output))
        own = own_name()
        name = file_name(self.task_type)
        if own != f"rank_{current_rank()}":  # an actor of Ray, of which many share the folder
            name = f"{name}_{own}"
        return next(
            stem
            for stem in numbered(name)
            if taken.isdisjoint(f"{stem}_{suffix}" for suffix in _SUFFIXES)
        )

    def _write_summary(self, profiler: Any, path: Path) -> None:
        on_device = device_time(profiler)
        key = on_this_machine(self.sort_by, on_device)
        table = operator_table(profiler, key, self.row_limit, self._options["record_shapes"])
        where = "" if on_device else " (no GPU time was seen)"
        text = f"{self.task_type}, rank {current_rank()}: operators by {key}{where}\n{table}"
        write_text(path, text if text.endswith("\n") else f"{text}\n")
        self.logger.info("%s", text)

    def _write_analysis(self, profiler: Any, path: Path) -> None:
        header = {"task_type": self.task_type, "rank": current_rank(), "written_unix": time.time()}
        found = analysis(profiler, self.ops_to_analyze, self.calls_max)
        with atomic_write(path) as file:
            file.write(json.dumps({**header, **found}, indent=1).encode())


_SUFFIXES = ("trace.json", "summary.txt", "operators.json")

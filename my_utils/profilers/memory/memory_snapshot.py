"""Snapshots of the CUDA allocator between two points of a program.

    from my_utils.memory_snapshot import global_snapshotter

    global_snapshotter.start("step")
    global_snapshotter.start("forward")
    loss = model(batch)
    global_snapshotter.stop("forward")     # writes forward__<timestamp>__rank<rank>.pt
    loss.backward()
    global_snapshotter.stop("step")

With ENABLE_MEMORY_SNAPSHOT=1 in the environment each `stop` writes a file for
https://pytorch.org/memory_viz; without it the calls do nothing. How to read it is described in
docs/memory/where-does-the-memory-go.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from ...core.aliases import renamed_parameters
from ...core.arguments import check_logger, check_path, check_str
from ...core.environment import switch_at_import
from ...core.file_names import file_name, free_path
from ...core.identity import identity
from ...core.process_end import OpenObjects
from ...core.public import public
from ...core.ranks import check_ranks, current_rank, is_chosen
from ...core.reprs import short_repr
from .memory_history import Context, Recording, Stacks, check_options, record

StrPath = str | os.PathLike[str]

_logger = logging.getLogger("my_utils")


@public("my_utils.memory_snapshot")
class MemorySnapshotter:
    """Records what the CUDA allocator does, and writes a snapshot at each `stop`.

    Spans may be nested, and may end in any order. Recording continues from the first `start` to the
    last `stop`; each snapshot holds the allocator's events since its own `start`, with their
    stacks, and the memory as it is at its `stop`. The file is `<name>__<timestamp>__rank<rank>.pt`,
    a pickle for https://pytorch.org/memory_viz and `pickle.load` (not for `torch.load`), whole or
    not there.

    output: created if missing. None is the `log_dir` of GlobalLogger if it is set up, else the
        current directory, at the time of `stop`.
    max_entries: events that are kept at most, the newest; each takes some KB with its stack.
    ranks: the ranks that record; None is all.
    context: which stacks are kept: "all", "alloc" (not of frees), "state" (only of what is still
        allocated) or None.
    stacks: "all" has the frames of C++ too, "python" is quicker and smaller.

    What is still open is written by `close`, at the end of a block `with snapshotter:`, and when
    the process ends. A forked child has nothing open.
    Without CUDA the first `start` warns, and nothing is written. A later problem (a full disk)
    gives a warning, and the training continues. The options hold for the whole recording: while
    another one runs, of this class or of `MemorySnapshotBackend`, those of the first count.

    Raises TypeError and ValueError for wrong arguments. Thread-safe.

    >>> snapshotter = MemorySnapshotter("snapshots", max_entries=10_000, ranks=0)
    >>> with snapshotter.span("forward"):  # doctest: +SKIP
    ...     loss = model(batch)
    >>> snapshotter.paths  # doctest: +SKIP
    [PosixPath('snapshots/forward__20260131_120000_000000__rank0.pt')]
    """

    @renamed_parameters(save_dir="output")
    def __init__(
        self,
        output: StrPath | None = None,
        *,
        max_entries: int = 100_000,
        ranks: int | Iterable[int] | None = None,
        context: Context = "all",
        stacks: Stacks = "all",
    ) -> None:
        if output is not None:
            output = check_path("output", output, or_none=True).absolute()
        check_options(max_entries, context, stacks)
        self.output = output
        self.max_entries = max_entries
        self.ranks = check_ranks("ranks", ranks)
        self.context: Context = context
        self.stacks: Stacks = stacks
        self.paths: list[Path] = []
        """The files written so far."""
        self._lock = threading.RLock()
        self._open: dict[str, Recording | None] = {}
        self._warned = False
        self._logger = _logger

    def set_logger(self, logger: logging.Logger | None) -> None:
        """The logger of this snapshotter's warnings; None means the package's."""
        check_logger("logger", logger)
        self._logger = _logger if logger is None else logger

    def __repr__(self) -> str:
        return short_repr(self, "output", "max_entries", "open_names")

    def start(self, name: str) -> None:
        """Begins a span. One of this name that is open already stays as it is, with a warning."""
        _check_name(name)
        with self._lock:
            if name in self._open:
                self._logger.warning("memory snapshot %r is being taken already", name)
            elif is_chosen(self.ranks):
                self._open[name] = self._record(name)
                _with_open.add(self)

    def _record(self, name: str) -> Recording | None:
        """None if nothing can be recorded; that is said once."""
        if self._warned:
            return None
        recording = None
        try:
            recording = record(
                f"memory snapshot {name!r}",
                max_entries=self.max_entries,
                context=self.context,
                stacks=self.stacks,
            )
        except Exception as error:
            self._logger.warning("memory snapshot %r: torch cannot record: %s", name, error)
        self._warned = recording is None
        return recording

    def stop(self, name: str) -> Path | None:
        """Ends a span and writes its snapshot; returns the path, None if nothing was written.

        A name that is not open is a warning.
        """
        _check_name(name)
        with self._lock:
            if name in self._open:
                recording = self._open.pop(name)
                if not self._open:
                    _with_open.discard(self)
                return None if recording is None else self._end(name, recording)
            if is_chosen(self.ranks):
                self._logger.warning("memory snapshot %r was not started", name)
            return None

    def _end(self, name: str, recording: Recording) -> Path | None:
        try:
            path = recording.save(self._path(name))
            self.paths.append(path)
            return path
        except Exception as error:
            self._logger.warning("memory snapshot %r could not be written: %s", name, error)
            return None
        finally:
            try:
                recording.end()
            except Exception as error:
                self._logger.warning(
                    "torch's recording of allocations could not be ended: %s", error
                )

    def _path(self, name: str) -> Path:
        stamp = datetime.fromtimestamp(time.time()).strftime("%Y%m%d_%H%M%S_%f")
        return free_path(self._folder(), file_name(name, current_rank(), stamp=stamp), ".pt")

    def _folder(self) -> Path:
        if self.output is not None:
            return self.output
        known = identity()
        return Path.cwd() if known is None else Path(known.log_dir)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """`start` and `stop` around a block; the snapshot is also written when the block raises,
        such as when it runs out of memory."""
        self.start(name)
        try:
            yield
        finally:
            self.stop(name)

    @property
    def open_names(self) -> tuple[str, ...]:
        """The spans that are open, the oldest first."""
        with self._lock:
            return tuple(self._open)

    def close(self) -> None:
        """Ends what is open, the innermost first, as the end of the process does."""
        for name in reversed(self.open_names):
            self.stop(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._open.clear()


@public("my_utils.memory_snapshot")
class NoOpMemorySnapshotter(MemorySnapshotter):
    """Takes every call of MemorySnapshotter and does nothing; `paths` stays empty.

    >>> snapshotter = NoOpMemorySnapshotter()
    >>> snapshotter.start("forward")
    >>> snapshotter.stop("forward") is None
    True
    """

    def __repr__(self) -> str:
        return short_repr(self)

    def start(self, name: str) -> None:
        """Does nothing."""

    def stop(self, name: str) -> Path | None:
        """Does nothing."""
        return None


def _check_name(name: object) -> None:
    if not check_str("name", name):
        raise ValueError("name must not be empty")


_with_open: OpenObjects[MemorySnapshotter] = OpenObjects(
    close=lambda snapshotter: snapshotter.close(), forget=lambda snapshotter: snapshotter._forget()
)


def make_global_snapshotter() -> MemorySnapshotter | NoOpMemorySnapshotter:
    """`my_utils.memory_snapshot.global_snapshotter`."""
    enabled = switch_at_import("ENABLE_MEMORY_SNAPSHOT")
    return MemorySnapshotter() if enabled else NoOpMemorySnapshotter()

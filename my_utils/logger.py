"""Where a training process writes: its text log, and the profile CSV with the rows of its stages.

    from my_utils import GlobalLogger

    logger = GlobalLogger()
    logger.setup("logs", rank=rank, world_size=world_size)
    logger.get_logger().info("training starts")

Text goes through Python's `logging` to `rank_<rank>.log` and to the console. Profile rows go
through the C part to `profile_rank_<rank>.csv`, which `python -m my_utils.csv2trace` turns into a
trace. docs/logging.md tells the whole, docs/profile-csv.md the format of the file.

Nothing here takes a training down. Arguments that are wrong raise TypeError or ValueError at once;
a directory that cannot be written to, a full disk or a file in the way is one warning, and rows
wait in memory (the newest 8 MiB).
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import numbers
import operator
import os
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TextIO, cast

from . import _core
from ._warnings import forget, warn_once

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction

    Number = int | float | Decimal | Fraction

__all__ = ["FlushingFileHandler", "GlobalLogger", "SingletonMeta", "get_global_logger"]

IoMode = Literal["auto", "inline", "background"]
Metadata = str | Mapping[str, object] | None

LOGGER_NAME = "my_utils"
DEFAULT_MAX_CSV_BYTES = 1 << 30
DEFAULT_KEEP_CSV_BYTES = 16 << 30

# Limits of the C part, in bytes of UTF-8.
_LABEL_BYTES_MAX = 127
_MACHINE_BYTES_MAX = 255
_PATH_BYTES_MAX = 900

# Timestamps and the offset that is added to them stay within 64 bits together.
_TIME_NS_MAX = 2**62
_OFFSET_NS_MAX = 2**61 - 1
_DURATION_NS_MAX = 2**63 - 1
_STEP_MAX = 2**63 - 1
_ID_MAX = 10**18 - 1
# 2000-01-01. What lies before is hardly a Unix time: more likely 0, or time.perf_counter().
_EARLIEST_LIKELY_NS = 946_684_800 * 10**9

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")

_ENCODED = str.maketrans({c: f"%{ord(c):02X}" for c in ',="%\r\n'})
_TO_ENCODE = re.compile(r'[,="%\r\n]')
_ENCODED_LINE_ENDS = str.maketrans({"\r": "%0D", "\n": "%0A"})
# Keys with a meaning of their own in a row.
_RESERVED_KEYS = frozenset(
    (
        *("node_id", "parent_id", "tid", "tag", "closed"),
        *("cuda_ms", "cuda_ts", "cuda_err_ms", "stream", "id"),
    )
)


class SingletonMeta(type):
    """Makes a class have one instance: every construction returns it, the first one runs __init__.

    Thread-safe. A class derived from one with this metaclass has an instance of its own. When the
    first __init__ raises, no instance is kept.

    >>> class Registry(metaclass=SingletonMeta):
    ...     def __init__(self):
    ...         self.entries = []
    >>> Registry() is Registry()
    True
    """

    _instances: dict[type, Any] = {}  # noqa: RUF012 - shared by all classes, that is the point
    # One lock for all: the __init__ of one singleton may construct another.
    _lock = threading.RLock()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        instance = SingletonMeta._instances.get(cls)
        if instance is None:
            with SingletonMeta._lock:
                instance = SingletonMeta._instances.get(cls)
                if instance is None:
                    instance = super().__call__(*args, **kwargs)
                    SingletonMeta._instances[cls] = instance
        return instance


class FlushingFileHandler(logging.FileHandler):
    """A file handler whose records reach the file one by one, so that a crash loses none of them.

    Each record is one write at the end of the file: nothing is buffered in the process, and lines
    of processes that share the file do not mix. Without an `encoding` it is UTF-8, with what cannot
    be encoded escaped. A write that fails is warned about once for each file and counted in
    `failed`; it does not raise. Thread-safe.

    >>> import logging, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "run.log")
    >>> handler = FlushingFileHandler(path)
    >>> handler.emit(logging.makeLogRecord({"msg": "epoch 1"}))
    >>> open(path).read()
    'epoch 1\\n'
    >>> handler.close()
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        mode: str = "a",
        encoding: str | None = None,
        delay: bool = False,
        errors: str | None = None,
    ) -> None:
        self.failed = 0
        super().__init__(filename, mode, encoding or "utf-8", delay, errors or "backslashreplace")

    def _open(self) -> TextIO:  # type: ignore[override]
        raw = io.FileIO(self.baseFilename, self.mode.replace("t", ""))
        # TextIOWrapper takes a raw file where nothing is to be buffered, as for `python -u`.
        return io.TextIOWrapper(
            cast(IO[bytes], raw), encoding=self.encoding, errors=self.errors, write_through=True
        )

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if (record.levelno or 0) >= logging.WARNING and not self.is_in_place():
            self._show(record)

    def _show(self, record: logging.LogRecord) -> None:
        """A warning that the file cannot tell is told on stderr, unless a console does so."""
        handlers = logging.getLogger("my_utils").handlers
        if not any(isinstance(handler, _ConsoleHandler) for handler in handlers):
            console = _ConsoleHandler()
            console.setFormatter(self.formatter)
            console.handle(record)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        self.failed += 1
        shown = not self.is_in_place()  # by emit
        if isinstance(error, OSError) and (record.levelno or 0) >= logging.WARNING and not shown:
            self._show(record)
        if isinstance(error, OSError):
            warn_once(
                f"text_log:{self.baseFilename}",
                f"cannot write to the text log {self.baseFilename} ({_reason(error)}); "
                "its messages are lost, the training goes on",
            )
        else:
            super().handleError(record)

    def is_in_place(self) -> bool:
        """Whether the file still stands under its name."""
        if self.stream is None:
            return False
        try:
            held = os.fstat(self.stream.fileno())
            named = os.stat(self.baseFilename)
        except (OSError, ValueError):
            return False
        return os.path.samestat(held, named)


class _ConsoleHandler(logging.StreamHandler[TextIO]):
    """Writes to what sys.stderr is at the time of the message."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        raise AttributeError("the console handler follows sys.stderr")


class _FallbackHandler(_ConsoleHandler):
    """Shows messages before setup(), unless the program has set up logging by itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


class _Settings(NamedTuple):
    """The arguments of setup(), checked and complete."""

    log_dir: str
    rank: int
    world_size: int
    label: str
    level: int
    console: bool
    max_csv_bytes: int
    keep_csv_bytes: int
    journal_dir: str
    io: str
    machine: str

    def text_format(self) -> logging.Formatter:
        who = f"rank {self.rank}/{self.world_size} {self.label}".rstrip().replace("%", "%%")
        return logging.Formatter(f"%(asctime)s [{who}] %(levelname)s %(message)s")

    def output(self) -> dict[str, Any]:
        """What `_core.open_output` takes."""
        return {
            "kind": "file",
            "log_dir": self.log_dir,
            "rank": self.rank,
            "world_size": self.world_size,
            "machine": self.machine,
            "label": self.label,
            "io": self.io,
            "journal_dir": self.journal_dir,
            "max_csv_bytes": self.max_csv_bytes,
            "keep_csv_bytes": self.keep_csv_bytes,
        }


class GlobalLogger(metaclass=SingletonMeta):
    """The one logger of a process: text log, profile CSV, and events of the user's own.

    `GlobalLogger()` gives the same object everywhere. All methods are thread-safe. Before `setup`,
    messages go to stderr (or to the handlers of the root logger where it has some) and profile rows
    wait in memory, from where `setup` writes them to the file.

    A pickled GlobalLogger (cloudpickle too) unpickles to the logger of the process that does it,
    which is not set up there by that. A forked child goes on with the text log; profile rows of its
    own go to files of its own, `profile_rank_<rank>.w1.csv` and so on, made at its first row.

    >>> import tempfile
    >>> logger = GlobalLogger()
    >>> logger.setup(tempfile.mkdtemp(), rank=0, world_size=1, console=False)
    >>> logger.get_logger().info("training starts")
    >>> logger.instant("checkpoint", {"path": "model_100.pt", "step_time_s": 1.5}, step=100)
    >>> logger.counter("loss", {"train": 0.25, "valid": 0.5}, step=100)
    >>> logger.close()
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._settings: _Settings | None = None
        self._report: dict[str, Any] | None = None
        self._pid = os.getpid()
        self._file_handler: FlushingFileHandler | None = None
        self._console_handler: _ConsoleHandler | None = None
        self._fallback_handler: _FallbackHandler | None = None
        self._own_level: int | None = None
        self._exit_registered = False

    def __reduce__(self) -> tuple[type[GlobalLogger], tuple[()]]:
        return GlobalLogger, ()

    def __copy__(self) -> GlobalLogger:
        return self

    def __deepcopy__(self, memo: object) -> GlobalLogger:
        return self

    # --- set-up ------------------------------------------------------------------------------

    def setup(
        self,
        log_dir: str | os.PathLike[str],
        rank: int | None = None,
        world_size: int | None = None,
        extra_log_label: str = "",
        level: int | str = logging.INFO,
        console: bool = True,
        *,
        max_csv_bytes: int = DEFAULT_MAX_CSV_BYTES,
        keep_csv_bytes: int = DEFAULT_KEEP_CSV_BYTES,
        journal_dir: str | os.PathLike[str] | None = None,
        io: IoMode = "auto",
        machine_id: str | None = None,
    ) -> None:
        """Opens the text log and the profile CSV in `log_dir`, which is made where missing.

        Called again with the same arguments it changes nothing; with others, the text log, the CSV
        and the journal move on to the new place, and what was written stays where it is. Journals
        that a killed run of this rank left in `log_dir` are written into the CSV first.

        log_dir: the directory of all files.
        rank: None takes the first of RANK, SLURM_PROCID and OMPI_COMM_WORLD_RANK that is set in the
            environment, else 0. A number is taken as it is, 0 included.
        world_size: None takes WORLD_SIZE, SLURM_NTASKS or OMPI_COMM_WORLD_SIZE, else 1.
        extra_log_label: shown in every line of the text log and in the name of the process in a
            trace; at most 127 bytes.
        level: of the text log and the console, a number or a name of `logging`.
        console: whether messages go to stderr too.
        max_csv_bytes: size at which the CSV is renamed to `….part0001.csv` and begun anew; 0 never.
        keep_csv_bytes: size of all parts of this rank's CSV together; above it the oldest parts are
            removed, with one warning. 0 keeps all. The default is 16 GiB, about 150 million rows.
        journal_dir: where the journal lies, which must be a local file system; None puts it into
            `log_dir` where that is local, else into /dev/shm or $TMPDIR.
        io: who writes rows. "inline": the thread that calls `step()`; "background": a thread of its
            own, so that a slow or dead mount never holds up the training; "auto" takes inline where
            `log_dir` is on a local file system.
        machine_id: the column of this name in the CSV; None takes the host name.

        Raises TypeError and ValueError for wrong arguments, and only for these.
        """
        settings = _check_settings(
            log_dir,
            rank,
            world_size,
            extra_log_label,
            level,
            console,
            max_csv_bytes,
            keep_csv_bytes,
            journal_dir,
            io,
            machine_id,
        )
        with self._lock:
            self._register_exit()
            report, failure = self._open_profile(settings)
            text_failure = self._open_text_log(settings, report)
            self._configure_logger(settings)
            self._settings = settings
            self._pid = os.getpid()
            repeated = report is not None and report == self._report
            self._report = report
        self._tell_failures(settings, failure, text_failure)
        if report is not None and not repeated:
            _tell_findings(settings, report)

    def _register_exit(self) -> None:
        if not self._exit_registered:
            atexit.register(_close_at_exit)
            self._exit_registered = True
        _finalize_in_worker()

    def _open_profile(self, settings: _Settings) -> tuple[dict[str, Any] | None, str]:
        """The report of the C part; None with the reason when rows go on as before."""
        moved = self._settings is not None and self._settings.output() != settings.output()
        try:
            if settings.journal_dir:
                # Where this fails, the C part says so, and goes on without a journal.
                with contextlib.suppress(OSError):
                    os.makedirs(settings.journal_dir, exist_ok=True)
            if moved and self._same_files(settings):
                _core.close_output()
            return _core.open_output(**settings.output()), ""
        except (OSError, RuntimeError, MemoryError, _core.FormatError) as error:
            return None, _reason(error)

    def _same_files(self, settings: _Settings) -> bool:
        """Files of the same names are opened anew only after they were closed."""
        current = self._settings
        return (
            current is not None
            and current.rank == settings.rank
            and os.path.realpath(current.log_dir) == os.path.realpath(settings.log_dir)
        )

    def _open_text_log(self, settings: _Settings, report: dict[str, Any] | None) -> str:
        """Moves the text log to where it belongs; returns why it cannot, "" if it can."""
        label = report["label"] if report is not None else f"rank_{settings.rank}"
        path = os.path.join(settings.log_dir, f"{label}.log")
        current = self._file_handler
        if current is not None and current.baseFilename == path and current.is_in_place():
            return ""
        try:
            fresh = FlushingFileHandler(path)
        except OSError as error:
            return _reason(error)
        logger = logging.getLogger(LOGGER_NAME)
        logger.addHandler(fresh)
        if current is not None:
            logger.removeHandler(current)
            current.close()
        self._file_handler = fresh
        return ""

    def _configure_logger(self, settings: _Settings) -> None:
        logger = logging.getLogger(LOGGER_NAME)
        formatter = settings.text_format()
        if self._file_handler is not None:
            self._file_handler.setFormatter(formatter)
        if settings.console and self._console_handler is None:
            self._console_handler = _ConsoleHandler()
            logger.addHandler(self._console_handler)
        if not settings.console and self._console_handler is not None:
            logger.removeHandler(self._console_handler)
            self._console_handler = None
        if self._console_handler is not None:
            self._console_handler.setFormatter(formatter)
        self._drop_fallback()
        self._own_level = settings.level
        logger.setLevel(settings.level)
        logger.disabled = False  # logging.config disables the loggers that it was not told of
        # A root logger with handlers of its own would print every line a second time.
        logger.propagate = False

    def _tell_failures(self, settings: _Settings, profile: str, text: str) -> None:
        kind = f"setup:{settings.log_dir}"
        if not profile and not text:
            forget(kind)
            return
        lost = []
        if profile:
            where = _core.output_state()["csv_path"]
            lost.append(
                f"profile rows still go to {where}"
                if where
                else "profile rows wait in memory (the newest 8 MiB) until setup() succeeds"
            )
        if text:
            lost.append(
                "there is no text log" if self._file_handler is None else "the text log stays"
            )
        reasons = (
            profile if profile == text or not text else "; ".join(filter(None, (profile, text)))
        )
        warn_once(
            kind,
            f"cannot open the files of rank {settings.rank} in {settings.log_dir} ({reasons}): "
            f"{', '.join(lost)}; the training goes on",
        )

    def close(self) -> None:
        """Writes everything out and closes the files, as the end of the process does by itself.

        Waits for 5 s at most for an output that does not answer. Calls after the first do nothing.
        Messages go on to stderr, and rows to memory, until `setup` is called again.
        """
        with self._lock:
            _close_output()
            logger = logging.getLogger(LOGGER_NAME)
            for handler in (self._file_handler, self._console_handler):
                if handler is not None:
                    logger.removeHandler(handler)
                    handler.close()
            self._file_handler = self._console_handler = None
            self._settings = self._report = None
            self._drop_fallback()
            if self._own_level is not None:
                logger.setLevel(logging.NOTSET)
                self._own_level = None
            logger.propagate = True

    def flush(self, wait_s: float = 1.0) -> None:
        """Writes the profile rows of all that was recorded before, as a timer's `step()` does.

        Waits `wait_s` seconds at most for a write that is under way, and not at all where a thread
        of its own writes (`io="background"`).
        """
        _core.drain(wait_s)

    # --- text --------------------------------------------------------------------------------

    def get_logger(self) -> logging.Logger:
        """The logger of this process, `logging.getLogger("my_utils")`.

        Before `setup` it prints to stderr from INFO on, unless the root logger has handlers, which
        then get the messages. The object stays the same: what was handed out before `setup` writes
        to the files afterwards.

        >>> GlobalLogger().get_logger() is get_global_logger()
        True
        """
        logger = logging.getLogger(LOGGER_NAME)
        with self._lock:
            if self._settings is None and self._fallback_handler is None:
                self._fallback_handler = _FallbackHandler()
                self._fallback_handler.setFormatter(
                    logging.Formatter("%(asctime)s %(levelname)s %(message)s")
                )
                logger.addHandler(self._fallback_handler)
                if logger.level == logging.NOTSET:
                    logger.setLevel(logging.INFO)
                    self._own_level = logging.INFO
        return logger

    def _drop_fallback(self) -> None:
        if self._fallback_handler is not None:
            logging.getLogger(LOGGER_NAME).removeHandler(self._fallback_handler)
            self._fallback_handler = None

    # --- what is set up ----------------------------------------------------------------------

    @property
    def is_set_up(self) -> bool:
        """Whether `setup` was called, and `close` not since."""
        return self._settings is not None

    @property
    def log_dir(self) -> Path | None:
        """The directory that `setup` was given, made absolute; None before."""
        return None if self._settings is None else Path(self._settings.log_dir)

    @property
    def rank(self) -> int:
        """The rank that `setup` took; before it, the one that it would take by default."""
        if self._settings is not None:
            return self._settings.rank
        return _from_environment(_RANK_VARIABLES, 0) or 0

    @property
    def world_size(self) -> int:
        """The number of ranks that `setup` took; before it, the one that it would take."""
        if self._settings is not None:
            return self._settings.world_size
        return _from_environment(_WORLD_SIZE_VARIABLES, 1) or 1

    @property
    def csv_path(self) -> Path | None:
        """The profile CSV that this process writes; None while rows wait in memory."""
        path = _core.output_state()["csv_path"]
        return Path(path) if path else None

    # --- profile events ----------------------------------------------------------------------

    def set_time_offset(self, offset_s: Number) -> None:
        """Adds `offset_s` seconds to every timestamp that is recorded from now on.

        It serves to line up machines whose clocks differ. An int, a Decimal, a Fraction and a float
        are all converted exactly, to the nearest nanosecond. The offset replaces the one before and
        does not add up. What was recorded before is written first, without it.

        Raises TypeError for what is no number, ValueError for one that is not finite or above 73
        years.
        """
        _core.set_time_offset_ns(_exact_ns("offset_s", offset_s, 10**9, _OFFSET_NS_MAX))

    def log_profile_event(
        self,
        timestamp: Number | None,
        step: int | None,
        event_name: str,
        event_type: str,
        duration_ms: Number | None = None,
        metadata: Metadata = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Adds a row to the profile CSV. Never blocks.

        timestamp: Unix seconds; None is now. A float of today's seconds has steps of 238 ns; give
            `timestamp_ns`, or a Decimal, where that is too coarse. What is given is converted
            exactly. A time before the year 2000 is taken as it is, and warned about once.
        step: None takes the step that a timer set last.
        event_name: cut at 255 bytes.
        event_type: START, END, INSTANT, COUNTER, ASYNC_START, ASYNC_END, FLOW_START or FLOW_END.
            The ASYNC and FLOW types are paired by the name and by `id=` in the metadata.
        duration_ms: in milliseconds, for END rows.
        metadata: a str of `key=value` pairs joined by commas, taken as it is but for line ends; or
            a mapping, whose keys and values are percent-encoded where needed. Cut at 32 KiB.
        timestamp_ns: Unix nanoseconds, instead of `timestamp`.

        Raises TypeError and ValueError for wrong arguments.

        >>> import time
        >>> GlobalLogger().log_profile_event(
        ...     time.time(), 3, "eval", "END", duration_ms=12.5, metadata={"split": "test, small"})
        """
        if timestamp_ns is None and timestamp is not None:
            timestamp_ns = _exact_ns("timestamp", timestamp, 10**9, _TIME_NS_MAX)
        elif timestamp_ns is not None:
            timestamp_ns = _check_int("timestamp_ns", timestamp_ns, -_TIME_NS_MAX, _TIME_NS_MAX)
        if timestamp_ns is not None and timestamp_ns < _EARLIEST_LIKELY_NS:
            _warn_of_early_time(event_name, timestamp_ns)
        duration_ns = None
        if duration_ms is not None:
            duration_ns = _exact_ns("duration_ms", duration_ms, 10**6, _DURATION_NS_MAX)
        _log_event(
            event_name, event_type, step, _metadata_text(metadata), timestamp_ns, duration_ns
        )

    def instant(
        self,
        name: str,
        metadata: Metadata = None,
        *,
        step: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Marks a moment. Arguments as for `log_profile_event`; without a time it is now.

        >>> GlobalLogger().instant("checkpoint", {"path": "model.pt", "bytes": 1024})
        """
        _log_event(name, "INSTANT", step, _own_metadata(metadata), timestamp_ns)

    def counter(
        self,
        name: str,
        value: float | Mapping[str, float],
        *,
        step: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Gives the value of a counter, drawn as a curve of its own in the trace.

        A mapping gives several at once, drawn as `name.key`. Values are int, float or bool. A
        tensor raises TypeError: its `.item()` may wait for the GPU, which the caller decides.

        >>> GlobalLogger().counter("loss", 0.25)
        >>> GlobalLogger().counter("memory", {"allocated": 1 << 30, "reserved": 3 << 29})
        """
        series = value if isinstance(value, Mapping) else {"value": value}
        if not series:
            raise ValueError("value must be a number or a mapping with at least one, not empty")
        pairs = (f"{_own_key(key)}={_counter_text(item)}" for key, item in series.items())
        _log_event(name, "COUNTER", step, ",".join(pairs), timestamp_ns)

    def async_start(
        self,
        name: str,
        id: int,
        metadata: Metadata = None,
        *,
        step: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Begins work that may overlap with other work and end on another thread.

        `async_end` with the same name and id (an int from 0 to 10**18 - 1) ends it.

        >>> logger = GlobalLogger()
        >>> logger.async_start("upload", 7, {"bytes": 4096})
        >>> logger.async_end("upload", 7)
        """
        _log_event(name, "ASYNC_START", step, _with_id(id, metadata), timestamp_ns)

    def async_end(
        self,
        name: str,
        id: int,
        metadata: Metadata = None,
        *,
        step: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Ends what `async_start` began under this name and id."""
        _log_event(name, "ASYNC_END", step, _with_id(id, metadata), timestamp_ns)

    def flow_start(
        self,
        name: str,
        id: int,
        metadata: Metadata = None,
        *,
        step: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Begins an arrow at the stage that is open on this thread.

        `flow_end` with the same name and id (an int from 0 to 10**18 - 1) is where it points to.

        >>> logger = GlobalLogger()
        >>> logger.flow_start("batch", 12)
        >>> logger.flow_end("batch", 12)
        """
        _log_event(name, "FLOW_START", step, _with_id(id, metadata), timestamp_ns)

    def flow_end(
        self,
        name: str,
        id: int,
        metadata: Metadata = None,
        *,
        step: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Ends the arrow that `flow_start` began under this name and id."""
        _log_event(name, "FLOW_END", step, _with_id(id, metadata), timestamp_ns)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        if self._settings is not None:
            # Lets go of the parent's files: while a child has them open, they count as in use, and
            # a restarted job could not take them over. Files of its own come with the first row.
            with contextlib.suppress(Exception):
                _core.output_state()


def get_global_logger() -> logging.Logger:
    """The logger of this process: `GlobalLogger().get_logger()`.

    >>> get_global_logger().name
    'my_utils'
    """
    return GlobalLogger().get_logger()


# --- arguments -----------------------------------------------------------------------------------


def _check_settings(
    log_dir: object,
    rank: object,
    world_size: object,
    label: object,
    level: object,
    console: object,
    max_csv_bytes: object,
    keep_csv_bytes: object,
    journal_dir: object,
    io: object,
    machine_id: object,
) -> _Settings:
    ranks = _choose_rank(rank, world_size)
    if not isinstance(console, bool):
        raise TypeError(f"console must be a bool, not {_kind(console)}")
    if io not in ("auto", "inline", "background"):
        raise ValueError(f'io must be "auto", "inline" or "background", not {io!r}')
    max_bytes = _check_int("max_csv_bytes", max_csv_bytes, 0, _DURATION_NS_MAX)
    keep_bytes = _check_int("keep_csv_bytes", keep_csv_bytes, 0, _DURATION_NS_MAX)
    if 0 < keep_bytes < max_bytes:
        raise ValueError(
            f"keep_csv_bytes must be 0 (keep all) or at least max_csv_bytes ({max_bytes}), "
            f"not {keep_bytes}"
        )
    if machine_id is None:
        import socket

        machine_id = socket.gethostname()
    return _Settings(
        log_dir=_check_path("log_dir", log_dir),
        rank=ranks[0],
        world_size=ranks[1],
        label=_check_text("extra_log_label", label, _LABEL_BYTES_MAX),
        level=_check_level(level),
        console=console,
        max_csv_bytes=max_bytes,
        keep_csv_bytes=keep_bytes,
        journal_dir="" if journal_dir is None else _check_path("journal_dir", journal_dir),
        io=str(io),
        machine=_check_text("machine_id", machine_id, _MACHINE_BYTES_MAX),
    )


def _choose_rank(rank: object, world_size: object) -> tuple[int, int]:
    if world_size is None:
        chosen_size = _from_environment(_WORLD_SIZE_VARIABLES, 1)
    else:
        chosen_size = _check_int("world_size", world_size, 1, 2**31 - 1)
    if rank is None:
        chosen_rank = _from_environment(_RANK_VARIABLES, 0) or 0
    else:
        chosen_rank = _check_int("rank", rank, 0, 2**31 - 2)
        if world_size is not None and chosen_size is not None and chosen_rank >= chosen_size:
            raise ValueError(f"rank must be below world_size ({chosen_size}), not {chosen_rank}")
    # What only one of the two is known for cannot contradict the other.
    return chosen_rank, max(chosen_size or 1, chosen_rank + 1)


def rank_from_environment() -> int | None:
    """The rank that a launcher has set; None where none has."""
    return _from_environment(_RANK_VARIABLES, 0)


def _from_environment(variables: tuple[str, ...], least: int) -> int | None:
    """The first of the variables that holds a number from `least` on."""
    for name in variables:
        text = os.environ.get(name, "").strip()
        if text.isascii() and text.isdigit() and least <= int(text) < 2**31 - 1:
            return int(text)
        if text:
            warn_once(
                f"environment:{name}",
                f"{name} in the environment should be a number from {least} on, not {text!r}; "
                "it is passed over",
            )
    return None


def _check_path(name: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a str or a path, not {_kind(value)}")
    path = os.fspath(value)
    if not isinstance(path, str):
        raise TypeError(f"{name} must be a str or a path of str, not one of {_kind(path)}")
    if not path or "\0" in path:
        raise ValueError(f"{name} must be a path that is not empty and has no NUL, not {path!r}")
    # A later os.chdir() must not move the files. There may be no current directory.
    with contextlib.suppress(OSError):
        path = os.path.abspath(path)
    length = len(os.fsencode(path))
    if length > _PATH_BYTES_MAX:
        raise ValueError(f"{name} must have at most {_PATH_BYTES_MAX} bytes, not {length}")
    return path


def _check_text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {_kind(value)}")
    length = len(value.encode("utf-8", "surrogatepass"))
    if length > most:
        raise ValueError(f"{name} must have at most {most} bytes, not {length}")
    if not value.isprintable():
        raise ValueError(f"{name} must be printable and on one line, not {value!r}")
    return value


def _check_level(level: object) -> int:
    if isinstance(level, str):
        number = logging.getLevelName(level.upper())
        if not isinstance(number, int):
            raise ValueError(
                f"level must be a number or a level's name such as INFO, not {level!r}"
            )
        return number
    return _check_int("level", level, 0, 2**31 - 1)


def _check_int(name: str, value: object, low: int, high: int) -> int:
    if type(value) is int:
        number = value
    elif isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an int, not {_kind(value)}")
    else:
        number = operator.index(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {number}")
    return number


def _exact_ns(name: str, value: object, unit_ns: int, most: int) -> int:
    """`value` units of `unit_ns` nanoseconds, rounded once, to the nearest (a tie to even)."""
    number: Any = value
    if type(value) is not float and type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, numbers.Number):
            raise TypeError(f"{name} must be a number, not {_kind(value)}")
        if isinstance(value, numbers.Integral):
            number = operator.index(value)
    try:
        numerator, denominator = number.as_integer_ratio()
    except (AttributeError, TypeError):
        raise TypeError(f"{name} must be a real number, not {_kind(value)}") from None
    except (ValueError, OverflowError):
        raise ValueError(f"{name} must be finite, not {value!r}") from None
    ns, rest = divmod(numerator * unit_ns, denominator)
    if 2 * rest > denominator or (2 * rest == denominator and ns % 2 == 1):
        ns += 1
    if not -most <= ns <= most:
        least_unit, most_unit = -most // unit_ns, most // unit_ns
        raise ValueError(f"{name} must be from {least_unit} to {most_unit}, not {value!r}")
    return int(ns)


def _kind(value: object) -> str:
    return type(value).__name__


def _reason(error: BaseException) -> str:
    """An error on one line; for the operating system's, what it says of which file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or _kind(error)


# --- events --------------------------------------------------------------------------------------


def _log_event(
    name: str,
    event_type: str,
    step: int | None,
    metadata: str,
    timestamp_ns: int | None,
    duration_ns: int | None = None,
) -> None:
    if timestamp_ns is not None:
        timestamp_ns = _check_int("timestamp_ns", timestamp_ns, -_TIME_NS_MAX, _TIME_NS_MAX)
    if step is not None:
        step = _check_int("step", step, -_STEP_MAX - 1, _STEP_MAX)
    if not isinstance(name, str):
        raise TypeError(f"event_name must be a str, not {_kind(name)}")
    _core.log_event(name, event_type, step, metadata, timestamp_ns, duration_ns)


def _warn_of_early_time(event_name: str, timestamp_ns: int) -> None:
    seconds = timestamp_ns / 10**9
    warn_once(
        "early_timestamp",
        f"log_profile_event got the timestamp {seconds:g} s for {event_name!r}, which as Unix time "
        "is before the year 2000; it is taken as it is, and stands far from all else in a trace. "
        "None gives the time of now; time.time() is Unix time, time.perf_counter() is not",
    )


def _metadata_text(metadata: object) -> str:
    """`key=value` pairs as they stand in a row; keys with a meaning keep it."""
    if metadata is None:
        return ""
    if isinstance(metadata, str):
        return metadata.translate(_ENCODED_LINE_ENDS)
    if isinstance(metadata, Mapping):
        return ",".join(f"{_key(key)}={_value_text(value)}" for key, value in metadata.items())
    raise TypeError(f"metadata must be a str, a mapping or None, not {_kind(metadata)}")


def _own_metadata(metadata: object) -> str:
    """Metadata where no key of a mapping means anything to the readers."""
    if isinstance(metadata, Mapping):
        return ",".join(f"{_own_key(key)}={_value_text(value)}" for key, value in metadata.items())
    return _metadata_text(metadata)


def _with_id(id: object, metadata: object) -> str:
    text = _own_metadata(metadata)
    number = _check_int("id", id, 0, _ID_MAX)
    return f"id={number},{text}" if text else f"id={number}"


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"keys of metadata must be str, not {_kind(key)}")
    if not key:
        raise ValueError("keys of metadata must not be empty")
    return _encode(key)


def _own_key(key: object) -> str:
    """A reserved key with its first letter encoded: readers show it, and take it for nothing."""
    text = _key(key)
    return f"%{ord(text[0]):02X}{text[1:]}" if text in _RESERVED_KEYS else text


def _value_text(value: object) -> str:
    """Numbers so that they read back equal, bools as true and false, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float.__repr__(value)
    return _encode(str(value))


def _encode(text: str) -> str:
    return text.translate(_ENCODED) if _TO_ENCODE.search(text) else text


def _counter_text(value: object) -> str:
    if type(value) is float or type(value) is int:  # the tests below are slower by far
        return repr(value)
    if isinstance(value, numbers.Integral):
        return str(operator.index(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    raise TypeError(f"value of a counter must be an int or a float, not {_kind(value)}")


# --- findings of a set-up ------------------------------------------------------------------------


def _tell_findings(settings: _Settings, report: dict[str, Any]) -> None:
    logger = logging.getLogger(LOGGER_NAME)
    if report["worker"]:
        warn_once(
            f"same_rank:{report['csv_path']}",
            f"another living process writes as rank {settings.rank} in {settings.log_dir}; the "
            f"rows of this one go to {report['csv_path']}",
        )
    if report["adopted_journals"]:
        logger.info(
            "took over %d journal(s) of earlier runs: %d rows were added to %s",
            report["adopted_journals"],
            report["adopted_rows"],
            report["csv_path"],
        )
    if report["journal_error"]:
        warn_once(
            f"journal:{settings.log_dir}",
            f"there is no journal ({report['journal_error']}): rows are written as ever, but what "
            "is not yet written when the process is killed is lost",
        )


# --- the end of a process ------------------------------------------------------------------------


def _close_output() -> None:
    try:
        _core.close_output()
    except (OSError, RuntimeError) as error:
        warn_once("close", f"the profile CSV could not be closed: {_reason(error)}")


# logging's own clean-up was registered when logging was imported and so runs after this one:
# whatever is to be told still reaches the text log.
def _close_at_exit() -> None:
    _close_output()


def _finalize_in_worker() -> None:
    """Children of multiprocessing end without atexit; they have finalizers of their own."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    # The least priority, so that it runs last; the arguments are what Finalize keys it by.
    Finalize(None, _close_at_exit, exitpriority=-1000)


def _prepare_fork() -> None:
    """Asks multiprocessing, where it is in use, to call again in a child once that has begun.

    It forgets the finalizers that the child inherits, so they can be registered only then.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _fork_state.told_multiprocessing:
        util.register_after_fork(_fork_state, lambda _: _finalize_in_worker())
        _fork_state.told_multiprocessing = True


class _ForkState:
    told_multiprocessing = False


_fork_state = _ForkState()


def _after_fork_in_child() -> None:
    SingletonMeta._lock = threading.RLock()
    instance = SingletonMeta._instances.get(GlobalLogger)
    if instance is not None:
        instance._after_fork_in_child()


os.register_at_fork(before=_prepare_fork, after_in_child=_after_fork_in_child)

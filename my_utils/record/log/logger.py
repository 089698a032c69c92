"""The outputs of a training process: its text log, and the profile CSV with its stages.

    from my_utils import GlobalLogger

    logger = GlobalLogger()
    logger.setup("logs", rank=rank, world_size=world_size)
    logger.get_logger().info("training starts")

Text goes through Python's `logging` to `rank_<rank>.log` and to the console. Profile rows go
through the C part to `profile_rank_<rank>.csv`, which `python -m my_utils.csv2trace` turns into a
trace. docs/runs/logging.md describes it, docs/traces/profile-csv.md the format of the file.

Nothing here ends a training. Wrong arguments raise TypeError or ValueError at once. A directory
that cannot be written to, a file where the directory should be, or a full disk gives one warning,
and rows wait in memory (the newest 8 MiB).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast

from ... import _core
from ...core.aliases import renamed_parameters
from ...core.arguments import check_integer, exact_ns
from ...core.identity import (
    Identity,
    rank_from_environment,
    set_identity,
    world_size_from_environment,
)
from ...core.lazy_modules import lazy_module
from ...core.public import public
from ...core.reprs import short_repr
from ...core.warnings import forget, warn_once
from .events import (
    TIME_NS_MAX,
    counter_text,
    log_event,
    metadata_text,
    own_key,
    own_metadata,
    warn_of_early_time,
    with_id,
)
from .handlers import ConsoleHandler, FallbackHandler, FlushingFileHandler, RankFileHandler, reason
from .settings import Settings, check_settings

if TYPE_CHECKING:
    import decimal
    import fractions
else:
    decimal = lazy_module("decimal")
    fractions = lazy_module("fractions")

Number = Union[int, float, "decimal.Decimal", "fractions.Fraction"]


IoMode = Literal["auto", "inline", "background"]
Metadata = str | Mapping[str, object] | None

LOGGER_NAME = "my_utils"
DEFAULT_MAX_CSV_BYTES = 1 << 30
DEFAULT_KEEP_CSV_BYTES = 16 << 30
DEFAULT_WINDOWS_BYTES = 128 << 20

_OFFSET_NS_MAX = 2**61 - 1
_DURATION_NS_MAX = 2**63 - 1
# 2000-01-01. An earlier time is hardly a Unix time: more likely 0, or time.perf_counter().
_EARLIEST_LIKELY_NS = 946_684_800 * 10**9


_F = TypeVar("_F", bound=Callable[..., Any])
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def _with_level_second(setup: _F) -> _F:
    """Lets `setup` also take log_dir, level, rank and world_size by position, as others have it.

    Only where no rank can be meant, as each number of a level is also a rank.
    """

    @functools.wraps(setup)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_level_second(args, kwargs):
            given = dict(zip(("level", "rank", "world_size"), args[1:], strict=False))
            for name in given:
                if name in kwargs:
                    raise TypeError(
                        f"GlobalLogger.setup() got {name}={kwargs[name]!r}, and by position "
                        f"{name}={given[name]!r}, as its second argument is a level"
                    )
            args, kwargs = (args[0], *args[4:]), given | kwargs
        return setup(self, *args, **kwargs)

    return cast(_F, wrapper)


def _has_level_second(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the second argument must be a level: a name, a rank follows by keyword, or as a rank
    it would not be below the number of ranks that follows, or that would be a label."""
    if not 2 <= len(args) <= 4:
        return False
    if isinstance(args[1], str) or "rank" in kwargs:
        return True
    after = args[2:]
    if args[1] not in _LEVELS or not after or not all(isinstance(each, int) for each in after):
        return False
    return len(after) == 2 or after[0] <= args[1]


@public("my_utils.logger")
class SingletonMeta(type):
    """Makes a class have one instance: every construction returns it, the first one runs __init__.

    Thread-safe. A class derived from one with this metaclass has a separate instance. When the
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


@public("my_utils.logger")
class GlobalLogger(metaclass=SingletonMeta):
    """The one logger of a process: text log, profile CSV, and events of the user's own.

    `GlobalLogger()` returns the same object everywhere. All methods are thread-safe. Before
    `setup`, messages go to stderr (or to the handlers of the root logger where it has some) and
    profile rows wait in memory, from where `setup` writes them to the file.

    A pickled GlobalLogger (cloudpickle too) becomes the logger of the process that unpickles it,
    and does not set it up. A forked child continues the text log; its profile rows go to separate
    files, `profile_rank_<rank>.w1.csv` and so on, created at its first row.

    A block `with GlobalLogger() as logger:` closes it at its end, as `close()` does.

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
        self._settings: Settings | None = None
        self._report: dict[str, Any] | None = None
        self._pid = os.getpid()
        self._file_handler: FlushingFileHandler | None = None
        self._console_handler: ConsoleHandler | None = None
        self._fallback_handler: FallbackHandler | None = None
        self._own_level: int | None = None
        self._exit_registered = False

    def __repr__(self) -> str:
        return short_repr(self, "log_dir", "rank", "world_size")

    def __reduce__(self) -> tuple[type[GlobalLogger], tuple[()]]:
        return GlobalLogger, ()

    def __copy__(self) -> GlobalLogger:
        return self

    def __deepcopy__(self, memo: object) -> GlobalLogger:
        return self

    # --- setup ------------------------------------------------------------------------------

    @_with_level_second
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
        windows_bytes: int = DEFAULT_WINDOWS_BYTES,
        journal_dir: str | os.PathLike[str] | None = None,
        io: IoMode = "auto",
        machine_id: str | None = None,
        data_parallel_rank: int | None = None,
        data_parallel_world_size: int | None = None,
    ) -> None:
        """Opens the text log and the profile CSV in `log_dir`, which is created if missing.

        Called again with the same arguments it changes nothing; with others, the text log, the CSV
        and the journal move on to the new place, and what was written stays where it is. Journals
        that a killed run of this rank left in `log_dir` are written into the CSV first.

        log_dir: the directory of all files.
        rank: None means the first of RANK, SLURM_PROCID and OMPI_COMM_WORLD_RANK that is set in the
            environment, else 0. A number that you pass wins, also 0.
        world_size: None means WORLD_SIZE, SLURM_NTASKS or OMPI_COMM_WORLD_SIZE, else 1.
        extra_log_label: shown in every line of the text log and in the name of the process in a
            trace; at most 127 bytes.
        level: of the text log and the console, a number or a name of `logging`. It may come second,
            before rank and world_size: setup("logs", "INFO", 3, 8). A number there is a level if it
            cannot be a rank: setup("logs", 20, 3) and setup("logs", 20, rank=3) are at level INFO,
            setup("logs", 20) and setup("logs", 20, 64) are rank 20.
        console: whether messages go to stderr too.
        max_csv_bytes: size at which the CSV is renamed to `….part0001.csv` and begun anew; 0 never.
        keep_csv_bytes: size of all parts of this rank's CSV together; above it the oldest parts are
            removed, with one warning. 0 keeps all. The default is 16 GiB, about 150 million rows.
        windows_bytes: size of the windows of steps, the sums of 100, 1,000 and 10,000 steps, which
            reach back to the first step whatever is removed of the CSV. Above it the finest ones of
            old steps go first. 0 writes none. The default is 128 MiB.
        journal_dir: the directory of the journal, on a local file system; None means `log_dir` if
            that is local, else /dev/shm or $TMPDIR.
        io: who writes rows. "inline": the thread that calls `step()`; "background": a separate
            thread, so that a slow or dead mount never delays the training; "auto" means inline if
            `log_dir` is on a local file system.
        machine_id: the column of this name in the CSV, and the host as readers group ranks by it.
            None means the label, or the host name if there is none, and the rank ("node7-rank3"),
            so that scripts that draw one process per machine keep ranks apart; readers then group
            by the host name.
        data_parallel_rank, data_parallel_world_size: shown in every line of the text log.

        Raises TypeError and ValueError for wrong arguments, and only for these.
        """
        settings = check_settings(
            log_dir,
            rank,
            world_size,
            extra_log_label,
            level,
            console,
            max_csv_bytes,
            keep_csv_bytes,
            windows_bytes,
            journal_dir,
            io,
            machine_id,
            data_parallel_rank,
            data_parallel_world_size,
        )
        with self._lock:
            self._register_exit()
            report, failure = self._open_profile(settings)
            text_failure = self._open_text_log(settings, report)
            self._configure_logger(settings)
            self._settings = settings
            set_identity(Identity(settings.rank, settings.world_size, settings.log_dir))
            self._pid = os.getpid()
            repeated = report is not None and report == self._report
            self._report = report
        self._warn_of_failures(settings, failure, text_failure)
        if report is not None and not repeated:
            _report_findings(settings, report)

    def _register_exit(self) -> None:
        if not self._exit_registered:
            # logging's own clean-up was registered when logging was imported and so runs after
            # this one: so the last messages still reach the text log.
            atexit.register(_close_output)
            self._exit_registered = True
        _finalize_in_worker()

    def _open_profile(self, settings: Settings) -> tuple[dict[str, Any] | None, str]:
        """The report of the C part; None with the reason when rows continue as before."""
        moved = self._settings is not None and self._settings.output() != settings.output()
        try:
            if settings.journal_dir:
                # Where this fails, the C part says so, and continues without a journal.
                with contextlib.suppress(OSError):
                    os.makedirs(settings.journal_dir, exist_ok=True)
            if moved and self._same_files(settings):
                _core.close_output()
            return _core.open_output(**settings.output()), ""
        except (OSError, RuntimeError, MemoryError, _core.FormatError) as error:
            return None, reason(error)

    def _same_files(self, settings: Settings) -> bool:
        """Files of the same names are opened anew only after they were closed."""
        current = self._settings
        return (
            current is not None
            and current.rank == settings.rank
            and os.path.realpath(current.log_dir) == os.path.realpath(settings.log_dir)
        )

    def _open_text_log(self, settings: Settings, report: dict[str, Any] | None) -> str:
        """Moves the text log to where it belongs; returns why it cannot, "" if it can."""
        label = report["label"] if report is not None else f"rank_{settings.rank}"
        path = os.path.join(settings.log_dir, f"{label}.log")
        current = self._file_handler
        if current is not None and current.baseFilename == path and current.is_in_place():
            return ""
        try:
            fresh = RankFileHandler(path)
        except OSError as error:
            return reason(error)
        logger = logging.getLogger(LOGGER_NAME)
        logger.addHandler(fresh)
        if current is not None:
            logger.removeHandler(current)
            current.close()
        self._file_handler = fresh
        return ""

    def _configure_logger(self, settings: Settings) -> None:
        logger = logging.getLogger(LOGGER_NAME)
        formatter = settings.text_format()
        if self._file_handler is not None:
            self._file_handler.setFormatter(formatter)
        if settings.console and self._console_handler is None:
            self._console_handler = ConsoleHandler()
            logger.addHandler(self._console_handler)
        if not settings.console and self._console_handler is not None:
            logger.removeHandler(self._console_handler)
            self._console_handler = None
        if self._console_handler is not None:
            self._console_handler.setFormatter(formatter)
        self._drop_fallback()
        self._own_level = settings.level
        logger.setLevel(settings.level)
        logger.disabled = False  # logging.config disables the loggers that it does not list
        # A root logger with its own handlers would print every line a second time.
        logger.propagate = False

    def _warn_of_failures(self, settings: Settings, profile: str, text: str) -> None:
        kind = f"setup:{settings.log_dir}"
        if not profile and not text:
            forget(kind)
            return
        lost = []
        if profile:
            output = _core.output_state()
            if output["csv_path"]:
                lost.append(f"profile rows still go to {output['csv_path']}")
            elif output["records"]:
                lost.append("profile rows wait in memory (the newest 8 MiB) until setup() succeeds")
            else:
                lost.append("nothing is recorded until setup() succeeds")
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
        Messages continue to stderr, and rows to memory, until `setup` is called again.
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
            set_identity(None)
            self._drop_fallback()
            if self._own_level is not None:
                logger.setLevel(logging.NOTSET)
                self._own_level = None
            logger.propagate = True

    def __enter__(self) -> GlobalLogger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def flush(self, wait_s: float = 1.0) -> None:
        """Writes the profile rows of all that was recorded before, as a timer's `step()` does.

        Waits `wait_s` seconds at most for a write that is under way, and not at all where a
        separate thread writes (`io="background"`).
        """
        _core.drain(wait_s)

    # --- text --------------------------------------------------------------------------------

    def get_logger(self) -> logging.Logger:
        """The logger of this process, `logging.getLogger("my_utils")`.

        Before `setup` it prints to stderr from INFO on, unless the root logger has handlers, which
        then get the messages. The object stays the same: loggers from before `setup` write to the
        files afterwards.

        >>> GlobalLogger().get_logger() is get_global_logger()
        True
        """
        logger = logging.getLogger(LOGGER_NAME)
        with self._lock:
            if self._settings is None and self._fallback_handler is None:
                self._fallback_handler = FallbackHandler()
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
    def was_set_up(self) -> bool:
        """Whether `setup` was ever called in this process or, before a fork, in its parent."""
        return self._exit_registered

    @property
    def log_dir(self) -> Path | None:
        """The absolute path of the directory passed to `setup`; None before."""
        return None if self._settings is None else Path(self._settings.log_dir)

    @property
    def rank(self) -> int:
        """The rank that `setup` took; before it, the one that it would take by default."""
        if self._settings is not None:
            return self._settings.rank
        return rank_from_environment() or 0

    @property
    def world_size(self) -> int:
        """The number of ranks that `setup` took; before it, the one that it would take."""
        if self._settings is not None:
            return self._settings.world_size
        return world_size_from_environment() or 1

    @property
    def csv_path(self) -> Path | None:
        """The profile CSV that this process writes; None while rows wait in memory."""
        path = _core.output_state()["csv_path"]
        return Path(path) if path else None

    # --- profile events ----------------------------------------------------------------------

    @renamed_parameters(offset="offset_s")
    def set_time_offset(self, offset_s: Number) -> None:
        """Adds `offset_s` seconds to every timestamp that is recorded from now on.

        It serves to line up machines whose clocks differ. An int, a Decimal, a Fraction and a float
        are all converted exactly, to the nearest nanosecond. The offset replaces the one before and
        does not add up. What was recorded before is written first, without it.

        Raises TypeError if it is not a number, ValueError for one that is not finite or above 73
        years.
        """
        _core.set_time_offset_ns(exact_ns("offset_s", offset_s, 10**9, _OFFSET_NS_MAX))

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
        step: None means the step that a timer set last.
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
        if _core.log_plain_event(
            timestamp, step, event_name, event_type, duration_ms, metadata, timestamp_ns
        ):
            return
        if timestamp_ns is None and timestamp is not None:
            timestamp_ns = exact_ns("timestamp", timestamp, 10**9, TIME_NS_MAX)
        elif timestamp_ns is not None:
            timestamp_ns = check_integer("timestamp_ns", timestamp_ns, -TIME_NS_MAX, TIME_NS_MAX)
        if timestamp_ns is not None and timestamp_ns < _EARLIEST_LIKELY_NS:
            warn_of_early_time(event_name, timestamp_ns)
        duration_ns = None
        if duration_ms is not None:
            duration_ns = exact_ns("duration_ms", duration_ms, 10**6, _DURATION_NS_MAX)
        log_event(event_name, event_type, step, metadata_text(metadata), timestamp_ns, duration_ns)

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
        log_event(name, "INSTANT", step, own_metadata(metadata), timestamp_ns)

    def counter(
        self,
        name: str,
        value: float | Mapping[str, float],
        *,
        step: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Gives the value of a counter, drawn as a separate curve in the trace.

        A mapping gives several at once, drawn as `name.key`. Values are int, float or bool. A
        tensor raises TypeError: its `.item()` may wait for the GPU, which the caller decides.

        >>> GlobalLogger().counter("loss", 0.25)
        >>> GlobalLogger().counter("memory", {"allocated": 1 << 30, "reserved": 3 << 29})
        """
        series = value if isinstance(value, Mapping) else {"value": value}
        if not series:
            raise ValueError("value must be a number or a mapping with at least one, not empty")
        pairs = (f"{own_key(key)}={counter_text(item)}" for key, item in series.items())
        log_event(name, "COUNTER", step, ",".join(pairs), timestamp_ns)

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
        log_event(name, "ASYNC_START", step, with_id(id, metadata), timestamp_ns)

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
        log_event(name, "ASYNC_END", step, with_id(id, metadata), timestamp_ns)

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
        log_event(name, "FLOW_START", step, with_id(id, metadata), timestamp_ns)

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
        log_event(name, "FLOW_END", step, with_id(id, metadata), timestamp_ns)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        if self._settings is not None:
            # Lets go of the parent's files: while a child has them open, they count as in use, and
            # a restarted job could not take them over. Its own files come with the first row.
            with contextlib.suppress(Exception):
                _core.output_state()


def get_global_logger() -> logging.Logger:
    """The logger of this process: `GlobalLogger().get_logger()`.

    >>> get_global_logger().name
    'my_utils'
    """
    return GlobalLogger().get_logger()


# --- findings of a setup ------------------------------------------------------------------------


def _report_findings(settings: Settings, report: dict[str, Any]) -> None:
    logger = logging.getLogger(LOGGER_NAME)
    if report["worker"]:
        warn_once(
            f"same_rank:{report['csv_path']}",
            f"{_who_writes(settings, report)}; the rows of this one go to {report['csv_path']}",
        )
    if report["foreign_journals"]:
        warn_once(
            f"foreign_journals:{settings.log_dir}",
            f"{report['foreign_journals']} journal(s) of rank {settings.rank} in "
            f"{settings.log_dir} are not files of this user and stay unchanged: if you trust "
            f"them, `my_utils trace {settings.log_dir} --recover` shows their rows",
        )
    if report["adopted_journals"]:
        logger.info(
            "took over %d journal(s) of earlier runs: %d rows were added to %s",
            report["adopted_journals"],
            report["adopted_rows"],
            report["csv_path"],
        )
    if report["doubtful_journals"]:
        warn_once(
            f"doubtful_journals:{settings.log_dir}",
            f"{report['doubtful_journals']} journal(s) in {settings.log_dir} were not left by a "
            "kill, but by a power loss or another boot, after which parts of them may be older "
            f"than others: {report['csv_path']} keeps all its rows, {report['doubtful_rows']} "
            "rows that it did not have were added with doubtful=1 in their metadata"
            + _unproven(report["unproven_records"]),
        )
    if report["unreadable_journals"]:
        warn_once(
            f"unreadable_journals:{settings.log_dir}",
            f"{report['unreadable_journals']} journal(s) of rank {settings.rank} in "
            f"{settings.log_dir} cannot be read and were renamed to *.unreadable: what only they "
            "hold is in no CSV",
        )
    if report["journal_error"]:
        warn_once(
            f"journal:{settings.log_dir}",
            f"there is no journal ({report['journal_error']}): rows are written as usual, but a "
            "kill loses those that are not yet written",
        )


def _unproven(records: int) -> str:
    if not records:
        return ""
    return (
        f"; {records} records without a proof of their name or content were not, and stay in "
        "*.journal.unreadable"
    )


def _who_writes(settings: Settings, report: dict[str, Any]) -> str:
    if report["foreign_csv"]:
        return (
            f"a profile CSV of rank {settings.rank} in {settings.log_dir} is not a "
            "file of this user (it is a link, a FIFO, or another user's)"
        )
    return f"another living process writes as rank {settings.rank} in {settings.log_dir}"


# --- the end of a process ------------------------------------------------------------------------


def _close_output() -> None:
    try:
        _core.close_output()
    except (OSError, RuntimeError, MemoryError) as error:
        warn_once("close", f"the profile CSV could not be closed: {reason(error)}")


def _finalize_in_worker() -> None:
    """Children of multiprocessing end without atexit; they have their own finalizers."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    # The least priority, so that it runs last; the arguments are what Finalize keys it by.
    Finalize(None, _close_output, exitpriority=-1000)


def _prepare_fork() -> None:
    """Asks multiprocessing, where it is in use, to call again in a child once that has begun.

    It forgets the finalizers that the child inherits, so they can be registered only then.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _fork_state.registered_with_multiprocessing:
        util.register_after_fork(_fork_state, lambda _: _finalize_in_worker())
        _fork_state.registered_with_multiprocessing = True


class _ForkState:
    registered_with_multiprocessing = False


_fork_state = _ForkState()


def _after_fork_in_child() -> None:
    SingletonMeta._lock = threading.RLock()
    instance = SingletonMeta._instances.get(GlobalLogger)
    if instance is not None:
        instance._after_fork_in_child()


os.register_at_fork(before=_prepare_fork, after_in_child=_after_fork_in_child)

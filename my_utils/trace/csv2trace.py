"""Converts profile CSVs to a trace for Perfetto.

    my_utils trace LOG_DIR -o trace.pftrace         (or python -m my_utils.csv2trace)

Exit status: 0, the trace is complete; 1, nothing was written (bad input, a failed write, or any
warning with --strict); 2, wrong usage; 3, the trace was written, but rows or files were left out;
130, interrupted. Messages go to standard error, one a kind of trouble, as
`my_utils trace: warning: FILE:LINE: what (N rows)`, with the place of the first.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, TypedDict

from .. import _core
from ..core.bounded_read import describe
from ..core.command_line import (
    CommandParser,
    add_json,
    add_logs,
    add_output,
    add_quiet,
    add_ranks,
    add_steps,
    fail,
    parser,
    run_cli,
    say,
)
from ..core.outputs import check_suffix, is_stream, open_output
from ..core.printable import printable
from ..core.progress import Progress
from ..core.public import public
from ..core.run_files.newest import found_logs
from .inputs import FileSet, Inputs, Part, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from .foreign import ForeignTrace

StrPath = str | os.PathLike[str]
Format = Literal["json", "perfetto"]
Layout = Literal["ranks", "seed"]


SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".pb": "perfetto",
}
DEFAULT_OUTPUT = "trace.pftrace"
SCHEMA_VERSION: Final = 1
PIPE_CHUNK = 1 << 20
TORCH_SLOT = 5  # where the processes of merged traces start among those of a rank


@public("my_utils.csv2trace")
class ConversionError(ValueError):
    """Nothing could be converted; the text has one reason a line."""


@public("my_utils.csv2trace")
class ConversionWarning(UserWarning):
    """Part of the input was left out of the trace, or means less than it seems."""


class Note(Record):
    """One kind of trouble. `is_loss`: rows are missing from the trace."""

    def __init__(
        self, kind: str, is_loss: bool, count: int, file: str, line: int, text: str
    ) -> None:
        self.kind = kind
        self.is_loss = is_loss
        self.count = count
        self.file = file
        self.line = line
        self.text = text

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{place}{self.text}" + (f" ({self.count} rows)" if self.count > 1 else "")


@public("my_utils.csv2trace")
class Summary(Record):
    """What a conversion did. `bytes_written` is the size before compression."""

    def __init__(self, errors: Sequence[str] = ()) -> None:
        self.rows = 0
        self.slices = 0
        self.instants = 0
        self.counters = 0
        self.flows = 0
        self.open = 0
        self.bytes_written = 0
        self.notes: list[Note] = []
        self.errors = list(errors)

    @property
    def is_complete(self) -> bool:
        """True when every row of every input is in the trace."""
        return not self.errors and not any(note.is_loss for note in self.notes)

    def _add(self, result: dict[str, Any]) -> None:
        for name in ("rows", "slices", "instants", "counters", "flows", "open"):
            setattr(self, name, getattr(self, name) + result[name])
        self.notes.extend(Note(*note) for note in result["notes"])
        self.errors.extend(result["errors"])

    def messages(self) -> list[str]:
        """One line for each kind of problem; notes of one kind from several files are added up.
        Control characters in texts from files are escaped."""
        merged: dict[str, Note] = {}
        for note in self.notes:
            first = merged.get(note.kind)
            total = note.count + (first.count if first else 0)
            base = first or note
            merged[note.kind] = Note(
                base.kind, base.is_loss, total, base.file, base.line, base.text
            )
        return [printable(message) for message in (*self.errors, *map(str, merged.values()))]


class Options(NamedTuple):
    """How to convert. See csv_to_trace. `on_progress` is called with the bytes read, and those in
    all."""

    format: Format | None = None
    layout: Layout = "ranks"
    ranks: set[int] | None = None
    steps: tuple[int, int] | None = None
    stages: str | None = None
    merge: Sequence[StrPath] = ()
    recover: bool = False
    sort: bool = False
    rank: int | None = None
    with_args: bool = True
    strict: bool = False
    jobs: int = 0
    on_progress: Callable[[int, int], None] | None = None


def csv_to_trace(
    csv_path: StrPath | Sequence[StrPath],
    out_json: StrPath,
    *,
    format: Format | None = None,
    layout: Layout = "ranks",
    ranks: set[int] | None = None,
    steps: tuple[int, int] | None = None,
    stages: str | None = None,
    merge: Sequence[StrPath] = (),
    recover: bool = False,
    sort: bool = False,
    rank: int | None = None,
) -> Summary:
    """Convert profile CSVs to a trace that opens in Perfetto.

    Args:
        csv_path: a CSV, a directory of a run, a journal, a glob, or a list of these.
        out_json: the trace. `.json`, `.pftrace` and `.perfetto-trace`, each also with `.gz`, say
            the format when `format` is None; any other name means JSON.
        format: "json" for Chrome's JSON, "perfetto" for Perfetto's protobuf, a quarter of the size.
        layout: "ranks", a process for each rank and a track for each thread; "seed", the layout of
            the script that this function replaces (JSON only).
        ranks: convert only these.
        steps: convert only steps from the first to before the second.
        stages: a regular expression; convert only stages in whose name it is found.
        merge: traces of other tools in Chrome's JSON (torch.profiler, viztracer, Chrome), on the
            same time axis.
        recover: take in what only the journals of dead processes hold.
        sort: write JSON events in the order of time; needs memory for the whole trace.
        rank: the rank of the input, instead of that in its name.

    Returns:
        What was converted. What could not be used is warned about with ConversionWarning, once per
        kind, with its place; the rest is in the trace.

    Raises:
        ConversionError: there is nothing to convert; `out_json` is left as it was.
        OSError: the trace cannot be written; `out_json` is left as it was.

    Thread-safe; it releases the GIL while it works. Several files use several cores.

    >>> import tempfile
    >>> from my_utils import GlobalLogger, MyTimer
    >>> logs = tempfile.TemporaryDirectory()
    >>> GlobalLogger().setup(logs.name, rank=0, console=False)
    >>> with MyTimer().time_stage("forward"):
    ...     pass
    >>> GlobalLogger().close()
    >>> csv_to_trace(logs.name, f"{logs.name}/trace.json").slices
    1
    >>> logs.cleanup()
    """
    paths = [csv_path] if isinstance(csv_path, (str, os.PathLike)) else list(csv_path)
    options = Options(format, layout, ranks, steps, stages, merge, recover, sort, rank)
    summary = convert([os.fspath(path) for path in paths], os.fspath(out_json), options)
    for message in summary.messages():
        warnings.warn(message, ConversionWarning, stacklevel=2)
    return summary


def convert(inputs: Sequence[str], out: str, options: Options) -> Summary:
    """What csv_to_trace and the command line share."""
    name, is_gzip = _choose_format(out, options)
    found = Inputs(options.rank, options.recover)
    for text in inputs:
        found.add(text)
    file_sets = found.file_sets(options.ranks)
    if not file_sets and not found.errors:
        raise ConversionError("no rank of the input is among the ranks asked for")
    if not file_sets:
        raise ConversionError("\n".join(map(printable, found.errors)))
    summary = Summary([*found.errors, *found.unread_journals()])
    made = 0 if name == "seed" else _add_arrows(found.file_sets(None), file_sets)
    with _foreign_traces(options.merge) as foreign, _output(out, is_gzip) as descriptor:
        job = _core.TraceJob(descriptor, name, options.sort)
        try:
            known = _set_base(job, file_sets, foreign)
            offsets = _convert_all(job, file_sets, options, summary)
            if summary.rows == 0:
                raise ConversionError("\n".join(summary.messages() or ["the input holds no rows"]))
            for number, trace in enumerate(foreign):
                if known or trace.is_on_run_clock:
                    _merge(job, trace, number, offsets, summary)
                else:
                    summary.errors.append(
                        f"{trace.path}: states no time of the run's clock, and the beginning of "
                        "the run is not known; left out"
                    )
            summary.rows -= made
            summary.bytes_written = job.finish()
        except BaseException:
            job.cancel()
            raise
        if options.strict and summary.messages():
            raise ConversionError("\n".join(summary.messages()))
    return summary


def _choose_format(out: str, options: Options) -> tuple[Literal["json", "seed", "perfetto"], bool]:
    plain = out.removesuffix(".gz")
    format = options.format
    if format is None:
        suffix = os.path.splitext(plain)[1]
        format = SUFFIXES.get(suffix, "json")
    if format not in ("json", "perfetto"):
        raise ValueError(f"format must be 'json' or 'perfetto', not {format!r}")
    if options.layout not in ("ranks", "seed"):
        raise ValueError(f"layout must be 'ranks' or 'seed', not {options.layout!r}")
    if options.layout == "seed" and format == "perfetto":
        raise ValueError("layout 'seed' is JSON; it cannot be had with format 'perfetto'")
    return ("seed" if options.layout == "seed" else format), out.endswith(".gz")


# --- converting ---


def _set_base(
    job: _core.TraceJob, file_sets: list[FileSet], foreign: Sequence[ForeignTrace]
) -> bool:
    """Before the first time of all that is drawn. Whether the beginning of the run is known."""
    first = _first_time(file_sets, of_pipes=bool(foreign))
    for trace in foreign:
        if first is not None and not trace.is_on_run_clock:
            trace.align(first)
    known = [trace.first_ns for trace in foreign if trace.first_ns and trace.is_on_run_clock]
    if first is not None:
        job.set_base(min([first, *known]))
    return first is not None


def _add_arrows(everyone: Sequence[FileSet], drawn: Sequence[FileSet]) -> int:
    """Adds the arrows between ranks to their files. Returns how many rows that are."""
    if len(everyone) < 2 or len(drawn) < 2:
        return 0
    from .arrows import arrow_parts

    count = 0
    parts = arrow_parts(everyone)
    for one in drawn:
        if one.slot == 0 and one.rank in parts:
            one.parts.append(parts[one.rank])
            count += (parts[one.rank].rows or b"").count(b"\n")
    return count


def _convert_all(
    job: _core.TraceJob, file_sets: list[FileSet], options: Options, summary: Summary
) -> dict[int, list[tuple[int, int]]]:
    """Returns the clock offsets of each rank, for merged traces."""
    many = len(file_sets) > 1
    matcher = None if options.stages is None else re.compile(options.stages).search

    def run(file_set: FileSet) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            parts = [_opened(part, stack) for part in file_set.parts]
            return job.convert(
                parts,
                file_set.rank,
                slot=file_set.slot,
                many=many,
                with_args=options.with_args,
                steps=options.steps,
                name_filter=None if matcher is None else lambda text: matcher(text) is not None,
            )

    offsets: dict[int, list[tuple[int, int]]] = {}
    total = sum(part.size() for file_set in file_sets for part in file_set.parts)
    with _progress(job, total, options.on_progress):
        for file_set, result in zip(file_sets, _map(run, file_sets, options, job), strict=True):
            summary._add(result)
            _add_unreported(file_set, summary)
            offsets.setdefault(file_set.rank, []).extend(result["offsets"])
    return offsets


def _add_unreported(file_set: FileSet, summary: Summary) -> None:
    """A note where the heartbeat of the process knows of lost rows and its CSV does not."""
    path = file_set.heartbeat()
    if path is None:
        return
    try:
        missing = _unreported(path, file_set)
    except (OSError, ValueError) as error:
        summary.errors.append(f"{path}: {describe(error)}")
        return
    if missing:
        text = "the process lost a record, which is in no row"
        summary.notes.append(Note("dropped", True, missing, str(path), 0, text))


def _unreported(heartbeat: Path, file_set: FileSet) -> int:
    """How many lost rows only the heartbeat knows of; ValueError or OSError where it cannot be
    read."""
    from ..core.run_files.lost_rows import lost_in_heartbeat, lost_in_notes
    from ..core.run_files.run_metadata import parse_note

    if not lost_in_heartbeat(heartbeat, ()):  # as nearly always
        return 0
    with contextlib.ExitStack() as stack:
        rows = _core.read_notes([_opened(part, stack) for part in file_set.parts])["notes"]
    said = lost_in_notes(parse_note(attempt, text) for attempt, _, _, text in rows)
    return sum(one.rows for one in lost_in_heartbeat(heartbeat, said))


def _map(
    run: Callable[[FileSet], dict[str, Any]],
    file_sets: list[FileSet],
    options: Options,
    job: _core.TraceJob,
) -> Iterator[dict[str, Any]]:
    jobs = min(options.jobs or len(os.sched_getaffinity(0)), len(file_sets))
    if jobs <= 1:
        yield from map(run, file_sets)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(run, file_sets)
        except BaseException:
            job.cancel()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _opened(part: Part, stack: contextlib.ExitStack) -> _core._TracePart:
    try:
        return part.opened(stack)
    except OSError as error:
        raise ConversionError(printable(f"{part.name}: {error.strerror}")) from error


def _first_time(file_sets: list[FileSet], of_pipes: bool) -> int | None:
    """The earliest first row of all files, Unix nanoseconds. A pipe is waited for if that is asked
    for."""
    times: list[int | None] = []
    for file_set in file_sets:
        part = file_set.parts[0]
        if of_pipes or not part.is_pipe:
            with contextlib.suppress(OSError):
                times.append(part.first_ns())
    return min((one for one in times if one is not None), default=None)


@contextlib.contextmanager
def _progress(
    job: _core.TraceJob, total: int, report: Callable[[int, int], None] | None
) -> Iterator[None]:
    if report is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            report(job.bytes_read, total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        report(job.bytes_read, total)


def _merge(
    job: _core.TraceJob,
    trace: ForeignTrace,
    number: int,
    offsets: dict[int, list[tuple[int, int]]],
    summary: Summary,
) -> None:
    rank = trace.rank if trace.rank is not None else min(offsets, default=0)
    changes = sorted(offsets.get(rank, ())) if trace.is_on_run_clock else []

    def shift(at_ns: int) -> int:
        offset = 0
        for change_ns, offset_ns in changes:
            if at_ns + offset_ns >= change_ns:
                offset = offset_ns
        return offset

    slot = TORCH_SLOT + number
    result = job.convert(trace.rows(shift), rank, slot=slot, many=True, foreign=trace.path)
    summary.errors.extend(trace.all_messages())
    summary._add(result)


@contextlib.contextmanager
def _foreign_traces(paths: Sequence[StrPath]) -> Iterator[list[ForeignTrace]]:
    """The traces to merge, read."""
    if not paths:
        yield []
        return
    from .foreign import ForeignTrace

    with contextlib.ExitStack() as stack:
        traces = [ForeignTrace(Path(path), number) for number, path in enumerate(paths)]
        for trace in traces:
            stack.callback(trace.close)
            trace.read()
        yield traces


# --- where it goes ---


@contextlib.contextmanager
def _output(out: str, is_gzip: bool) -> Iterator[int]:
    """The descriptor to write the trace to."""
    with open_output(out) as file:
        if is_gzip:
            with _compressed(file) as descriptor:
                yield descriptor
        else:
            yield file.fileno()


@contextlib.contextmanager
def _compressed(file: IO[bytes]) -> Iterator[int]:
    """A pipe whose other end a thread compresses into `file`; zlib lets the GIL go."""
    import gzip

    read_fd, write_fd = os.pipe()
    failures: list[Exception] = []

    def pump() -> None:
        with open(read_fd, "rb", buffering=0) as source:
            try:
                with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as out:
                    while chunk := source.read(PIPE_CHUNK):
                        out.write(chunk)
            except OSError as error:
                failures.append(error)

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    try:
        yield write_fd
    finally:
        os.close(write_fd)
        thread.join()
        if failures:
            raise failures[0]


# --- the command line ---


def command_parser() -> CommandParser:
    chosen = parser(
        "trace",
        "Converts profile CSVs to a trace for Perfetto (https://ui.perfetto.dev).",
        [
            "my_utils trace",
            "my_utils trace logs -o trace.json.gz --steps 10:20 --ranks 0,3-5",
            "my_utils trace logs --merge torch_trace.json --open",
        ],
        statuses="0  the trace is complete\n1  nothing was written\n2  wrong arguments\n"
        "3  the trace was written, but rows or files were left out (see the warnings)",
    )
    add = chosen.add_argument
    add_logs(chosen, text="log directory, profile CSV, journal or glob, - for standard input")
    add_output(
        chosen, f"the trace, {', '.join(SUFFIXES)}, each also with .gz; - for standard output "
        f"(default: {DEFAULT_OUTPUT})",
    )  # fmt: skip
    add("--format", choices=("json", "perfetto"), help="default: by the suffix of FILE")
    layouts = "ranks: a process for each rank; seed: JSON as the original converter writes it"
    add("--layout", choices=("ranks", "seed"), default="ranks", help=layouts)
    add_ranks(chosen)
    add_steps(chosen)
    add("--stages", metavar="REGEX", help="only stages whose name matches REGEX")
    add("--merge", nargs="+", action="extend", default=[], metavar="TRACE.json",
        help="add traces of torch.profiler, viztracer or Chrome, on one time axis")  # fmt: skip
    add("--recover", action="store_true", help="also read records that are only in journals")
    add("--sort", action="store_true", help="sort JSON by time; needs memory for all events")
    add(
        "--rank",
        type=int,
        metavar="N",
        help="the rank of the input (default: from its name)",
    )
    add("--no-args", action="store_true", help="a smaller trace, without step, ids and user's args")
    add("--strict", action="store_true", help="write nothing if there is any warning")
    add("--open", action="store_true", help="show the trace in the Perfetto UI")
    add_json(chosen, "print a summary as JSON; without -o no trace is written")
    add_quiet(chosen, "no progress and no closing line")
    return chosen


def _options(args: argparse.Namespace) -> Options:
    if args.stages is not None:
        try:
            re.compile(args.stages)
        except re.error as error:
            raise ValueError(f"--stages is not a regular expression: {error}") from None
    if args.open and is_stream(args.output):
        raise ValueError(f"--open needs a file, not {args.output}")
    if args.json and args.output == "-":
        raise ValueError("--json and the trace cannot both go to standard output: pass -o FILE")
    if args.format is None:
        check_suffix(args.output, [*SUFFIXES, *(f"{suffix}.gz" for suffix in SUFFIXES)])
    return Options(
        args.format,
        args.layout,
        args.ranks,
        args.steps,
        args.stages,
        args.merge,
        args.recover,
        args.sort,
        args.rank,
        not args.no_args,
        args.strict,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser()
    args = chosen.parse_args(argv)
    args.output = args.output or (os.devnull if args.json else DEFAULT_OUTPUT)
    try:
        options = _options(args)
        _choose_format(args.output, options)
    except ValueError as error:
        chosen.error(str(error))
    try:
        logs = found_logs("trace", args.logs, args.quiet)
        with Progress("trace", None, "bytes", quiet=args.quiet, no_color=args.no_color) as bar:
            shown = options._replace(on_progress=bar.show if bar.is_shown else None)
            summary = convert(logs, args.output, shown)
    except ConversionError as error:
        return fail("trace", error)
    except BrokenPipeError:
        raise
    except OSError as error:
        error.filename = error.filename or args.output
        return fail("trace", error)
    for message in summary.messages():
        say("trace", f"warning: {message}")
    if args.json:
        import json

        print(json.dumps(_as_data(summary, args.output)))
    elif not args.quiet:
        say("trace", f"{summary.slices} slices of {summary.rows} rows -> {args.output}")
    if args.open:
        from .browser import serve

        serve(Path(args.output))
    return 0 if summary.is_complete else 3


class SummaryData(TypedDict):
    """What was converted.

    output: the trace, null if none was written.
    is_complete: every row of every input is in the trace.
    rows: rows of the input.
    slices: stages in the trace.
    instants: moments in the trace.
    counters: values of counters in the trace.
    flows: arrows in the trace.
    open: stages that had not ended.
    bytes_written: the size of the trace before compression.
    messages: what was left out, one line a kind of trouble.
    """

    version: Literal[1]
    output: str | None
    is_complete: bool
    rows: int
    slices: int
    instants: int
    counters: int
    flows: int
    open: int
    bytes_written: int
    messages: list[str]


def _as_data(summary: Summary, output: str) -> SummaryData:
    """What was converted, as plain data; later versions only add keys."""
    return {
        "version": SCHEMA_VERSION,
        "output": None if output == os.devnull else output,
        "is_complete": summary.is_complete,
        "rows": summary.rows,
        "slices": summary.slices,
        "instants": summary.instants,
        "counters": summary.counters,
        "flows": summary.flows,
        "open": summary.open,
        "bytes_written": summary.bytes_written,
        "messages": summary.messages(),
    }


if __name__ == "__main__":
    sys.exit(main())

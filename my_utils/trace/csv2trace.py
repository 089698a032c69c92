"""Turns profile CSVs into a trace for Perfetto.

    python -m my_utils.csv2trace LOG_DIR -o trace.pftrace

Exit status: 0, the trace is complete; 1, nothing was written (bad input, a failed write, or any
warning with --strict); 2, wrong usage; 3, the trace was written, but rows or files were left out;
130, interrupted. Messages go to standard error, one a kind of trouble, as
`csv2trace: warning: FILE:LINE: what (N rows)`, with the place of the first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import threading
import warnings
from pathlib import Path

from .. import _core
from ..common.public import public
from ..common.ranges import checked, parse_ranks, parse_steps
from ..common.terminal import progress_bar
from .inputs import FileSet, InputError, Inputs, Part, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO, Any, Literal

    StrPath = str | os.PathLike[str]
    Format = Literal["json", "perfetto"]
    Layout = Literal["ranks", "seed"]

__all__ = ["ConversionError", "ConversionWarning", "Summary", "csv_to_trace", "main"]

SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".pb": "perfetto",
}
PIPE_CHUNK = 1 << 20
TORCH_SLOT = 5  # where the processes of merged traces start among those of a rank


@public("my_utils.csv2trace")
class ConversionError(ValueError):
    """Nothing could be converted; the text says why, one reason a line."""


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
        """True when every row of every input stands in the trace."""
        return not self.errors and not any(note.is_loss for note in self.notes)

    def _add(self, result: dict[str, Any]) -> None:
        for name in ("rows", "slices", "instants", "counters", "flows", "open"):
            setattr(self, name, getattr(self, name) + result[name])
        self.notes.extend(Note(*note) for note in result["notes"])
        self.errors.extend(result["errors"])

    def messages(self) -> list[str]:
        """One line a kind of trouble; notes of one kind out of several files are added up."""
        merged: dict[str, Note] = {}
        for note in self.notes:
            first = merged.get(note.kind)
            total = note.count + (first.count if first else 0)
            base = first or note
            merged[note.kind] = Note(
                base.kind, base.is_loss, total, base.file, base.line, base.text
            )
        return [*self.errors, *map(str, merged.values())]


class Options(Record):
    """How to convert. See csv_to_trace. `on_progress` is given the bytes read, and those in all."""

    def __init__(
        self,
        format: Format | None = None,
        layout: Layout = "ranks",
        ranks: set[int] | None = None,
        steps: tuple[int, int] | None = None,
        stages: str | None = None,
        merge: Sequence[StrPath] = (),
        recover: bool = False,
        sort: bool = False,
        rank: int | None = None,
        with_args: bool = True,
        strict: bool = False,
        jobs: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.format = format
        self.layout = layout
        self.ranks = ranks
        self.steps = steps
        self.stages = stages
        self.merge = merge
        self.recover = recover
        self.sort = sort
        self.rank = rank
        self.with_args = with_args
        self.strict = strict
        self.jobs = jobs
        self.on_progress = on_progress


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
        layout: "ranks", a process a rank and a track a thread; "seed", the layout of the script
            that this function replaces (JSON only).
        ranks: convert only these.
        steps: convert only steps from the first to before the second.
        stages: a regular expression; convert only stages in whose name it is found.
        merge: traces of torch.profiler of the same run, to stand on the same time axis.
        recover: take in what only the journals of dead processes hold.
        sort: write JSON events in the order of time; needs memory for the whole trace.
        rank: take the input for this rank, whatever its name says.

    Returns:
        What was converted. What could not be used is warned about with ConversionWarning, once a
        kind, with its place; the rest is in the trace.

    Raises:
        ConversionError: there is nothing to convert; `out_json` is left as it was.
        OSError: the trace cannot be written; `out_json` is left as it was.

    Thread-safe; it lets the GIL go while it works. Several files use several cores.

    >>> import os, tempfile
    >>> row = '1750000000.5,,node-0,3,forward,{},{},"node_id=1,parent_id=0"' + chr(10)
    >>> header = 'timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     csv = os.path.join(folder, "profile_rank_0.csv")
    ...     with open(csv, "w") as out:
    ...         _ = out.write(header + "metadata" + chr(10) + row.format("START", ""))
    ...         _ = out.write(row.format("END", "0.0"))
    ...     csv_to_trace(csv, os.path.join(folder, "trace.json")).slices
    1
    """
    paths = [csv_path] if isinstance(csv_path, (str, os.PathLike)) else list(csv_path)
    options = Options(format, layout, ranks, steps, stages, merge, recover, sort, rank)
    summary = convert([os.fspath(path) for path in paths], os.fspath(out_json), options)
    for message in summary.messages():
        warnings.warn(message, ConversionWarning, stacklevel=2)
    return summary


def convert(inputs: Sequence[str], out: str, options: Options) -> Summary:
    """What csv_to_trace and the command line share."""
    name, is_gzip = _format_of(out, options)
    found = Inputs(options.rank, options.recover)
    for text in inputs:
        found.add(text)
    file_sets = found.file_sets(options.ranks)
    if not file_sets and not found.errors:
        raise ConversionError("no rank of the input is among the ranks asked for")
    if not file_sets:
        raise ConversionError("\n".join(found.errors))
    summary = Summary(found.errors)
    with _output(out, is_gzip) as output:
        job = _core.TraceJob(output.fd, name, options.sort)
        try:
            offsets = _convert_all(job, file_sets, options, summary)
            if summary.rows == 0:
                raise ConversionError("\n".join(summary.errors or ["the input holds no rows"]))
            for number, path in enumerate(options.merge):
                _merge(job, Path(path), number, offsets, summary)
            summary.bytes_written = job.finish()
        except BaseException:
            job.cancel()
            raise
        if options.strict and summary.messages():
            raise ConversionError("\n".join(summary.messages()))
        output.keep()
    return summary


def _format_of(out: str, options: Options) -> tuple[Literal["json", "seed", "perfetto"], bool]:
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


def _convert_all(
    job: _core.TraceJob, file_sets: list[FileSet], options: Options, summary: Summary
) -> dict[int, list[tuple[int, int]]]:
    """Returns the clock offsets of each rank, for merged traces."""
    first = _first_time(file_sets)
    if first is not None:
        job.set_base(first)
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
            offsets.setdefault(file_set.rank, []).extend(result["offsets"])
    return offsets


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
        raise ConversionError(f"{part.name}: {error.strerror}") from error


def _first_time(file_sets: list[FileSet]) -> int | None:
    """The earliest first row of all files, Unix nanoseconds."""
    times: list[int] = []
    for file_set in file_sets:
        part = file_set.parts[0]
        if part.path is None and part.rows is None:
            continue
        with contextlib.ExitStack() as stack, contextlib.suppress(ValueError, OSError):
            times.append(_core.trace_first_ns(_opened(part, stack)))
    return min(times, default=None)


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
    path: Path,
    number: int,
    offsets: dict[int, list[tuple[int, int]]],
    summary: Summary,
) -> None:
    from . import torch_trace

    try:
        _, stated = torch_trace.read_facts(path)
    except OSError as error:
        summary.errors.append(f"{path}: {error.strerror or error}")
        return
    rank = stated if stated is not None else min(offsets, default=0)
    changes = sorted(offsets.get(rank, ()))

    def shift(at_ns: int) -> int:
        offset = 0
        for change_ns, offset_ns in changes:
            if at_ns + offset_ns >= change_ns:
                offset = offset_ns
        return offset

    read_fd, write_fd = os.pipe()
    failures: list[str] = []

    def write() -> None:
        try:
            with open(write_fd, "wb", buffering=PIPE_CHUNK) as out:
                torch_trace.write_rows(path, shift, out)
        except BrokenPipeError:
            pass
        except (OSError, ValueError, EOFError) as error:
            failures.append(str(error))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        part = (str(path), read_fd, -1, None, True)
        result = job.convert([part], rank, slot=TORCH_SLOT + number, many=True)
    finally:
        os.close(read_fd)
        writer.join()
    expected = ("end_alone", "step_back")  # complete events come as ENDs with their length
    result["notes"] = [note for note in result["notes"] if note[0] not in expected]
    summary.errors.extend(failures)
    summary._add(result)


# --- where it goes ---


class _Output:
    """The file descriptor to write to, and what to do when all went well."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_kept = False

    def keep(self) -> None:
        self.is_kept = True


@contextlib.contextmanager
def _output(out: str, is_gzip: bool) -> Iterator[_Output]:
    """A temporary file beside `out` that takes its name at the end; pipes and devices directly."""
    path = Path(out)
    direct = out == "-" or (path.exists() and not path.is_file())
    if direct:
        fd = os.dup(1) if out == "-" else os.open(path, os.O_WRONLY)
        temporary = None
    else:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident():x}.tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(fd, "wb", buffering=0) as file:
            output = _Output(fd)
            if is_gzip:
                with _compressed(file) as output.fd:
                    yield output
            else:
                yield output
        if temporary is not None and output.is_kept:
            os.replace(temporary, path)
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m my_utils.csv2trace",
        description="Turns profile CSVs into a trace for Perfetto (https://ui.perfetto.dev).",
        epilog="Exit status: 0 the trace is complete; 1 nothing was written; 2 wrong usage; "
        "3 the trace was written, but rows or files were left out (see the warnings).",
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="CSV, directory, journal or glob; - for stdin")
    add("-o", "--output", required=True, metavar="OUT", help="the trace; - for stdout")
    add("--format", choices=("json", "perfetto"), help="default: by the suffix of OUT")
    add("--layout", choices=("ranks", "seed"), default="ranks")
    add("--ranks", type=checked(parse_ranks), metavar="0,3-7", help="only these ranks")
    add("--steps", type=checked(parse_steps), metavar="10:20", help="only 10 <= step < 20")
    add("--stages", metavar="REGEX", help="only stages in whose name REGEX is found")
    add("--merge", nargs="+", action="extend", default=[], metavar="TORCH_TRACE.json",
        help="traces of torch.profiler of the same run, onto the same time axis")  # fmt: skip
    add("--recover", action="store_true", help="also take what only the journals hold")
    add("--sort", action="store_true", help="JSON in the order of time; needs memory for it all")
    add("--rank", type=int, metavar="N", help="the rank of the input, whatever its name says")
    add("--no-args", action="store_true", help="a smaller trace: no step, no ids, no user's args")
    add("--strict", action="store_true", help="write nothing when there is anything to warn about")
    add("--open", action="store_true", help="show the trace in the Perfetto UI")
    add("--quiet", action="store_true", help="no progress bar and no closing line")
    return parser


def _say(text: str) -> None:
    for line in text.splitlines():
        print(f"csv2trace: {line}", file=sys.stderr)


def _options(args: argparse.Namespace) -> Options:
    if args.stages is not None:
        try:
            re.compile(args.stages)
        except re.error as error:
            raise ValueError(f"--stages is no regular expression: {error}") from None
    if args.open and args.output == "-":
        raise ValueError("--open needs a file, not standard output")
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
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        options = _options(args)
        _format_of(args.output, options)
    except ValueError as error:
        parser.error(str(error))
    try:
        with progress_bar("csv2trace", wanted=False if args.quiet else None, stays=False) as bar:
            options.on_progress = bar.show if bar.is_shown else None
            summary = convert(args.inputs, args.output, options)
    except (ConversionError, InputError) as error:
        _say("\n".join(f"error: {line}" for line in str(error).splitlines()))
        return 1
    except OSError as error:
        _say(f"error: {args.output}: {error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        return 130
    for message in summary.messages():
        _say(f"warning: {message}")
    if not args.quiet:
        _say(f"{summary.slices} slices of {summary.rows} rows -> {args.output}")
    if args.open:
        from .browser import serve

        serve(Path(args.output))
    return 0 if summary.is_complete else 3


if __name__ == "__main__":
    sys.exit(main())

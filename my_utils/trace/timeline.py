"""Draws a few steps from profile CSVs as a picture.

A band a thread of a rank, nested stages below each other, one time axis for all ranks, so that one
sees who waits for whom. However many ranks there are, it is one figure: the bands get thinner. For
more than a picture make a trace: `python -m my_utils.csv2trace`.

    my_utils timeline logs -o timeline.png --steps 10:13    (or python -m my_utils.timeline)

Needs matplotlib (`pip install matplotlib`). Memory is the spans of the steps that are
drawn, whatever the length of the files.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .. import _core
from ..core.bounded_read import describe
from ..core.colours import slice_colours, text_colour
from ..core.command_line import (
    CommandParser,
    add_json,
    add_logs,
    add_output,
    add_quiet,
    add_ranks,
    add_steps,
    check_outputs,
    fail,
    parser,
    run_cli,
)
from ..core.outputs import open_output
from ..core.progress import Progress
from ..core.public import public
from ..core.ranges import parse_steps, ranks_text
from ..core.run_files.newest import found_logs
from ..core.trusted_open import open_filled, open_filled_or_pipe
from .inputs import CSV_NAME

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NODE_SHIFT = 40  # where no row says the attempt, node ids differ above this bit
SUFFIXES = (".png", ".svg", ".pdf")
DEFAULT_OUTPUT = "timeline.png"
ROW_INCHES = 0.4  # of a depth of a band; all bands together take HEIGHT_MAX_INCHES at most
HEIGHT_MAX_INCHES = 120.0
ROWS_BETWEEN = 0.3  # between two bands
BAR_HEIGHT = 0.92  # of a row
TEXT_INCHES = 0.2  # rows below this have neither names nor edges
LABEL_INCHES = 0.16


@public("my_utils.timeline")
class Span(NamedTuple):
    """A finished stage of one rank. Times are nanoseconds.

    thread: the thread's id, with the timer's tag where it has one.
    start_ns: since the Unix epoch.
    node: the stage's id in its rank, 0 where the row has none.
    parent: the id of the stage around it, 0 for none.
    """

    rank: int
    thread: str
    step: int
    name: str
    start_ns: int
    duration_ns: int
    node: int
    parent: int


def find_csvs(inputs: Iterable[str | Path]) -> list[Path]:
    """The profile CSVs among files and directories, ordered by rank, oldest part first.

    Raises FileNotFoundError for an input that does not exist and for a directory with no CSV.
    """
    found: list[Path] = []
    for item in map(Path, inputs):
        if item.is_dir():
            inside = [path for path in item.iterdir() if CSV_NAME.search(path.name)]
            if not inside:
                raise FileNotFoundError(f"{item}: no profile_rank_*.csv in this directory")
            found += inside
        elif item.exists():
            found.append(item)
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), item)
    return sorted(found, key=lambda path: (_in_name(path), str(path)))


def _in_name(path: Path) -> tuple[int, str, int]:
    """The rank, the worker, "" for the rank itself, and the part of a profile CSV."""
    match = CSV_NAME.search(path.name)
    if match is None:
        return 0, "", 0
    newest = 1 << 31
    return int(match[1]), match[2] or "", int(match[3] or newest)


def read_spans(path: str | Path, steps: range | None = None) -> Iterator[Span]:
    """Streams the finished stages of one profile CSV, those of `steps` where given.

    An END row says all that a span has, so START rows, and stages still open, are ignored.
    Rows that can't be read are left out, with one warning a file that names the first. Raises
    ValueError for a file without the columns of a profile CSV.

    >>> import tempfile
    >>> from my_utils import GlobalLogger, MyTimer
    >>> logs = tempfile.TemporaryDirectory()
    >>> GlobalLogger().setup(logs.name, rank=0, console=False)
    >>> timer = MyTimer()
    >>> timer.set_step(7)
    >>> with timer.time_stage("forward"):
    ...     pass
    >>> timer.step()
    >>> spans = read_spans(f"{logs.name}/profile_rank_0.csv", steps=range(7, 8))
    >>> [(span.step, span.name) for span in spans]
    [(7, 'forward')]
    >>> GlobalLogger().close()
    >>> logs.cleanup()
    """
    for _, span in _read_spans(Path(path), steps):
        yield span


def _read_spans(path: Path, steps: range | None) -> Iterator[tuple[int, Span]]:
    """Also of each span the attempt that recorded it."""
    rank = _in_name(path)[0]
    bad, first, attempt = 0, "", -1
    for row in _rows(path, open_filled_or_pipe):
        problem = _check_row(row)
        if problem:
            first = first or f"{path}:{problem}"
            bad += 1
        elif row[0] == "PROCESS":
            attempt = row[1]
        elif row[0] == "END" and row[7] is not None and (steps is None or row[6] in steps):
            span = _span(rank, row)
            yield (attempt if attempt >= 0 else span.node >> NODE_SHIFT), span
    if bad:
        warnings.warn(f"{bad} rows left out, the first: {first}", RuntimeWarning, stacklevel=3)


def _rows(path: Path, opener: Callable[[str, int], int] = open_filled) -> Iterator[_core._AnyRow]:
    with open(path, "rb", buffering=0, opener=opener) as file:
        yield from _core.StageRows((str(path), file.fileno(), -1, None, True))


def _check_row(row: _core._AnyRow) -> str:
    """The line and why nothing can be drawn of the row; "" for one that is fine. A file that is
    being written may end within a row."""
    if row[0] == "BAD" and row[2] != _core.UNFINISHED_ROW:
        return f"{row[1]}: {row[2]}"
    if row[0] == "END" and row[7] is not None and row[5] not in ("", "cuda_ms"):
        return f"{row[4]}: not understood: {row[5]}"
    return ""


def _span(rank: int, row: _core._EndRow) -> Span:
    _, node, parent, name, _, _, step, duration_ns, _, end_ns, tid, tag = row
    assert duration_ns is not None
    return Span(
        rank=rank,
        thread=" ".join(filter(None, (tag, str(tid) if tid >= 0 else ""))),
        step=step,
        name=name,
        start_ns=end_ns - duration_ns,
        duration_ns=duration_ns,
        node=max(node, 0),
        parent=max(parent, 0),
    )


def _last_step(paths: Sequence[Path], progress: Progress) -> int | None:
    """The step of the outermost stage of these files that ended last."""
    last: tuple[int, int] | None = None
    for path in paths:
        for row in _rows(path):
            if row[0] == "END" and row[2] <= 0 and row[7] is not None and not row[5]:
                last = max(last, (row[9], row[6])) if last else (row[9], row[6])
        progress.advance()
    return last[1] if last else None


def _last_steps(files: Mapping[int, Sequence[Path]], count: int, progress: Progress) -> range:
    """The last `count` steps that every rank has finished. The parts of a rank are one run, and its
    workers (`.w1`) count only if it has no separate file."""
    last: list[int] = []
    for paths in files.values():
        own = [path for path in paths if not _in_name(path)[1]]
        step = _last_step(own or paths, progress)
        if step is not None:
            last.append(step)
    if not last:
        raise ValueError("no finished stage in these files")
    return range(min(last) - count + 1, min(last) + 1)


def _last_attempts(spans: list[tuple[str, int, Span]]) -> list[Span]:
    """Without what a restarted job did again: of each step of a process, its last attempt.

    spans: with the file of the process, and the attempt.
    """
    newest: dict[tuple[str, int], int] = {}
    for name, attempt, span in spans:
        newest[name, span.step] = max(newest.get((name, span.step), -1), attempt)
    return [span for name, attempt, span in spans if attempt == newest[name, span.step]]


def plot_timeline(
    inputs: Iterable[str | Path],
    png: str | Path,
    steps: range | None = None,
    title: str | None = None,
    ranks: set[int] | None = None,
) -> Path:
    """Draws the stages of `steps` (default: the last two that all ranks finished) into a picture.

    `inputs` are profile CSVs and directories that hold them; `ranks` restricts them. The suffix of
    `png` may also be .svg or .pdf. Returns its path. A file that cannot be read is left out, with a
    warning. Raises FileNotFoundError when there is no CSV, ValueError when the steps hold no stage,
    and ImportError if matplotlib is missing.
    """
    with Progress("timeline", quiet=True) as progress:
        spans, steps = _chosen_spans(inputs, steps, ranks, progress)
    _draw(spans, png, title or _named(steps))
    return Path(png)


def _named(steps: range) -> str:
    return f"steps {steps.start} to {steps.stop - 1}"


def _chosen_spans(
    inputs: Iterable[str | Path], steps: range | None, ranks: set[int] | None, progress: Progress
) -> tuple[list[Span], range]:
    paths = find_csvs(inputs)
    if ranks is not None:
        paths = [path for path in paths if _in_name(path)[0] in ranks]
    if not paths:
        raise ValueError("no rank of the input is among the ranks asked for")
    paths = _readable(paths)
    files: dict[int, list[Path]] = {}
    for path in paths:
        files.setdefault(_in_name(path)[0], []).append(path)
    if steps is None:
        progress.phase("looking for the last steps", len(paths), "files")
        steps = _last_steps(files, 2, progress)
    progress.phase("reading", len(paths), "files")
    spans: list[tuple[str, int, Span]] = []
    for path in paths:
        name = re.sub(r"\.part\d+\.csv$", ".csv", str(path))  # of the file of which it is a part
        spans.extend((name, attempt, span) for attempt, span in _read_spans(path, steps))
        progress.advance()
    if not spans:
        raise ValueError(f"no finished stage in {_named(steps)}")
    if missing := files.keys() - {span.rank for _, _, span in spans}:
        text = f"{ranks_text(missing)}: no finished stage in {_named(steps)}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    progress.phase("drawing")
    return _last_attempts(spans), steps


def _readable(paths: Sequence[Path]) -> list[Path]:
    """Those that have the header of a profile CSV; the others are warned about. Raises what was
    wrong with the first where none has it."""
    found: list[Path] = []
    first: ValueError | None = None
    for path in paths:
        try:
            next(_rows(path), None)
        except OSError as error:
            first = first or ValueError(f"{path}: {describe(error)}")
        except ValueError as error:
            first = first or error
        else:
            found.append(path)
    if first is not None and not found:
        raise first
    if first is not None:
        left = len(paths) - len(found)
        warnings.warn(f"{left} files left out, the first: {first}", RuntimeWarning, stacklevel=3)
    return found


def _depths(track: Sequence[Span]) -> list[int]:
    """How deep each stage of one thread is, in the order of `track`, which is that of begins. Node
    ids say it; a stage without one is in those that run when it begins."""
    parents = {span.node: span.parent for span in track if span.node > 0}
    by_node: dict[int, int] = {0: -1}
    for node in parents:
        chain = []
        while node in parents and node not in by_node:
            chain.append(node)
            node = parents[node]
        depth = by_node.get(node, -1)
        for step_down, inner in enumerate(reversed(chain), start=1):
            by_node[inner] = depth + step_down
    depths: list[int] = []
    running: list[tuple[int, int]] = []  # end and depth
    for span in track:
        running = [other for other in running if other[0] > span.start_ns]
        deepest = max((depth for _, depth in running), default=-1)
        depths.append(by_node[span.node] if span.node > 0 else deepest + 1)
        running.append((span.start_ns + span.duration_ns, depths[-1]))
    return depths


class _Band(NamedTuple):
    """A thread of a rank in the picture. `top` counts the rows of all bands above it."""

    label: str
    track: list[Span]
    depths: list[int]
    top: float

    @property
    def rows(self) -> int:
        return 1 + max(self.depths)


def _bands(spans: list[Span]) -> list[_Band]:
    tracks: dict[tuple[int, str], list[Span]] = {}
    spans = sorted(
        spans, key=lambda span: (span.rank, span.thread, span.start_ns, -span.duration_ns)
    )
    for span in spans:
        tracks.setdefault((span.rank, span.thread), []).append(span)
    several = len(tracks) > len({rank for rank, _ in tracks})
    bands: list[_Band] = []
    top = 0.0
    for (rank, thread), track in tracks.items():
        label = f"rank {rank}" + (f"\n{thread}" if several and thread else "")
        bands.append(_Band(label, track, _depths(track), top))
        top += bands[-1].rows + ROWS_BETWEEN
    return bands


def _draw(spans: list[Span], png: str | Path, title: str) -> None:
    from ..core.extras import require
    from ..core.tables import show_as_is

    require("matplotlib", "a picture of stages")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    bands = _bands(spans)
    rows = bands[-1].top + bands[-1].rows
    row_inches = min(ROW_INCHES, HEIGHT_MAX_INCHES / rows)
    colours = slice_colours(
        (depth, span.name)
        for band in bands
        for depth, span in zip(band.depths, band.track, strict=True)
    )
    origin = min(span.start_ns for span in spans)
    extent = max(max(span.start_ns + span.duration_ns for span in spans) - origin, 1)

    figure = Figure(figsize=(12, 1.5 + row_inches * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    _draw_bars(panel, bands, origin, colours, row_inches)
    if row_inches >= TEXT_INCHES:
        _draw_names(panel, bands, origin, extent, colours)
    _label_bands(panel, bands, row_inches)
    panel.set_ylim(rows, -0.08)
    panel.set_xlim(0, extent / 1e6)
    panel.set_title(title, loc="left", fontsize=11)
    panel.set_xlabel("ms")
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    figure.legend(
        [Patch(color=colour) for colour in colours.values()], list(colours),
        loc="outside lower center", ncols=8, frameon=False, fontsize=8,
    )  # fmt: skip
    show_as_is(figure)
    suffix = Path(png).suffix.lower().removeprefix(".")
    with open_output(png) as file:
        figure.savefig(file, format=suffix or "png")


def _draw_bars(
    panel: Axes, bands: list[_Band], origin: int, colours: dict[str, str], row_inches: float
) -> None:
    """All of them as one collection: one artist a bar would take minutes for 1,000 ranks."""
    from matplotlib.collections import PolyCollection

    bars: list[list[tuple[float, float]]] = []
    faces: list[str] = []
    for band in bands:
        for span, depth in zip(band.track, band.depths, strict=True):
            left, top = (span.start_ns - origin) / 1e6, band.top + depth
            right, bottom = left + span.duration_ns / 1e6, top + BAR_HEIGHT
            bars.append([(left, top), (left, bottom), (right, bottom), (right, top)])
            faces.append(colours[span.name])
    edge = 0.5 if row_inches >= TEXT_INCHES else 0
    panel.add_collection(
        PolyCollection(bars, facecolors=faces, edgecolors="white", linewidths=edge)
    )


def _draw_names(
    panel: Axes, bands: list[_Band], origin: int, extent: int, colours: dict[str, str]
) -> None:
    for band in bands:
        for span, depth in zip(band.track, band.depths, strict=True):
            # About 180 letters of this size fill the panel's width.
            if span.duration_ns / extent * 180 > len(span.name) + 1:
                middle = (span.start_ns - origin + span.duration_ns / 2) / 1e6
                panel.text(
                    middle, band.top + depth + BAR_HEIGHT / 2, span.name, ha="center", va="center",
                    fontsize=8, color=text_colour(colours[span.name]), clip_on=True,
                )  # fmt: skip


def _label_bands(panel: Axes, bands: list[_Band], row_inches: float) -> None:
    """Beside each band, or beside so many that the labels fit."""
    places: list[float] = []
    labels: list[str] = []
    for band in bands:
        lines = 1 + band.label.count("\n")
        place = band.top + band.rows / 2
        if not places or (place - places[-1]) * row_inches >= LABEL_INCHES * lines:
            places.append(place)
            labels.append(band.label)
    panel.set_yticks(places, labels)
    panel.tick_params(axis="y", length=0)


def _steps(text: str) -> range:
    return range(*parse_steps(text, bounded=True))


def command_parser() -> CommandParser:
    chosen = parser(
        "timeline",
        "Draws a few steps of a run: one band for each rank, on a common time axis.",
        ["my_utils timeline", "my_utils timeline logs -o steps.svg --steps 10:13 --ranks 0,3-5"],
        statuses="0  the picture is drawn\n1  there is nothing to draw, or it could not be written",
    )
    add_logs(chosen, text="log directory or profile CSV")
    add_output(chosen, f"the picture, {', '.join(SUFFIXES)}; - is standard output (default: "
               f"{DEFAULT_OUTPUT})", suffixes=SUFFIXES, old=("--out",))  # fmt: skip
    add_steps(chosen, "only steps from 10 to before 20 (the last two that all ranks have)", _steps)
    add_ranks(chosen)
    add_json(chosen, "print the stages of these steps as JSON; without -o nothing is drawn")
    add_quiet(chosen)
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser()
    args = chosen.parse_args(argv)
    check_outputs(chosen, args)
    output = args.output or (None if args.json else DEFAULT_OUTPUT)
    try:
        logs = found_logs("timeline", args.logs, args.quiet)
        with (
            warnings.catch_warnings(record=True) as caught,
            Progress(
                "timeline", quiet=args.quiet, no_color=args.no_color, ticking=True
            ) as progress,
        ):
            spans, steps = _chosen_spans(logs, args.steps, args.ranks, progress)
            if output is not None:
                _draw(spans, output, _named(steps))
    except BrokenPipeError:
        raise
    except (OSError, ValueError, ImportError) as error:
        return fail("timeline", error)
    for one in caught:
        print(f"my_utils timeline: warning: {one.message}", file=sys.stderr)
    if args.json:
        print(json.dumps([span._asdict() for span in spans]))
    elif output != "-" and not args.quiet:
        print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

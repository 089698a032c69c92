"""Draws a timeline of a few steps from profile CSVs, as a PNG to paste into a report.

A panel a rank, nested stages below each other, the time axis shared by all ranks, so that one sees
who waits for whom. For more than a picture make a trace: `python -m my_utils.csv2trace`.

    python -m my_utils.timeline logs -o timeline.png --steps 10:13

Needs matplotlib (`pip install my_utils[profiling]`). Memory is the spans of the steps that are
drawn, whatever the length of the files.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .. import _core
from ..common.public import public
from ..common.ranges import checked, parse_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Span", "find_csvs", "plot_timeline", "read_spans"]

_FILE = re.compile(r"profile_rank_(\d+)(\.w\d+)?(?:\.part(\d+))?\.csv$")
_OUTERMOST = "#aab2bd"  # the stage round a step: it says little, so it stays in the background
_PALETTE = (
    "#edc948", "#4e79a7", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#f28e2b", "#ff9da7",
    "#9c755f", "#86bcb6", "#8cd17d", "#499894",
)  # fmt: skip


@public("my_utils.timeline")
class Span(NamedTuple):
    """A finished stage of one rank. Times are nanoseconds; `start_ns` since the Unix epoch."""

    rank: int
    thread: str
    """The thread's id, with the timer's tag where it has one."""
    step: int
    name: str
    start_ns: int
    duration_ns: int
    node: int
    """The stage's id in its rank, 0 where the row has none."""
    parent: int
    """The id of the stage round it, 0 for none."""


def find_csvs(inputs: Iterable[str | Path]) -> list[Path]:
    """The profile CSVs among files and directories, ordered by rank, oldest part first.

    Raises FileNotFoundError for an input that does not exist and for a directory with no CSV.
    """
    found: list[Path] = []
    for item in map(Path, inputs):
        if item.is_dir():
            inside = [path for path in item.iterdir() if _FILE.search(path.name)]
            if not inside:
                raise FileNotFoundError(f"{item}: no profile_rank_*.csv in this directory")
            found += inside
        elif item.exists():
            found.append(item)
        else:
            raise FileNotFoundError(f"{item}: no such file or directory")
    return sorted(found, key=_file_order)


def _file_order(path: Path) -> tuple[int, str, int, str]:
    match = _FILE.search(path.name)
    if match is None:
        return (0, "", 0, str(path))
    newest = 1 << 31
    return (int(match[1]), match[2] or "", int(match[3] or newest), str(path))


def _rank_of(path: Path) -> int:
    match = _FILE.search(path.name)
    return int(match[1]) if match else 0


def read_spans(path: str | Path, steps: range | None = None) -> Iterator[Span]:
    """Streams the finished stages of one profile CSV, those of `steps` where given.

    An END row says all that a span has, so START rows, and stages still open, are passed over.
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
    path = Path(path)
    rank = _rank_of(path)
    bad, first = 0, ""
    with open(path, "rb", buffering=0) as file:
        for row in _core.StageRows((str(path), file.fileno(), -1, None, True)):
            problem = _problem_of(row)
            if problem:
                first = first or f"{path}:{problem}"
                bad += 1
            elif row[0] == "END" and row[7] is not None and (steps is None or row[6] in steps):
                yield _span(rank, row)
    if bad:
        warnings.warn(f"{bad} rows left out, the first: {first}", RuntimeWarning, stacklevel=2)


def _problem_of(row: _core._AnyRow) -> str:
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


def _last_steps(paths: Iterable[Path], count: int) -> range:
    """The last `count` steps that every file has finished."""
    last: list[int] = []
    for path in paths:
        steps = [span.step for span in read_spans(path) if span.parent == 0]
        if steps:
            last.append(max(steps))
    if not last:
        raise ValueError("no finished stage in these files")
    return range(min(last) - count + 1, min(last) + 1)


def plot_timeline(
    inputs: Iterable[str | Path],
    png: str | Path,
    steps: range | None = None,
    title: str | None = None,
) -> Path:
    """Draws the stages of `steps` (default: the last two that all ranks finished) into a PNG.

    `inputs` are profile CSVs and directories that hold them. Returns the path of the PNG.
    Raises FileNotFoundError when there is no CSV, ValueError when the steps hold no stage, and
    ImportError where matplotlib is missing.
    """
    paths = find_csvs(inputs)
    if steps is None:
        steps = _last_steps(paths, 2)
    spans = [span for path in paths for span in read_spans(path, steps)]
    if not spans:
        raise ValueError(f"no finished stage in steps {steps.start} to {steps.stop - 1}")
    _draw(spans, Path(png), title or f"steps {steps.start} to {steps.stop - 1}")
    return Path(png)


def _depths(spans: Sequence[Span]) -> dict[int, int]:
    """How deep each stage of one rank stands, by its node id."""
    parents = {span.node: span.parent for span in spans}
    depths: dict[int, int] = {0: -1}
    for node in parents:
        chain = []
        while node in parents and node not in depths:
            chain.append(node)
            node = parents[node]
        depth = depths.get(node, -1)
        for step_down, inner in enumerate(reversed(chain), start=1):
            depths[inner] = depth + step_down
    return depths


def _draw(spans: list[Span], png: Path, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from ..common.tables import no_formulas

    tracks: dict[tuple[int, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.rank, span.thread, span.start_ns)):
        tracks.setdefault((span.rank, span.thread), []).append(span)
    depths = {key: _depths(track) for key, track in tracks.items()}
    heights = [1 + max(depth.values()) for depth in depths.values()]
    colours = _colours((depths[key][span.node], span) for key in tracks for span in tracks[key])

    figure = Figure(figsize=(12, 1.5 + 0.4 * sum(heights)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        len(tracks), sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    origin = min(span.start_ns for span in spans)
    extent = max(span.start_ns + span.duration_ns for span in spans) - origin

    several = len({thread for _, thread in tracks}) > len({rank for rank, _ in tracks})
    for panel, (rank, thread) in zip(panels, tracks, strict=True):
        key = (rank, thread)
        _draw_track(panel, tracks[key], depths[key], origin, extent, colours)
        panel.set_ylabel(f"rank {rank}" + (f"\n{thread}" if several else ""), rotation=0,
                         ha="right", va="center")  # fmt: skip
    panels[0].set_title(title, loc="left", fontsize=11)
    panels[-1].set_xlabel("ms")
    panels[-1].set_xlim(0, extent / 1e6)
    figure.legend(
        [Patch(color=colour) for colour in colours.values()], list(colours),
        loc="outside lower center", ncols=8, frameon=False, fontsize=8,
    )  # fmt: skip
    no_formulas(figure)
    figure.savefig(png)


def _colours(spans: Iterable[tuple[int, Span]]) -> dict[str, str]:
    """A colour a stage name, outer stages first; takes (depth, span)."""
    names: dict[str, int] = {}
    for depth, span in spans:
        names[span.name] = min(depth, names.get(span.name, depth))
    colours = dict.fromkeys(sorted(names, key=lambda name: names[name]), _OUTERMOST)
    inner = [name for name in colours if names[name] > 0] or list(colours)
    colours |= {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(inner)}
    return colours


def _draw_track(
    panel: Axes,
    track: list[Span],
    depths: dict[int, int],
    origin: int,
    extent: int,
    colours: dict[str, str],
) -> None:
    for span in track:
        depth = depths[span.node]
        start, width = (span.start_ns - origin) / 1e6, span.duration_ns / 1e6
        panel.broken_barh(
            [(start, width)], (depth, 0.92), facecolor=colours[span.name], edgecolor="white",
            linewidth=0.5,
        )  # fmt: skip
        # About 180 letters of this size fill the panel's width.
        if span.duration_ns / extent * 180 > len(span.name) + 1:
            panel.text(start + width / 2, depth + 0.46, span.name, ha="center", va="center",
                       fontsize=8, color="white", clip_on=True)  # fmt: skip
    panel.set_ylim(1 + max(depths.values()), -0.08)
    panel.set_yticks([])
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _steps(text: str) -> range:
    return range(*parse_steps(text, bounded=True))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m my_utils.timeline", description="Draw steps of a run into a PNG."
    )
    parser.add_argument("input", nargs="+", help="profile CSVs, or directories of them")
    parser.add_argument("-o", "--out", default="timeline.png", help="default: %(default)s")
    parser.add_argument("--steps", type=checked(_steps), help="N, FROM:TO without TO, or FROM-TO")
    args = parser.parse_args(argv)
    try:
        print(plot_timeline(args.input, args.out, args.steps))
    except (OSError, ValueError, ImportError) as error:
        print(f"timeline: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

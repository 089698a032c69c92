"""A report as a table for people: stages as a tree, figures right-aligned, times in ms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Stage = Mapping[str, Any]

_HEADS = ("count", "total", "mean", "std", "min", "p50", "p90", "p99", "max", "% of parent")
_KEYS = ("count", "total_ms", "mean_ms", "std_ms", "min_ms", "p50_ms", "p90_ms", "p99_ms",
         "max_ms", "parent_percent")  # fmt: skip
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)}
NAME_WIDTH_MAX = 60


def render(report: Mapping[str, Any]) -> str:
    """The whole report as text, ending with a line end."""
    parts = [_title(report), *_section("", report["stages"])]
    for iteration in report["iterations"]:
        parts += _section(f"step {iteration['step']}", iteration["stages"])
    return "\n\n".join(parts) + "\n"


def _title(report: Mapping[str, Any]) -> str:
    words = [f"Stages of rank {report['rank']}"]
    if report["tag"]:
        words.append(f"tag {_visible(report['tag'])}")
    if report["stage_pattern"]:
        words.append(f"matching {_visible(report['stage_pattern'])}")
    if report["iteration_filter"] is not None:
        words.append(f"iterations {_visible(report['iteration_filter'])}")
    lines = [", ".join(words)]
    if report["bad_rows"]:
        lines.append(f"{report['bad_rows']} rows could not be read and are left out")
    if not report["stages"]:
        lines.append("no finished stage")
    return "\n".join(lines)


def _section(label: str, stages: Sequence[Stage]) -> Iterator[str]:
    if not stages:
        return
    comma = f"{label}, " if label else ""
    yield "\n".join(_table(f"{comma}CPU time, ms", stages, ""))
    on_gpu = [stage for stage in stages if stage["cuda_count"]]
    if on_gpu:
        yield "\n".join(_table(f"{comma}GPU time, ms", on_gpu, "cuda_"))


def _table(title: str, stages: Sequence[Stage], prefix: str) -> Iterator[str]:
    heads = [head for head in _HEADS if not (prefix and head == "% of parent")]
    # Six are whole nanoseconds, where three would not show a mean.
    decimals = 6 if any(0 < stage[f"{prefix}mean_ms"] < 0.1 for stage in stages) else 3
    rows = [
        [_cell(stage[f"{prefix}{key}"], key, decimals) for key in _KEYS[: len(heads)]]
        for stage in stages
    ]
    names = _names(stages)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    first = max(map(len, (title, *names)))
    yield _line(title, heads, first, widths)
    yield "-" * (first + sum(widths) + 2 * len(widths))
    for name, row in zip(names, rows, strict=True):
        yield _line(name, row, first, widths)


def _line(name: str, cells: list[str], first: int, widths: list[int]) -> str:
    numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{name:<{first}}{numbers}"


def _cell(value: Any, key: str, decimals: int) -> str:
    if value is None:
        return "-"
    if key == "count":
        return f"{value:,}"
    return f"{value:.1f}" if key == "parent_percent" else f"{value:,.{decimals}f}"


def _names(stages: Sequence[Stage]) -> list[str]:
    """Indented below the nearest ancestor in the table; what is between is written out."""
    shown: dict[str, int] = {}
    names = []
    for stage in stages:
        above, level = stage["parent"], 0
        between = [stage["name"]]
        while above is not None and above not in shown:
            above, _, last = above.rpartition("/")
            between.insert(0, last)
            above = above or None
        if above is not None:
            level = shown[above] + 1
        shown[stage["path"]] = level
        name = "  " * level + _visible("/".join(between))
        cut = f"{name[: NAME_WIDTH_MAX - 1]}…"
        names.append(name if len(name) <= NAME_WIDTH_MAX else cut)
    return names


def _visible(text: str) -> str:
    return text.translate(_CONTROLS)

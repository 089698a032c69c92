"""Reads the CSV that Nsight Compute prints: its rows, numbers and launches.

`ncu --csv` prints one of two pages. The page `details` has a row for each launch and
metric, `raw` a row for each launch with a column for each metric and a second header of units.
Around them are the program's own output and lines such as `==PROF== Connected`. A file may hold
several pages one after the other; rows of the same process, number and kernel are one launch, so
metrics that were exported in several parts come together again.

What cannot be used is left out and noted with its line and the reason, and the rest counts.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...core.public import public
from ...core.trusted_open import open_filled_or_pipe

DELIMITERS = ",;\t"
FILE_BYTES_MAX = 256 << 20
FILE_LINES_MAX = 4 << 20
REPEATS_MAX = 256  # of the metrics of one launch: a page of details has some in several sections
RECORD_LINES_MAX = 64  # lines that one row may span, by line ends in quoted fields
LAUNCH_FIELDS = frozenset((
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context",
    "Stream", "Block Size", "Grid Size", "Device", "CC",
))  # fmt: skip
# A launch's number, quoted or not; a row of the units has an empty one.
ROW_START = re.compile(r'[^\S\t]*+"?\d*"?[^\S\t]*+[,;\t]')  # each part ends where it must
NUMBER = re.compile(r"[+-]?(?:\d[\d.,\s'\u2019]*|[.,]\d+)(?:[eE][+-]?\d+)?\Z")
# Groups have three digits, or two in the Indian way, but the last always three.
WITH_MARK = {
    mark: re.compile(
        rf"[+-]?(\d{{1,3}}(\{group}\d{{2,3}})*\{group}\d{{3}}|\d*)(\{mark}\d*)?(e[+-]?\d+)?", re.I
    )
    for mark, group in (".,", ",.")
}
UNIT_SUFFIX = re.compile(r"(.*\S)\s*\[([^\[\]]*)\]\Z")
NO_VALUES = frozenset({"", "n/a", "no data", "nan", "-nan", "inf", "-inf", "(null)", "none", "-"})

# Names of the metrics on the page raw, and below their names on the page details of several
# versions. The first that a launch has counts.
TIME = (
    "gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max", "Duration",
)  # fmt: skip
PERCENTAGES = {
    "sm_pct": (
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Compute (SM) Throughput", "SM Throughput", "SOL SM", "Compute (SM)", "SM",
    ),
    "memory_pct": (
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput", "SOL Memory", "Memory",
    ),
    "dram_pct": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput", "SOL DRAM", "SOL FB",
    ),
    "occupancy_pct": (
        "sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy",
    ),
}  # fmt: skip
BASIC_METRICS = frozenset(TIME).union(*PERCENTAGES.values())
PERCENT_OF_UNIT = {"": 1.0, "%": 1.0}
NS_OF_UNIT = {
    "": 1.0, "ns": 1.0, "nsecond": 1.0, "nseconds": 1.0, "nanosecond": 1.0,
    "us": 1e3, "usecond": 1e3, "useconds": 1e3, "microsecond": 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3,
    "ms": 1e6, "msecond": 1e6, "mseconds": 1e6, "millisecond": 1e6,
    "s": 1e9, "second": 1e9, "seconds": 1e9, "sec": 1e9,
}  # fmt: skip


@public("my_utils.ncu_analyze_from_csv")
class NcuCsvError(ValueError):
    """A file of which nothing can be used; the text names it, the line and the reason."""


@public("my_utils.ncu_analyze_from_csv")
class NcuCsvWarning(UserWarning):
    """Part of a file was left out; the text names the file, the line and the reason."""


@dataclass(slots=True)
class Launch:
    """One launch of a kernel. `metrics`: by name the (unit, text, line) of each value.

    A name may come with several units: "Memory Throughput" is a percentage and bytes a second.
    `part` is the number of the header under which it was found. `repeats`: values that came again.
    """

    kernel: str
    grid: str
    block: str
    line: int
    part: int = 0
    metrics: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    repeats: int = 0

    def has(self, name: str, unit: str) -> bool:
        return any(found == unit for found, _, _ in self.metrics.get(name, ()))

    def add(self, name: str, unit: str, text: str, line: int) -> str:
        """The first value stays: details repeat some metrics in several sections. Why this one is
        not part of a page, "" where it may be."""
        if not text:
            return ""
        values = self.metrics.setdefault(name, [])
        there = next((value for value in values if value[0] == unit), None)
        if there is None:
            values.append((unit, text, line))
            return ""
        self.repeats += 1
        if there[1] != text:
            return f"{name} is {text}, and {there[1]} in line {there[2]} for the same launch"
        if self.repeats > REPEATS_MAX:
            return f"{name} comes again for the same launch, after {REPEATS_MAX} other repetitions"
        return ""


@dataclass(slots=True)
class Page:
    """The launches of one file, and what was left out of them.

    `names` are all metrics of the file, also those that the launches do not hold. `problems`: by
    kind of trouble the first line, the reason there, and how often it came.
    """

    path: str
    launches: list[Launch] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    problems: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    decimal: str = "."

    def note(self, kind: str, line: int, reason: str) -> None:
        first, text, count = self.problems.get(kind, (line, reason, 0))
        self.problems[kind] = (first, text, count + 1)

    def problem_texts(self) -> list[str]:
        return [
            f"{self.path}:{line}: {reason}" + (f" ({count} times)" if count > 1 else "")
            for line, reason, count in self.problems.values()
        ]


def read_page(
    path: str | os.PathLike[str], extra: Iterable[str] = (), decimal: str = "auto"
) -> Page:
    """The launches of one file, with the metrics of TIME, PERCENTAGES and `extra`.

    `decimal` is the decimal mark, "." or ","; "auto" finds it out from all numbers of the file,
    also those of metrics that nobody asked for, and takes "." where they leave both open. Raises
    NcuCsvError when no launch can be read, and OSError when the file cannot be.
    """
    page = Page(os.fspath(path))
    text = _decoded(_read(path))
    reader = _PageReader(page, BASIC_METRICS.union(extra))
    reader.read(text.split("\n"))
    if not page.launches:
        raise NcuCsvError(_why_nothing(page, reader, text))
    page.decimal = reader.decimal_mark() if decimal == "auto" else decimal
    return page


def _read(path: str | os.PathLike[str]) -> bytes:
    """A file, or what a pipe holds."""
    with open(path, "rb", opener=open_filled_or_pipe) as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise NcuCsvError(f"{os.fspath(path)}: larger than {FILE_BYTES_MAX >> 20} MiB")
    if data.count(b"\n") > FILE_LINES_MAX:
        raise NcuCsvError(f"{os.fspath(path)}: more than {FILE_LINES_MAX} lines")
    return data


def _why_nothing(page: Page, reader: _PageReader, text: str) -> str:
    if not text.strip():
        return f"{page.path}:1: the file is empty"
    if page.problems:
        return "; ".join(page.problem_texts())
    if reader.header_line:
        return f"{page.path}:{reader.header_line}: no launch follows this header"
    return (
        f"{page.path}:1: no header of an Nsight Compute page in any line; export one with "
        "`ncu --csv --page raw` or `--page details`"
    )


def _decoded(data: bytes) -> str:
    """PowerShell writes UTF-16; elsewhere it is UTF-8, whatever names the kernels have."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", errors="replace")
    else:
        text = data.decode("utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


class _PageReader:
    """Goes through the lines of one file and adds launches and problems to its page."""

    def __init__(self, page: Page, wanted: frozenset[str]) -> None:
        self.page = page
        self.wanted = wanted
        self.part = 0
        self.header_line = 0
        self._columns: list[str] = []
        self._delimiter = ","
        self._names: dict[int, str] = {}  # of the metrics of the page raw, by column
        self._units: dict[int, str] = {}
        self._units_may_follow = False
        self._launches: dict[tuple[str, ...], Launch] = {}
        self._marks: Counter[str] = Counter()  # how many numbers prove each decimal mark

    def decimal_mark(self) -> str:
        """What the numbers of the file show; commas and dots may group digits, too."""
        return "," if self._marks[","] > self._marks["."] else "."

    def read(self, lines: list[str]) -> None:
        for line, text, reason in _records(lines):
            if _is_noise(text):
                continue
            header = _header(text)
            if header is not None:
                self._begin(line, *header)
            elif self._columns:
                if reason and _looks_like_row(text):
                    self.page.note("cut off", line, reason)
                elif not reason:
                    self._row(line, text)

    def _begin(self, line: int, delimiter: str, columns: list[str]) -> None:
        self.header_line = line
        if {"Invocations", "Average"} <= set(columns):
            self._columns = []
            self.page.note(
                "summary",
                line,
                "a summary (--print-summary) has no launches; export the page without it",
            )
            return
        self.part += 1
        self._columns, self._delimiter = columns, delimiter
        self._names, self._units = {}, {}
        self._units_may_follow = "Metric Name" not in columns
        if not self._units_may_follow:
            return
        # On the page raw every column may be a metric; some exports put the unit behind it.
        for column, name in enumerate(columns):
            if name not in LAUNCH_FIELDS:
                with_unit = UNIT_SUFFIX.match(name)
                self._names[column] = with_unit[1] if with_unit else name
                self._units[column] = with_unit[2] if with_unit else ""
        self.page.names.update(self._names.values())

    def _row(self, line: int, text: str) -> None:
        cells = self._fitted(_cells(text, self._delimiter))
        if len(cells) != len(self._columns):
            if _looks_like_row(text):
                reason = f"{len(cells)} fields, but the header has {len(self._columns)}"
                self.page.note("fields", line, reason)
            return
        row = dict(zip(self._columns, cells, strict=True))
        if self._units_may_follow:
            self._units_may_follow = False
            if not row.get("ID") and not row["Kernel Name"]:
                self._units.update((at, cell) for at, cell in enumerate(cells) if cell)
                return
        if not row["Kernel Name"]:
            self.page.note("kernel", line, "no kernel name")
        elif "ID" in row and not row["ID"].isdecimal():
            self.page.note("ID", line, "the column ID holds no number")
        else:
            self._take(line, row, cells)

    def _fitted(self, cells: list[str]) -> list[str]:
        """A row of details ends after the metric, with a comma, before the columns of rules."""
        missing = len(self._columns) - len(cells)
        if missing < 0 and not any(cells[missing:]):
            return cells[:missing]
        if missing > 0 and "Metric Value" in self._columns[: len(cells)]:
            return cells + [""] * missing
        return cells

    def _take(self, line: int, row: dict[str, str], cells: list[str]) -> None:
        values = self._values(row, cells)
        self._marks.update(map(_shown_mark, {text for _, _, text in values}))
        wanted = [value for value in values if value[0] in self.wanted]
        launch = self._launch(line, row, wanted)
        for name, unit, text in wanted:
            reason = launch.add(name, unit, text, line)
            if reason:
                self.page.note(f"repeated {name}", line, reason)

    def _values(self, row: dict[str, str], cells: list[str]) -> list[tuple[str, str, str]]:
        """Name, unit and text of each metric in a row; rules are texts for people.

        The details of 2019 and 2020 have `SM [%]` in the column of names, and `%` in that of units.
        """
        if "Metric Name" not in row:
            return [(name, self._units[at], cells[at]) for at, name in self._names.items()]
        name, unit, text = (row.get(f"Metric {part}", "") for part in ("Name", "Unit", "Value"))
        values = [(name, unit, text)]
        with_unit = UNIT_SUFFIX.match(name)
        if with_unit is not None and unit in ("", with_unit[2]):
            values.append((with_unit[1], with_unit[2], text))
        self.page.names.update(each for each, _, _ in values)
        return values

    def _launch(self, line: int, row: dict[str, str], values: list[tuple[str, str, str]]) -> Launch:
        """A later part may add metrics to a launch; one that has them is the launch of a new run
        in which the process had the same number."""
        identity = tuple(
            row.get(name, "") for name in ("Host Name", "Process ID", "ID", "Kernel Name")
        )
        has_number = "ID" in row
        if not has_number and "Metric Name" not in row:
            identity = (*identity, str(line))  # each row is a launch
        launch = self._launches.get(identity)
        is_another = launch is not None and (
            (launch.part != self.part or not has_number)
            and any(launch.has(name, unit) for name, unit, _ in values)
        )
        if launch is None or is_another:
            grid, block = row.get("Grid Size", ""), row.get("Block Size", "")
            launch = Launch(row["Kernel Name"], grid, block, line, self.part)
            self._launches[identity] = launch
            self.page.launches.append(launch)
        return launch


def _records(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """(line, text, reason why it is broken) of each row.

    A quoted field may hold line ends. A quote that no later line closes before the next row begins
    is a row that was cut off, and costs no other row.
    """
    at = 0
    while at < len(lines):
        text, end = lines[at], at + 1
        if text.count('"') % 2 and not _is_noise(text):
            last = min(len(lines), at + RECORD_LINES_MAX)
            while end < last and text.count('"') % 2 and not _begins_row(lines[end]):
                text += "\n" + lines[end]
                end += 1
            if text.count('"') % 2:
                yield at + 1, lines[at], "a quoted field does not end; the row may be cut off"
                at += 1
                continue
        yield at + 1, text, ""
        at = end


def _begins_row(text: str) -> bool:
    return _is_noise(text) or ROW_START.match(text) is not None or _header(text) is not None


def _looks_like_row(text: str) -> bool:
    """Of a line that is not a row: whether it was meant to be one, or is the program's output."""
    return text.startswith('"') or ROW_START.match(text) is not None


def _is_noise(text: str) -> bool:
    return text.lstrip().startswith("==") or not text.strip()


def _header(text: str) -> tuple[str, list[str]] | None:
    """(delimiter, names of the columns), or None for any other line."""
    if "Kernel Name" not in text:
        return None
    for delimiter in DELIMITERS:
        columns = _cells(text, delimiter)
        if "Kernel Name" in columns and len(columns) > 1:
            return delimiter, columns
    return None


def _cells(text: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter))]
    except (csv.Error, StopIteration):
        return []


# --- numbers ---


def _without_instances(text: str) -> str:
    """`3.5` of `3.5 (3; 4)`."""
    begin = text.find("(") if text.rstrip().endswith(")") else -1
    return text if begin < 0 else text[:begin].rstrip()


def _shown_mark(text: str) -> str:
    """The decimal mark that this number alone proves, or nothing: 1,234 leaves it open."""
    text = _without_instances(text)
    last = max(text.rfind("."), text.rfind(","))
    if last < 0 or not NUMBER.match(text):
        return ""
    mark, other = text[last], ",."[text[last] == ","]
    if text.count(mark) > 1:
        return other  # what comes twice groups digits
    whole = text[:last].lstrip("+-")
    could_group = len(text) - last == 4 and 1 <= len(whole) <= 3 and whole != "0"
    return "" if could_group else mark


def number(text: str, decimal: str) -> float | None:
    """The value of a number with groups of digits; None for what stands for no value.

    Raises ValueError for anything else. Of a value with its instances, as in `3.5 (3; 4)`, the
    first part counts.

    >>> number("1,234,567.5", "."), number("1.234.567,5", ","), number("n/a", ".")
    (1234567.5, 1234567.5, None)
    """
    text = _without_instances(text).strip()
    if text.lower() in NO_VALUES:
        return None
    if not NUMBER.match(text):
        raise ValueError(f"{text!r} is not a number")
    plain = re.sub(r"[\s'\u2019]", "", text)
    if not WITH_MARK[decimal].fullmatch(plain):
        raise ValueError(f"{text!r} is not a number with the decimal mark {decimal!r}")
    group = "," if decimal == "." else "."
    return float(plain.replace(group, "").replace(decimal, "."))


def read_metric(
    launch: Launch, names: Iterable[str], page: Page, factors: Mapping[str, float] | None = None
) -> float | None:
    """The first of `names` that the launch has. Notes what is not a number.

    factors: what a number in each of the units is multiplied by; None takes any unit, and the
    number as it is.
    """
    for name in names:
        for unit, text, line in launch.metrics.get(name, ()):
            factor = 1.0 if factors is None else factors.get(unit.lower())
            if factor is None:
                if factors is NS_OF_UNIT:  # others have more than one meaning, each with its unit
                    page.note(f"unit of {name}", line, f"{name} in the unknown unit {unit!r}")
                continue
            try:
                value = number(text, page.decimal)
            except ValueError as error:
                page.note(name, line, f"{name}: {error}")
                continue
            if value is not None:
                return value * factor
    return None

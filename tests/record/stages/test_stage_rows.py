"""The rows of stages in a profile CSV against what Python's csv module and decimals find."""

from __future__ import annotations

import csv
import io
import os
import random
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core
from my_utils.timeline import Span, read_spans

from ...support.profile_rows import COLUMNS

pytestmark = pytest.mark.no_torch

HEADER = ",".join(COLUMNS) + "\n"
NAMES = ["forward", "größe", 'with "quotes"', "with, comma", "with\nline end", "x" * 300]


def random_rows(seed: int, count: int = 300) -> str:
    """START, END, COUNTER and process rows, as the recorder and as other writers quote them."""
    chance = random.Random(seed)
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for node in range(1, count):
        second = f"{chance.randrange(4 * 10**9)}.{chance.randrange(10**9):09d}"
        step = str(chance.choice([0, 5, -3, 123456789]))
        kind = chance.choice(["START", "END", "END", "COUNTER", "INSTANT"])
        name = "my_utils.process" if kind == "INSTANT" else chance.choice(NAMES)
        duration = f"{chance.uniform(0, 1e4):.6f}" if kind == "END" else ""
        pairs = [f"node_id={node}", f"parent_id={chance.randrange(node)}", "tid=7"]
        pairs += chance.choice([[], ["tag=a%2Cb"], ["tag=t", "cuda_ms=1.500001"]])
        pairs += chance.choice([[], ["user=1,2"], ["note=tag"]])
        if kind == "INSTANT":
            pairs = ["pid=1", f"attempt={chance.randrange(5)}"]
        row = [second, "2025-06-15 15:06:40.000000", "host", step, name, kind, duration]
        writer.writerow([*row, ",".join(pairs)])
    return out.getvalue()


def oracle(text: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for row in csv.DictReader(io.StringIO(text, newline=""), strict=True):
        pairs = [pair.partition("=") for pair in row["metadata"].split(",")]
        of = {key: value for key, _, value in reversed(pairs)}
        kind, name = row["event_type"], row["event_name"]
        if kind == "START":
            found.append(("START", int(of["node_id"]), int(of["parent_id"]), name))
        elif kind == "END":
            found.append(
                (
                    *("END", int(of["node_id"]), int(of["parent_id"]), name, int(row["step"])),
                    int(Decimal(row["duration_ms"]) * 10**6),
                    int(Decimal(of["cuda_ms"]) * 10**6) if "cuda_ms" in of else None,
                    int(Decimal(row["timestamp_unix"]) * 10**9),
                    *(int(of["tid"]), of.get("tag", "")),
                )
            )
        elif name == "my_utils.process":
            found.append(("PROCESS", int(of["attempt"])))
    return found


def rows_of(data: bytes, tag: str | None = None, header: bool = True) -> list[tuple[Any, ...]]:
    return list(_core.StageRows(("rows", -1, -1, data, header), tag))


def without_lines(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without the line numbers, and with no bad column."""
    assert not [row for row in rows if row[0] == "END" and row[5]]
    return [(*row[:4], *row[6:]) if row[0] == "END" else row for row in rows]


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_that_the_csv_module_finds(seed: int, tmp_path: Path) -> None:
    text = random_rows(seed)
    expected = oracle(text)
    assert len(expected) > 100
    assert without_lines(rows_of(text.encode())) == expected
    path = tmp_path / "profile_rank_0.csv"
    path.write_text(text, encoding="utf-8", newline="")
    with open(path, "rb") as file:
        rows = _core.StageRows((str(path), file.fileno(), -1, None, True))
        assert without_lines(list(rows)) == expected
        assert rows.bytes_read == path.stat().st_size
    for tag in ("", "t", "a%2Cb"):
        chosen = without_lines(rows_of(text.encode(), tag))
        assert [row for row in chosen if row[0] == "END"] == [
            row for row in expected if row[0] == "END" and row[-1] == tag
        ]


@pytest.mark.parametrize("seed", range(5))
def test_spans_are_the_finished_stages(seed: int, tmp_path: Path) -> None:
    text = random_rows(seed)
    path = tmp_path / "profile_rank_4.csv"
    path.write_text(text, encoding="utf-8", newline="")
    expected = [
        Span(4, f"{tag} {tid}".strip(), step, name, end - duration, duration, node, parent)
        for kind, node, parent, name, step, duration, _, end, tid, tag in (
            row for row in oracle(text) if row[0] == "END"
        )
    ]
    assert list(read_spans(path)) == expected
    assert list(read_spans(path, range(5, 6))) == [span for span in expected if span.step == 5]


def end_row(
    time: str = "1.000000000", step: str = "3", duration: str = "2.000001", more: str = ""
) -> str:
    return f'{time},x,h,{step},a,END,{duration},"node_id=1,parent_id=0,tid=7{more}"\n'


@pytest.mark.parametrize(
    ("row", "bad"),
    [
        (end_row(), ""),
        (end_row(time="noon"), "timestamp_unix"),
        (end_row(step="three"), "step"),
        (end_row(step=""), "step"),
        (end_row(duration="-1.0"), "duration_ms"),
        (end_row(duration="inf"), "duration_ms"),
        (end_row(more=",cuda_ms=x"), "cuda_ms"),
        (end_row(more=",cuda_ms=-1.0"), "cuda_ms"),
        (end_row("", "", "x", ",cuda_ms="), "step duration_ms cuda_ms timestamp_unix"),
    ],
)
def test_columns_that_are_not_understood_are_named(row: str, bad: str) -> None:
    ((kind, *_, line, named, _, _, _, _, _, _),) = rows_of((HEADER + row).encode())
    assert (kind, line, named) == ("END", 2, bad)


def test_a_duration_that_is_not_there_is_none() -> None:
    (row,) = rows_of(end_row(duration="").encode(), header=False)
    assert row[0] == "END"
    assert (row[5], row[7], row[8]) == ("", None, None)


@pytest.mark.parametrize(
    ("torn", "problem"),
    [
        ("half a row\n", "the row has too few columns"),
        (end_row().replace('"\n', '",more\n'), "the row has too many columns"),
        ("x" * (1 << 20) + "\n", "the row is too long"),
        (end_row().replace('7"\n', "7\n"), "the row is torn"),
    ],
)
def test_a_row_that_is_torn_costs_no_other(torn: str, problem: str) -> None:
    text = HEADER + end_row() + torn + end_row()
    rows = rows_of(text.encode())
    assert [row[0] for row in rows] == ["END", "BAD", "END"]
    assert rows[1] == ("BAD", 3, problem)


def test_every_end_of_a_file_that_is_being_written() -> None:
    whole, last = HEADER + end_row(), end_row(step="4")
    no_metadata_yet = last.index('"')
    for length in set(range(1, len(last) - 1)) - {no_metadata_yet}:
        rows = rows_of((whole + last[:length]).encode())
        assert [row[0] for row in rows] == ["END", "BAD"], length
        assert rows[1] == ("BAD", 3, _core.UNFINISHED_ROW)


def test_a_live_file_is_drawn_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "profile_rank_0.csv"
    path.write_text(HEADER + end_row() + end_row()[:-4])
    assert [span.step for span in read_spans(path)] == [3]
    assert not recwarn.list


def test_what_is_no_profile_csv() -> None:
    for data in (b"", b"a,b\n1,2\n"):
        with pytest.raises(_core.FormatError, match=r"^rows: "):
            rows_of(data)
    with pytest.raises(TypeError, match="tuples of five"):
        _core.StageRows(("rows", 3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tag must be str, not int"):
        _core.StageRows(("rows", -1, -1, b"", False), 3)  # type: ignore[arg-type]


def test_a_second_thread_is_refused() -> None:
    """The one that comes first waits in a pipe, without the interpreter's lock."""
    out, into = os.pipe()
    with open(out, "rb", buffering=0) as reader, open(into, "wb", buffering=0) as writer:
        rows = _core.StageRows(("pipe", reader.fileno(), -1, None, False))
        found: list[_core._AnyRow] = []
        refused: list[str] = []

        def take() -> None:
            try:
                found.append(next(rows))
            except RuntimeError as error:
                refused.append(str(error))
                writer.write(end_row().encode())

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [row[0] for row in found] == ["END"]
    assert refused == ["another thread reads these StageRows"]

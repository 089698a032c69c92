"""Profile CSVs as the tests read them: with the csv module, and nothing of the code under test."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

from my_utils import _core
from my_utils.logger import GlobalLogger

COLUMNS = [
    "timestamp_unix", "readable_time", "machine_id", "step", "event_name", "event_type",
    "duration_ms", "metadata",
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    time_ns: int
    step: int
    name: str
    kind: str
    duration_ns: int | None
    metadata: dict[str, str]

    @property
    def node(self) -> int:
        return int(self.metadata["node_id"])

    @property
    def parent(self) -> int:
        return int(self.metadata["parent_id"])

    @property
    def tid(self) -> int:
        return int(self.metadata["tid"])


def only_opens(row: dict[str, str]) -> bool:
    """Whether the row is the START that only opens the row after it."""
    return row["event_type"] == "START" and row["metadata"].startswith("opens=")


def parse(text: str) -> list[Row]:
    """Rows of a CSV with its header, without those that only open the next one."""
    rows = []
    for row in csv.DictReader(io.StringIO(text, newline=""), strict=True):
        assert list(row) == COLUMNS
        if only_opens(row):
            continue
        pairs = (pair.split("=", 1) for pair in row["metadata"].split(",") if pair)
        duration = row["duration_ms"]
        rows.append(
            Row(
                time_ns=int(Decimal(row["timestamp_unix"]) * 10**9),
                step=int(row["step"]),
                name=row["event_name"],
                kind=row["event_type"],
                duration_ns=int(Decimal(duration) * 10**6) if duration else None,
                metadata={unquote(key): unquote(value) for key, value in pairs},
            )
        )
    return rows


def read(path: Path) -> list[Row]:
    with open(path, encoding="utf-8", newline="") as file:
        return parse(file.read())


def of_stages(rows: Iterable[Row]) -> list[Row]:
    """Without the tool's own rows."""
    return [row for row in rows if not row.name.startswith("my_utils.")]


def forget_rows() -> None:
    """Rows that wait in memory would be written into the next file."""
    with tempfile.TemporaryDirectory() as folder:
        _core.open_output(log_dir=folder)
        GlobalLogger().close()


class Profile:
    """The profile CSV of this process, in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        forget_rows()
        GlobalLogger().setup(folder, rank=0, console=False)

    def all_rows(self) -> list[Row]:
        _core.drain(60.0)
        path = GlobalLogger().csv_path
        assert path is not None
        return read(path)

    def rows(self) -> list[Row]:
        return of_stages(self.all_rows())

    def ended(self) -> list[Row]:
        return [row for row in self.rows() if row.kind == "END"]

    def close(self) -> None:
        GlobalLogger().close()

"""The reader of profile CSVs that users of the first version were given, written anew from its
description: rows in the order of their times as floats; START begins, whatever else ends; a track
is a machine and a step."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NODE = re.compile(r"node_id=(\d+)")

Stage = tuple[str, int | None]  # name and node


@dataclass
class Tracks:
    """open: by track what has begun and not ended. pairs: name, track, and seconds from the begin
    to the end. no_start: ends whose begin did not come before. crossed: ends of stages that were
    not the innermost."""

    open: dict[tuple[str, int], list[tuple[Stage, float]]] = field(default_factory=dict)
    pairs: list[tuple[str, tuple[str, int], float]] = field(default_factory=list)
    no_start: list[dict[str, str]] = field(default_factory=list)
    crossed: int = 0

    def take(self, row: dict[str, str]) -> None:
        track = row["machine_id"], int(row["step"])
        found = NODE.search(row["metadata"])
        stage = row["event_name"], int(found[1]) if found else None
        at_s = float(row["timestamp_unix"])
        stack = self.open.setdefault(track, [])
        if row["event_type"] == "START":
            stack.append((stage, at_s))
            return
        wanted = stage, (stage[0], None)
        places = [place for place, (begun, _) in enumerate(stack) if begun in wanted]
        if not places:
            self.no_start.append(row)
            return
        self.crossed += places[-1] != len(stack) - 1
        self.pairs.append((stage[0], track, at_s - stack.pop(places[-1])[1]))


def read_as_the_seed(paths: Iterable[Path]) -> Tracks:
    """All files as one."""
    rows: list[dict[str, str]] = []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            rows += csv.DictReader(file)
    rows.sort(key=lambda row: float(row["timestamp_unix"]))
    tracks = Tracks()
    for row in rows:
        tracks.take(row)
    return tracks

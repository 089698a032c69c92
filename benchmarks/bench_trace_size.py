"""Bytes a slice in both formats, with and without arguments."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.bench_csv2trace import make_csv
from benchmarks.harness import Claim
from my_utils.csv2trace import Options, convert

ROWS_A_STEP = 12


def bytes_a_slice(source: Path, target: Path, steps: int, with_args: bool) -> float:
    """The markers of the steps are slices, too."""
    summary = convert([str(source)], str(target), Options(with_args=with_args))
    return target.stat().st_size / (summary.slices + steps)


def run(smoke: bool = False) -> list[Claim]:
    rows = 12_000 if smoke else 1_200_000
    steps = rows // ROWS_A_STEP
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "profile_rank_0.csv")
        make_csv(source, rows)
        bare = bytes_a_slice(source, Path(name, "bare.pftrace"), steps, False)
        full = bytes_a_slice(source, Path(name, "full.pftrace"), steps, True)
        text = bytes_a_slice(source, Path(name, "full.json"), steps, True)
    return [
        Claim("protobuf, a slice", bare, "40 bytes", 40, "B", 1),
        Claim("protobuf, a slice with step, node, parent", full, "60 bytes", 60, "B", 1),
        Claim("JSON, a slice with step, node, parent", text, "140 bytes", 140, "B", 1),
    ]

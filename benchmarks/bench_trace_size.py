"""Bytes a slice in both formats, with and without arguments."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.bench_csv2trace import make_csv
from benchmarks.harness import Claim
from my_utils.trace.csv2trace import Options, convert


def bytes_a_slice(source: Path, target: Path, with_args: bool) -> float:
    """All bytes, over the stages alone: the markers of the steps are part of what they cost."""
    summary = convert([str(source)], str(target), Options(with_args=with_args))
    return target.stat().st_size / summary.slices


def run(smoke: bool = False) -> list[Claim]:
    rows = 12_000 if smoke else 1_200_000
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "profile_rank_0.csv")
        make_csv(source, rows)
        bare = bytes_a_slice(source, Path(name, "bare.pftrace"), False)
        full = bytes_a_slice(source, Path(name, "full.pftrace"), True)
        text = bytes_a_slice(source, Path(name, "full.json"), True)
    return [
        Claim("protobuf, a slice", bare, "40 bytes", 40, "B", 1),
        Claim("protobuf, a slice with step, node, parent", full, "60 bytes", 60, "B", 1),
        Claim("JSON, a slice with step and node", text, "140 bytes", 140, "B", 1),
    ]

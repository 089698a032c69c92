"""The report over all ranks beside the same tables made with pandas, time and memory.

64 ranks, 500 steps, 12 stages in an `iter`. Each side runs in a separate process and times what
it does after its imports. Half of the ranks beside it shows that the cost is linear.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Claim, output_and_peak
from tests.support.planted_runs import Run

STAGES = [f"stage{number}" for number in range(10)] + ["optimizer"]  # and all_reduce

OURS = """
import sys, time
import pandas
from my_utils.analysis.report import analyze

began = time.perf_counter()
report = analyze(sys.argv[1])
print(time.perf_counter() - began)
"""

# Stages with their paths and their own time, waits and who caused them, and what each rank takes
# over the median of the others. Change points, limits and the critical path are left out.
PANDAS = r"""
import sys, time
from pathlib import Path
import pandas as pd

began = time.perf_counter()
columns = ["timestamp_unix", "step", "event_name", "event_type", "duration_ms", "metadata"]
ranks = []
for path in Path(sys.argv[1]).glob("profile_rank_*.csv"):
    rows = pd.read_csv(path, usecols=columns)
    rows = rows[rows["event_type"] == "END"].drop(columns="event_type")
    ids = rows.pop("metadata").str.extract(r"node_id=(\d+),parent_id=(\d+)").astype("int64")
    parents = ids[1].map(pd.Series(rows["event_name"].to_numpy(), ids[0]))
    rows["stage"] = (parents + "/").fillna("") + rows["event_name"]
    inside = rows["duration_ms"].groupby(ids[1]).sum()
    rows["own"] = rows["duration_ms"] - ids[0].map(inside).fillna(0)
    rows["rank"] = int(path.stem.rpartition("_")[2])
    rows["begin"] = rows["timestamp_unix"] - rows["duration_ms"] / 1e3
    ranks.append(rows)
ends = pd.concat(ranks, ignore_index=True)

by_stage = ends.groupby("stage")
stages = by_stage["duration_ms"].agg(["count", "sum", "mean", "max"])
stages["own"] = by_stage["own"].sum()
stages["p50"], stages["p99"] = (by_stage["duration_ms"].quantile(q) for q in (0.5, 0.99))
by_rank = ends.groupby(["rank", "stage"])["duration_ms"].agg(["count", "sum", "mean"])
cells = ends.groupby(["rank", "step", "stage"], as_index=False).agg(
    total=("duration_ms", "sum"), own=("own", "sum"), begin=("begin", "max"),
    end=("timestamp_unix", "max"))
steps = cells.groupby(["rank", "step"]).agg(begin=("begin", "min"), end=("end", "max"))
took = (steps["end"] - steps["begin"]).groupby("step")
steps = pd.DataFrame({"median": took.median(), "low": took.quantile(0.1)})
steps["high"] = took.quantile(0.9)
at_once = cells.groupby(["stage", "step"])
spread = pd.DataFrame({
    "starts": at_once["begin"].max() - at_once["begin"].min(),
    "ends": at_once["end"].max() - at_once["end"].min()}).groupby("stage").median()
sync = spread.index[spread["ends"] < spread["starts"] / 4]
entered = cells[cells["stage"].isin(sync)]
latest = entered.groupby(["stage", "step"])["begin"].transform("max")
waits = (latest - entered["begin"]).groupby([entered["stage"], entered["step"]]).sum()
blamed = entered.loc[entered.groupby(["stage", "step"])["begin"].idxmax()]
cells["excess"] = cells["own"] - cells.groupby(["stage", "step"])["own"].transform("median")
lost = cells[~cells["stage"].isin(sync)].merge(blamed[["rank", "step"]], on=["rank", "step"])
lost = lost.loc[lost.groupby("step")["excess"].idxmax()]
level = cells.groupby(["stage", "rank"])["excess"].median()
scatter = (cells["excess"] - level.reindex(
    pd.MultiIndex.from_frame(cells[["stage", "rank"]])).to_numpy()).abs()
scatter = scatter.groupby([cells["stage"], cells["rank"]]).median()
print(time.perf_counter() - began)
"""


def run(smoke: bool) -> list[Claim]:
    ranks, steps = (8, 20) if smoke else (64, 500)
    means = [2.0] * len(STAGES)
    with tempfile.TemporaryDirectory() as name:
        whole, half = Path(name) / "whole", Path(name) / "half"
        Run(ranks=ranks, steps=steps, stages=STAGES, means_ms=means).write(whole)
        half.mkdir()
        for rank in range(ranks // 2):
            os.link(whole / f"profile_rank_{rank}.csv", half / f"profile_rank_{rank}.csv")
        return _claims(whole, half, rounds=1 if smoke else 5)


def _claims(whole: Path, half: Path, rounds: int) -> list[Claim]:
    sides = {"ours": (OURS, whole), "pandas": (PANDAS, whole), "half": (OURS, half)}
    runs: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, (program, folder) in sides.items():
            runs[side].append(_measured(program, folder))
    seconds = {side: statistics.median(run[0] for run in found) for side, found in runs.items()}
    peaks = {side: max(run[1] for run in found) for side, found in runs.items()}
    return [
        Claim("report", seconds["ours"], "the same tables, pandas", seconds["pandas"], "s", 5,
              faster=True),
        Claim("report: peak memory", peaks["ours"], "512 MiB", 512, "MB", 1),
        Claim("report: peak memory", peaks["ours"], "pandas", peaks["pandas"], "MB", 1),
        Claim("report: half of the ranks", seconds["half"], "all", seconds["ours"], "s", 0.7),
    ]  # fmt: skip


def _measured(program: str, folder: Path) -> tuple[float, float]:
    """Seconds that the program prints, and MiB at its peak."""
    printed, peak = output_and_peak([sys.executable, "-c", program, folder])
    return float(printed), peak

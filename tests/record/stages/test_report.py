"""Reports against figures that the statistics module computes from the rows."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core
from my_utils.logger import GlobalLogger
from my_utils.record.stages.rows import OTHER, PATHS_MAX, StageReader, StageRow, part_of_memory
from my_utils.record.stages.stage_report import make_figures, write_text_and_json
from my_utils.record.stages.steps import compile_steps
from my_utils.record.stages.text import render as render_text
from my_utils.utils import MyTimer

from ...conftest import RunPython
from ...support.on_terminal import on_terminal, plain
from ...support.profile_rows import Profile, Row, forget_rows

pytestmark = pytest.mark.no_torch

EXACT_MAX = 131_072  # durations that are kept one by one
FIGURES = ["count", "total_ms", "mean_ms", "std_ms", "min_ms", "p50_ms", "p90_ms", "p99_ms",
           "max_ms"]  # fmt: skip


def train(timer: MyTimer, steps: Iterable[int]) -> None:
    for step in steps:
        timer.set_step(step)
        with timer.time_stage("iter"):
            with timer.time_stage("forward"):
                for _ in range(3):
                    with timer.time_stage("block"):
                        sum(range(100 * (step % 5)))
            with timer.time_stage("backward"):
                sum(range(200))
        timer.step()


def oracle(durations_ns: list[int]) -> dict[str, float]:
    """The figures in ms; a percentile is the value at that share of the sorted list."""
    ordered = sorted(durations_ns)
    shares = {
        f"p{percent}_ms": ordered[math.ceil(percent * len(ordered) / 100) - 1] / 1e6
        for percent in (50, 90, 99)
    }
    return {
        "count": len(ordered),
        "total_ms": sum(ordered) / 1e6,
        "mean_ms": statistics.fmean(ordered) / 1e6,
        "std_ms": statistics.pstdev(ordered) / 1e6,
        "min_ms": ordered[0] / 1e6,
        "max_ms": ordered[-1] / 1e6,
        **shares,
    }


def by_path(rows: list[Row]) -> dict[str, list[int]]:
    """Durations in ns by path, worked out from the ids."""
    starts = {row.node: row for row in rows if row.kind == "START"}

    def path(node: int) -> str:
        row = starts[node]
        return f"{path(row.parent)}/{row.name}" if row.parent else row.name

    found: dict[str, list[int]] = {}
    for row in rows:
        if row.kind == "END" and row.duration_ns is not None:
            found.setdefault(path(row.node), []).append(row.duration_ns)
    return found


def figures(stage: Mapping[str, Any]) -> dict[str, float]:
    return {name: stage[name] for name in FIGURES}


def by_stage(stages: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {stage["path"]: stage for stage in stages}


def close(expected: dict[str, float], rel: float = 1e-9) -> Any:
    return pytest.approx(expected, rel=rel, abs=1e-6)


# --- the whole run ---


def test_the_whole_run(profile: Profile) -> None:
    timer = MyTimer()
    train(timer, range(50))
    report = timer.generate_report()
    assert (report["source"], report["rank"], report["iterations"]) == ("aggregates", 0, [])
    stages = by_stage(report["stages"])
    expected = by_path(profile.rows())
    assert stages.keys() == expected.keys()
    for path, durations in expected.items():
        wanted, got = oracle(durations), figures(stages[path])
        for name in FIGURES:
            within = 0.01 if name[0] == "p" else 1e-9  # in ms: a nanosecond more shows
            assert got[name] == pytest.approx(wanted[name], rel=within, abs=1e-9), (path, name)
    block = stages["iter/forward/block"]
    assert (block["name"], block["parent"], block["depth"]) == ("block", "iter/forward", 2)
    assert block["cuda_count"] is None


def test_shares_of_the_parent(profile: Profile) -> None:
    timer = MyTimer()
    train(timer, range(20))
    stages = by_stage(timer.generate_report()["stages"])
    assert stages["iter"]["parent_percent"] is None
    for stage in stages.values():
        if stage["parent"]:
            share = 100 * stage["total_ms"] / stages[stage["parent"]]["total_ms"]
            assert stage["parent_percent"] == pytest.approx(share)
            assert 0 < stage["parent_percent"] <= 100


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("", {"iter", "iter/forward", "iter/forward/block", "iter/backward"}),
        ("ward$", {"iter/forward", "iter/backward"}),
        ("^iter/f", {"iter/forward", "iter/forward/block"}),
        ("nothing", set()),
    ],
)
def test_the_pattern_is_searched_in_paths(pattern: str, paths: set[str]) -> None:
    timer = MyTimer()
    train(timer, range(2))
    report = timer.generate_report(pattern)
    assert {stage["path"] for stage in report["stages"]} == paths
    for stage in report["stages"]:
        assert stage["path"] == "iter" or stage["parent_percent"] is not None


def test_threads_add_up(profile: Profile) -> None:
    timer = MyTimer()
    threads = [threading.Thread(target=train, args=(timer, range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    train(timer, range(10))
    stages = by_stage(timer.generate_report()["stages"])
    assert {path: stage["count"] for path, stage in stages.items()} == {
        "iter": 50,
        "iter/forward": 50,
        "iter/forward/block": 150,
        "iter/backward": 50,
    }


def test_children_stand_below_their_parent_the_longest_first(profile: Profile) -> None:
    timer = MyTimer()
    train(timer, range(5))
    with timer.time_stage("short"):
        pass
    stages = timer.generate_report()["stages"]
    for above, stage in itertools.pairwise(stages):
        assert stage["depth"] <= above["depth"] + 1
    for depth in (0, 1):
        totals = [stage["total_ms"] for stage in stages if stage["depth"] == depth]
        assert totals == sorted(totals, reverse=True)


# --- chosen iterations ---


def check_iterations(report: Mapping[str, Any], rows: list[Row], steps: list[int]) -> None:
    assert report["exact_percentiles"]
    assert [iteration["step"] for iteration in report["iterations"]] == steps
    starts = [row for row in rows if row.kind == "START"]
    chosen = [row for row in rows if row.kind == "END" and row.step in steps]
    overall = by_stage(report["stages"])
    expected = by_path(starts + chosen)
    assert overall.keys() == expected.keys()
    for path, durations in expected.items():
        assert figures(overall[path]) == close(oracle(durations)), path
    for iteration in report["iterations"]:
        of_step = by_path(starts + [row for row in chosen if row.step == iteration["step"]])
        stages = by_stage(iteration["stages"])
        assert stages.keys() == of_step.keys()
        for path, durations in of_step.items():
            assert figures(stages[path]) == close(oracle(durations)), path


@pytest.mark.parametrize(
    ("chosen", "steps"),
    [
        (3, [3]),
        (range(2, 9, 3), [2, 5, 8]),
        (slice(27, None), [27, 28, 29]),
        ({4, 1, 900}, [1, 4]),
        ([4, 4], [4]),
        ("10:12", [10, 11]),
        (":2,28:", [0, 1, 28, 29]),
        (lambda step: step % 10 == 7, [7, 17, 27]),
        ("100:200", []),
    ],
)
def test_chosen_iterations(profile: Profile, chosen: Any, steps: list[int]) -> None:
    timer = MyTimer()
    train(timer, range(30))
    report = timer.generate_report("", None, chosen)
    assert report["source"] == "csv"
    assert report["bad_rows"] == 0
    check_iterations(report, profile.rows(), steps)


def test_rotated_parts_are_read_too(tmp_path: Path) -> None:
    forget_rows()
    GlobalLogger().setup(tmp_path, rank=0, console=False, max_csv_bytes=20_000)
    timer = MyTimer()
    with timer.time_stage("epoch"):
        train(timer, range(200))
    parts = sorted(tmp_path.glob("profile_rank_0.part*.csv"))
    report = timer.generate_report("", None, range(200))
    GlobalLogger().close()
    assert len(parts) > 3
    stages = by_stage(report["stages"])
    assert stages["epoch/iter"]["count"] == 200
    assert stages["epoch/iter/forward/block"]["count"] == 600
    assert [iteration["step"] for iteration in report["iterations"]] == list(range(200))


def test_without_files_the_newest_iterations_are_reported() -> None:
    forget_rows()
    timer = MyTimer(tag="in memory")
    train(timer, range(1500))
    report = timer.generate_report("iter$", None, lambda step: True)
    forget_rows()
    assert report["source"] == "memory"
    assert [iteration["step"] for iteration in report["iterations"]] == list(range(476, 1500))
    (stage,) = report["stages"]
    assert stage["count"] == 1024


def test_timers_are_told_apart_by_tag(profile: Profile) -> None:
    train(MyTimer(tag="a, b"), range(3))
    timer = MyTimer(tag="c")
    train(timer, range(2))
    report = timer.generate_report("^iter$", None, "0:10")
    assert [stage["count"] for stage in report["stages"]] == [2]


def test_an_earlier_run_in_the_same_folder_is_not_counted(
    run_python: RunPython, tmp_path: Path
) -> None:
    program = """
import json
from my_utils import MyTimer
timer = MyTimer(log_dir="logs")
for step in range(3):
    timer.set_step(step)
    with timer.time_stage("iter"):
        pass
report = timer.generate_report("", None, range(10))
print([(stage["path"], stage["count"]) for stage in report["stages"]])
"""
    for _ in range(2):
        done = run_python("-c", program)
        assert done.stdout == "[('iter', 3)]\n", done.stderr


# --- reading rows ---


def line(kind: str, node: int, parent: int, name: str = "a", more: str = "", step: int = 0) -> str:
    duration = "2.000001" if kind == "END" else ""
    metadata = f"node_id={node},parent_id={parent},tid=7{more}"
    return f'1.000000000,x,host,{step},{name},{kind},{duration},"{metadata}"\n'


def read_stages(lines: list[str], tag: str = "", attempt: int | None = None) -> StageReader:
    reader = StageReader(tag, attempt)
    part = part_of_memory("".join(lines).encode())
    reader.found = list(reader.read([part]))  # type: ignore[attr-defined]
    return reader


def found(reader: StageReader) -> list[StageRow | None]:
    return reader.found  # type: ignore[attr-defined,no-any-return]


def test_gpu_times_are_taken_from_the_rows() -> None:
    end = line("END", 1, 0, more=",cuda_ms=1.500000,cuda_ts=9.000000000")
    reader = read_stages([line("START", 1, 0), end])
    assert found(reader) == [StageRow(0, ("a",), 2_000_001, 1_500_000)]


def test_rows_of_other_runs_are_passed_over() -> None:
    def process(attempt: int) -> str:
        name = "my_utils.process"
        return f'1.0,x,h,0,{name},INSTANT,,"pid=1,rank=0,world_size=1,attempt={attempt}"\n'

    one = [line("START", 1, 0), line("END", 1, 0)]
    two = [line("START", 2, 0, "b"), line("END", 2, 0, "b")]
    cases = {
        "cut head": [*one, process(2), *two],
        "after another": [process(1), *one, process(2), *two],
        "over two parts": [process(1), *one, process(2), two[0], process(2), two[1]],
        "before another": [process(2), *one, process(1), *two],
        "no head left": one,
    }
    names = {}
    for case, lines in cases.items():
        kept: list[str] = []
        for row in found(read_stages(lines, attempt=2)):
            kept = [] if row is None else [*kept, *row.path]
        names[case] = kept
    ours = {"cut head": ["b"], "after another": ["b"], "over two parts": ["b"]}
    assert names == ours | {"before another": [], "no head left": ["a"]}


def test_a_late_end_finds_its_path() -> None:
    """Rows that waited for a GPU time come after the end of their parent."""
    reader = read_stages(
        [line("START", 1, 0), line("START", 2, 1, "b"), line("END", 1, 0), line("END", 2, 1, "b")]
    )
    assert [row.path for row in found(reader) if row] == [("a",), ("a", "b")]


def test_a_parent_that_is_gone_is_unknown() -> None:
    reader = read_stages([line("START", 2, 1, "b"), line("END", 2, 1, "b"), line("END", 3, 0, "c")])
    assert [row.path for row in found(reader) if row] == [("(unknown)", "b"), ("(unknown)", "c")]


@pytest.mark.parametrize(
    ("bad", "count"),
    [
        ("half a row\n", 1),
        ("\n", 0),
        (line("END", 1, 0).replace("2.000001", "two"), 1),
        (line("END", 1, 0).replace(",0,a", ",zero,a"), 1),
        (line("END", 1, 0, more=",cuda_ms=x"), 1),
        ("x" * 200_000 + "\n", 1),
        (line("OTHER", 1, 0), 0),
        ('1.0,x,h,0,user,START,,"color=red"\n', 0),
    ],
)
def test_bad_rows_are_passed_over_and_counted(bad: str, count: int) -> None:
    reader = read_stages([bad, line("START", 9, 0), line("END", 9, 0)])
    if "node_id=1," in bad:
        reader = read_stages([line("START", 1, 0), bad, line("START", 9, 0), line("END", 9, 0)])
    assert [row.duration_ns for row in found(reader) if row] == [2_000_001]
    assert reader.bad_rows == count


def test_bad_rows_are_told(profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    timer = MyTimer()
    train(timer, range(2))
    assert profile.rows()
    path = profile.folder / "profile_rank_0.csv"
    rows = path.read_bytes().splitlines(keepends=True)
    with open(path, "r+b") as file:  # in place: the writer goes on behind its own last row
        file.seek(sum(map(len, rows[:-1])))
        file.write(b"half a row".ljust(len(rows[-1]) - 1))
    report = timer.generate_report("", None, "0:2")
    assert report["bad_rows"] == 1
    assert "1 rows of the profile CSV could not be read" in caplog.text
    assert "1 rows could not be read and are left out" in render_text(report)


def test_paths_are_bounded() -> None:
    lines = [
        text
        for number in range(1, PATHS_MAX + 50)
        for text in (line("START", number, 0, f"n{number}"), line("END", number, 0, f"n{number}"))
    ]
    paths = {row.path for row in found(read_stages(lines)) if row}
    assert len(paths) <= PATHS_MAX + 1
    assert OTHER in paths


# --- durations ---


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101, 1000])
def test_figures_of_random_durations(count: int) -> None:
    chance = random.Random(count)
    values = [int(chance.lognormvariate(10, 3)) for _ in range(count)]
    durations = durations_of(values)
    assert durations.exact
    assert dict(make_figures(durations.figures())) == close(oracle(values))


def durations_of(values: Iterable[int]) -> _core.Durations:
    durations = _core.Durations()
    for value in values:
        durations.add(value)
    return durations


def test_many_durations_take_bounded_memory_and_stay_within_one_percent() -> None:
    chance = random.Random(5)
    values = [int(chance.lognormvariate(12, 2)) for _ in range(EXACT_MAX + 50_000)]
    values += [0, 1, 63, 64, 65, 127, 128, 2**50]
    durations = durations_of(values)
    assert not durations.exact
    got, wanted = dict(make_figures(durations.figures())), oracle(values)
    for name in FIGURES:
        assert got[name] == pytest.approx(wanted[name], rel=0.01 if name[0] == "p" else 1e-9)
    halves = durations_of(values[: EXACT_MAX + 10])
    halves.merge(durations_of(values[EXACT_MAX + 10 :]))
    merged = dict(make_figures(halves.figures()))
    assert merged == pytest.approx(got, rel=1e-12)


def test_durations_that_are_merged_stay_exact_while_they_are_few() -> None:
    chance = random.Random(6)
    values = [chance.randrange(10**9) for _ in range(1000)]
    merged = durations_of(values[:300])
    merged.merge(durations_of(values[300:]))
    merged.merge(_core.Durations())
    assert merged.exact
    assert dict(make_figures(merged.figures())) == close(oracle(values))
    merged.merge(merged)
    assert dict(make_figures(merged.figures())) == close(oracle(values * 2))


def test_the_bound_of_exact_durations() -> None:
    full, over = durations_of(range(EXACT_MAX)), durations_of(range(EXACT_MAX + 1))
    assert (full.exact, over.exact) == (True, False)
    assert over.figures()[0] == EXACT_MAX + 1


def test_no_durations() -> None:
    assert set(make_figures(_core.Durations().figures()).values()) == {0}


def test_equal_large_durations_have_no_spread() -> None:
    assert make_figures(durations_of([10**15 + 7] * 1000).figures())["std_ms"] == 0.0


@pytest.mark.parametrize(
    ("ns", "error"), [(-1, ValueError), (2**63, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_wrong_duration_is_named(ns: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="ns must be"):
        _core.Durations().add(ns)


# --- arguments ---


@pytest.mark.parametrize(
    ("pattern", "error", "text"),
    [
        ("(", ValueError, r"stage_pattern must be a regular expression, not '\('"),
        (3, TypeError, "stage_pattern must be a str or a compiled str pattern, not int"),
        (None, TypeError, "stage_pattern must be a str or a compiled str pattern, not NoneType"),
    ],
)
def test_a_wrong_pattern_is_named(pattern: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MyTimer().generate_report(pattern)


def test_a_wrong_path_is_named() -> None:
    timer = MyTimer()
    with pytest.raises(TypeError, match="output_filename must be a path or None, not 3"):
        timer.generate_report(output_filename=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="csv_filename must be a path, not None"):
        timer.generate_csv(timer.generate_report(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "error", "text"),
    [
        (True, TypeError, "not a bool"),
        (1.5, TypeError, "not float"),
        ([1, "2"], TypeError, "not str"),
        (slice(0, 10, 0), ValueError, "must be 1 or more"),
        (slice(0, 10, -1), ValueError, "must be 1 or more"),
        (slice("a", None), TypeError, "not str"),
        ("", ValueError, 'must be text such as "7", "10:20" or "3,10:20", not \'\''),
        ("a", ValueError, "not 'a'"),
        ("1:2:3:4", ValueError, "not '1:2:3:4'"),
        ("1,,2", ValueError, "not '1,,2'"),
    ],
)
def test_a_wrong_filter_is_named(chosen: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match="iteration_filter") as raised:
        MyTimer().generate_report("", None, chosen)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("chosen", "steps"),
    [("5", {5}), ("-3:0", {-3, -2, -1}), (":", set(range(-5, 12))), ("0:10:4", {0, 4, 8}),
     (" 1 , 3 ", {1, 3}), (slice(None), set(range(-5, 12)))],
)  # fmt: skip
def test_filters(chosen: Any, steps: set[int]) -> None:
    test, _ = compile_steps(chosen)
    assert {step for step in range(-5, 12) if test(step)} == steps


def test_an_error_in_a_filter_comes_through(profile: Profile) -> None:
    timer = MyTimer()
    train(timer, range(1))
    with pytest.raises(ZeroDivisionError):
        timer.generate_report("", None, lambda step: 1 // step)


# --- files ---


def test_text_and_json_are_written(profile: Profile, tmp_path: Path) -> None:
    timer = MyTimer(tag="train")
    train(timer, range(3))
    output = tmp_path / "deep" / "folder" / "report.txt"
    report = timer.generate_report("iter", output, "1:3")
    assert json.loads(output.with_suffix(".json").read_text(encoding="utf-8")) == report
    assert sorted(os.listdir(output.parent)) == ["report.json", "report.txt"]
    text = output.read_text(encoding="utf-8")
    assert text.startswith("Stages of rank 0, tag train, matching iter, iterations 1:3\n\nCPU time")
    assert "step 1, CPU time, ms" in text
    assert "GPU" not in text
    mask = os.umask(0)
    os.umask(mask)
    assert output.stat().st_mode & 0o777 == 0o666 & ~mask


def test_the_table_shows_the_figures_in_a_tree(profile: Profile) -> None:
    timer = MyTimer()
    train(timer, range(5))
    report = timer.generate_report()
    lines = render_text(report).splitlines()
    assert lines[2].split() == [
        *("CPU", "time,", "ms", "count", "total", "mean", "std", "min", "p50", "p90", "p99", "max"),
        *("%", "of", "parent"),
    ]
    assert len({len(line) for line in lines[2:]}) == 1, "the columns are aligned"
    for text, stage in zip(lines[4:], report["stages"], strict=True):
        name, *cells = text.split()
        assert text.startswith("  " * stage["depth"] + stage["name"])
        assert name == stage["name"]
        assert cells[0] == str(stage["count"])
        for cell, key in zip(cells[1:9], FIGURES[1:], strict=True):
            assert float(cell.replace(",", "")) == pytest.approx(figures(stage)[key], abs=5e-4)
        share = stage["parent_percent"]
        assert cells[9] == ("-" if share is None else f"{share:.1f}")


def test_rows_of_the_table_without_their_parent_name_it() -> None:
    timer = MyTimer()
    train(timer, range(2))
    lines = render_text(timer.generate_report("block|back")).splitlines()
    assert sorted(line.split()[0] for line in lines[4:]) == ["iter/backward", "iter/forward/block"]
    lines = render_text(timer.generate_report("^iter$|block")).splitlines()
    assert [line[:15].rstrip() for line in lines[4:]] == ["iter", "  forward/block"]


def test_gpu_times_get_a_table_of_their_own() -> None:
    stage = {
        "path": "a", "name": "a", "parent": None, "depth": 0, "parent_percent": None,
        **dict.fromkeys(FIGURES, 1.5), **{f"cuda_{name}": 2.5 for name in FIGURES},
        "count": 2, "cuda_count": 2,
    }  # fmt: skip
    without = stage | {"name": "b\nc", "path": "b", "cuda_count": None}
    report = MyTimer().generate_report() | {"stages": [stage, without]}
    text = render_text(report)
    cpu, gpu = text.split("GPU time, ms")
    assert "b\\x0ac" in cpu
    assert "b" not in gpu.splitlines()[2]
    assert gpu.splitlines()[2].split() == ["a", "2", *["2.500"] * 8]


def test_no_stage_at_all(tmp_path: Path) -> None:
    report = MyTimer().generate_report("x", tmp_path / "report.txt")
    assert (tmp_path / "report.txt").read_text() == (
        "Stages of rank 0, matching x\nno finished stage\n"
    )
    assert report["stages"] == []


def test_short_stages_are_shown_to_the_nanosecond() -> None:
    timer = MyTimer()
    with timer.time_stage("short"):
        pass
    report = timer.generate_report()
    report["stages"][0]["total_ms"] = report["stages"][0]["mean_ms"] = 0.000123
    cells = render_text(report).splitlines()[4].split()
    assert cells[2] == "0.000123"


def test_csv_of_a_report(profile: Profile, tmp_path: Path) -> None:
    timer = MyTimer()
    train(timer, range(3))
    report = timer.generate_report("", None, "0:2")
    timer.generate_csv(report, tmp_path / "report.csv")
    with open(tmp_path / "report.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    tables = [("", report["stages"])]
    tables += [(str(one["step"]), one["stages"]) for one in report["iterations"]]
    stages = [(step, stage) for step, stages in tables for stage in stages]
    assert len(rows) == len(stages) == 12
    for row, (step, stage) in zip(rows, stages, strict=True):
        assert (row["step"], row["path"]) == (step, stage["path"])
        assert row["depth"] == str(stage["depth"])
        assert row["parent"] == (stage["parent"] or "")
        for name in FIGURES:
            assert float(row[name]) == pytest.approx(figures(stage)[name], abs=1e-6)
            assert row[f"cuda_{name}"] == ""


def test_a_spreadsheet_executes_no_name(profile: Profile, tmp_path: Path) -> None:
    timer = MyTimer()
    names = ["=1+1", "+1+1", "@SUM(1)", "-1+1", "-1"]
    for name in names:
        with timer.time_stage(name):
            pass
    timer.generate_csv(timer.generate_report(), tmp_path / "report.csv")
    with open(tmp_path / "report.csv", encoding="utf-8", newline="") as file:
        found = {row["path"] for row in csv.DictReader(file)}
    assert found == {"'=1+1", "'+1+1", "'@SUM(1)", "'-1+1", "-1"}


def test_csv_has_a_default_name(run_python: RunPython, tmp_path: Path) -> None:
    program = "from my_utils import MyTimer; t = MyTimer(); t.generate_csv(t.generate_report())"
    assert run_python("-c", program).returncode == 0
    assert (tmp_path / "timer_report.csv").read_text().startswith("step,path,name,parent,depth,")


@pytest.mark.parametrize("given", [None, {}, [1], {"stages": []}])
def test_csv_of_something_else_is_refused(given: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="report_data must be a report of generate_report"):
        MyTimer().generate_csv(given, tmp_path / "report.csv")


WRITERS: list[Callable[[MyTimer, str], object]] = [
    lambda timer, path: timer.generate_report("", path),
    lambda timer, path: timer.generate_csv(timer.generate_report(), path),
]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("path", ["/dev/null/report.txt", "/proc/report.txt", "/dev/full"])
def test_a_report_that_cannot_be_written_is_a_warning(
    write: Callable[[MyTimer, str], object], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    timer = MyTimer()
    write(timer, path)
    assert "the timer report could not be written: " in caplog.text
    with pytest.raises(OSError, match=r"Errno"):
        write(MyTimer(strict=True), path)


def test_a_full_disk_leaves_the_old_report(tmp_path: Path) -> None:
    program = """
import resource, signal, sys
from my_utils import MyTimer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
timer = MyTimer()
timer.generate_report("", "report.txt")
before = open("report.txt").read()
for number in range(100):
    timer.start(f"stage {number}"); timer.stop(f"stage {number}")
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
timer.generate_report("", "report.txt")
assert open("report.txt").read() == before
import os
print(sorted(os.listdir(".")))
"""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "['report.json', 'report.txt']\n", done.stderr
    assert "File too large" in done.stderr


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "target.txt")
    write_text_and_json(MyTimer().generate_report(), tmp_path / "link.txt")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "target.txt").read_text().startswith("Stages of rank 0")


def test_a_bar_shows_on_a_terminal_when_it_takes_long(tmp_path: Path) -> None:
    program = """
from my_utils import MyTimer
from my_utils.record.stages import stage_report as report
report.BAR_BYTES_MIN = 1000
timer = MyTimer(log_dir="logs")
for step in range(100):
    with timer.time_stage("iter"):
        pass
timer.generate_report("", None, "0:2")
"""
    status, shown = on_terminal(["-c", program], tmp_path)
    assert status == 0, shown
    assert "reading stages: 100%" in plain(shown)


def test_reading_takes_bounded_memory(run_python: RunPython, tmp_path: Path) -> None:
    """A long run's file is read for one iteration of it: nothing grows with the file."""
    rows = []
    for number in range(1, 30_001):
        rows.append(line("START", 2 * number, 0, "iter", step=number))
        rows.append(line("END", 2 * number, 0, "iter", step=number))
    (tmp_path / "rows.csv").write_text("header\n" + "".join(rows))
    program = """
import tracemalloc
from pathlib import Path
from my_utils.record.stages import stage_report as report
from my_utils.record.stages.rows import StageReader, parts_of_files
tracemalloc.start()
reader = StageReader("", None)
rows = reader.read(parts_of_files(Path("rows.csv")))
collected = report._collect(rows, lambda step: step == 7)
print(tracemalloc.get_traced_memory()[1], collected.cpu["iter",].figures()[0])
"""
    done = run_python("-c", program)
    peak, count = map(int, done.stdout.split())
    assert count == 1
    assert peak < 1 << 20

"""Nsight Compute's CSV, both pages, by kernel and compared; figures worked out by hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from my_utils.ncu_analyze_from_csv import (
    NcuCsvError,
    NcuCsvWarning,
    analyze_sm_throughput_from_csv,
    compare_kernel_metrics,
    main,
)
from my_utils.profilers.ncu.ncu_csv import number, read_page

from ...conftest import RunPython
from ...support.schemas import loads_checked

pd = pytest.importorskip("pandas")
image_of = pytest.importorskip("matplotlib.image")
pytestmark = pytest.mark.no_torch

GEMM = "void cutlass::Kernel2<cutlass_80_wmma, float>(T1::Params)"
SOFTMAX = "void softmax_warp_forward<float, float, float, 10, 0, 0>(T2 *, const T1 *, int, int)"

LAUNCH = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
          "Block Size", "Grid Size", "Device", "CC"]  # fmt: skip
TIME = "gpu__time_duration.sum"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS = "launch__registers_per_thread"
RAW_METRICS = [TIME, SM, MEMORY, DRAM, WARPS, REGISTERS]
RAW_UNITS = ["usecond", "%", "%", "%", "%", "register/thread"]

NOISE = [
    "==PROF== Connected to process 4242 (/usr/bin/python3.11)",
    '==PROF== Profiling "Kernel2" - 0: 0%....50%....100% - 8 passes',
    'epoch 1, loss "0.5',
    "==WARNING== Note: Running with uncontrolled GPU frequencies.",
]


def line(cells: list[str], delimiter: str = ",") -> str:
    return delimiter.join(f'"{cell}"' for cell in cells)


def launch_cells(number: int, kernel: str, process: str = "4242") -> list[str]:
    return [str(number), process, "python3.11", "node7", kernel, "1", "7", "(256, 1, 1)",
            "(1024, 4, 1)", "0", "9.0"]  # fmt: skip


def raw_text(rows: list[tuple[str, list[str]]], units: list[str] | None = None) -> str:
    lines = [
        *NOISE,
        line([*LAUNCH, *RAW_METRICS]),
        line([""] * len(LAUNCH) + (units or RAW_UNITS)),
        *(line([*launch_cells(at, kernel), *cells]) for at, (kernel, cells) in enumerate(rows)),
        "==PROF== Disconnected from process 4242",
    ]
    return "\n".join(lines) + "\n"


RAW = raw_text(
    [
        (GEMM, ["1,500.00", "90.00", "40.00", "20.00", "50.00", "128"]),
        (SOFTMAX, ["250.00", "10.00", "88.00", "85.50", "95.00", "32"]),
        (GEMM, ["500.00", "70.00", "60.00", "20.00", "30.00", "128"]),
    ]
)

SPEED_OF_LIGHT = "GPU Speed Of Light Throughput"


def details_rows(number: int, kernel: str, duration: tuple[str, str], sm: str, memory: str,
                 dram: str, occupancy: str) -> list[str]:  # fmt: skip
    """A launch as the page details prints it: more metrics than we want, and a rule's text."""
    metrics = [
        (SPEED_OF_LIGHT, "DRAM Frequency", "Ghz", "1.59"),
        (SPEED_OF_LIGHT, "Elapsed Cycles", "cycle", "2,123,456"),
        (SPEED_OF_LIGHT, "Memory Throughput", "%", memory),
        (SPEED_OF_LIGHT, "DRAM Throughput", "%", dram),
        (SPEED_OF_LIGHT, "Duration", *duration),
        (SPEED_OF_LIGHT, "Compute (SM) Throughput", "%", sm),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "1,234.56"),
        ("Launch Statistics", "Registers Per Thread", "register/thread", "128"),
        ("Occupancy", "Theoretical Occupancy", "%", "100"),
        ("Occupancy", "Achieved Occupancy", "%", occupancy),
    ]
    start = launch_cells(number, kernel)
    return [
        *(line([*start, *metric]) + "," for metric in metrics),  # shorter than the header
        line([*start, SPEED_OF_LIGHT, "", "", "", "SOLBottleneck", "OPT", "This kernel, 'large',\n"
              "uses \"\"a lot\"\".", "global", "12.5"]),
    ]  # fmt: skip


DETAILS_HEADER = line([
    *LAUNCH, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name",
    "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
])  # fmt: skip
DETAILS = "\n".join(
    [
        *NOISE,
        DETAILS_HEADER,
        *details_rows(0, GEMM, ("ms", "1.50"), "90.00", "40.00", "20.00", "50.00"),
        *details_rows(1, SOFTMAX, ("us", "250.00"), "10.00", "88.00", "85.50", "95.00"),
        *details_rows(2, GEMM, ("usecond", "500.00"), "70.00", "60.00", "20.00", "30.00"),
    ]
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def check_both_kernels(table: Any) -> None:
    """GEMM: 1500 and 500 us, percentages weighted 3 to 1."""
    assert list(table["kernel"]) == [GEMM, SOFTMAX]
    assert list(table["count"]) == [2, 1]
    gemm, softmax = table.iloc[0], table.iloc[1]
    assert gemm["time_ms"] == pytest.approx(2.0)
    assert softmax["time_ms"] == pytest.approx(0.25)
    assert gemm["time_share"] == pytest.approx(100 * 2 / 2.25)
    assert (gemm["mean_us"], gemm["min_us"], gemm["max_us"]) == pytest.approx((1000, 500, 1500))
    assert gemm["sm_pct"] == pytest.approx(0.75 * 90 + 0.25 * 70)
    assert gemm["memory_pct"] == pytest.approx(0.75 * 40 + 0.25 * 60)
    assert gemm["dram_pct"] == pytest.approx(20)
    assert gemm["occupancy_pct"] == pytest.approx(0.75 * 50 + 0.25 * 30)
    assert softmax["memory_pct"] == pytest.approx(88)
    assert table.attrs["problems"] == []


@pytest.mark.parametrize("text", [RAW, DETAILS], ids=["raw", "details"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_both_pages_give_the_same_figures(
    here: Path, text: str, encoding: str, line_end: str
) -> None:
    path = written(here / "ncu.csv", text.replace("\n", line_end), encoding)
    check_both_kernels(analyze_sm_throughput_from_csv(path))


def test_a_spreadsheet_with_decimal_commas(here: Path) -> None:
    european = str.maketrans(",.", ".,")
    rows = [
        (GEMM, ["1,500.00", "90.00", "40.00", "20.00", "50.00", "128"]),
        (SOFTMAX, ["250.00", "10.00", "88.00", "85.50", "95.00", "32"]),
        (GEMM, ["500.00", "70.00", "60.00", "20.00", "30.00", "128"]),
    ]
    lines = [line([*LAUNCH, *RAW_METRICS], ";"), line([""] * len(LAUNCH) + RAW_UNITS, ";")]
    for at, (kernel, cells) in enumerate(rows):
        values = [cell.translate(european) for cell in cells]
        lines.append(line([*launch_cells(at, kernel), *values], ";"))
    path = written(here / "ncu.csv", "\n".join(lines))
    check_both_kernels(analyze_sm_throughput_from_csv(path))
    check_both_kernels(analyze_sm_throughput_from_csv(path, decimal=","))


def test_base_units_without_a_row_of_units(here: Path) -> None:
    text = "\n".join(
        [
            line(["ID", "Kernel Name", TIME, SM + " [%]"]),
            line(["0", GEMM, "1,500", "12.5"]),
            line(["1", GEMM, "2,500", "n/a"]),
        ]
    )
    table = analyze_sm_throughput_from_csv(written(here / "a.csv", text))
    assert table["time_ms"][0] == pytest.approx(0.004)
    assert table["sm_pct"][0] == pytest.approx(12.5)
    assert math.isnan(table["memory_pct"][0])


def test_parts_of_one_run_come_together_and_runs_stay_apart(here: Path) -> None:
    """The same launches exported a section at a time; then a new run with the same process ID."""
    times = [line(["ID", "Process ID", "Kernel Name", TIME]), line(["", "", "", "ns"]),
             line(["0", "7", GEMM, "1000"])]  # fmt: skip
    shares = [line(["ID", "Process ID", "Kernel Name", SM]), line(["", "", "", "%"]),
              line(["0", "7", GEMM, "55"])]  # fmt: skip
    path = written(here / "parts.csv", "\n".join([*times, *NOISE, *shares]))
    table = analyze_sm_throughput_from_csv(path)
    assert (table["count"][0], table["sm_pct"][0]) == (1, 55)

    path = written(here / "runs.csv", "\n".join([*times, *shares, *times, *shares]))
    assert analyze_sm_throughput_from_csv(path)["count"][0] == 2
    assert analyze_sm_throughput_from_csv([path, path])["count"][0] == 4


OLD_HEADER = line([
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context",
    "Stream", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
])  # fmt: skip


def old_details(*metrics: tuple[str, str, str]) -> str:
    """A launch as Nsight Compute of 2019 and 2020 prints it: the unit stands in the name, too."""
    start = ["0", "7", "app", "127.0.0.1", "sum(float*)", "2020-May-29 12:02:46", "1", "7"]
    rows = (line([*start, "GPU Speed Of Light", *metric]) for metric in metrics)
    return "\n".join([OLD_HEADER, *rows])


def test_details_of_2020(here: Path) -> None:
    path = here / "old.csv"
    path.write_text(old_details(
        ("Memory Frequency", "cycle/usecond", "807.83"), ("SOL FB", "%", "46.47"),
        ("Elapsed Cycles", "cycle", "10,124"), ("SM [%]", "%", "22.48"),
        ("Memory [%]", "%", "41.50"), ("Duration", "nsecond", "8992"),
    ))  # fmt: skip
    (row,) = analyze_sm_throughput_from_csv(path).to_dict("records")
    assert (row["sm_pct"], row["memory_pct"], row["dram_pct"]) == (22.48, 41.5, 46.47)
    assert row["mean_us"] == 8.992
    table = analyze_sm_throughput_from_csv(path, metrics=["SM [%]", "SM"])
    assert table.loc[0, ["SM [%]", "SM"]].tolist() == [22.48, 22.48]


@pytest.mark.parametrize(
    ("others", "duration_us"),
    [
        ([("Elapsed Cycles", "cycle", "27.595.520")], 117.344),  # 117344 ns
        ([("DRAM Frequency", "Ghz", "1,59")], 117.344),
        ([("DRAM Frequency", "Ghz", "1.59")], 0.117344),
        ([("Elapsed Cycles", "cycle", "27,595,520")], 0.117344),
        ([], 0.117344),  # nothing says so: a dot
    ],
)
def test_all_numbers_of_a_file_decide_on_the_decimal_mark(
    here: Path, others: list[tuple[str, str, str]], duration_us: float
) -> None:
    path = here / "european.csv"
    path.write_text(old_details(*others, ("Duration", "nsecond", "117.344")))
    (row,) = analyze_sm_throughput_from_csv(path).to_dict("records")
    assert row["mean_us"] == pytest.approx(duration_us, rel=1e-12)


def test_details_that_were_slimmed(here: Path) -> None:
    """Without a number of the launch, a metric that comes again begins the next one."""
    rows = [("Duration", "ns", "1,000"), ("Compute (SM) Throughput", "%", "40.5"),
            ("Duration", "ns", "3,000"), ("Compute (SM) Throughput", "%", "80.5")]  # fmt: skip
    header = line(["Kernel Name", "Metric Name", "Metric Unit", "Metric Value"])
    text = "\n".join([header, *(line([GEMM, *row]) for row in rows)])
    table = analyze_sm_throughput_from_csv(written(here / "slim.csv", text))
    assert table["count"].tolist() == [2]
    assert table["time_ms"][0] == pytest.approx(0.004)
    assert table["sm_pct"][0] == pytest.approx(70.5)


def test_grouping_filter_and_further_metrics(here: Path) -> None:
    other = GEMM.replace("float", "double")
    values = ["10.00", "1.00", "2.00", "3.00", "4.00"]
    text = raw_text([(GEMM, [*values, "64"]), (other, [*values, "128"]), (SOFTMAX, [*values, "9"])])
    path = written(here / "raw.csv", text)
    table = analyze_sm_throughput_from_csv(
        path, kernel="Kernel2", group_by="function", metrics=[REGISTERS]
    )
    assert table["kernel"].tolist() == ["cutlass::Kernel2"]
    assert table[REGISTERS].tolist() == [96]
    by_launch = analyze_sm_throughput_from_csv(path, group_by="launch")
    assert by_launch["kernel"][0].endswith("(1024, 4, 1)x(256, 1, 1)")


def test_what_is_broken_is_named_and_the_rest_counts(here: Path) -> None:
    lines = RAW.splitlines()
    gemm = next(at for at, text in enumerate(lines) if text.startswith('"0"'))
    lines[gemm] = lines[gemm].replace('"90.00"', '"fast"')
    lines.insert(gemm + 1, '"17","4242","python')  # cut off
    lines.insert(gemm + 2, '"18","4242"')
    lines.insert(gemm + 3, line([*launch_cells(19, ""), "1", "1", "1", "1", "1", "1"]))
    path = written(here / "broken.csv", "\n".join(lines))
    with pytest.warns(NcuCsvWarning) as caught:
        table = analyze_sm_throughput_from_csv(path)
    assert table["count"].tolist() == [2, 1]
    assert table["time_ms"][0] == pytest.approx(2.0)
    assert table["sm_pct"][0] == pytest.approx(70)
    problems = table.attrs["problems"]
    mine = [warning for warning in caught if warning.category is NcuCsvWarning]
    assert len(problems) == len(mine) == 4
    assert [text.split(": ")[0] for text in problems] == [
        f"{path}:{gemm + 2}", f"{path}:{gemm + 3}", f"{path}:{gemm + 4}", f"{path}:{gemm + 1}",
    ]  # fmt: skip
    for text, reason in zip(problems, ["cut off", "2 fields", "no kernel", "'fast'"], strict=True):
        assert reason in text


@pytest.mark.parametrize("text", [RAW, DETAILS], ids=["raw", "details"])
def test_a_file_cut_anywhere_keeps_its_whole_rows(here: Path, text: str) -> None:
    """Half a number must not count as one."""
    whole = {launch.line: launch for launch in read_page(written(here / "ncu.csv", text)).launches}
    counts = []
    for end in range(0, len(text), 7):
        try:
            launches = read_page(written(here / "cut.csv", text[:end])).launches
        except NcuCsvError:
            continue
        counts.append(len(launches))
        for launch in launches:
            assert launch.kernel == whole[launch.line].kernel
            for name, values in launch.metrics.items():
                assert values == whole[launch.line].metrics[name][: len(values)]
    assert set(counts) == {1, 2, 3} and counts[-1] == 3


def test_values_that_come_again_are_named(here: Path) -> None:
    """A page of details has some metrics in several sections, with one value."""
    head = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    row = '"0","7","k","Duration","ms","2"'
    page = here / "page.csv"
    page.write_text("\n".join([head, *[row] * 20]) + "\n")
    assert analyze_sm_throughput_from_csv(page).attrs["problems"] == []

    page.write_text("\n".join([head, row, row.replace('"2"', '"3"')]) + "\n")
    with pytest.warns(NcuCsvWarning, match=r"page.csv:3: Duration is 3, and 2 in line 2 for the"):
        table = analyze_sm_throughput_from_csv(page)
    assert table["time_ms"].tolist() == [2.0]

    page.write_text("\n".join([head, *[row] * 1000]) + "\n")
    with pytest.warns(NcuCsvWarning, match=r"page.csv:259: Duration comes again .*\(743 times\)"):
        analyze_sm_throughput_from_csv(page)


def test_an_unknown_unit_of_time_is_left_out(here: Path) -> None:
    path = written(here / "raw.csv", RAW.replace('"usecond"', '"fortnight"'))
    with pytest.warns(NcuCsvWarning, match=r"unknown unit 'fortnight' \(3 times\)"):
        table = analyze_sm_throughput_from_csv(path)
    assert table["time_ms"].isna().all()
    assert table["sm_pct"][0] == pytest.approx(80), "a plain mean, for want of times"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r":1: the file is empty"),
        ("hello\nworld\n", r":1: no header of an Nsight Compute page"),
        (line([*LAUNCH, TIME]), r":1: no launch follows"),
        (line([*LAUNCH, TIME]) + '\n"0","1', r":2: a quoted field does not end"),
        (
            line(["Process ID", "Kernel Name", "Invocations", "Metric Name", "Average"]),
            r":1: a summary \(--print-summary\)",
        ),
    ],
)
def test_files_of_no_use(here: Path, text: str, reason: str) -> None:
    path = written(here / "bad.csv", text)
    with pytest.raises(NcuCsvError, match=r"bad\.csv" + reason):
        analyze_sm_throughput_from_csv(path)


def test_bad_arguments(here: Path) -> None:
    path = written(here / "raw.csv", RAW)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"kernel": "("}, ValueError, "kernel='\\('"),
        ({"kernel": "nothing like it"}, NcuCsvError, "no kernel matches"),
        ({"group_by": "colour"}, ValueError, "group_by must be one of 'kernel', 'function'"),
        ({"decimal": ";"}, ValueError, "decimal must be one of 'auto'"),
        ({"metrics": "sm"}, TypeError, "metrics='sm'"),
        ({"metrics": ["count"]}, ValueError, "'count' is a column already"),
        ({"metrics": ["sm__no_such.avg"]}, NcuCsvError, "no metric 'sm__no_such.avg'"),
        ({"top": -1}, ValueError, "top must be at least 0, not -1"),
        ({"top": "all"}, TypeError, "top must be an int, not 'all'"),
        ({"kernel": 3}, TypeError, "kernel must be a str, not 3"),
        ({"metrics": 3}, TypeError, "metrics=3"),
        ({"metrics": iter(["sm"])}, TypeError, "a sequence of names is wanted"),
        ({"output_csv": 3}, TypeError, "output_csv must be a path or None, not 3"),
        ({"output_png": 3}, TypeError, "output_png must be a path or None, not 3"),
    ]
    for keywords, error, text in cases:
        with pytest.raises(error, match=text):
            analyze_sm_throughput_from_csv(path, **keywords)
    with pytest.raises(FileNotFoundError):
        analyze_sm_throughput_from_csv(here / "absent.csv")
    with pytest.raises(ValueError, match="at least one"):
        analyze_sm_throughput_from_csv([])
    with pytest.raises(TypeError, match="each of csv_path must be a path, not 7"):
        analyze_sm_throughput_from_csv([7])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="csv_path must be a path, not 7"):
        analyze_sm_throughput_from_csv(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="csv_b must be a path, not None"):
        compare_kernel_metrics(path, None)  # type: ignore[arg-type]


def test_compare_sorts_by_time_lost(here: Path) -> None:
    before = raw_text(
        [
            (GEMM, ["1,000.00", "90.00", "40.00", "20.00", "50.00", "128"]),
            (SOFTMAX, ["300.00", "10.00", "88.00", "85.50", "95.00", "32"]),
            ("gone", ["50.00", "1.00", "2.00", "3.00", "4.00", "32"]),
        ]
    )
    after = raw_text(
        [
            (GEMM, ["1,500.00", "45.00", "40.00", "20.00", "50.00", "128"]),
            (SOFTMAX, ["100.00", "20.00", "88.00", "85.50", "95.00", "32"]),
            (SOFTMAX, ["100.00", "20.00", "88.00", "85.50", "95.00", "32"]),
            ("new", ["70.00", "1.00", "2.00", "3.00", "4.00", "32"]),
        ]
    )
    a, b = written(here / "a.csv", before), written(here / "b.csv", after)
    table = compare_kernel_metrics(
        a, b, metrics=[REGISTERS], output_csv=here / "out.csv", output_png=here / "out.png"
    )
    assert table["kernel"].tolist() == [GEMM, "new", "gone", SOFTMAX]
    assert table["found_in"].tolist() == ["both", "b", "a", "both"]
    assert table["time_lost_ms"].tolist() == pytest.approx([0.5, 0.07, -0.05, -0.1])
    gemm, new, gone, softmax = (table.iloc[at] for at in range(4))
    assert gemm["time_ms_ratio"] == pytest.approx(1.5)
    assert gemm["sm_pct_ratio"] == pytest.approx(0.5)
    assert gemm[f"{REGISTERS}_ratio"] == 1
    assert math.isnan(new["time_ms_ratio"]) and math.isnan(gone["time_ms_ratio"])
    assert (new["count_a"], new["count_b"], new["time_ms_a"]) == (0, 1, 0)
    assert (softmax["count_ratio"], softmax["mean_us_ratio"]) == pytest.approx((2, 1 / 3))
    check_png(here / "out.png")
    again = pd.read_csv(here / "out.csv")
    assert again["time_lost_ms"].tolist() == pytest.approx(table["time_lost_ms"].tolist())
    assert sorted(path.name for path in here.iterdir()) == ["a.csv", "b.csv", "out.csv", "out.png"]


def check_png(path: Path) -> None:
    image = image_of.imread(path)
    assert image.shape[0] > 100 and image.shape[1] > 300
    assert image.std() > 0.01, "the plot is blank"


def test_the_command_line(here: Path, run_python: RunPython) -> None:
    raw = written(here / "raw.csv", RAW)
    module = ["-m", "my_utils.ncu_analyze_from_csv"]
    result = run_python(*module, str(raw), "--csv", "t.csv", "--png", "t.png", "--top", "1")
    assert result.returncode == 0, result.stderr
    assert "3 launches of 2 kernels, 2.250 ms" in result.stdout
    assert "1 more kernels" in result.stdout
    with open(here / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kernel"] for row in rows] == [GEMM, SOFTMAX]
    check_png(here / "t.png")


def test_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, bare = (
        written(here / "raw.csv", RAW),
        written(here / "bare.csv", '"ID","Kernel Name"\n0,x\n'),
    )
    assert main([str(raw), "--json"]) == 0
    kernels = loads_checked("ncu", capsys.readouterr().out)["kernels"]
    assert [one["kernel"] for one in kernels] == [GEMM, SOFTMAX]
    assert main([str(raw), "--metric", REGISTERS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"][0][REGISTERS] == 128
    assert main([str(raw), str(bare), "--json"]) == 0
    kernels = loads_checked("ncu-compare", capsys.readouterr().out)["kernels"]
    assert {one["kernel"]: one["found_in"] for one in kernels} == {
        GEMM: "a",
        SOFTMAX: "a",
        "x": "b",
    }


def test_exit_statuses(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = written(here / "raw.csv", RAW)
    cut = written(here / "cut.csv", RAW.replace("==PROF== Disconnected", '"9","') + '"10","')
    empty = written(here / "empty.csv", "")
    assert main([str(raw), str(raw)]) == 0
    assert "b/a 1.000" in capsys.readouterr().out
    assert main([str(raw), str(cut)]) == 3
    assert f"left out: {cut}:" in capsys.readouterr().err
    assert main([str(empty)]) == 1
    assert "empty.csv:1: the file is empty" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([str(here / "absent.csv")])
    assert main([str(raw), "--csv", str(here / "absent" / "t.csv")]) == 1
    for wrong in (["--top", "-1"], ["--kernel", "("], ["--nonsense"]):
        with pytest.raises(SystemExit) as exit_:
            main([str(raw), *wrong])
        assert exit_.value.code == 2
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    assert "exit status" in capsys.readouterr().out


def test_pandas_is_asked_for_when_it_is_needed(here: Path, run_python: RunPython) -> None:
    written(here / "raw.csv", RAW)
    result = run_python(
        "-c",
        "import sys; sys.modules['pandas'] = None\n"
        "import my_utils.ncu_analyze_from_csv as module\n"
        "try: module.analyze_sm_throughput_from_csv('raw.csv')\n"
        "except ImportError as error: print(error)\n",
    )
    assert "pip install pandas" in result.stdout


@pytest.mark.parametrize(
    ("text", "decimal", "value"),
    [
        ("12.50", ".", 12.5),
        ("1,234", ".", 1234),
        ("1,234", ",", 1.234),
        ("12,34,567.5", ".", 1234567.5),
        ("1\u202f234,5", ",", 1234.5),
        ("1'234.5", ".", 1234.5),
        ("-3", ".", -3),
        ("1.5e-05", ".", 1.5e-05),
        ("12.5 (12; 13)", ".", 12.5),
        ("no data", ".", None),
        ("", ".", None),
    ],
)
def test_numbers(text: str, decimal: str, value: float | None) -> None:
    assert number(text, decimal) == value


@pytest.mark.parametrize("text", ["12,50", "1.2.3", "fast", "0x10", "1,23,4.5"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        number(text, ".")


# --- parameters of others ---


def test_parameters_of_others(here: Path) -> None:
    path = written(here / "a.csv", raw_text([(GEMM, ["1", "2", "3", "4", "5", "6"])]))
    table = analyze_sm_throughput_from_csv(
        path, sm_metric=SM, output_path=here / "out.csv", print_top=0, min_threshold=None
    )  # type: ignore[call-arg]
    assert list(table["kernel"]) == [GEMM] and (here / "out.csv").exists()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"sm_metric": "x"}, r"the column sm_pct has it; metrics=\[name\] adds"),
        ({"print_top": 10}, r"takes only print_top=0: print\(table.head\(number\)\)"),
        ({"min_threshold": 0.5}, r"table\[table.sm_pct > number\]"),
        ({"output_path": "a", "output_csv": "b"}, "got output_csv and output_path"),
    ],
)
def test_parameters_of_others_say_what_to_use(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        analyze_sm_throughput_from_csv("a.csv", **given)


HEAD = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
LONG_CELLS = {
    "spaces in a number": f'{HEAD}"1","k","Duration","ns","3{" " * 100_000}x"\n',
    "brackets in a number": f'{HEAD}"1","k","Duration","ns","3 {"(" * 100_000}"\n',
    "units in a name": f'"Kernel Name","{"a [" * 30_000}"\n"k","1"\n',
    "spaces before a quote": f'{HEAD}"1","k","Duration","ns","3"\n{" " * 100_000}x"\n',
}


@pytest.mark.parametrize("name", LONG_CELLS)
def test_a_long_cell_takes_time_in_proportion(name: str, tmp_path: Path) -> None:
    """Patterns that began again at each character took hours."""
    path = tmp_path / "page.csv"
    path.write_text(LONG_CELLS[name])
    assert len(read_page(path).launches) == 1


def test_a_function_has_no_return_type(tmp_path: Path) -> None:
    """cuBLAS returns std::enable_if<…>::type from all its products of a matrix and a vector."""
    path = tmp_path / "raw.csv"
    names = (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, 1>(T13)",
        "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, double, 0>(T13)",
        "std::enable_if<(N > 3), void>::type other::kernel<at::f(int)::{lambda()#1}>(T1)",
        "unsigned int kernel(int)",
    )
    rows = (f'"{at}","{name}","1"' for at, name in enumerate(names))
    path.write_text("\n".join(('"ID","Kernel Name","gpu__time_duration.sum"', *rows)))
    table = analyze_sm_throughput_from_csv(path, group_by="function")
    assert dict(zip(table["kernel"], table["count"], strict=True)) == {
        "internal::gemvx::kernel": 2, "other::kernel": 1, "kernel": 1,
    }  # fmt: skip

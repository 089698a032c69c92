"""The picture of a few steps, and what it is drawn from."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.logger import GlobalLogger
from my_utils.timeline import Span, find_csvs, plot_timeline, read_spans
from my_utils.trace.timeline import _depths, main

from ..conftest import RunPython
from ..support.run_csv import HEADER
from ..support.schemas import loads_checked


def row(second: str, step: int, name: str, kind: str, ms: str, node: int, parent: int) -> str:
    meta = f'"node_id={node},parent_id={parent},tid=77,tag=train"'
    return f"{second},2025-06-15 15:06:40.000000,host,{step},{name},{kind},{ms},{meta}\n"


def steps(count: int) -> str:
    """Steps of 10 ms with a stage of 4 ms inside, starting at one second."""
    text = HEADER
    for step in range(count):
        begin = 1_000_000_000 + step * 10_000_000
        at = [
            f"{t // 10**9}.{t % 10**9:09d}" for t in (begin, begin + 4_000_000, begin + 9_999_999)
        ]
        text += row(at[0], step, "iter", "START", "", 2 * step + 1, 0)
        text += row(at[0], step, "forward", "START", "", 2 * step + 2, 2 * step + 1)
        text += row(at[1], step, "forward", "END", "4.000000", 2 * step + 2, 2 * step + 1)
        text += row(at[2], step, "iter", "END", "9.999999", 2 * step + 1, 0)
    return text


def test_spans_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    path = tmp_path / "profile_rank_3.csv"
    path.write_text(
        HEADER + row("1750000000.000000007", 5, "forward", "END", "0.000001", 9, 4),
        encoding="utf-8",
    )
    assert list(read_spans(path)) == [
        Span(3, "train 77", 5, "forward", 1_750_000_000_000_000_006, 1, 9, 4)
    ]


def test_only_the_steps_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "profile_rank_0.csv"
    path.write_text(steps(10), encoding="utf-8")
    assert {span.step for span in read_spans(path, range(3, 5))} == {3, 4}
    assert len(list(read_spans(path))) == 20


def test_rows_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "profile_rank_0.csv"
    bad = row("not a time", 0, "forward", "END", "1.000000", 1, 0)
    path.write_text(steps(2) + bad, encoding="utf-8")
    with pytest.warns(RuntimeWarning, match=r"1 rows? left out, the first: .*rank_0\.csv:10: "):
        assert len(list(read_spans(path))) == 4


def test_a_file_without_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "profile_rank_0.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="the header has no column 'timestamp_unix'"):
        list(read_spans(path))


def test_files_come_by_rank_and_oldest_part_first(tmp_path: Path) -> None:
    names = [
        "profile_rank_0.part0001.csv",
        "profile_rank_0.part0002.csv",
        "profile_rank_0.csv",
        "profile_rank_2.csv",
        "profile_rank_10.csv",
    ]
    for name in reversed(names):
        (tmp_path / name).write_text(HEADER)
    (tmp_path / "rank_0.log").write_text("")
    assert [path.name for path in find_csvs([tmp_path])] == names


def test_a_directory_without_csvs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no profile_rank_"):
        find_csvs([tmp_path])


def test_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for rank in (0, 1):
        (tmp_path / f"profile_rank_{rank}.csv").write_text(steps(10), encoding="utf-8")
    out = tmp_path / "t.png"
    assert main([str(tmp_path), "-o", str(out), "--steps", "2:4"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_steps_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile_rank_0.csv"
    path.write_text(steps(3), encoding="utf-8")
    with pytest.raises(ValueError, match="no finished stage in steps 7 to 8"):
        plot_timeline([path], tmp_path / "t.png", range(7, 9))
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "absent.csv")])
    assert capsys.readouterr().err.startswith("my_utils timeline: error: ")


def test_times_with_any_number_of_decimals(tmp_path: Path) -> None:
    path = tmp_path / "profile_rank_0.csv"
    ends = {"1750000000": 0, "1750000000.1": 100_000_000, "1750000000.123456": 123_456_000}
    path.write_text(HEADER + "".join(row(at, 0, "x", "END", "0.5", 1, 0) for at in ends))
    found = [span.start_ns + span.duration_ns for span in read_spans(path)]
    assert found == [1_750_000_000 * 10**9 + ns for ns in ends.values()]


def drawn_steps(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[int, set[int]]:
    """The steps of each rank in the picture."""
    assert main([*arguments, "--json"]) == 0
    found: dict[int, set[int]] = {}
    for span in loads_checked("timeline", capsys.readouterr().out):
        found.setdefault(span["rank"], set()).add(span["step"])
    return found


def test_the_last_steps_of_a_rank_are_those_of_all_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Older parts and workers end earlier than the rank does."""
    (tmp_path / "profile_rank_0.part0001.csv").write_text(steps(3))
    (tmp_path / "profile_rank_0.csv").write_text(steps(10))
    (tmp_path / "profile_rank_0.w1.csv").write_text(steps(2))
    (tmp_path / "profile_rank_1.csv").write_text(steps(9))
    assert drawn_steps(capsys, str(tmp_path)) == {0: {7, 8}, 1: {7, 8}}


def test_of_a_step_that_a_restarted_job_repeats_the_last_attempt_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attempt 1 comes to step 5, attempt 2 from step 0 to step 3."""
    text = HEADER
    for attempt, count in ((1, 6), (2, 4)):
        for step in range(count):
            node = attempt << 40 | step + 1
            text += row(f"{attempt}000.{step}", step, "iter", "END", "9.0", node, 0)
    (tmp_path / "profile_rank_0.csv").write_text(text)
    assert main([str(tmp_path), "--json"]) == 0
    found = loads_checked("timeline", capsys.readouterr().out)
    assert [(span["step"], span["node"] >> 40) for span in found] == [(2, 2), (3, 2)]


def test_rows_without_node_ids_nest_by_their_times(tmp_path: Path) -> None:
    """As `log_profile_event` writes them."""
    logger = GlobalLogger()
    logger.setup(tmp_path, rank=0, console=False)
    for name, end_ms, length_ms in (("inner", 3, 1.0), ("outer", 4, 4.0), ("next", 6, 2.0)):
        logger.log_profile_event(
            None, 1, name, "END", length_ms, timestamp_ns=1_750_000_000 * 10**9 + end_ms * 10**6
        )
    logger.close()
    # Stages that another test recorded without an output are written here, too.
    names = {"inner", "outer", "next"}
    found = [span for span in read_spans(tmp_path / "profile_rank_0.csv") if span.name in names]
    spans = sorted(found, key=lambda span: span.start_ns)
    depths = {span.name: depth for span, depth in zip(spans, _depths(spans), strict=True)}
    assert depths == {"outer": 0, "inner": 1, "next": 0}
    pytest.importorskip("matplotlib")
    assert main([str(tmp_path), "-o", str(tmp_path / "t.png")]) == 0


def test_a_file_that_cannot_be_read_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "profile_rank_0.csv").write_text(steps(3))
    (tmp_path / "profile_rank_1.csv").write_text("")
    with pytest.warns(RuntimeWarning, match=r"1 files left out, the first: .*the file is empty"):
        plot_timeline([tmp_path], tmp_path / "t.png")


def test_the_command_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "profile_rank_0.csv").write_text(steps(3))
    empty = tmp_path / "profile_rank_1.csv"
    empty.touch()
    assert main([str(tmp_path), "-o", str(tmp_path / "t.png"), "--quiet"]) == 0
    said = f"1 files left out, the first: {empty}: the file is empty"
    assert capsys.readouterr().err == f"my_utils timeline: warning: {said}\n"


def test_a_rank_without_a_finished_stage_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile_rank_0.csv").write_text(HEADER, encoding="utf-8")
    (tmp_path / "profile_rank_1.csv").write_text(steps(3), encoding="utf-8")
    assert main([str(tmp_path), "--json"]) == 0
    said = capsys.readouterr().err
    assert said == "my_utils timeline: warning: rank 0: no finished stage in steps 1 to 2\n"


def test_many_ranks_are_one_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    for rank in range(200):
        (tmp_path / f"profile_rank_{rank}.csv").write_text(steps(2))
    plot_timeline([tmp_path], tmp_path / "t.png")
    with image.open(tmp_path / "t.png") as picture:
        assert picture.height <= 125 * 110
        near = picture.convert("RGB").resize((40, 400)).getcolors(maxcolors=1 << 20)
    assert len(near) > 2


def test_without_matplotlib_it_names_the_extra(tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "profile_rank_0.csv").write_text(steps(10), encoding="utf-8")
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no matplotlib here')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from my_utils.trace.timeline import main\n"
        f"sys.exit(main([{str(tmp_path)!r}, '-o', {str(tmp_path / 't.png')!r}]))"
    )
    done = run_python("-c", program)
    assert done.returncode == 1
    assert "a picture of stages needs matplotlib" in done.stderr
    assert "pip install matplotlib" in done.stderr

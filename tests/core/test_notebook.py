"""Reports, verdicts and tables in a notebook, and in one screen of a terminal."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core
from my_utils.analysis.replay.inputs import verdict_of
from my_utils.core.notebook import SCREEN_LINES
from my_utils.timing import TimeManager

BAD = "</pre><img src=x onerror=alert(1)>"


class Elements(html.parser.HTMLParser):
    """The elements of a piece of HTML, and its text; all that is opened must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def elements(shown: Any) -> Elements:
    found = Elements(shown._repr_html_())
    assert found.open == []
    assert "img" not in found.names and "script" not in found.names
    return found


def write_run(logs: Path, stage: str = "iter") -> None:
    _core.open_output(log_dir=str(logs), rank=0, world_size=1)
    timer = _core.Timer("train")
    for step in range(40):
        timer.set_step(step)
        with timer.time_stage(stage):
            sum(range(20_000))
        timer.step()
    _core.close_output()


def check_screen(shown: object) -> list[str]:
    lines = repr(shown).splitlines()
    assert 1 <= len(lines) <= SCREEN_LINES
    return lines


@pytest.mark.no_torch
def test_a_verdict(tmp_path: Path) -> None:
    write_run(tmp_path, BAD)
    verdict = verdict_of(str(tmp_path))
    assert check_screen(verdict) == verdict.lines()
    assert elements(verdict).text == "\n".join(verdict.lines())


@pytest.mark.no_torch
def test_a_verdict_that_was_not_given(tmp_path: Path) -> None:
    verdict = verdict_of(str(tmp_path))
    assert check_screen(verdict)[0].startswith("NOT JUDGED")
    assert elements(verdict).text.startswith("NOT JUDGED")


def test_a_report(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pandas")
    from my_utils.analysis.report import analyze

    write_run(tmp_path, BAD)
    report = analyze(tmp_path)
    lines = check_screen(report)
    assert report.verdict is not None and lines[0] == report.verdict.lines()[0]
    assert any(line.startswith("stage ") for line in lines)
    found = elements(report)
    assert {"pre", "table"} <= set(found.names)
    assert BAD in found.text and "self_s" in found.text


def test_gathered_times() -> None:
    pytest.importorskip("torch")
    times = TimeManager({f"{BAD} {number}": [0.25, 0.5] for number in range(80)}).gather()
    assert times is not None
    found = elements(times)
    assert found.names.count("tr") == 61
    assert "1 rank, 80 names" in found.text and f"{BAD} 0" in found.text
    assert "and 20 more rows" in found.text
    assert "p99" in found.text and "750 ms" in found.text


def test_a_sweep() -> None:
    from my_utils.profilers.sweep.results import SweepPoint, SweepResult

    result = SweepResult(BAD, [point_of(SweepPoint, size) for size in range(50)])
    lines = check_screen(result)
    assert lines[0] == f"SweepResult: {BAD}, 50 points"
    assert lines[-1] == "... 29 more lines"
    assert elements(result).names.count("tr") == 51


def point_of(make: Any, size: int) -> Any:
    import dataclasses

    values = {"shape": (size,), "batch_size": None, "median_ms": float(size), "status": "ok"}
    fields = {}
    for field in dataclasses.fields(make):
        if field.name in values:
            fields[field.name] = values[field.name]
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            fields[field.name] = None if "None" in str(field.type) else 0
    return make(**fields)


def test_two_runs_that_differ(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from my_utils.tensors import diverge
    from my_utils.tensors.recordings.recording import save_recording

    from ..tensors.diverge.test_diverge import chain

    for rank in range(12):
        save_recording(chain("1234", rank=rank, world_size=12), tmp_path / f"a/{rank}.pt")
        save_recording(chain("1d34", rank=rank, world_size=12), tmp_path / f"b/{rank}.pt")
    report = diverge.compare_files(tmp_path / "a", tmp_path / "b")
    lines = check_screen(report)
    assert lines[0] == f"A  {tmp_path / 'a'}"
    assert "more lines" in lines[-1]
    assert "the runs differ on ranks 0-11" in elements(report).text

"""Names of users in pictures and pages: whatever is in them, the file is well-formed, and nothing
that steers a terminal reaches it."""

from __future__ import annotations

import io
import re
import time
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st

from my_utils import _core
from my_utils.core.tables import drawn

from ..conftest import RunPython

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.no_torch

NAMES = (
    "_x\x1b[2Jy", "$a_b$", "$\\frac{", "nul\0l", "中文", "a\nb", "a\rb", "\u202eab", "\x9b31mz",
    "\ufffe", "a&<b>\"'", "\t", "plain", "]]>", "-->", "--",
)  # fmt: skip
CONTROLS = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("named") / "logs"
    _core.open_output(log_dir=logs)
    timer = _core.Timer("train")
    for step in range(60):  # a busy machine makes a warm-up of some, and 20 are compared
        timer.set_step(step)
        with timer.time_stage("iter"):
            for name in NAMES:
                with timer.time_stage(name):
                    time.sleep(0.005 if name == NAMES[0] else 0)  # pages show the longest stages
        timer.step()
    _core.close_output()
    return logs


def run(run_python: RunPython, *arguments: str) -> None:
    done = run_python("-m", "my_utils", *arguments)
    assert done.returncode in (0, 3, 4), done.stderr
    assert not CONTROLS.search(done.stdout + done.stderr), done.stderr


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_a_timeline(suffix: str, logs: Path, run_python: RunPython, tmp_path: Path) -> None:
    run(run_python, "timeline", str(logs), "-o", f"picture.{suffix}")
    content = (tmp_path / f"picture.{suffix}").read_bytes()
    if suffix == "svg":
        ElementTree.fromstring(content)


def test_pages_plots_and_xml(logs: Path, run_python: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    run(run_python, "report", str(logs), "-o", "page.html", "--png", "plots")
    run(run_python, "diff", str(logs), str(logs), "-o", "page2.html")
    run(run_python, "diff", str(logs), str(logs), "--gate", "iter/_x\x1b[2Jy:+3%", "-o", "x.xml")
    for page in ("page.html", "page2.html"):
        text = (tmp_path / page).read_bytes().decode()
        assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\ufffe]", text)
        assert r"\x1b[2J" in text
    ElementTree.parse(tmp_path / "x.xml")


@settings(max_examples=40)
@given(st.one_of(st.text(), st.text(st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zl"])),
                 st.sampled_from(NAMES)))  # fmt: skip
def test_any_text_in_a_picture(name: str) -> None:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.barh([0], [1], label=name)
        axes.set_yticks([0], [name])
        axes.set_title(name)
        axes.set_xlabel(name)
        axes.text(0.5, 0, name)
        axes.annotate(name, (0, 0))

    picture = io.BytesIO()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        drawn(draw).savefig(picture, format="svg")
    root = ElementTree.fromstring(picture.getvalue())
    assert root.tag.endswith("svg")
    assert all(str(warning.message).isprintable() for warning in said)

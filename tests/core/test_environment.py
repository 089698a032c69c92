"""Switches are read in one way, and `docs/environment.md` lists every variable."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils.core import warnings as _warnings
from my_utils.core.environment import read_choice, read_switch

from ..conftest import RunPython

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.no_torch


# --- switches ---


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize(
    ("text", "value"),
    [(text, True) for text in ("1", "true", "TRUE", "yes", "On", " 1 ")]
    + [(text, False) for text in ("0", "false", "False", "no", "OFF", "", " ")],
)
def test_truth(text: str, value: bool, default: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_SWITCH", text)
    assert read_switch("EXAMPLE_SWITCH", default=default) is value


@pytest.mark.parametrize("default", [False, True])
def test_the_default(
    default: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("EXAMPLE_SWITCH", raising=False)
    assert read_switch("EXAMPLE_SWITCH", default=default) is default
    assert caplog.messages == []
    monkeypatch.setenv("EXAMPLE_SWITCH", "maybe")
    _warnings.forget("environment:EXAMPLE_SWITCH")
    for _ in range(3):
        assert read_switch("EXAMPLE_SWITCH", default=default) is default
    assert caplog.messages == [
        "EXAMPLE_SWITCH in the environment should be one of 1, true, yes, on, 0, false, no, off, "
        f"not 'maybe'; it is ignored, which means {'on' if default else 'off'}"
    ]
    _warnings.forget("environment:EXAMPLE_SWITCH")


@pytest.mark.parametrize(("text", "value"), [("STORE", "store"), ("no", False), ("on", True)])
def test_a_word_more(text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_SWITCH", text)
    assert read_choice("EXAMPLE_SWITCH", "store", default=True) == value


@pytest.mark.parametrize(("text", "kind"), [("Yes", "MyTimer"), ("2", "NoOpMyTimer")])
def test_a_process_reads_its_switch(text: str, kind: str, run_python: RunPython) -> None:
    program = "from my_utils.utils import global_timer; print(type(global_timer).__name__)"
    done = run_python("-c", program, env={"ENABLE_TIMER": text})
    assert done.stdout.split() == [kind], done.stderr
    assert ("ENABLE_TIMER in the environment" in done.stderr) == (kind == "NoOpMyTimer")


# --- the page ---

# In capitals in files that read the environment, and no variables.
OTHERS = {
    "ADDRESS", "ASYNC_END", "ASYNC_START", "COUNTER", "CRITICAL", "DEBUG", "DIR", "ERROR",
    "EXAMPLE_SWITCH", "FLOW_END", "FLOW_START", "INFO", "INSTANT", "JSON", "LIST", "LOGGER",
    "LOG_DIR", "MU_HAVE_NVTX", "NOT_SET", "OK", "OMP_NUM_THREADS", "PNG", "RANKS", "RGB",
    "SC_CLK_TCK", "SC_PAGE_SIZE", "SECONDS", "SPREAD", "STEPS", "UNKNOWN", "WARNING",
}  # fmt: skip


def listed() -> set[str]:
    rows = re.findall(r"^\| (`[A-Z].*?) \|", PAGE, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9_]*)`", row)}


def of_python(path: Path) -> Iterator[str]:
    """Constants in capitals in a file that has to do with the environment."""
    text = path.read_text(encoding="utf-8")
    if "environ" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Constant) and isinstance(value, str | bytes):
            name = value if isinstance(value, str) else value.decode("latin-1")
            if re.fullmatch(r"[A-Z][A-Z0-9_]+", name):
                yield name


def read_by_the_package() -> set[str]:
    found = {name for path in (ROOT / "my_utils").rglob("*.py") for name in of_python(path)}
    for path in (ROOT / "csrc").rglob("*.[ch]"):
        if not {"tests", "fuzz"} & set(path.parts):
            found |= set(re.findall(r'getenv\("(\w+)"', path.read_text(encoding="utf-8")))
    return found - OTHERS


def read_by_the_build() -> set[str]:
    files = [ROOT / "Makefile", *(ROOT / "csrc").rglob("Makefile")]
    found = {
        name
        for path in files
        for name in re.findall(r"^([A-Z_]+) \?=", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for path in filter(Path.is_file, (ROOT / ".ci").iterdir()):
        read = r'''\$\{([A-Z_]+):-|environ(?:\.get\(|\[)"([A-Z_]+)"'''
        for names in re.findall(read, path.read_text(encoding="utf-8")):
            found |= set(filter(None, names))
    for path in [ROOT / "setup.py", *(ROOT / "csrc").glob("*.py"), *(ROOT / "tools").rglob("*.py")]:
        found |= set(of_python(path))
    return found - OTHERS


def test_the_page_lists_every_variable() -> None:
    read = read_by_the_package() | read_by_the_build()
    assert len(read) > 30, "the search for variables finds too few"
    assert read - listed() == set()


def test_the_page_lists_nothing_else() -> None:
    tests = {"BEFORE", "CI", "FAMILY", "MY_UTILS_FREE_THREADED", "MY_UTILS_FUZZ_ROUNDS"}
    assert listed() - tests == read_by_the_package() | read_by_the_build()

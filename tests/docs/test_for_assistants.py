"""docs/for-assistants.md and docs/llms.txt say what the commands print, and name what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT, RunPython
from ..support.planted_runs import Run
from ..support.schemas import loads_checked, schema
from .folders import for_assistants

pytestmark = pytest.mark.no_torch

DOCS = ROOT / "docs"
PAGE = (DOCS / "for-assistants.md").read_text(encoding="utf-8")
TABLE = PAGE[PAGE.index("| Key |") : PAGE.index("## Act")]


def verdict_of(folder: Path, status: int, run_python: RunPython) -> dict[str, Any]:
    done = run_python("-m", "my_utils", "why", folder.name, "--json", cwd=folder.parent)
    assert done.returncode == status, done.stderr
    verdict: dict[str, Any] = loads_checked("why", done.stdout)
    return verdict


def test_the_shown_verdict_is_that_of_its_run(tmp_path: Path, run_python: RunPython) -> None:
    for_assistants(tmp_path)
    verdict = verdict_of(tmp_path / "logs", 3, run_python)
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    expected = json.loads(shown)
    (first,) = expected.pop("findings")
    assert {key: verdict[key] for key in expected} == expected
    assert {key: verdict["findings"][0][key] for key in first} == first


def test_the_keys_of_the_table_are_in_the_schema() -> None:
    named = {key for row in re.findall(r"(?m)^\| (`.*?) \|", TABLE)
             for key in re.findall(r"`(\w+)`", row)}  # fmt: skip
    types = schema("why")["$defs"]
    assert len(named) > 10
    assert named <= {*types["WhyData"]["properties"], *types["FindingData"]["properties"]}


def test_the_statuses_are_those_of_the_table(tmp_path: Path, run_python: RunPython) -> None:
    """Found, not judged for want of steps, and ok with all ranks equal."""
    said = re.findall(r'"([a-z ]+)"', TABLE)
    assert said == schema("why")["$defs"]["WhyData"]["properties"]["status"]["enum"]
    Run(ranks=2).slower(6, "data", rank=1).write(tmp_path / "found")
    Run(ranks=2).slower(6, "forward").write(tmp_path / "ok")
    Run(ranks=2, steps=8).write(tmp_path / "not judged")
    for name, status in zip(said, (3, 4, 0), strict=True):
        assert verdict_of(tmp_path / name, status, run_python)["status"] == name


def test_the_waiting_ranks_are_not_named(tmp_path: Path, run_python: RunPython) -> None:
    """The others have the longer all_reduce; the finding has the rank that they wait for."""
    run = Run(ranks=4).slower(6, "data", rank=1)
    run.write(tmp_path / "logs")
    stays = (run.exits_ns - run.entries_ns).mean(axis=1)
    assert stays.argmin() == 1
    first = verdict_of(tmp_path / "logs", 3, run_python)["findings"][0]
    assert (first["ranks"], first["stage"]) == ([1], "iter/data")


def test_what_llms_txt_names_is_there() -> None:
    text = (DOCS / "llms.txt").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == "# my_utils" and lines[2].startswith("> ")
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", text, re.MULTILINE)
    assert len(links) == text.count("](") and len(links) > 15
    assert [link for link in links if not (DOCS / link).is_file()] == []

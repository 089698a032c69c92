"""The schemas of what commands print: they are those of the code, and they find what is wrong.

The tests of each package check real outputs by them: `tests/support/schemas.py`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import jsonschema
import pytest

from tools.schemas import FOLDER, OUTPUTS, text_of

from .conftest import ROOT, RunPython
from .support.planted_runs import Run
from .support.schemas import schema

pytestmark = pytest.mark.no_torch


@pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="CPython 3.14 reads an inherited annotation in the module of the derived TypedDict",
)
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_committed_schema_is_that_of_the_code(name: str) -> None:
    """If it is not: `python -m tools.schemas`."""
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text_of(name)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_schema_is_one_of_its_dialect(name: str) -> None:
    read = schema(name)
    jsonschema.Draft202012Validator.check_schema(read)
    assert "only add keys" in read["description"]


def test_no_other_schema_is_there_and_the_page_has_each() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    assert {path.stem for path in FOLDER.iterdir()} == set(OUTPUTS)
    assert set(re.findall(r"\]\(schema/([\w-]+)\.json\)", page)) == set(OUTPUTS)


def test_every_command_with_json_has_a_schema() -> None:
    """By the calls of `add_json`: the names of their parsers."""
    commands = set()
    for path in (ROOT / "my_utils").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "    add_json(chosen" in text:
            commands.update(re.findall(r'= parser\(\s*"(\w+)[" ]', text))
    assert commands == {name.partition("-")[0] for name in OUTPUTS}


SPAN = {"rank": 0, "thread": "", "step": 1, "name": "iter", "start_ns": 1, "duration_ns": 1,
        "node": 0, "parent": 0}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (SPAN, ""),
        ({**SPAN, "later": 1}, ""),
        ({key: value for key, value in SPAN.items() if key != "node"}, "'node' is a required"),
        ({**{key: SPAN[key] for key in SPAN if key != "step"}, "stepp": 1}, "'step' is a required"),
        ({**SPAN, "rank": "0"}, "'0' is not of type 'integer'"),
    ],
)
def test_a_missing_or_misspelt_key_is_found(data: dict[str, object], reason: str) -> None:
    validator = jsonschema.Draft202012Validator(schema("timeline"))
    assert [error.message.partition(" property")[0] for error in validator.iter_errors([data])] == (
        [reason] if reason else []
    )


def test_a_key_with_a_default_in_the_code_is_required() -> None:
    straggler = schema("report")["$defs"]["Straggler"]
    assert sorted(straggler["required"]) == sorted(straggler["properties"])
    assert "default" not in json.dumps(schema("report"))


def test_the_examples_of_the_page_run(tmp_path: Path, run_python: RunPython) -> None:
    Run(ranks=2, steps=60).slower(6, "data", rank=1).write(tmp_path / "logs")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    command = tmp_path / "my_utils"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m my_utils "$@"\n')
    command.chmod(0o755)
    done = run_python("-m", "my_utils", "why", "logs", "--json")
    (tmp_path / "verdict.json").write_text(done.stdout, encoding="utf-8")
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    validate, act = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert run_python("-c", validate).returncode == 0
    done = run_python("-c", act, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 1
    assert done.stdout.startswith("input in iter/data, ranks [1]\nsaves "), done.stderr

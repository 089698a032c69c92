"""Whom `my_utils live` names in hangs of others: two real jobs of NVIDIA's fault injection, hangs
made by a simulator, and real ones on gloo."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis import live
from my_utils.analysis.live.flight_files import Dump, list_dumps, read_dump
from my_utils.analysis.live.waits.causes import find_causes

from ...conftest import ROOT

CORPUS = ROOT.parent / "shared" / "corpus"

pytestmark = [
    pytest.mark.no_torch,
    pytest.mark.skipif(not CORPUS.is_dir(), reason="corpus of others' files is not here"),
]

REAL = {"lock_gil_1st": [9, 14], "gpu_error_1st": [12, 14]}
# What is not named, and why dumps cannot say it.
LEFT = {
    "fsdp4_devB": "all ranks are inside the call and nobody has ended it",
    "fsdp8_devB": "all ranks are inside the call and nobody has ended it",
    "pp4dp2_devB": "all ranks are inside the call and nobody has ended it",
    "tp2pp4dp2_devB": "all ranks are inside the call and nobody has ended it",
    "pp4dp2_wronggroup": "nothing but calls under way, and each of the four is in its own",
    "tp4dp2_dtype": "a group of two, and nothing but calls under way: either may be right",
    "ep4dp2_dead_miss": "two ranks without a dump, for each of which one rank waits alone",
    "gloo_pp3_skip_1": "gloo records no sends and receives, and nothing else is under way",
}


def causes_of(case: Path, folder: Path) -> list[dict[str, Any]]:
    """What is found in a copy of the dumps whose files have the times of the originals."""
    dumps, logs = folder / "dumps", folder / "logs"
    logs.mkdir()
    shutil.copytree(case, dumps, ignore=shutil.ignore_patterns("*.json", "*.log", "*.txt"))
    for rank, written_s in truth_of(case).get("written_s", {}).items():
        os.utime(dumps / f"dump_{rank}", (written_s, written_s))
    found = live.snapshot(logs, flight_recorder=dumps)["flight_recorder"]
    return [dict(cause) for cause in found["causes"]]


def truth_of(case: Path) -> dict[str, Any]:
    path = case / "truth.json"
    if not path.exists():
        return {"culprits": REAL[case.name]}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def dumps_of(case: Path) -> list[Dump]:
    read = (read_dump(rank, path) for rank, path in list_dumps(str(case / "dump_")).items())
    written_s = truth_of(case)["written_s"]
    dumps = [dump for dump in read if isinstance(dump, Dump)]
    return [dataclasses.replace(dump, written_s=written_s[str(dump.rank)]) for dump in dumps]


def outcome(named: set[int], truth: set[int]) -> str:
    if named == truth:
        return "exact"
    if not named:
        return "nobody"
    if named & truth:
        return "more" if truth <= named else "part"
    return "wrong"


def outcomes(folder: str, tmp_path: Path) -> dict[str, str]:
    found = {}
    for case in sorted((CORPUS / folder).iterdir()):
        causes = causes_of(case, tmp_path / case.name)
        named = {rank for cause in causes if cause["decided"] for rank in cause["ranks"]}
        found[case.name] = outcome(named, set(truth_of(case)["culprits"]))
    return found


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    for folder in ("flight_recorder", "hangs_made", "hangs_gloo"):
        for case in (CORPUS / folder).iterdir():
            (tmp_path / case.name).mkdir()
    return tmp_path


@pytest.mark.parametrize("case", sorted(REAL))
def test_the_real_jobs(case: str, copies: Path) -> None:
    causes = causes_of(CORPUS / "flight_recorder" / case, copies / case)
    named = sorted(rank for cause in causes for rank in cause["ranks"])
    assert named == REAL[case], causes
    kind = "never entered" if case.startswith("lock") else "stuck inside"
    assert {cause["kind"] for cause in causes} == {kind}
    waiting = set().union(*(cause["waiting"] for cause in causes))
    assert waiting == set(range(16)) - set(named)


def test_a_process_that_has_ended_decides_where_dumps_cannot() -> None:
    """The one of `LEFT` in which a rank is dead, and two others have lost their dumps."""
    dumps = dumps_of(CORPUS / "hangs_made" / "ep4dp2_dead_miss")
    causes, _ = find_causes(dumps, 8, gone=[6])
    assert [(cause.kind, cause.ranks) for cause in causes if cause.decided] == [("dead", [6])]


@pytest.mark.parametrize(
    "folder", [pytest.param("hangs_made", marks=pytest.mark.slow), "hangs_gloo"]
)
def test_who_is_named(folder: str, copies: Path) -> None:
    found = outcomes(folder, copies)
    counts = Counter(found.values())
    assert counts["wrong"] == counts["more"] == counts["part"] == 0, found
    assert {case for case, result in found.items() if result == "nobody"} <= LEFT.keys()
    if folder == "hangs_made":
        assert counts["exact"] >= 0.9 * len(found), counts

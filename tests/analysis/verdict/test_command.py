"""The command why: exit statuses, what it prints and writes, and what it does without."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from my_utils.cli.report import main as report
from my_utils.cli.why import main

from ...conftest import RunPython
from ...support.planted_runs import Run
from ...support.run_csv import RankCsv
from ...support.schemas import loads_checked

pytestmark = pytest.mark.no_torch


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run(ranks=2, steps=60).slower(6, "data", rank=1)
    return run.write(tmp_path_factory.mktemp("found") / "logs")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Run(ranks=2, steps=60).write(tmp_path_factory.mktemp("healthy") / "logs")


def test_exit_statuses(
    found: Path, healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(found)]) == 3
    assert capsys.readouterr().out.startswith("BOUND BY INPUT on rank 1")
    assert main([str(healthy)]) == 0
    assert capsys.readouterr().out.startswith("NOTHING STANDS OUT")
    assert main([str(healthy), "--steps", "0:9"]) == 4
    assert "NOT JUDGED: 8 steps after the warm-up" in capsys.readouterr().out
    assert main([str(tmp_path)]) == 4
    assert "NOT JUDGED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [[], ["LOGS", "--steps", "7:3"], ["LOGS", "--warmup", "-1"], ["LOGS", "-o", "x.pdf"],
     ["LOGS", "--ranks", "x"], ["LOGS/nowhere"], ["LOGS", "nowhere-*"]],
)  # fmt: skip
def test_wrong_usage(
    wrong: list[str], healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)  # no run is here, as that of a demo in the checkout is
    with pytest.raises(SystemExit) as raised:
        main([word.replace("LOGS", str(healthy)) for word in wrong])
    said = capsys.readouterr().err
    assert raised.value.code == 2 and said
    if wrong and "nowhere" in wrong[-1]:
        assert re.search(r"nowhere(-\*)?: no such file or directory", said)


def test_one_rank_missing_and_a_copy_elsewhere(
    found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in found.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert main([str(copy), "--quiet"]) == 3 and capsys.readouterr().out == ""
    (copy / "profile_rank_1.csv").unlink()
    assert main([str(copy)]) == 4
    said = capsys.readouterr().out
    assert said.startswith("NOT JUDGED: no files of rank 1 of 2") and "to judge it: name" in said


@pytest.mark.parametrize("steps", [10, 60])
def test_steps_that_take_no_time(
    steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = RankCsv()
    csv.process()
    for step in range(steps):
        csv.stage("forward", step, 1, 1)
    logs = str(csv.write(tmp_path / "logs"))
    assert main([logs, "--json"]) == 4
    data = loads_checked("why", capsys.readouterr().out)
    reason = "the steps take no time" if steps > 20 else "9 steps after the warm-up"
    assert data["reason"].startswith(reason)
    assert (data["step_ms"], data["untimed_share"]) == (0, 0)
    assert report([logs, "-o", str(tmp_path / "report.html")]) == 0
    assert capsys.readouterr().out.startswith(f"NOT JUDGED: {reason}")


def test_steps_that_take_no_time_on_most_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        csv = RankCsv(rank, 3)
        csv.process()
        for step in range(60):
            csv.stage("forward", step, step * (rank == 2), (step + 0.9) * (rank == 2))
        csv.write(tmp_path / "logs")
    assert main([str(tmp_path / "logs"), "--json"]) == 3
    (one,) = loads_checked("why", capsys.readouterr().out)["findings"]
    assert (one["kind"], one["ranks"]) == ("straggler", [2])


@pytest.mark.parametrize(
    ("ranks", "plant", "says"),
    [(1, "pauses", "in task_a  "), (3, "slow", "rank 0, stage not known")],
)
def test_a_stage_that_is_not_in_most_steps(
    ranks: int, plant: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step has one of three stages, and nothing else. Rank 0 pauses in four steps of the
    first, or takes twice as long in all."""
    for rank in range(ranks):
        csv, now = RankCsv(rank, ranks), 0.0
        csv.process()
        for step in range(90):
            took = 1 + 0.001 * (step % 7)
            if rank == 0:
                took = 2 * took if plant == "slow" else took + 40 * (step in (21, 36, 48, 51))
            csv.stage(f"task_{'abc'[step % 3]}", step, now, now + took)
            now += took
        csv.write(tmp_path / "logs")
    assert main([str(tmp_path / "logs")]) == 3
    assert says in capsys.readouterr().out.splitlines()[0]


def test_ranks_that_were_asked_for_and_are_not_there(
    healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(healthy), "--ranks", "0,8-9", "--json"]) == 0
    assert loads_checked("why", capsys.readouterr().out)["notes"] == ["ranks 8-9 have no files"]
    assert main([str(healthy), "--ranks", "0-1", "--json"]) == 0
    assert loads_checked("why", capsys.readouterr().out)["notes"] == []
    assert main([str(healthy), "--ranks", "9", "--json"]) == 4
    printed = loads_checked("why", capsys.readouterr().out)
    assert printed["reason"] == "rank 9 has no files" and "ledger" not in printed
    page = tmp_path / "report.html"
    assert report([str(healthy), "--ranks", "0,9", "-o", str(page)]) == 0
    assert "<li>rank 9 has no files</li>" in page.read_text()


def test_who_is_waited_for_is_named_to_the_ranks_that_wait(
    found: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing recorded where these ranks meet: it shows in the times of all of them."""
    assert main([str(found), "--json"]) == 3
    whole = loads_checked("why", capsys.readouterr().out)
    assert main([str(found), "--ranks", "0", "--json"]) == 3
    shown = loads_checked("why", capsys.readouterr().out)
    assert shown["findings"] == whole["findings"] and shown["findings"][0]["ranks"] == [1]
    assert (shown["ledger"]["ranks"], shown["ledger"]["culprits"][0]["rank"]) == ([0], 1)
    of_rank_0 = {row["row"]: row["ns"][0] for row in whole["ledger"]["rows"] if row["ns"][0]}
    assert {row["row"]: row["ns"][0] for row in shown["ledger"]["rows"]} == of_rank_0


def test_json_and_files(
    found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(found), "--json"]) == 3
    printed = loads_checked("why", capsys.readouterr().out)
    assert printed["findings"][0]["ranks"] == [1] and os.listdir(tmp_path) == []
    for name in ("v.json", "v.md", "v.txt"):
        assert main([str(found), "-o", name, "--quiet"]) == 3
    assert json.loads((tmp_path / "v.json").read_text()) == printed
    assert (tmp_path / "v.txt").read_text().splitlines() == printed["text"]
    assert "| input | rank 1 | iter/data |" in (tmp_path / "v.md").read_text()
    assert main([str(found), "-o", "no/such/v.md"]) == 1
    assert "no/such/v.md" in capsys.readouterr().err


def test_it_does_without_the_extras(found: Path, run_python: RunPython) -> None:
    program = (
        "import sys\n"
        "for name in ('pandas', 'matplotlib', 'torch', 'jinja2', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from my_utils.cli.why import main; sys.exit(main([sys.argv[1]]))"
    )
    done = run_python("-c", program, str(found))
    assert done.returncode == 3 and done.stdout.startswith("BOUND BY INPUT"), done.stderr
    done = run_python("-m", "my_utils", "why", str(found), "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")

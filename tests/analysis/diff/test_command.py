"""The command diff: sides, exit statuses, what it writes, and what `git bisect run` sees."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from my_utils.cli.diff import main

from ...conftest import RunPython
from ...support.planted_runs import Run
from ...support.run_csv import RankCsv
from ...support.schemas import loads_checked

pytestmark = pytest.mark.no_torch


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of each side; of side `new` rank 1 loads 40 % longer: 2 ms of 59."""
    folder = tmp_path_factory.mktemp("runs")
    for number in range(3):
        plain = Run(ranks=2, steps=60, synchronises=False, seed=number)
        plain.write(folder / f"base-{number}")
        slow = Run(ranks=2, steps=60, synchronises=False, seed=10 + number)
        slow.slower(1.4, "data", rank=1).write(folder / f"new-{number}")
    return folder


def sides(runs: Path) -> list[str]:
    return [str(runs / "base-0"), str(runs / "new-0")]


def test_two_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(sides(runs)) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("B is 1.7 % slower (± 0.")
    assert "within these runs only): +1.7 of it in `iter/data` on rank 1, " in first
    assert "58 steps of each run, first 1 left out as warm-up" in second
    assert any("my_utils run --repeat 5" in line for line in rest)


def test_of_a_run_without_the_files_of_a_host_a_note_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, kept in (("a", 0), ("b", 1)):
        folder = Run(ranks=2, steps=60).write(tmp_path / side)
        for path in folder.glob(f"*rank_{1 - kept}*"):
            path.unlink()
    main([str(tmp_path / "a"), str(tmp_path / "b")])
    notes = [line.strip() for line in capsys.readouterr().out.splitlines() if "note: " in line]
    remedy = "put those of all hosts into one folder"
    assert notes == [
        f"note: {tmp_path}/a: no files of rank 1 of 2: {remedy}",
        f"note: {tmp_path}/b: no files of rank 0 of 2: {remedy}",
    ]


def test_several_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = [str(path) for path in sorted(runs.glob("new-*"))]
    assert main([str(runs / "base-*"), "--with", *new, "--json"]) == 0
    data = loads_checked("diff", capsys.readouterr().out)
    assert data["runs"] == [3, 3] and data["status"] == "slower"
    assert not data["within_these_runs_only"] and "3 × 3 runs" in data["text"][0]
    assert sum(one["share"] for one in data["stages"]) == pytest.approx(
        data["step"]["share"], abs=1e-5
    )
    assert data["stages"][0]["ranks"] == [1]


def test_a_link_to_a_run_is_no_second_run(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latest").symlink_to(runs / "base-0")
    a, b = sides(runs)
    assert main([a, str(tmp_path / "latest"), "--with", b, "--json"]) == 0
    assert loads_checked("diff", capsys.readouterr().out)["runs"] == [1, 1]


@pytest.mark.parametrize(
    ("gates", "status"),
    [
        (["iter:+5%"], 0),
        (["iter:+0.5%"], 3),
        (["iter/data:+10%"], 3),
        (["iter/forward:+5%", "iter/data:+30%"], 0),
        (["iter:+1.7%"], 4),
        (["memory:+5%"], 4),
        (["nowhere:+5%"], 4),
        (["memory:+5%", "iter:+0.5%"], 3),
    ],
)
def test_gates(runs: Path, gates: list[str], status: int) -> None:
    given = [word for gate in gates for word in ("--gate", gate)]
    assert main([*sides(runs), "--quiet", *given]) == status
    assert main([*sides(runs), "--quiet", "--bisect", *given]) == {4: 125}.get(status, status)
    assert main([*sides(runs), "--quiet", "--bisec", *given]) == {4: 125}.get(status, status)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["BASE"], "pass two runs"),
        (["BASE", "NEW", "NEW"], "3 came"),
        (["BASE", "nowhere"], "nowhere: no such file"),
        (["BASE", "NEW", "--gate", "iter+2%"], "'iter+2%' is not a limit"),
        (["BASE", "NEW", "--map", "old"], "'old' is not OLD=NEW"),
        (["BASE", "NEW", "-o", "x.pdf"], "unknown suffix"),
    ],
)
def test_wrong_usage(
    runs: Path, wrong: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = dict(zip(("BASE", "NEW"), sides(runs), strict=True))
    words = [places.get(word, word) for word in wrong]
    for more, status in (([], 2), (["--bisect"], 125), (["--bis"], 125)):
        with pytest.raises(SystemExit) as raised:
            main([*words, *more])
        assert raised.value.code == status
        assert says in capsys.readouterr().err


def with_checkpoints(folder: Path, seed: int, checkpoint_ms: float) -> str:
    """120 steps of 2 ms with 32 samples each; each eleventh has a checkpoint."""
    rng, csv, now = np.random.default_rng(seed), RankCsv(), 0.0
    csv.process()
    for step in range(120):
        stages = [("train", now, now + rng.uniform(2, 2.1))]
        if step % 11 == 10:
            stages.append(("checkpoint", stages[0][2], stages[0][2] + checkpoint_ms))
        csv.step(step, 0.0, stages)
        now = stages[-1][2]
        csv.counter("batch", step, now, {"samples": 32})
    return str(csv.in_order().write(folder))


def test_pauses_do_not_hide_what_a_usual_step_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint of 20 s in each eleventh step of 2 ms: a mean over steps says little."""
    a, b = (with_checkpoints(tmp_path / name, seed, 20e3) for seed, name in enumerate("ab"))
    assert main([a, b, "--gate", "iter:+2%", "--gate", "throughput:-2%", "--json"]) == 4
    data = loads_checked("diff", capsys.readouterr().out)
    step, throughput = data["gates"]
    assert step["status"] == "passed" and step["high"] < 0.02
    assert throughput["status"] == "undecided"
    assert data["a_ms"] == pytest.approx(2.05, abs=0.02)
    assert data["a_whole_ms"] == pytest.approx(2.05 + 20e3 / 11, rel=0.1)
    longer = next(one for one in data["stages"] if one["stage"] == "checkpoint")
    assert longer["a_ms"] == 0 and longer["a_above_ms"] == pytest.approx(20e3 / 11, rel=0.1)
    for side in ("a", "b"):
        parts = sum(one[f"{side}_ms"] + one[f"{side}_above_ms"] for one in data["stages"])
        assert parts == pytest.approx(data[f"{side}_whole_ms"], rel=1e-6)
    assert "in a usual step" in data["text"][0]
    assert any("single steps: " in line and "`checkpoint`" in line for line in data["text"])


def test_a_run_without_rows_is_not_compared(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([sides(runs)[0], str(tmp_path)]) == 4
    assert "NOT COMPARED" in capsys.readouterr().out
    assert main([sides(runs)[0], str(tmp_path), "--bisect", "--quiet"]) == 125
    assert main([*sides(runs), "-o", str(tmp_path / "no" / "x.md"), "--quiet"]) == 1


def test_files(runs: Path, tmp_path: Path) -> None:
    gates = ["--gate", "iter:+0.5%", "--gate", "iter:+5%", "--gate", "memory:+5%", "--quiet"]
    for name in ("x.xml", "x.md", "x.json", "x.txt"):
        assert main([*sides(runs), "-o", str(tmp_path / name), *gates]) == 3
    suite = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["3", "1", "1"]
    kinds = [[child.tag for child in case] for case in suite.iter("testcase")]
    assert kinds == [["failure"], [], ["error"]]
    assert "`iter/data`" in str(suite.findtext("system-out"))
    table = (tmp_path / "x.md").read_text()
    assert re.search(
        r"^\| `iter/data` \| .* ms \| \+1\.7\d % ± .* \| yes \| rank 1 \|$", table, re.M
    )
    assert "- FAILED: iter:+0.5%" in table
    assert json.loads((tmp_path / "x.json").read_text())["gates"][0]["status"] == "failed"
    assert (tmp_path / "x.txt").read_text().splitlines()[-1].startswith("UNDECIDED: memory:+5%")


def test_renamed_stages(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("loading", "forward", "backward", "optimizer")
    Run(ranks=2, steps=60, synchronises=False, seed=9, stages=names).write(tmp_path / "b")
    given = [sides(runs)[0], str(tmp_path / "b"), "--json"]
    assert main(given) == 0
    apart = loads_checked("diff", capsys.readouterr().out)
    assert {one["stage"] for one in apart["stages"] if one["differs"]} == {
        "iter/data", "iter/loading",
    }  # fmt: skip
    assert main([*given, "--map", "iter/data=iter/loading"]) == 0
    same = loads_checked("diff", capsys.readouterr().out)
    assert not [one for one in same["stages"] if one["differs"]]
    assert not any("to rename" in note for note in same["notes"])
    assert main([*given, "--map", "iter/dta=iter/loading", "--map", "ite=x"]) == 0
    notes = loads_checked("diff", capsys.readouterr().out)["notes"]
    assert notes == [f"{given[0]}: has no stage '{old}' to rename" for old in ("iter/dta", "ite")]


def test_git_bisect_finds_the_commit(runs: Path, tmp_path: Path) -> None:
    """Five commits, the fourth is slow, the third cannot be measured."""

    def git(*words: str) -> str:
        config = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *config, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    git("init", "-q")
    logs = ["base-0", "base-1", "nothing", "new-0", "new-1"]
    for number, name in enumerate(logs):
        (tmp_path / "log").write_text(name)
        git("add", "log")
        git("commit", "-q", "-m", f"commit {number}")
    git("bisect", "start", "HEAD", "HEAD~4")
    script = (
        f"{sys.executable} -m my_utils diff {runs}/base-2 {runs}/$(cat log) "
        "--gate iter:+0.5% --bisect --quiet"
    )
    said = subprocess.run(
        ["git", "bisect", "run", "sh", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert "commit 3" in git("log", "--format=%s", "-1", "refs/bisect/bad")
    assert "only 'skip'ped commits left" in said or "first bad commit" in said


def test_it_does_without_the_extras(runs: Path, run_python: RunPython) -> None:
    program = (
        "import sys\n"
        "for name in ('pandas', 'matplotlib', 'torch', 'jinja2', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from my_utils.cli.diff import main; sys.exit(main(sys.argv[1:]))"
    )
    done = run_python("-c", program, *sides(runs), "--gate", "iter:+0.5%")
    assert done.returncode == 3 and done.stdout.startswith("B is 1.7 % slower"), done.stderr

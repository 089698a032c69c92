"""The folder of a run: its name, that no two runs share one, and what it says of itself."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from my_utils.run.agreement import Place, agree, unique_launch
from my_utils.run.folder import complete_run_file, held_by, name_of_run, point_latest, reserve

from ..conftest import RunPython

pytestmark = pytest.mark.no_torch

LAUNCH = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MY_UTILS_RUN_REPORT")


@given(st.lists(st.text(), max_size=5))
def test_any_command_gives_a_name(command: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}", name_of_run(command))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "a/train.py"], "train"),
        (["torchrun", "--nproc-per-node", "8", "-m", "lab.pretrain"], "pretrain"),
        (["deepspeed", "--num_gpus", "2", "train.py", "--config", "x.json"], "train"),
        (["./run all.sh"], "run_all"),
        (["..."], "run"),
        ([], "run"),
    ],
)
def test_names(command: list[str], name: str) -> None:
    assert name_of_run(command) == name


def test_runs_of_one_second_are_apart(tmp_path: Path) -> None:
    made: list[Path] = []
    threads = [
        threading.Thread(target=lambda: made.append(reserve(tmp_path / "logs", "train", 1e9)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8 and all(path.is_dir() for path in made)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("profile_rank_0.csv", True),
        ("profile_rank_3.w1.csv", True),
        ("rank_0.12.34.journal", True),
        ("rank_0.12.34.journal-ref", True),
        ("rank_7.heartbeat.json", True),
        ("notes.txt", False),
    ],
)
def test_a_folder_of_another_run_is_refused_by_name(
    run_python: RunPython, tmp_path: Path, name: str, holds: bool
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / name).write_text("")
    assert (held_by(tmp_path / "old") == name) is holds
    (tmp_path / "train.py").write_text("print('ran')")
    done = run_python("-m", "my_utils.run", "--quiet", "-o", "old", "train.py")
    if holds:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"my_utils run: error: old holds another run ({name}); -o takes a folder without one\n"
        )
    else:
        assert (done.returncode, done.stdout) == (0, "ran\n")


@pytest.mark.parametrize(
    "text", ['{"my": "sweep config"}', "[]", "", '{"version": 1, "run_id": "a"}']
)
@pytest.mark.parametrize("rank", [{}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_a_run_json_of_the_user_is_refused(
    run_python: RunPython, tmp_path: Path, text: str, rank: dict[str, str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text(text)
    (tmp_path / "train.py").write_text("print('ran')")
    done = run_python("-m", "my_utils.run", "-o", "mine", "train.py", env=rank)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "my_utils run: error: mine holds a run.json that is not of a run; a run would replace it\n"
    )
    assert (tmp_path / "mine" / "run.json").read_text() == text


def test_a_folder_of_the_user_stays_where_nothing_was_recorded(
    run_python: RunPython, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "train.py").write_text("import os; print(os.listdir('mine'), os.path.isdir('new'))")
    for _ in range(2):
        done = run_python("-m", "my_utils.run", "--quiet", "-o", "mine", "train.py")
        assert (done.stdout, done.stderr) == ("['run.json'] False\n", "")
        assert os.listdir(tmp_path / "mine") == []
    done = run_python("-m", "my_utils.run", "--quiet", "-o", "new", "train.py")
    assert (done.stdout, (tmp_path / "new").exists()) == ("[] True\n", False)


def test_only_the_run_json_of_this_run_is_taken_back(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('new/run.json', 'w').write('{\"my\": \"config\"}')")
    done = run_python("-m", "my_utils.run", "--quiet", "-o", "new", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "new" / "run.json").read_text() == '{"my": "config"}'


def test_what_a_killed_run_left_is_no_hindrance(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; os.kill(os.getppid(), 9)")
    assert run_python("-m", "my_utils.run", "-o", "new", "train.py").returncode == -9
    assert os.listdir(tmp_path / "new") == ["run.json"]
    (tmp_path / "train.py").write_text("print('ran')")
    done = run_python("-m", "my_utils.run", "--quiet", "-o", "new", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


@pytest.mark.parametrize("age_s", [0, 86_400])
def test_a_rank_refuses_what_is_older_than_its_launcher(
    run_python: RunPython, tmp_path: Path, age_s: int
) -> None:
    """Other ranks of the launch may have begun to write, and attempts before this one."""
    (tmp_path / "out").mkdir()
    file = tmp_path / "out" / "profile_rank_0.csv"
    file.touch()
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime - age_s))
    (tmp_path / "train.py").write_text("print('ran')")
    rank = {"RANK": "1", "WORLD_SIZE": "2"}
    done = run_python("-m", "my_utils.run", "-o", "out", "train.py", env=rank)
    if age_s:
        assert (done.returncode, done.stdout) == (2, "")
        assert "out holds another run (profile_rank_0.csv)" in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_an_output_that_is_a_file(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_python("-m", "my_utils.run", "-o", "file", "train.py")
    assert (done.returncode, done.stderr) == (
        2,
        "my_utils run: error: cannot write to file: Not a directory\n",
    )


def test_latest(tmp_path: Path) -> None:
    first, second = reserve(tmp_path / "logs", "a"), reserve(tmp_path / "logs", "b")
    for folder in (first, second, first):
        point_latest(folder)
        assert (tmp_path / "logs" / "latest").resolve() == folder
    assert sorted(os.listdir(tmp_path / "logs")) == sorted([first.name, second.name, "latest"])
    point_latest(reserve(tmp_path / "elsewhere", "c"))
    assert not os.path.lexists(tmp_path / "elsewhere" / "latest")


def test_latest_of_somebody_else_stays(tmp_path: Path) -> None:
    folder = reserve(tmp_path / "logs", "a")
    (tmp_path / "logs" / "latest").write_text("mine")
    point_latest(folder)
    assert (tmp_path / "logs" / "latest").read_text() == "mine"


def test_rank_0_completes_what_the_parent_wrote(tmp_path: Path) -> None:
    def read() -> dict[str, object]:
        return dict(json.loads((tmp_path / "run.json").read_text()))

    complete_run_file(tmp_path, {"script": "a", "world_size": None}, leads=False)
    complete_run_file(tmp_path, {"script": "b", "world_size": 4}, leads=False)
    assert read() == {"version": 1, "script": "a", "world_size": 4}
    complete_run_file(tmp_path, {"script": "b", "world_size": 6}, leads=False)
    assert read()["world_size"] == 4
    complete_run_file(tmp_path, {"script": "b", "world_size": 8}, leads=True)
    complete_run_file(tmp_path, {"moved_to": "c"}, leads=True)
    assert read() == {"version": 1, "script": "a", "world_size": 8, "moved_to": "c"}


@pytest.mark.parametrize(
    ("variables", "launch"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({"TORCHELASTIC_RUN_ID": "my-job"}, None),
        ({"TORCHELASTIC_RUN_ID": "6a1b2c3d-0000-4000-8000-00000000000A"},
         "6a1b2c3d-0000-4000-8000-00000000000a"),
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, "slurm-12.0"),
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "4294967291"}, None),
        ({"SLURM_JOB_ID": "12"}, None),
    ],
)  # fmt: skip
def test_a_launch_counts_if_it_is_unique(
    variables: dict[str, str], launch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCH:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert unique_launch() == launch


def test_ranks_without_a_store_agree_on_one_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCH:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MY_UTILS_RUN_REPORT", str(tmp_path / "report"))
    first = Place(reserve(tmp_path / "logs", "a"), "1")
    second = Place(reserve(tmp_path / "logs", "b"), "2")
    assert agree(2, lambda: first) == first
    assert agree(2, lambda: second) == first  # and nothing is proposed again
    assert agree(1, lambda: second) == first
    monkeypatch.delenv("MY_UTILS_RUN_REPORT")
    assert agree(2, lambda: second) == second

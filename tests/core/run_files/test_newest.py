"""Which run is meant where a user names none, or a folder of runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from my_utils.core.run_files.newest import find_run, is_run

from ...conftest import RunPython

pytestmark = pytest.mark.no_torch

FILES = [
    "profile_rank_0.csv",
    "profile_rank_12.w1.part3.csv",
    "rank_0.4321.99.journal",
    "rank_3.w2.4321.99.journal-ref",
    "rank_7.heartbeat.json",
]
OTHER_FILES = ["rank_0.log", "profile_rank_x.csv", "run.json", "notes.journal", "trace.json"]


def make_run(folder: Path, second: int, name: str = FILES[0]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    os.utime(folder / name, (second, second))
    return folder


@pytest.mark.parametrize("name", FILES)
def test_files_that_make_a_run(name: str, tmp_path: Path) -> None:
    assert is_run(make_run(tmp_path, 1, name))


@pytest.mark.parametrize("name", OTHER_FILES)
def test_files_that_make_none(name: str, tmp_path: Path) -> None:
    assert not is_run(make_run(tmp_path, 1, name))


def test_what_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1)
    make_run(run / "inside", 2)
    (tmp_path / "empty").mkdir()
    for path in (run, run / FILES[0], tmp_path / "empty", tmp_path / "*.csv", "-", "no/such"):
        found = find_run(path)
        assert (found.path, found.how) == (str(path), "")


def test_a_folder_of_runs_is_its_newest(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 3)
    newest = make_run(tmp_path / "b", 5, FILES[2])
    make_run(tmp_path / "b", 1)
    make_run(tmp_path / "c", 4)
    found = find_run(tmp_path)
    assert found.path == str(newest)
    assert found.how == f"{newest} is the newest of 3 runs in {tmp_path}"


def test_links_count_once_and_hidden_folders_not_at_all(tmp_path: Path) -> None:
    run = make_run(tmp_path / "train-1", 3)
    (tmp_path / "latest").symlink_to("train-1")
    (tmp_path / "again").symlink_to(".")
    (tmp_path / "loop").symlink_to("loop")
    make_run(tmp_path / ".trash", 9)
    found = find_run(tmp_path)
    assert (found.path, found.how) == (str(run), f"{run} is the only run in {tmp_path}")


def test_a_link_to_another_disk_is_followed(tmp_path: Path) -> None:
    make_run(tmp_path / "disk" / "runs" / "train", 3)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "logs").symlink_to(tmp_path / "disk" / "runs")
    assert find_run(tmp_path / "here").path == str(tmp_path / "here" / "logs" / "train")


def test_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run found"):
        find_run()
    make_run(tmp_path / "x" / "y" / "z", 9)
    with pytest.raises(FileNotFoundError):
        find_run()
    make_run(tmp_path / "logs" / "old", 1)
    make_run(tmp_path / "logs" / "new", 2)
    found = find_run()
    assert (found.path, found.how) == ("logs/new", "logs/new is the newest of 2 runs here")
    make_run(tmp_path, 3)
    assert find_run().path == "."


PLACES = ["", "a", "a/b", "a/b/c", "d", "d/e", "f/g"]


@given(st.dictionaries(st.sampled_from(PLACES), st.integers(1, 9), min_size=1))
def test_the_newest_of_any_tree(
    tmp_path_factory: pytest.TempPathFactory, runs: dict[str, int]
) -> None:
    top = tmp_path_factory.mktemp("tree")
    for place, second in runs.items():
        make_run(top / place, second)
    near = {place: second for place, second in runs.items() if place.count("/") < 2}
    found = find_run(top)
    if "" in runs or not near:
        assert found.path == str(top)
        return
    assert near[os.path.relpath(found.path, top)] == max(near.values())


def test_a_command_says_which_run_it_took(tmp_path: Path, run_python: RunPython) -> None:
    make_run(tmp_path / "logs" / "train-1", 1)
    newest = make_run(tmp_path / "logs" / "train-2", 2)
    (newest / FILES[0]).write_text("no,header\n")
    for words in (["-m", "my_utils", "trace"], ["-m", "my_utils.csv2trace", "logs"]):
        done = run_python(*words)
        said = done.stderr.splitlines()
        place = "here" if words[-1] == "trace" else "in logs"
        assert said[0] == f"my_utils trace: logs/train-2 is the newest of 2 runs {place}"
        assert "logs/train-2/profile_rank_0.csv" in said[1]
        assert done.returncode == 1
    assert "newest" not in run_python("-m", "my_utils", "trace", "--quiet").stderr


@pytest.mark.parametrize("with_others", [False, True])
def test_the_folders_of_the_hosts_of_a_run_are_one(with_others: bool, tmp_path: Path) -> None:
    ids = {"node0": "a", "node1": "a", "node2": "a"} | (
        {"before": "b", "no file": None, "damaged": ""} if with_others else {}
    )
    for second, (name, run_id) in enumerate(reversed(ids.items())):
        folder = make_run(tmp_path / name, second)
        if run_id is not None:
            (folder / "run.json").write_text(f'{{"run_id": "{run_id}"}}' if run_id else "{")
    found = find_run(tmp_path)
    assert sorted(found.paths) == [str(tmp_path / f"node{host}") for host in range(3)]
    assert found.paths[0] == found.path == str(tmp_path / "node0")
    which = "the newest of 4 runs" if with_others else "the only run"
    assert f"and 2 more of its folders are {which} in" in found.how

"""Forks: children own nothing of their parent's recording, and never wait for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..fakes import compile_fake
from .programs import finished, rows_of, steps_of

LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset, _utils

_utils.MP_STATUS_CHECK_INTERVAL = 45.0  # a worker that does not end in 5 s would be terminated

class Numbers(Dataset):
    def __init__(self, records):
        self.records = records
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if self.records:
            timer.set_step(index)
            with timer.time_stage("load"):
                return torch.tensor(index)
        return torch.tensor(index)

if __name__ == "__main__":
    logger.setup("logs", console=False)
    for epoch in range(2):
        for batch in DataLoader(Numbers(sys.argv[1] == "records"), batch_size=2, num_workers=2,
                                multiprocessing_context=sys.argv[2]):
            stages(1)
            timer.step()
    logger.close()
"""


def csv_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.csv"))


@pytest.mark.slow
def test_workers_of_a_data_loader_write_files_of_their_own(
    run_python: RunPython, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    finished(run_python, LOADER, "records", "fork")
    names = csv_names(tmp_path / "logs")
    assert names == ["profile_rank_0.csv", "profile_rank_0.w1.csv", "profile_rank_0.w2.csv"]
    loads = sorted(
        step for name in names[1:] for step in steps_of(tmp_path / "logs" / name, "load")
    )
    assert loads == sorted([*range(16), *range(16)])
    assert {row.name for row in rows_of(tmp_path / "logs" / names[0])} == {"stage"}
    assert not list((tmp_path / "logs").glob("*.journal"))


@pytest.mark.slow
def test_workers_of_a_data_loader_that_record_nothing_make_no_file(
    run_python: RunPython, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    finished(run_python, LOADER, "nothing", "fork")
    assert csv_names(tmp_path / "logs") == ["profile_rank_0.csv"]


SPAWN = """
import torch.multiprocessing

def rank_main(rank, folder):
    GlobalLogger().setup(folder, rank=rank, world_size=2, console=False)
    stages(50)
    timer.step()

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank_main, args=("logs",), nprocs=2)
"""


@pytest.mark.slow
def test_ranks_that_torch_spawns_lose_nothing(run_python: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from .programs import PREAMBLE

    program = tmp_path / "program.py"
    program.write_text(PREAMBLE + SPAWN, encoding="utf-8")
    done = run_python(str(program))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert steps_of(tmp_path / f"logs/profile_rank_{rank}.csv") == list(range(50))
    assert not list((tmp_path / "logs").glob("*.journal"))


FORKS = """
logger.setup("logs", console=False)
go_on = True
def work(index):
    own = MyTimer(tag=f"t{index}")
    lap = 0
    while go_on:
        own.set_step(lap)
        own.start("work"); own.stop("work")
        lap += 1
        if lap % 20 == 0:
            own.step()
            time.sleep(0.001)  # else the rows of a slow machine's forks take a minute to read
    os.write(1, f"laps {index} {lap}\\n".encode())  # prints of threads would mix
threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
for thread in threads: thread.start()
children = []
for number in range(24):
    timer.start("parent")
    child = os.fork()
    if child == 0:
        signal.alarm(40)   # a child that hangs ends with a signal
        if number % 2:
            timer.set_step(number)
            timer.start("child"); timer.stop("child")
            timer.step()
        timer.aggregates()
        _core.close_output()
        os._exit(0)
    timer.stop("parent")
    children.append(child)
    if len(children) == 4:
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        children.clear()
go_on = False
for thread in threads: thread.join()
logger.close()
print("troubles", _core.troubles()["dropped_records"], _core.troubles()["failed_writes"])
"""


def test_forks_in_the_middle_of_drains_of_other_threads(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(run_python, FORKS)
    laps = {
        int(words[1]): int(words[2])
        for words in map(str.split, done.stdout.splitlines())
        if words[0] == "laps"
    }
    assert "troubles 0 0" in done.stdout
    logs = tmp_path / "logs"
    rows = [row for row in rows_of(logs / "profile_rank_0.csv") if row.kind == "END"]
    for index, count in laps.items():
        steps = [row.step for row in rows if row.metadata.get("tag") == f"t{index}"]
        assert steps == list(range(count))
    assert sum(row.name == "parent" for row in rows) == 24
    children = [
        row
        for name in csv_names(logs)
        if ".w" in name
        for row in rows_of(logs / name)
        if row.kind == "END"
    ]
    assert sorted(row.step for row in children) == list(range(1, 24, 2))
    assert {row.name for row in children} == {"child"}
    assert not list(logs.glob("*.journal"))


def test_a_killed_worker_leaves_a_journal_that_the_next_worker_adopts(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        logger.setup("logs", console=False)
        stages(5)
        for end in (signal.SIGKILL, 0):
            child = os.fork()
            if child == 0:
                stages(10, name="child")
                os.kill(os.getpid(), end) if end else _core.close_output()
                os._exit(0)
            os.waitpid(child, 0)
        """,
    )
    assert csv_names(tmp_path / "logs") == ["profile_rank_0.csv", "profile_rank_0.w1.csv"]
    assert steps_of(tmp_path / "logs/profile_rank_0.w1.csv", "child") == [*range(10), *range(10)]
    assert sorted(os.listdir(tmp_path / "logs")) == [
        "profile_rank_0.csv",
        "profile_rank_0.w1.csv",
        "rank_0.heartbeat.json",
        "rank_0.log",
        "rank_0.w1.heartbeat.json",
    ]


def test_a_child_does_not_take_the_name_that_its_parent_is_about_to_use_again(
    run_python: RunPython, tmp_path: Path
) -> None:
    """Between the renaming of a full CSV and the making of the next there is none of its name."""
    library = compile_fake("slow_rotation.c", tmp_path / "librotation.so")
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False, max_csv_bytes=2000)
        child = os.fork()
        if child == 0:
            while not os.path.exists("renamed"):
                time.sleep(0.001)
            stages(3, "of_the_child")
            open("go_on", "w").close()
            logger.close()
            os._exit(0)
        for step in range(100):
            stages(1, first=step)
            timer.step()
        assert os.waitpid(child, 0)[1] == 0
        assert _core.troubles()["failed_writes"] == 0
        logger.close()
        """,
        env={"LD_PRELOAD": str(library)},
    )
    assert done.stderr == ""
    assert (tmp_path / "renamed").exists()
    paths = sorted((tmp_path / "logs").glob("profile_rank_0*.csv"))
    assert len(paths) > 3
    of_the_child = tmp_path / "logs" / "profile_rank_0.w1.csv"
    assert steps_of(of_the_child, "of_the_child") == [0, 1, 2]
    paths.remove(of_the_child)
    assert sorted(step for path in paths for step in steps_of(path)) == list(range(100))


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_number_of_a_stage_is_in_one_file_of_a_rank_only(
    run_python: RunPython, tmp_path: Path, attempts: int
) -> None:
    """Forked workers and restarts write files of their own, or the same ones again."""
    workers, threads, laps = 7, 2, 3
    for _ in range(attempts):
        finished(
            run_python,
            """
            workers, threads, laps = map(int, sys.argv[1:])
            logger.setup("logs", console=False)
            stages(laps)
            ends, go_on = os.pipe()
            for _ in range(workers):
                if os.fork() == 0:
                    os.close(go_on)
                    own = [threading.Thread(target=stages, args=(laps,)) for _ in range(threads)]
                    for thread in own:
                        thread.start()
                    for thread in own:
                        thread.join()
                    timer.step()
                    os.read(ends, 1)  # the name of its CSV is in use until all others have one
                    logger.close()
                    os._exit(0)
            while len([name for name in os.listdir("logs") if name.endswith(".csv")]) <= workers:
                time.sleep(0.001)
            stages(laps)
            os.close(go_on)
            for _ in range(workers):
                assert os.wait()[1] == 0
            logger.close()
            """,
            *map(str, (workers, threads, laps)),
        )
    names = csv_names(tmp_path / "logs")
    assert len(names) == 1 + workers
    ends = [row for name in names for row in rows_of(tmp_path / "logs" / name) if row.kind == "END"]
    nodes = [row.node for row in ends]
    assert len(nodes) == attempts * laps * (2 + workers * threads)
    assert len(set(nodes)) == len(nodes)
    assert max(nodes) < 2**53

"""A job as tprofiler's users write it, with only the import changed: four processes of
torch.multiprocessing, times gathered, saved, loaded, printed and drawn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ...support.ranks import ROOT, free_port

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")

# four processes import torch side by side
pytestmark = [pytest.mark.thorough, pytest.mark.long_file, pytest.mark.timeout(320)]

JOB = """
import os
import sys
import time

import matplotlib.pyplot as plt
import torch.distributed as dist
import torch.multiprocessing as mp

from my_utils.timing import timer_wrap, TimeManager, timer, ProfiledTime


@timer_wrap()
def sleep_a():
    time.sleep(0.002)


@timer_wrap('renamed_b')
def sleep_b():
    with timer('inside_b'):
        time.sleep(0.004)


def worker(rank, world_size, port):
    os.environ.update({'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': port})
    dist.init_process_group('gloo', rank=rank, world_size=world_size)
    tm = TimeManager()
    with tm.timer(name='by_hand'):
        time.sleep(0.001)
    with tm.enable_timer():
        for _ in range(6):
            sleep_a()
        sleep_b()
        with timer('block'):
            pass
    sleep_b()
    gathered = tm.gather(dst=0)
    if gathered is not None:
        gathered.save('exported.pt')
        loaded = ProfiledTime.load('exported')
        print(f'loaded: {loaded!r}')
        if 'sleep_a' in gathered:
            data = gathered['sleep_a']
            print(f'sum {data.sum():.3f}s mean {data.mean():.3f}s std {data.std():.3f}s')
            print(f'count {data.count()} ranks {data.rank_count()}')
            plt.figure(figsize=(10, 6))
            data.hist(separate_ranks=True, title='times of a', bins=10)
            plt.tight_layout()
            plt.savefig('a.png', dpi=150, bbox_inches='tight')
            plt.show()
        for name, data in gathered.items():
            print(f'{name}: {data.sum():.3f} {data.count()} {data.mean():.3f} {data.std():.3f}')
    else:
        print(f'rank {rank} gets None')
    dist.destroy_process_group()


if __name__ == '__main__':
    mp.spawn(worker, args=(4, sys.argv[1]), nprocs=4, join=True)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.py").write_text(JOB, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "job.py", str(free_port())],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_prints_statistics_of_all_ranks(job: tuple[Path, str]) -> None:
    _, text = job
    assert "loaded: GatheredTime: 4 ranks, 5 names" in text
    assert "count 24 ranks 4" in text
    found = re.search(r"sum ([\d.]+)s mean ([\d.]+)s", text)
    assert found is not None
    total, mean = map(float, found.groups())
    assert total >= 24 * 0.002 and mean >= 0.002
    counts = dict(re.findall(r"^(\w+): [\d.]+ (\d+) ", text, re.MULTILINE))
    assert counts == {
        "by_hand": "4", "sleep_a": "24", "inside_b": "4", "renamed_b": "4", "block": "4",
    }  # fmt: skip
    assert sorted(re.findall(r"rank (\d) gets None", text)) == ["1", "2", "3"]


def test_writes_the_histogram_and_the_times(job: tuple[Path, str]) -> None:
    from matplotlib import image

    from my_utils.timing import ProfiledTime

    folder, _ = job
    picture = image.imread(folder / "a.png")
    assert picture.shape[0] > 600 and picture.shape[1] > 1000
    assert picture.std() > 0.05
    loaded = ProfiledTime.load(folder / "exported")
    assert loaded["sleep_a"].ranks == [0, 1, 2, 3]
    assert sorted(file.name for file in folder.iterdir()) == ["a.png", "exported.pt", "job.py"]

"""Times of functions and blocks, gathered from four processes to rank 0.

Prints a table of all names, keeps the times in `times.pt` and draws `simulate.png`, a
histogram for each rank. It needs torch and matplotlib.
"""

import random
import tempfile
import time
from pathlib import Path

import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from my_utils.timing import ProfiledTime, TimeManager, timer, timer_wrap


@timer_wrap()
def simulate() -> None:
    time.sleep(random.uniform(0.005, 0.02))


@timer_wrap("exchange")
def send_and_receive() -> None:
    with timer("exchange.wait"):  # a part of it, under a name of its own
        time.sleep(random.uniform(0.01, 0.03))


def worker(rank: int, world_size: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    tm = TimeManager()
    with tm.timer(name="set up"):  # timed whatever is enabled
        time.sleep(0.01)

    with tm.enable_timer():  # from here on, what is decorated is timed
        for _ in range(8):
            simulate()
        send_and_receive()
        if rank == 0:
            with timer("rank 0 only"):  # ranks may have different names
                time.sleep(0.01)
    send_and_receive()  # not timed any more

    gathered = tm.gather(dst=0)  # None on the other ranks
    if gathered is not None:
        report(gathered.save("times.pt"))
    dist.destroy_process_group()


def report(path: object) -> None:
    from matplotlib import pyplot as plt

    gathered = ProfiledTime.load(str(path))
    print(gathered)
    times = gathered["simulate"]
    print(
        f"simulate: {times.count()} calls on {times.rank_count()} ranks took {times.sum():.3f} s,"
    )
    print(f"  {times.mean():.4f} s ± {times.std():.4f} s, 99 % of them below", end=" ")
    print(f"{times.percentile(99):.4f} s")
    plt.figure(figsize=(8, 5))
    times.hist(separate_ranks=True, title="simulate", bins=10)
    plt.savefig("simulate.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(worker, args=(4, Path(folder, "store").as_uri()), nprocs=4)

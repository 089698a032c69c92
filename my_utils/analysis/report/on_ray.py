"""The files of a run reduced by the workers of a Ray cluster, when they outgrow one machine.

Each task reads and reduces some ranks as it is done here; what comes back is small. All nodes
must see the files under the same paths.

A process that is connected to no cluster leaves that to a child: Ray prints to standard output,
and ends its process where the head of the cluster stays away.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ...core.extras import require
from ...core.process_end import status_text
from ...trace.inputs import FileSet
from ..verdict.rank_cells import RankCells
from .load import PURPOSE, read_ranks

RANKS_A_TASK = 32
GET_RETRIES = "2"
"""How often Ray asks again for a head that does not answer: one minute and a half in all, where its
own 20 take a quarter of an hour."""
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from my_utils.analysis.report.on_ray import serve; serve()"
)


def read_ranks_on_ray(
    file_sets: Sequence[FileSet], steps: tuple[int, int], parquet: str | None
) -> Iterator[RankCells]:
    """The ranks, read and reduced on the cluster that this process is connected to, or that
    `RAY_ADDRESS` names, as they come.

    A task whose worker dies is run again by Ray. ConnectionError where a cluster that this process
    was not connected to cannot be reached, fails, or ends.
    """
    ray = require("ray", f"{PURPOSE} --engine ray")
    folder = None if parquet is None else os.path.abspath(parquet)
    tasks = [
        (file_sets[first : first + RANKS_A_TASK], steps, folder)
        for first in range(0, len(file_sets), RANKS_A_TASK)
    ]
    batches = _on_the_cluster(ray, tasks) if ray.is_initialized() else _by_a_child(tasks)
    for batch in batches:
        yield from batch


def _on_the_cluster(ray: Any, tasks: Sequence[tuple[Any, ...]]) -> Iterator[list[RankCells]]:
    reduce = ray.remote(scheduling_strategy="SPREAD")(_reduce)
    waiting = [reduce.remote(*task) for task in tasks]
    while waiting:
        done, waiting = ray.wait(waiting)
        yield ray.get(done[0])


def _reduce(
    file_sets: Sequence[FileSet], steps: tuple[int, int], parquet: str | None
) -> list[RankCells]:
    return list(read_ranks(file_sets, steps, parquet))


def _by_a_child(tasks: Sequence[tuple[Any, ...]]) -> Iterator[list[RankCells]]:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(tasks, child.stdin)
            child.stdin.close()
        while batch := _received(child.stdout):
            yield batch
        status = child.wait()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    if status:
        raise ConnectionError(_reason(status))


def _received(file: IO[bytes]) -> list[RankCells] | None:
    """The next batch; None where the child has ended. ConnectionError with what it reports."""
    try:
        found = pickle.load(file)
    except (EOFError, pickle.UnpicklingError):  # it ended between two batches, or in one
        return None
    if isinstance(found, str):
        raise ConnectionError(f"the Ray cluster: {found}")
    batch: list[RankCells] = found
    return batch


def _reason(status: int) -> str:
    return (
        "the Ray cluster: Ray ended the process that was connected to it, "
        f"{status_text(status)}, and said why above; most often the head of the cluster has ended "
        "or cannot be reached"
    )


def serve() -> None:
    """The child: reads the tasks from stdin, and writes what they give to stdout. What Ray prints
    goes to stderr."""
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks = pickle.load(sys.stdin.buffer)
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", GET_RETRIES)
    import ray

    try:
        ray.init(address="auto", log_to_driver=False)
        for batch in _on_the_cluster(ray, tasks):
            pickle.dump(batch, responses, pickle.HIGHEST_PROTOCOL)
            responses.flush()
    except Exception as error:  # of Ray, or of a task
        pickle.dump(f"{type(error).__name__}: {error}", responses)
        responses.flush()

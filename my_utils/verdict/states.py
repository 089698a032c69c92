"""Tells which processes of a run are alive, and which ended normally."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..common.bounded_read import read_whole
from ..common.checked_json import object_of
from ..run_files.ranks import find_ranks

RUN_FILE = "run.json"
RUN_FILE_BYTES_MAX = 1 << 20


def command_of(paths: Sequence[str]) -> tuple[str, ...]:
    """The command that `my_utils run` wrote down next to the files; () where it did not."""
    for path in paths:
        try:
            data, _ = read_whole(os.path.join(path, RUN_FILE), RUN_FILE_BYTES_MAX, "a run's file")
            command = object_of(data).get("command")
        except (OSError, ValueError):
            continue
        if isinstance(command, list) and all(isinstance(word, str) for word in command):
            return tuple(command)
    return ()


def states_of(paths: Sequence[str], ranks: npt.NDArray[np.int64]) -> tuple[tuple[bool, ...], bool]:
    """Of each rank whether its process ended normally, and whether any of them lives. A rank
    that left neither journal nor heartbeat counts as one that ended."""
    states: dict[int, str] = {}
    for path in paths:
        if not os.path.isdir(path):
            continue
        for rank in find_ranks(path).ranks:
            if rank.worker == 0:
                states[rank.rank] = rank.state
    known = [states.get(rank, "closed") for rank in ranks.tolist()]
    return tuple(state == "closed" for state in known), "running" in known

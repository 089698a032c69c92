"""Tells which processes of a run are alive, and which ended normally."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.run_files.ranks import find_ranks


def command_of(run_file: Mapping[str, Any]) -> tuple[str, ...]:
    """The command in a `run.json`; () where it has none."""
    command = run_file.get("command")
    is_command = isinstance(command, list) and all(isinstance(word, str) for word in command)
    return tuple(command) if command and is_command else ()


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

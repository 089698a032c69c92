"""Which rank of its job this process is, and where its files are. `GlobalLogger.setup` sets it;
without that it comes from the launcher's environment.

The logger fills it in, so that whoever needs a rank need not know the logger.

>>> identity() is None  # before setup
True
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from .warnings import warn_once

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


class Identity(NamedTuple):
    """What `GlobalLogger.setup` was given, complete."""

    rank: int
    world_size: int
    log_dir: str
    """Absolute."""


_identity: Identity | None = None
_watchers: list[Callable[[Identity | None], None]] = []


def identity() -> Identity | None:
    """What `GlobalLogger.setup` said; None before it, and after `close`. Thread-safe."""
    return _identity


def set_identity(known: Identity | None) -> None:
    """For `GlobalLogger`, which has a lock round its changes."""
    global _identity
    _identity = known
    for watcher in _watchers:
        watcher(known)


def watch_identity(watcher: Callable[[Identity | None], None]) -> None:
    """Has `watcher` called with each identity from now on. It must not raise. Idempotent."""
    if watcher not in _watchers:
        _watchers.append(watcher)


def rank_from_environment() -> int | None:
    """The rank that a launcher has set; None if none has."""
    return _from_environment(_RANK_VARIABLES, 0)


def world_size_from_environment() -> int | None:
    """The number of ranks that a launcher has set; None if none has."""
    return _from_environment(_WORLD_SIZE_VARIABLES, 1)


def attempt_from_environment() -> int | None:
    """How often a launcher has started this job, from 1; None if it does not say."""
    restarts = _from_environment(("TORCHELASTIC_RESTART_COUNT",), 0)
    return None if restarts is None else restarts + 1


def _from_environment(variables: tuple[str, ...], least: int) -> int | None:
    """The first of the variables that holds a number from `least` on."""
    for name in variables:
        text = os.environ.get(name, "").strip()
        if text.isascii() and text.isdigit() and least <= int(text) < 2**31 - 1:
            return int(text)
        if text:
            warn_once(
                f"environment:{name}",
                f"{name} in the environment should be a number from {least} on, not {text!r}; "
                "it is ignored",
            )
    return None

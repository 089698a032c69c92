"""Which rank of its job this process is, and where its files are. `GlobalLogger.setup` sets it;
without that it comes from the launcher's environment.

The logger fills it in, so that whoever needs a rank need not know the logger.

>>> identity() is None  # before setup
True
"""

from __future__ import annotations

import os
from typing import NamedTuple

from .warnings import warn_once

__all__ = [
    "Identity",
    "identity",
    "rank_from_environment",
    "set_identity",
    "world_size_from_environment",
]

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


class Identity(NamedTuple):
    """What `GlobalLogger.setup` was given, complete."""

    rank: int
    world_size: int
    log_dir: str
    """Absolute."""


_identity: Identity | None = None


def identity() -> Identity | None:
    """What `GlobalLogger.setup` said; None before it, and after `close`. Thread-safe."""
    return _identity


def set_identity(known: Identity | None) -> None:
    """For `GlobalLogger`, which has a lock round its changes."""
    global _identity
    _identity = known


def rank_from_environment() -> int | None:
    """The rank that a launcher has set; None where none has."""
    return _from_environment(_RANK_VARIABLES, 0)


def world_size_from_environment() -> int | None:
    """The number of ranks that a launcher has set; None where none has."""
    return _from_environment(_WORLD_SIZE_VARIABLES, 1)


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
                "it is passed over",
            )
    return None

"""Finds the rank of this process, and whether it is among selected ones.

>>> check_ranks("ranks", [0, 3])
(0, 3)
>>> is_chosen((0, 3), rank=1), is_chosen(None, rank=1)
(False, True)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from .arguments import check_int
from .identity import identity, rank_from_environment, world_size_from_environment
from .printable import printable
from .warnings import warn_once


def current_rank() -> int:
    """The rank of `GlobalLogger().setup`, else of torch.distributed, else of the launcher's
    environment, else 0."""
    return known_rank() or 0


def known_rank() -> int | None:
    """Like `current_rank`, but None if the rank is unknown."""
    known = identity()
    if known is not None:
        return known.rank
    group = distributed()
    return rank_from_environment() if group is None else int(group.get_rank())


def world_size() -> int:
    """The number of ranks, from where `current_rank` has the rank."""
    return known_world_size() or 1


def known_world_size() -> int | None:
    """Like `world_size`, but None if it is unknown."""
    known = identity()
    if known is not None:
        return known.world_size
    group = distributed()
    return world_size_from_environment() if group is None else int(group.get_world_size())


def own_name(form: str = "rank_{}") -> str:
    """A name for files of this process that no other of its job has: its rank, as `form` says it.

    Where nothing says a rank, all would be rank 0. So a worker of Ray without one is named by its
    actor, or by its process where it runs tasks: `actor_0123456789ab`, `worker_0123456789ab`.

    >>> own_name(), own_name("rank{}")
    ('rank_0', 'rank0')
    """
    if known_rank() is None:
        name = _name_in_ray()
        if name is not None:
            return name
    return form.format(current_rank())


def _name_in_ray() -> str | None:
    """None outside workers of Ray, which is never imported here."""
    ray = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return None
        context = ray.get_runtime_context()
        actor = context.get_actor_id()
        if actor is not None:
            return f"actor_{_short(actor)}"
        in_driver = context.worker.mode != ray._private.worker.WORKER_MODE
        return None if in_driver else f"worker_{_short(context.get_worker_id())}"
    except Exception:  # another Ray
        return None


def _short(identity: str) -> str:
    """An id of Ray begins with what makes it its own, and ends with the job's."""
    return identity[:12]


def distributed() -> Any:
    """torch.distributed if it is in use, else None. It is never imported here."""
    module = sys.modules.get("torch.distributed")
    if module is not None and module.is_available() and module.is_initialized():
        return module
    return None


def boot_id() -> str:
    """What the kernel calls this boot of this host: processes with the same one share its clocks.
    Empty if it does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def host_name() -> str:
    """What this host is called, with what is not a printable text in it as escapes. At most 255
    bytes."""
    return printable(os.uname().nodename)[:255]


def process_began_s(ticks_after_boot: int) -> float | None:
    """Unix time, by this host's clock, of what began so many clock ticks after its boot, as
    /proc/PID/stat says it. None for 0, which says nothing."""
    if not ticks_after_boot:
        return None
    after_boot_s = ticks_after_boot / os.sysconf("SC_CLK_TCK")
    # What comes between the two clocks makes the difference smaller.
    booted_s = max(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) for _ in range(3))
    return booted_s + after_boot_s


def check_rank(name: str, rank: object) -> int:
    """The rank, or TypeError or ValueError that names the argument."""
    return check_int(name, rank, 0)


def rank_path(path: str | os.PathLike[str], key: str) -> str:
    """The path with the rank in the place of "{rank}". One warning where several ranks may write
    the same one; key: of the warning."""
    text, rank, ranks = os.fspath(path), str(current_rank()), world_size()
    if ranks > 1 and "{rank}" not in text and rank not in text:
        warn_once(key, f"each of {ranks} ranks may write {text!r}; put {{rank}} into the path")
    return text.replace("{rank}", rank)


def check_ranks(name: str, ranks: int | Iterable[int] | None) -> tuple[int, ...] | None:
    """The ranks as a tuple, None for all; TypeError or ValueError names the argument."""
    if ranks is None:
        return None
    if isinstance(ranks, int) and not isinstance(ranks, bool):
        return (check_rank(name, ranks),)
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, Iterable):
        raise TypeError(f"{name} must be None, an int or a list of int, not {ranks!r:.100}")
    return tuple(check_rank(f"each of {name}", rank) for rank in ranks)


def is_chosen(ranks: tuple[int, ...] | None, rank: int | None = None) -> bool:
    """Whether `rank`, by default the one of this process, is among `ranks`; None means all."""
    return ranks is None or (current_rank() if rank is None else rank) in ranks

"""torch.distributed's default store: a table of keys that all ranks of a job share.

It works whatever the backend is, needs no collective, and a rank that is dead holds up nobody who
asks with a deadline. Each call is a round trip to the store's server, 40-70 µs on one host.

>>> default_store("my_utils/example") is None  # outside a job
True
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["default_store", "wait_for_key"]

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.01
# The store's server answers some 20,000 questions a second: all who ask together get half of them.
_PAUSE_OF_EACH_S = 1e-4


def default_store(prefix: str) -> Store | None:
    """The store of the job with `prefix` before all keys, or None where there is no job.

    torch.distributed is not imported for the question. The store may be used by many threads.
    """
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    store: Store = module.PrefixStore(prefix, module.distributed_c10d._get_default_store())
    return store


def wait_for_key(store: Store, key: str, deadline: float, askers: int = 1) -> bool:
    """Whether the key came before `deadline`, a moment of `time.monotonic()`.

    askers: how many processes wait like this at a time; the more, the longer each pauses.

    It asks again and again: the store's own wait keeps other threads of the process from it.
    """
    longest = max(_LONGEST_PAUSE_S, askers * _PAUSE_OF_EACH_S)
    pause = max(_FIRST_PAUSE_S, longest / 50)
    while not store.check([key]):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, longest)
    return True

"""torch.distributed's default store: a table of keys that all ranks of a job share.

It works with every backend and needs no collective. A dead rank does not block a rank that waits
with a deadline. Each call is a round trip to the store's server, 40-70 µs on one host.

>>> default_store("my_utils/example") is None  # outside a job
True
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from .ranks import distributed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.01
# The store's server serves about 20,000 requests a second. All ranks that poll share half of them.
_PAUSE_OF_EACH_S = 1e-4


def default_store(prefix: str = "") -> Store | None:
    """The store of the job with `prefix`, if any, before all keys; None if there is no job.

    torch.distributed is never imported here. The store may be used by many threads.
    """
    module = distributed()
    if module is None:
        return None
    store: Store = module.distributed_c10d._get_default_store()
    return module.PrefixStore(prefix, store) if prefix else store


def own_connection(store: Store) -> Store:
    """Another connection to what a store keeps, without prefixes: a server that hangs holds up
    nobody else."""
    from torch._C._distributed_c10d import PrefixStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    copy = getattr(store, "clone", None)
    return store if copy is None else cast("Store", copy())


def wait_for_keys(store: Store, keys: list[str], deadline: float, askers: int = 1) -> bool:
    """Whether all of the keys came before `deadline`, a moment of `time.monotonic()`; it asks at
    least once.

    askers: how many processes wait like this at a time; the more, the longer each pauses.

    The store's own wait would keep other threads of the process from it, and print each timeout.
    """
    longest = max(_LONGEST_PAUSE_S, askers * _PAUSE_OF_EACH_S)
    pause = max(_FIRST_PAUSE_S, longest / 50)
    while not store.check(keys):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, longest)
    return True

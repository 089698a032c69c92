"""Which files of ranks belong to one launch of a job.

A rank counts its attempts by what it has left in the folder, or as its launcher says. Ranks that
were not all there each time have other counts, so that all agree on a number instead: the first
that asks draws one, in torch's store, whose `compare_set` lets the first proposal win. That is one
round trip, and nobody waits for a rank.
"""

from __future__ import annotations

import secrets

from ...core.store import default_store

_KEY = "my_utils/replicas"
# More than a count of attempts, and no more digits than names of files may have.
_LEAST, _MOST = 10**8, 10**9


def launch_number() -> int:
    """The same on all ranks; 0 where they have no store in which they can agree."""
    try:
        store = default_store(_KEY)
        if store is None:
            return 0
        drawn = _LEAST + secrets.randbelow(_MOST - _LEAST)
        found = int(bytes(store.compare_set("launch", "", str(drawn))))
    except (RuntimeError, ValueError):  # a store without compare_set, or one that is gone
        return 0
    return found if _LEAST <= found < _MOST else 0

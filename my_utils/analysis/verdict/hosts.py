"""Groups slow ranks by host: a host is named if most of its ranks, at least two, are slow.

A run on one host shares that host always, so none is named there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

LEAST_RANKS = 2
LEAST_SHARE = 0.75


def shared_hosts(slow: Sequence[int], hosts: Sequence[str]) -> set[str]:
    """slow: places in `hosts`, which has the host of each rank.

    >>> shared_hosts([2, 3], ["a", "a", "b", "b"]), shared_hosts([3], ["a", "a", "b", "b"])
    ({'b'}, set())
    """
    sizes, counts = Counter(hosts), Counter(hosts[row] for row in slow)
    if len(sizes) < 2:
        return set()
    return {
        host
        for host, count in counts.items()
        if count >= LEAST_RANKS and count >= LEAST_SHARE * sizes[host]
    }

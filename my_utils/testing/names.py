"""Names of what is kept for a test."""

from __future__ import annotations

import hashlib
import re

from ..core.ranks import known_rank, known_world_size

_NAME_MAX = 120


def file_name(name: str) -> str:
    """The name of a test as that of a file; other names have others.

    >>> file_name("TestGpt.test_loss[cpu-2]"), file_name("test_loss[a/b]")
    ('TestGpt.test_loss[cpu-2]', 'test_loss[a_b]-999684be')
    """
    plain = re.sub(r"[^A-Za-z0-9_.,=\[\]+-]", "_", name)[:_NAME_MAX]
    if plain == name:
        return name
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def of_rank() -> str:
    """What follows the name where a launcher started several ranks, as ".rank1of2"; else empty."""
    world = known_world_size() or 1
    return f".rank{known_rank() or 0}of{world}" if world > 1 else ""

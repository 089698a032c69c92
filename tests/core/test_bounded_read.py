"""Files of other processes, which may grow while they are read."""

from __future__ import annotations

import pytest

from my_utils.core.bounded_read import read_whole

pytestmark = pytest.mark.no_torch


def test_one_that_grows_while_it_is_read() -> None:
    """As files do whose size the system does not say beforehand."""
    whole, _ = read_whole("/proc/self/status", 1 << 20, "a status")
    assert whole.startswith(b"Name:") and whole.endswith(b"\n")
    with pytest.raises(ValueError, match="larger than 100 bytes: not a status"):
        read_whole("/proc/self/status", 100, "a status")

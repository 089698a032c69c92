"""What torch.compile needs from the machine."""

from __future__ import annotations

import shutil

import pytest

needs_cxx = pytest.mark.skipif(
    shutil.which("g++") is None, reason="g++ is not installed, which inductor compiles with"
)

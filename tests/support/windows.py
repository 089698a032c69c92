"""The windows of steps in a log directory, read as `why` reads them."""

from __future__ import annotations

from pathlib import Path

from my_utils.analysis.verdict.window_files import RankWindows, read_windows
from my_utils.trace.inputs import Inputs


def windows_in(logs: Path, width: int = 100) -> RankWindows:
    """Of its only rank."""
    inputs = Inputs(rank=None, recover=True)
    inputs.add(str(logs))
    (files,) = inputs.file_sets(None)
    found = read_windows(files, width)
    assert found is not None
    return found

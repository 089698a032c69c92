"""`run.json`, in which `my_utils run` notes the command, the ranks and how they ended."""

from __future__ import annotations

import os
from typing import Any

from ..bounded_read import read_whole

RUN_FILE = "run.json"
RUN_FILE_BYTES_MAX = 1 << 20


def read_run_file(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What it says. OSError if it cannot be read, ValueError where it is damaged."""
    data, _ = read_whole(os.path.join(folder, RUN_FILE), RUN_FILE_BYTES_MAX, "a run's file")
    from ..checked_json import decode_object  # a training reads it once, at its end

    return decode_object(data)

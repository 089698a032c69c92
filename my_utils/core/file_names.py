"""Names for files that a rank writes, and paths that are not taken.

>>> file_name("forward/attention", rank=3)
'forward_attention__rank3'
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from .ranks import current_rank


def file_name(name: str, rank: int | None = None) -> str:
    """`<name>__rank<rank>` without what a file name must not have."""
    number = current_rank() if rank is None else rank
    return f"{re.sub(r'[^A-Za-z0-9._+-]+', '_', name).strip('.') or 'window'}__rank{number}"


def free_path(folder: Path, name: str, suffix: str) -> Path:
    """A path that is not taken, numbered or with the time where need be; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        path = folder / (f"{name}{suffix}" if number == 1 else f"{name}.{number}{suffix}")
        if not path.exists():
            return path
    return folder / f"{name}.{time.time_ns()}{suffix}"

"""Where this user finds a page of the documentation."""

from __future__ import annotations

import os
from pathlib import Path

_TREE = Path(__file__).parents[3]


def page_path(page: str) -> str:
    """The path of a page, relative where it is in or below the current folder; "" where my_utils is
    installed without its documentation. page: such as "docs/runs/slow-rank.md"."""
    path = _TREE / page
    if not path.is_file():
        return ""
    try:
        relative = os.path.relpath(path)
    except OSError:  # the current folder is gone
        return str(path)
    return str(path) if relative.startswith(os.pardir) else relative

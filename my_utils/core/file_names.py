"""Names for files that a rank writes, and paths that are not taken.

>>> file_name("forward/attention", rank=3)
'forward_attention__rank3'
>>> len(short_name("forward" * 100)), short_name("forward")
(180, 'forward')
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path

from .. import _core
from .ranks import current_rank

# In UTF-8. File systems take 255; ranks, numbers, times and endings come behind a name.
NAME_BYTES_MAX = 180
_MARK = 8  # digits of a digest


def short_name(name: str) -> str:
    """The name, or of a long one its beginning and a digest: other names have others."""
    data = name.encode("utf-8", "surrogatepass")
    if len(data) <= NAME_BYTES_MAX:
        return name
    mark = _core.tensor_hash(data).content[:_MARK]
    begin = data[: NAME_BYTES_MAX - _MARK - 1].decode("utf-8", "ignore")
    return f"{begin}-{mark}"


def file_name(name: str, rank: int | None = None, *, stamp: str = "") -> str:
    """`<name>__rank<rank>`, or `<name>__<stamp>__rank<rank>`, without what a file name must not
    have."""
    number = current_rank() if rank is None else rank
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "_", name).strip(".") or "window"
    return f"{short_name(plain)}{stamp and f'__{stamp}'}__rank{number}"


def numbered(name: str) -> Iterator[str]:
    """The name, then `<name>.2`, `<name>.3` and so on."""
    yield name
    yield from (f"{name}.{number}" for number in itertools.count(2))


def free_path(folder: Path, name: str, suffix: str) -> Path:
    """A path that is not taken, numbered or with the time where need be; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in itertools.islice(numbered(name), 10_000):
        path = folder / f"{one}{suffix}"
        if not path.exists():
            return path
    return folder / f"{name}.{time.time_ns()}{suffix}"

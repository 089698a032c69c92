"""Other users of the machine, for tests that root runs. They need no account."""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

OTHER, THIRD = 12345, 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users as well")

# For a script. What it uses after this must have been loaded before: a user without an account may
# not be able to read where Python is.
BECOME = """
def become(user):
    os.setgroups([]); os.setgid(user); os.setuid(user)
"""


def closed_above(path: Path) -> list[Path]:
    """The folders that keep other users from it."""
    return [above for above in path.parents if not above.stat().st_mode & 0o1]


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """A new folder that everybody may write to and reach, as /tmp, in one that all may pass.

    None of pytest's: those are closed, and whoever opened them would close them under another test.
    """
    with tempfile.TemporaryDirectory() as around:
        os.chmod(around, 0o711)
        folder = Path(around).resolve() / "shared"
        folder.mkdir()
        folder.chmod(0o1777)
        if closed := closed_above(folder):
            pytest.skip(f"other users cannot reach {folder}: {closed[0]} is closed to them")
        yield folder


def done_by(user: int, act: Callable[[], object]) -> None:
    """Does it in a child that belongs to the user; AssertionError with what it raised."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            act()
            status = 0
        except BaseException:
            os.write(theirs, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    assert status == 0, said

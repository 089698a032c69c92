"""Programs whose standard error, or both outputs, are a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def on_terminal(
    arguments: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    with_output: bool = False,
    columns: int = 80,
) -> tuple[int, str]:
    """Runs `python ARGUMENTS` in the folder: its status, and what a terminal of 24 lines and so
    many columns was sent on standard error, and on standard output too `with_output`."""
    main, other = pty.openpty()
    termios.tcsetwinsize(other, (24, columns))
    settings = {
        name: os.environ[name] for name in os.environ if name not in {"NO_COLOR", "COLUMNS"}
    }
    settings |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **(env or {})}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=settings,
        stdout=other if with_output else subprocess.DEVNULL,
        stderr=other,
    )
    os.close(other)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: nobody is at the other end, and all is read
        while text := os.read(main, 100_000):
            shown += text
    os.close(main)
    return process.wait(), shown.decode()


def plain(shown: str) -> str:
    """Without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)

"""Single keys from a terminal, while lines are drawn on it."""

from __future__ import annotations

import os
import select
import sys
import time
from types import TracebackType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Keys:
    """Within the block, keys are read from standard input at once and are not shown. Where that is
    no terminal, there are none. Not thread-safe."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> Keys:
        if sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The next key within so many seconds; "" for none."""
        if self._before is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        if not ready:
            return ""
        key = os.read(sys.stdin.fileno(), 1)
        if not key:  # the terminal is gone
            self._before = None
        return key.decode("ascii", "replace")

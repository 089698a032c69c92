"""`my_utils live` on a terminal: a screen that is drawn anew, and keys."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from ...core.ranges import as_ranges
from ...profilers.capture.on_demand.channel import Folder, describe_request
from ...profilers.capture.on_demand.control_file import Request, new_id
from .poll import Snapshot
from .poller import Poller
from .screen import Extras, Screen
from .stacks import dump_stacks, stack_view_lines

CAPTURE_STEPS = 3
CAPTURE_RANKS = 8
_KEYS = "q quit   c capture   s stacks"


class Follow:
    """Draws polls until `q` or Ctrl-C. above: lines above the table. The last frame stays on the
    terminal."""

    def __init__(
        self, poller: Poller, screen: Screen, above: Callable[[], list[str]], interval_s: float
    ) -> None:
        self.poller = poller
        self.screen = screen
        self.above = above
        self.interval_s = interval_s
        self.seen: Snapshot | None = None
        self.note = ""
        self.stacks: Sequence[str] = ()
        self.frame: Sequence[str] = ()

    def run(self) -> None:
        with _Keys() as keys:
            sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
            try:
                self._go_on(keys)
            finally:
                sys.stdout.write("\x1b[?25h\x1b[?1049l")
                sys.stdout.write("".join(f"{line}\n" for line in self.frame))
                sys.stdout.flush()

    def _go_on(self, keys: _Keys) -> None:
        while True:
            cost_s = self._poll()
            next_s = time.monotonic() + self.poller.pause_s(self.interval_s, cost_s)
            while (left_s := next_s - time.monotonic()) > 0:
                key = keys.wait(left_s)
                if key == "q":
                    return
                if key == "c":
                    self.note = self._capture()
                    self._draw(self.above())
                if key == "s":
                    self.stacks = () if self.stacks else self._stacks()
                    self._draw(self.above())

    def _poll(self) -> float:
        """Takes a poll and draws it; returns its processor time in s, without the lines above,
        which are worked out more rarely."""
        began_s = time.process_time()
        try:
            self.seen = self.poller.poll()
        except OSError as error:
            self.note = f"{error.filename}: {error.strerror}"
        polled_s = time.process_time()
        above = self.above()
        above_s = time.process_time() - polled_s
        self._draw(above)
        return time.process_time() - began_s - above_s

    def _draw(self, above: Sequence[str]) -> None:
        """Draws over the old text without a flicker: each line clears its own rest."""
        if self.seen is None:
            return
        below = "   ".join(filter(None, [_KEYS, self.note]))
        size = shutil.get_terminal_size()
        self.frame = self.screen.lines(self.seen, Extras(above, below, self.stacks), size)
        body = "".join(f"{line}\x1b[K\n" for line in self.frame)
        sys.stdout.write(f"\x1b[H{body}\x1b[J")
        sys.stdout.flush()

    def _stacks(self) -> Sequence[str]:
        """Where the ranks are now, until the key is pressed again."""
        return () if self.seen is None else stack_view_lines(dump_stacks(self.seen), self.seen)

    def _capture(self) -> str:
        """Asks for a capture of a few steps of the ranks that matter; says what was asked for."""
        if self.seen is None:
            return ""
        main = (rank for rank in self.seen.found.ranks if rank.worker == 0)
        alive = dict.fromkeys(rank.rank for rank in main if rank.alive)
        if not alive:
            return "no rank runs that could be captured"
        first = [one.rank.rank for one in self.seen.suspects]
        first += [one.rank.rank for one in self.seen.waiting]
        ranks = [rank for rank in dict.fromkeys([*first, *alive]) if rank in alive]
        try:
            request = Request(
                id=new_id(), ranks=as_ranges(ranks[:CAPTURE_RANKS]), steps=CAPTURE_STEPS,
                time=time.time(),
            )  # fmt: skip
            request = Folder(self.seen.log_dirs[0]).ask(request, find_step=True)
        except (OSError, ValueError) as error:
            return f"no capture: {error}"
        return describe_request(request)


class _Keys:
    """Within the block, keys are read from standard input at once and are not shown. Where that is
    no terminal, there are none. Not thread-safe."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> _Keys:
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

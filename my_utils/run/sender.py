"""`my_utils run --to`: a process beside the command copies the run's files to an address.

It is a process, so that nothing of a place that is slow, or of the library that speaks with it, is
in this one: where the last files do not go, it is ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from ..core.run_files.stores import shown
from .closing import print_lines

END_S = 60.0

_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from my_utils.run.sending import main; main()"
)


class Sender:
    """Sends from its creation on. report: the file in which processes report where they write.
    OSError if the process cannot be started."""

    def __init__(self, address: str, report: Path, run_id: str, *, quiet: bool) -> None:
        self._address = address
        package = str(Path(__file__).resolve().parents[2])
        words = [package, address, str(report), run_id, str(int(quiet))]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            env={**os.environ, "MY_UTILS_RUN": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the command
        )

    def command_has_ended(self) -> None:
        """Lets it send the rest, and returns at once."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self) -> None:
        """Waits for the rest, for a minute at most, or until a Ctrl-C."""
        self.command_has_ended()
        try:
            status = self._process.wait(END_S)
            reason = "" if status == 0 else "what sends them failed"
        except subprocess.TimeoutExpired:
            reason = f"it took longer than {END_S:g} s"
        except KeyboardInterrupt:
            reason = "interrupted"
        if reason:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
            to = shown(self._address)
            print_lines([f"my_utils run: the last files were not sent to {to}: {reason}"])

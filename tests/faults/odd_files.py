"""A command of `my_utils` on copies of a run, in each of which one file is odd.

    python odd_files.py RUN SCRATCH WORD…

One line of JSON a case: the file, what it is, the status, what was printed or written to
`out.*`. `{}` in a word stands for the copy. What does not end in time "hangs".
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 20
OFTEN = 100_000
READ = re.compile(r"run.json|profile_rank_0.csv|rank_0.*.json|rank_2.*.journal")
PLANTED = (  # names that commands look for, and that not every run has
    "captures/20260101T000000-1__rank_0.stacks.json",
    "my_utils.control.json",
    "profile_rank_0.part0.csv",
    "rank_0.7.7.journal",
    "rank_0.7.7.journal-ref",
)


class Late(BaseException):
    """As no command expects."""


def be_late(number: int, frame: object) -> None:
    raise Late


def open_fifo(path: Path, before: bytes) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


KINDS: dict[str, Callable[[Path, bytes], object]] = {
    "fifo": lambda path, before: os.mkfifo(path),
    "fifo with a writer": open_fifo,
    "directory": lambda path, before: path.mkdir(),
    "device": lambda path, before: path.symlink_to("/dev/zero"),
    "brackets": lambda path, before: path.write_bytes(b"[" * OFTEN),
    "nested": lambda path, before: path.write_bytes(b'{"command":' * OFTEN),
    "long number": lambda path, before: path.write_bytes(b'{"rank": ' + b"9" * 5000 + b"}"),
    "large numbers": lambda path, before: path.write_bytes(
        re.sub(rb"(?<![\w.])\d+(?![\w.])", str(2**70).encode(), before)
    ),
}


def status_of(words: list[str]) -> object:
    from my_utils.cli.command import main

    signal.alarm(SECONDS)
    try:
        return main(words) or 0
    except SystemExit as error:
        return error.code or 0
    except Late:
        return "hangs"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)


def main(run: Path, scratch: Path, words: list[str]) -> None:
    signal.signal(signal.SIGALRM, be_late)
    names = {path.name for path in run.iterdir() if READ.fullmatch(path.name)}
    for name in sorted(names.union(PLANTED)):
        for kind, make in KINDS.items():
            copy = scratch / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(run, copy)
            odd = copy / name
            odd.parent.mkdir(exist_ok=True)
            before = odd.read_bytes() if odd.exists() else b'{"rank": 0, "version": 1}\n'
            odd.unlink(missing_ok=True)
            writer: Any = make(odd, before)
            with (
                contextlib.redirect_stdout(io.StringIO()) as out,
                contextlib.redirect_stderr(io.StringIO()) as err,
            ):
                status = status_of([word.format(copy) for word in words])
            if kind == "fifo with a writer":
                os.close(writer)
            said = out.getvalue() + "".join(path.read_text() for path in copy.glob("out.*"))
            case = {"file": name, "kind": kind, "status": status, "out": said}
            print(json.dumps({**case, "err": err.getvalue()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

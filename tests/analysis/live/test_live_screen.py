"""`my_utils live` on a terminal: what is drawn, the keys, and what stays when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from my_utils.cli.live import EXIT_FINE
from my_utils.core.colours import stage_colour

from ...conftest import ROOT
from ...support.live_ranks import Start, Started, beat, write_beats

pytestmark = pytest.mark.no_torch

WAIT_S = 90.0
LONG_S = "600"


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[Start]:
    started = Started(tmp_path)
    yield started
    started.end()


class Terminal:
    """`my_utils live` with a terminal for its input and output."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 120) -> None:
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, columns))
        self.before = termios.tcgetattr(theirs)
        others = ("COLUMNS", "LINES", "NO_COLOR")  # pytest's workers have the first two
        environment = {name: os.environ[name] for name in os.environ if name not in others}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "my_utils", "live", str(folder), *arguments],
            env={**environment, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        self.theirs = theirs
        self.text = ""

    def read_until(self, done: Callable[[str], object]) -> None:
        """Until a whole frame is such that `done`, without its colours."""
        end = time.monotonic() + WAIT_S
        while not done(plain(self.frame())):
            left = end - time.monotonic()
            assert left > 0 and select.select([self.ours], [], [], left)[0], self.text
            self.text += os.read(self.ours, 65536).decode("utf-8", "replace")

    def frame(self) -> str:
        """The newest whole frame, with its colours."""
        return self.text.rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]

    def press(self, key: str) -> None:
        os.write(self.ours, key.encode())

    def end(self) -> tuple[int, str]:
        """The status, and what stands on the terminal's usual screen at the end."""
        status = self.process.wait(WAIT_S)
        self.after = termios.tcgetattr(self.theirs)
        os.close(self.theirs)
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while more := os.read(self.ours, 65536):
                self.text += more.decode("utf-8", "replace")
        os.close(self.ours)
        return status, self.text.rpartition("\x1b[?1049l")[2]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def row_of(frame: str, rank: int) -> str:
    (line,) = (line for line in frame.splitlines() if re.match(rf"(! |  ){rank} +\w", plain(line)))
    return line


def hang(folder: Path) -> None:
    write_beats(folder, *(beat(rank, 9, "iter", "all_reduce", ago_s=60.0) for rank in (0, 2)))
    write_beats(folder, beat(1, 9, "iter", "input", ago_s=60.0))


def test_a_hang_on_the_screen(tmp_path: Path) -> None:
    hang(tmp_path)
    shown = Terminal(tmp_path, "--interval", "0.05")
    shown.read_until(lambda frame: "waits for rank 1" in frame)
    frame = shown.frame()
    reason = "! rank 1: in iter > input while 2 of 3 ranks wait in iter > all_reduce"
    (line,) = (line for line in frame.splitlines() if reason in plain(line))
    assert "\x1b[1;31m" in line
    culprit, victim = row_of(frame, 1), row_of(frame, 0)
    assert plain(culprit).startswith("! 1") and "\x1b[1;31m" in culprit
    assert "waits for rank 1 in iter > all_reduce" in plain(victim) and "\x1b[2m" in victim
    assert "\x1b[32m" not in frame, "green would say that all is well"
    head = next(line for line in plain(frame).splitlines() if line.startswith("rank "))
    assert head.split() == [
        "rank",
        "state",
        "step",
        "steps/s",
        "waits",
        "still",
        "RSS",
        "GPU",
        "in",
    ]
    red, green, blue = (int(stage_colour("input")[at : at + 2], 16) for at in (1, 3, 5))
    assert f"38;2;{red};{green};{blue}" in culprit, "the mark has the colour of the stage"
    shown.press("q")
    status, left = shown.end()
    assert status == EXIT_FINE
    assert reason in plain(left) and "waits for rank 1" in plain(left), "the last frame stays"
    assert shown.after == shown.before, "the terminal is as it was"
    assert shown.text.count("\x1b[?25l") == shown.text.count("\x1b[?25h") == 1


def test_the_first_poll_accuses_nobody(tmp_path: Path) -> None:
    hang(tmp_path)
    shown = Terminal(tmp_path, "--interval", "0.05")
    shown.read_until(lambda frame: "waits for rank 1" in frame)
    shown.press("q")
    shown.end()
    frames = [plain(frame) for frame in shown.text.split("\x1b[H")[1:]]
    named = ["! rank 1" in frame for frame in frames]
    # The command polls once before there is a screen, so the first frame is its second poll.
    assert named == sorted(named), "who was named once stays named"


def test_ctrl_c_leaves_the_last_frame(tmp_path: Path, start_rank: Start) -> None:
    start_rank(0, 1, "iter")
    shown = Terminal(tmp_path, "--interval", "0.05", "--stuck-after", LONG_S)
    shown.read_until(lambda frame: "iter" in frame)
    shown.process.send_signal(signal.SIGINT)
    status, left = shown.end()
    assert status == EXIT_FINE
    assert "iter" in row_of(left, 0)


def test_memory_and_a_capture(tmp_path: Path, start_rank: Start) -> None:
    start_rank(0, 4, "iter")
    with (tmp_path / "profile_rank_0.csv").open("a") as file:
        row = "1.000000000,2023-11-14 22:13:20.000000,vm,4,memory,COUNTER,,"
        file.write(f'{row}"tid=1,rss_bytes=1000,allocated_bytes=3200000000"\n')
    shown = Terminal(tmp_path, "--interval", "0.2", "--stuck-after", LONG_S)
    shown.read_until(lambda frame: "2.98 GiB" in frame)
    assert re.search(r"\d MiB +2\.98 GiB", plain(row_of(shown.frame(), 0)))
    shown.press("c")
    asked_for = r"capture \S+: steps \d+ to \d+ of ranks 0, torch"
    shown.read_until(lambda frame: re.search(asked_for, frame))
    asked = json.loads((tmp_path / "my_utils.control.json").read_text())
    (request,) = asked["requests"]
    assert (request["steps"], request["ranks"]) == (3, "0")
    shown.press("q")
    assert shown.end()[0] == EXIT_FINE


def test_a_capture_of_nobody_says_so(tmp_path: Path) -> None:
    write_beats(tmp_path, {**beat(0, 4), "closed": True})
    shown = Terminal(tmp_path, "--interval", "0.2")
    shown.read_until(lambda frame: "q quit" in frame)
    shown.press("c")
    shown.read_until(lambda frame: "no rank runs that could be captured" in frame)
    shown.press("q")
    assert shown.end()[0] == EXIT_FINE
    assert not (tmp_path / "my_utils.control.json").exists()


def test_a_thousand_ranks_show_the_hosts_and_the_worst(tmp_path: Path) -> None:
    hosts = [{"host": f"node-{rank // 8}"} for rank in range(1000)]
    write_beats(
        tmp_path,
        *(beat(r, 9, "iter", "all_reduce", **hosts[r]) for r in range(1000) if r != 517),  # type: ignore[arg-type]
    )
    write_beats(tmp_path, beat(517, 9, "iter", "input", **hosts[517]))  # type: ignore[arg-type]
    shown = Terminal(tmp_path, "--interval", "0.05")
    shown.read_until(lambda frame: "! rank 517" in frame)
    frame = plain(shown.frame())
    lines = frame.splitlines()
    assert len(lines) < 40
    hosts_at = next(at for at, line in enumerate(lines) if line.startswith("host "))
    assert lines[hosts_at + 1].split()[:4] == ["!", "node-64", "8", "1"]
    ranks_at = next(at for at, line in enumerate(lines) if line.startswith("rank "))
    assert lines[ranks_at + 1].startswith("! 517")
    assert "and 990 more ranks: --all shows them" in frame
    shown.press("q")
    assert shown.end()[0] == EXIT_FINE


def test_a_narrow_terminal_cuts_lines(tmp_path: Path) -> None:
    hang(tmp_path)
    shown = Terminal(tmp_path, "--interval", "0.05", columns=60)
    shown.read_until(lambda frame: "waits for rank 1" in frame)
    assert max(len(line) for line in plain(shown.frame()).splitlines()) <= 60
    shown.press("q")
    assert shown.end()[0] == EXIT_FINE


def test_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    write_beats(tmp_path, beat(0, 1, "red \x1b[31m\x07"))
    shown = Terminal(tmp_path, "--interval", "0.05")
    shown.read_until(lambda frame: r"red \x1b[31m\x07" in frame)
    assert "\x07" not in shown.text
    shown.press("q")
    shown.end()

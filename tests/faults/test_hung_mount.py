"""A log directory on a FUSE mount whose server stops and never goes on: the process ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ROOT, RunPython
from ..support.loop_disks import need_root
from .programs import PREAMBLE, finished, steps_of

NOT_MOUNTED = 99
LONGEST_S = 100  # then the server is killed, and what waits for it goes on

# The mount goes with the namespace. Before the server stops it is idle, for the kernel keeps a
# process whose request a server has taken and does not answer.
SCRIPT = f"""
mkdir real mount
mount -t fusectl none /sys/fs/fuse/connections 2>&1
timeout -s KILL {LONGEST_S} bindfs -f real mount &
until mountpoint -q mount; do kill -0 $! || exit {NOT_MOUNTED}; sleep 0.02; done
"$@" $!; status=$?
date +%s.%N
kill -KILL $(cat /proc/$!/task/$!/children)
exit $status
"""

PROGRAM = """
import glob, json
(server,) = map(int, open("/proc/{0}/task/{0}/children".format(sys.argv[1])).read().split())
def requests():
    return sum(int(open(path).read()) for path in glob.glob("/sys/fs/fuse/connections/*/waiting"))
def is_stopped():
    states = [open(path).read().rpartition(")")[2].split()[0]
              for path in glob.glob("/proc/%d/task/*/stat" % server)]
    return set(states) == {"T"}
def stop_the_server():
    while True:
        os.kill(server, signal.SIGSTOP)
        while not is_stopped():
            time.sleep(0.001)
        if requests() == 0:
            return
        os.kill(server, signal.SIGCONT)
        time.sleep(0.01)
logger.setup("mount/logs", console=False)
assert _core.output_state()["in_background"]
stages(1000)
logger.get_logger().info("before")
stop_the_server()
slowest = 0.0
for lap in range(1, 11):
    stages(100, first=900 + 100 * lap)
    slowest = max(slowest, timed(timer.step))
print(json.dumps({"slowest": slowest, "line": timed(logger.get_logger().info, "hangs")}))
print(time.time(), flush=True)
"""


@pytest.mark.slow
def test_a_process_ends_when_its_log_directory_never_answers_again(
    run_python: RunPython, tmp_path: Path
) -> None:
    if shutil.which("bindfs") is None:
        pytest.skip("there is no bindfs (Debian's package of that name)")
    need_root("unshare")
    (program := tmp_path / "program.py").write_text(PREAMBLE + PROGRAM, encoding="utf-8")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", SCRIPT, "sh", sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * LONGEST_S,
        check=False,
    )
    if done.returncode == NOT_MOUNTED or done.stderr.startswith("unshare:"):
        pytest.skip(f"this machine mounts no bindfs: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    figures, last, ended = done.stdout.splitlines()[-3:]
    assert json.loads(figures)["slowest"] < 1.0
    assert json.loads(figures)["line"] < 2.0  # a second, and what a busy machine adds
    assert 3.9 < float(ended) - float(last) < 8.0  # five seconds, and the interpreter's own end
    assert done.stderr.count("the journal") == 1 and "keeps the rest" in done.stderr
    assert done.stderr.count("of the text log") == 1, done.stderr
    # Nothing is lost for that: the next process finds the journal.
    finished(run_python, "logger.setup('real/logs', console=False)")
    assert steps_of(tmp_path / "real/logs/profile_rank_0.csv") == list(range(2000))

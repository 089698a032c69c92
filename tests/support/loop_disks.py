"""File systems of their own on loop devices, for programs that fill, cut or hang them.

Without the tools, without root, and where root may not mount either, as in most containers, the
test is skipped and says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..faults.programs import PREAMBLE

NOT_MOUNTED = 99  # the status of the script then

# The least size that mkfs takes, and what makes the file system quick to make.
MAKE = {
    "btrfs": ("128M", ["mkfs.btrfs", "-q", "-f"]),
    "ext4": ("32M", ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1"]),
    "xfs": ("300M", ["mkfs.xfs", "-q", "-f"]),
}

# Fills the disk until not even a byte finds room, also what is not written yet.
FILL = """
import errno, subprocess
def sync_the_disk():
    subprocess.run(["sync", "-f", "disk"], check=True)
def fill_the_disk():
    fillers = [open("disk/filler%d" % lap, "wb", buffering=0) for lap in range(3)]
    for filler in fillers:
        with filler:
            size, end = 1 << 28, 0
            while size >= 4096:
                try:
                    os.posix_fallocate(filler.fileno(), end, size)
                    end += size
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error
                    size //= 2
            filler.seek(end)
            while size > 0:
                try:
                    filler.write(bytes(size))
                except OSError:
                    size //= 2
        sync_the_disk()
def empty_the_disk():
    for lap in range(3):
        os.remove("disk/filler%d" % lap)
    sync_the_disk()
"""


def need_root(*tools: str) -> None:
    """Skips the test of a user who may not mount, or has no tools to."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a loop device")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")


def place_of_images() -> str | None:
    """Memory where there is enough of it: a busy disk would hold up each sync."""
    shared = "/dev/shm"
    enough = os.path.isdir(shared) and shutil.disk_usage(shared).free > 1 << 30
    return shared if enough else None


def run_on_disk(
    folder: Path, kind: str, text: str, *arguments: str, after: str = "true", timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """The program with a `kind` of its own at `folder`/disk, which it may mount anew from $IMAGE;
    `after` is run at the end."""
    size, make = MAKE[kind]
    need_root("unshare", make[0])
    memory = tempfile.TemporaryDirectory(dir=place_of_images())
    image = Path(memory.name) / "image"
    (folder / "disk").mkdir()
    subprocess.run(["truncate", "-s", size, str(image)], check=True)
    subprocess.run([*make, str(image)], check=True, capture_output=True)
    program = folder / "program.py"
    program.write_text(PREAMBLE + FILL + textwrap.dedent(text), encoding="utf-8")
    # The mount goes with the namespace, and the loop device with the mount.
    script = (
        f"mount -o loop {image} disk || exit {NOT_MOUNTED}; "
        f'"$@"; status=$?; {after}; cd /; umount "{folder}/disk" || true; exit $status'
    )
    with memory:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, str(program), *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "IMAGE": str(image)},
        )
    if done.returncode == NOT_MOUNTED or done.stderr.startswith("unshare:"):
        pytest.skip(f"this machine mounts no {kind} on a loop device: {done.stderr.strip()}")
    return done

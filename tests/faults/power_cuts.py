"""Power cuts on the file system mounted at `disk`: `main(cuts, seed, image)`.

A process records there while pieces of its files are sent to the disk at random. Then it is killed,
and the file system is shut down as a power cut leaves it: neither its log nor a page is written any
more. What is there after the next mount is recovered, as if after another boot, and compared with
what the process wrote.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from my_utils import _core

from .power_loss import (
    BOOT_ID_AT,
    OTHER_BOOT,
    VICTIM,
    Image,
    Series,
    adopted,
    check,
    held_by,
    parsed,
    read_only,
    rows_of,
)

FS_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
SYNC_FILE_RANGE_WAIT = 7  # waits for what is being written, writes, and waits for that
LOGS = Path("disk/logs")


def send_some(source: random.Random, journal: Path) -> None:
    """Some pages of the journal, the CSV, or everything, to the disk."""
    libc = ctypes.CDLL(None, use_errno=True)
    how = source.choice(["pages", "pages", "csv", "journal", "all", "nothing"])
    path = LOGS / "profile_rank_0.csv" if how == "csv" else journal
    fd = os.open(path, os.O_RDWR)
    if how == "pages":
        used = 2 << 20
        offset = source.randrange(used // 4096) * 4096
        size = source.randrange(1, used // 4096) * 4096
        libc.sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(size), SYNC_FILE_RANGE_WAIT)
    elif how == "all":
        subprocess.run(["sync", "-f", "disk"], check=True)
    elif how != "nothing":
        os.fsync(fd)
    os.close(fd)


def record(source: random.Random) -> tuple[Series, str]:
    """Records for a while. What the process wrote, from the kernel's memory, and its journal."""
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir()
    if source.random() < 0.7:  # else the directory may be lost as well
        subprocess.run(["sync", "-f", "disk"], check=True)
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(LOGS), "50", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert victim.stdin is not None and victim.stdout is not None
    for _ in range(source.randint(1, 6)):
        count, each = source.randint(1, 2000), source.choice([0, 1, 10, 100])
        print(count, each, file=victim.stdin, flush=True)
        assert victim.stdout.readline() == "begun\n"
        [journal] = LOGS.glob("*.journal")
        for _ in range(source.randint(0, 3)):
            send_some(source, journal)
        if source.random() < 0.8:
            assert victim.stdout.readline() == "done\n"
        else:
            break  # it dies in the middle
        send_some(source, journal)
    victim.kill()
    victim.wait()
    series = Series(journal.name)
    _, limit, rows = _core.recover_rows(journal)
    for text in rows_of((LOGS / "profile_rank_0.csv").read_bytes()[:limit] + rows):
        key, row, _ = parsed(text)
        if key is not None:
            series.truth[key] = row
    return series, journal.name


def cut_power(image: str) -> None:
    fd = os.open("disk", os.O_RDONLY)
    fcntl.ioctl(fd, FS_IOC_SHUTDOWN, NO_LOG_FLUSH.to_bytes(4, sys.byteorder))
    os.close(fd)
    for _ in range(100):
        if subprocess.run(["umount", "disk"], check=False, capture_output=True).returncode == 0:
            break
        time.sleep(0.05)
    subprocess.run(["mount", "-o", "loop", image, "disk"], check=True)


def what_is_left(journal_name: str, series: Series) -> Image | None:
    """None where not even a journal with a header has reached the disk."""
    journal = LOGS / journal_name
    if not journal.exists() or journal.stat().st_size < 8192:
        return None
    with open(journal, "r+b") as file:
        if file.read(8) != b"MUJRNL\r\n":
            return None
        file.seek(BOOT_ID_AT)
        file.write(OTHER_BOOT)
    csvs = {path.name: path.read_bytes() for path in LOGS.glob("*.csv")}
    held = held_by(journal.read_bytes(), series.truth)
    return Image(LOGS, journal, csvs, other_boot=True, held=held)


def main(cuts: int, seed: str, image: str) -> None:
    totals: Counter[str] = Counter()
    failed: dict[str, dict[str, int]] = {}
    for number in range(cuts):
        name = f"{seed}.{number}"
        series, journal_name = record(random.Random(name))
        cut_power(image)
        left = what_is_left(journal_name, series)
        totals["cuts"] += 1
        if left is None:
            totals["without a journal"] += 1
            continue
        totals["csv rows lost"] += len(series.truth) > sum(
            map(len, map(rows_of, left.csvs.values()))
        )
        for way, recover in (("read", read_only), ("adopted", adopted)):
            after, said = recover(left)
            problems = check(left, after, series, said)
            totals["rows added"] += after.count(b"doubtful=1")
            if problems:
                failed.setdefault(name, {}).update({f"{way}: {p}": n for p, n in problems.items()})
    print(json.dumps({"failed": failed, **totals}))
    if failed:
        sys.exit(f"the names begin with the seed: {failed}")

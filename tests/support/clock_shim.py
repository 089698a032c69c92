"""A library that moves the system's clock of the process that loads it: no namespace does that."""

from __future__ import annotations

import subprocess
from pathlib import Path

SHIM = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long long moved_ns;
void set_clock(long long ns) { moved_ns = ns; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME) {
        long long ns = now->tv_sec * 1000000000LL + now->tv_nsec + moved_ns;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return failed;
}
"""


def clock_shim(folder: Path) -> Path:
    """Compiles it. For LD_PRELOAD; a program calls its `set_clock(long long ns)`."""
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library

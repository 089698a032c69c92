"""Ranks of a job as real processes, which meet over gloo and die with the test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MEET = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(1, 9)  # die with the parent
import torch, torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world)
"""


def free_port(host: str = "127.0.0.1") -> int:
    """A port for a server that sets SO_REUSEADDR; nobody else is given it while this process
    lives, nor is a client that asks there before the server is up connected with itself."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        port = int(held.getsockname()[1])
        held.detach()
        return port


class Ranks:
    """`world` processes that run `code` after they met; `rank`, `world` and `dist` are there.

    before: code that runs before they meet. `address` is that of their store.
    """

    def __init__(self, code: str, world: int, folder: Path, before: str = "") -> None:
        port = str(free_port())
        self.address = f"127.0.0.1:{port}"
        settings = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": str(world),
            "OMP_NUM_THREADS": "1",
        }
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", before + MEET + code],
                env={**settings, "RANK": str(rank)},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]

    def kill(self, rank: int, with_signal: int = signal.SIGKILL) -> None:
        self.processes[rank].send_signal(with_signal)

    def finish(self, timeout_s: float = 90) -> list[tuple[int, str, str]]:
        """The status, stdout and stderr of each rank; those that do not end are killed."""
        try:
            texts = [process.communicate(timeout=timeout_s) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
        return [
            (process.returncode, *text) for process, text in zip(self.processes, texts, strict=True)
        ]


def run_ranks(code: str, world: int, folder: Path) -> list[str]:
    """What each rank printed, all having ended well."""
    results = Ranks(code, world, folder).finish()
    assert [status for status, _, _ in results] == [0] * world, results
    return [out for _, out, _ in results]

"""A link to a device without an end is refused at once by each reader of a file that a user names,
and a pipe is read by those that take one."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.run_csv import HEADER as HEADER_TEXT

pytestmark = pytest.mark.no_torch

HEADER = HEADER_TEXT.encode()

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # seconds; the device would take all of them
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
"""
COMMAND = LIMITED + "from my_utils.cli.command import main; sys.exit(main(sys.argv[1:]))"
ROW = b"1750000000.%09d,,h,%d,forward,%s,%s,node_id=%d\n"
PAGE = b'"ID","Kernel Name","Duration"\n"","","ms"\n"0","gemm","2"\n'

COMMANDS = [
    *["why {}.csv", "report {}.csv -o out.html", "diff {}.csv {}.csv", "timeline {}.csv"],
    *["trace {}.csv -o out.json", "trace rank_0.csv --merge {}.json -o out.json"],
    *["trace rank_0.csv --merge {}.json.gz -o out.json", "why {}.parquet", "why {}.sqlite"],
    *["ncu {}.csv", "port scripts -r . --launch-path {}.py"],
]
CALLS = {
    "device.json": "from my_utils.musa._rules import read_mapping_dir\nread_mapping_dir('.')",
    "device.pem": "from my_utils.cluster.etcd.client import _read\n_read('device.pem')",
    "device.csv": "from my_utils.timeline import read_spans\nlist(read_spans('device.csv'))",
    "device.yaml": "from my_utils.profilers.capture.workers.config import read_data\n"
    "read_data('device.yaml')",
    "device.toml": "import pathlib\nfrom my_utils.testing.golden_file import read_golden\n"
    "read_golden(pathlib.Path('device.toml'))",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    suffixes = ["csv", "json", "json.gz", "parquet", "sqlite", "py", "pem", "yaml", "toml"]
    for suffix in suffixes:
        (tmp_path / f"device.{suffix}").symlink_to("/dev/zero")
    (tmp_path / "rank_0.csv").write_bytes(rows())
    return tmp_path


def rows() -> bytes:
    return HEADER + b"".join(
        ROW % (step * 2_000_000 + end * 1_000_000, step, [b"START", b"END"][end],
               [b"", b"1.0"][end], step + 1)
        for step in range(30)
        for end in (0, 1)
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_it(run_python: RunPython, folder: Path, command: str) -> None:
    needs = {"parquet": "pyarrow", "scripts": "libcst", "ncu": "pandas"}
    for word, package in needs.items():
        if word in command:
            pytest.importorskip(package)
    words = command.format(*["device"] * 2).split()
    done = run_python("-c", COMMAND, *words, cwd=folder)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 3, 4), done
    [line] = [line for line in said.splitlines() if "no regular file" in line]
    assert "device." in line
    assert "Traceback" not in said


@pytest.mark.parametrize("name", CALLS)
def test_a_call_refuses_it(run_python: RunPython, folder: Path, name: str) -> None:
    if name == "device.toml":
        pytest.importorskip("torch")
    done = run_python("-c", LIMITED + CALLS[name], cwd=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"OSError: [Errno 22] no regular file: {name!r}"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("trace {} -o out.json", "30 slices of 60 rows"),
        ("why {}", "judged: 1 of 1 rank, steps 1:30"),
        ("ncu {}", "1 launches of 1 kernels"),
    ],
)
def test_a_pipe_of_the_shell_is_read(folder: Path, command: str, text: str) -> None:
    if command.startswith("ncu"):
        pytest.importorskip("pandas")
    packed = folder / "packed.gz"
    packed.write_bytes(gzip.compress(PAGE if command.startswith("ncu") else rows()))
    words = command.format("<(zcat packed.gz)")
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m my_utils {words}', sys.executable],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert text in done.stdout + done.stderr, done

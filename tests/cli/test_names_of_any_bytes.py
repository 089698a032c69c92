"""Every command on files whose names are not UTF-8, as Linux allows, with a strict ASCII output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from my_utils.cli.table import COMMANDS, Command

from ..conftest import ROOT
from ..support.variants import gate_runs
from .test_command import NAMES, is_there

BAD = os.fsdecode(b"f\xff\xfeld")
SHOWN = re.compile(r"f\\(xff\\x|udcff\\udc)feld")
TEXT_SUFFIXES = (".csv", ".html", ".json", ".svg", ".txt", ".xml")

STAGES = """
import os, sys, threading, time
from my_utils import GlobalLogger, MyTimer
folder, rank, goes_on = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
GlobalLogger().setup(folder, rank=rank, world_size=2, console=False)
timer = MyTimer()
if goes_on:  # until its input ends
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
number = 0
while number < 40 or goes_on:
    timer.set_step(number)
    with timer.time_stage("iter"), timer.time_stage("forward"):
        time.sleep(0.002)
    timer.step()
    number += 1
    if number == 40:
        print("forty", flush=True)
"""

RECORDING = """
import sys, torch
from my_utils.module_hook import ForwardTraceRecorder
for path, value in zip(sys.argv[1:], (1.0, 2.0)):
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, value)
    with ForwardTraceRecorder(model) as recorder:
        model(torch.ones(1, 2))
    recorder.save(path)
"""

TRAINING = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""

KERNELS = """"ID","Process ID","Process Name","Kernel Name","gpu__time_duration.sum"
"","","","","usecond"
"0","1","python","gemm","1500"
"""

# What each command is run with and how it ends, in a folder whose own name is not UTF-8 either.
# `.no` is not there, and must be named.
A, B, LIVING = (f"runs/{BAD}.{name}" for name in ("a", "b", "living"))
JUDGED = (0, 3, 4)  # what the run is like is not asked here
ARGUMENTS: dict[str, Sequence[tuple[int | tuple[int, ...], Sequence[str]]]] = {
    "run": [(0, ["--", sys.executable, f"{BAD}.py"]), (2, [f"{BAD}.no.py"])],
    "why": [(JUDGED, []), (JUDGED, [A, "-o", f"{BAD}.json"]),
            (JUDGED, [A, "--json", "--export", f"tensorboard={BAD}.board"]),
            (2, [f"runs/{BAD}.no"])],
    "report": [(0, [A, "-o", f"{BAD}.html"]),
               (0, [A, "--json", "--csv", f"{BAD}.tables", "--png", f"{BAD}.plots", "--parquet",
                    f"{BAD}.parquet"]),
               (2, [f"runs/{BAD}.no"])],
    "diff": [*((JUDGED, [A, B, "-o", f"{BAD}.diff{end}"]) for end in (".html", ".xml", ".json")),
             (2, [A, f"runs/{BAD}.no"])],
    "live": [(JUDGED, ["--once", "--stacks", LIVING]), (JUDGED, ["--once", "--json", LIVING]),
             (JUDGED, ["--hung", "5", A]), (2, ["--once", f"runs/{BAD}.no"])],
    "trace": [(0, [A, "--recover", "-o", f"{BAD}.pftrace.gz"]), (0, [B, "--json"]),
              (3, [A, "--merge", f"files/{BAD}.trace.json", "-o", f"{BAD}.trace.json"]),
              (1, [f"files/{BAD}.csv"]), (2, [f"runs/{BAD}.no"])],
    "timeline": [(0, [A, "-o", f"{BAD}.svg"]), (0, [A, "--json"]), (2, [f"runs/{BAD}.no"])],
    "diverge": [(1, [f"files/{BAD}.0.pt", f"files/{BAD}.1.pt", "-o", f"{BAD}.parts.json"]),
                (1, [f"files/{BAD}.0.pt", f"files/{BAD}.1.pt"]),
                (2, [f"files/{BAD}.0.pt", f"files/{BAD}.no.pt"])],
    "passport": [(0, [f"files/{BAD}.0.pt", "-o", f"{BAD}.passport.json"]),
                 (2, [f"files/{BAD}.no.pt"])],
    "passport diff": [(2, [f"{BAD}.passport.json", f"files/{BAD}.1.pt", "--json"]),
                      (2, [f"files/{BAD}.0.pt", f"files/{BAD}.no.pt"])],
    "passport history": [(2, [f"files/{BAD}.no"])],
    "capture": [(0, [LIVING, "--backend", "none", "--now", "--wait", "60"]),
                (0, [LIVING, "--stacks", "0.3", "--json"]), (2, [f"runs/{BAD}.no"])],
    "ncu": [(0, [f"files/{BAD}.ncu", "--csv", f"{BAD}.ncu.csv", "--png", f"{BAD}.ncu.png"]),
            (2, [f"files/{BAD}.no"])],
    "demo": [(0, ["-o", f"{BAD}.demo", "--steps", "6"])],
    "port cuda": [(0, ["--cuda-dir-path", f"files/{BAD}.cuda", "--report", f"{BAD}.port.json"]),
                  (2, ["--cuda-dir-path", f"files/{BAD}.no"])],
    "port scripts": [(0, ["-r", f"files/{BAD}.scripts", "-l", f"files/{BAD}.scripts/{BAD}.py"]),
                     (2, ["-r", f"files/{BAD}.no", "-l", f"files/{BAD}.no/a.py"])],
    "env": [(0, []), (0, ["--json"])],
    "completion": [(0, ["bash"])],
}  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """With an output that takes ASCII alone, and values that are not UTF-8."""
    return {
        **os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii:strict",
        "TMPDIR": str(folder / f"{BAD}.tmp"), "MY_UTILS_RUN_ID": BAD,
        "TORCHINDUCTOR_CACHE_DIR": str(folder.parent),
    }  # fmt: skip


def start(folder: Path, text: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", text, *arguments], env=environment(folder), cwd=folder,
        text=True, stdout=subprocess.PIPE, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("names") / BAD
    for name in ("runs", "files", f"{BAD}.tmp"):
        (folder / name).mkdir(parents=True)
    make_files(folder)
    started = [start(folder, STAGES, run, rank) for run in (A, B) for rank in "01"]
    started += [start(folder, RECORDING, *(f"files/{BAD}.{number}.pt" for number in range(2)))]
    living = start(folder, STAGES, LIVING, "0", "goes on", stdin=subprocess.PIPE)
    for process in started:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert living.stdout is not None and living.stdout.readline() == "forty\n"
    yield folder
    living.communicate(timeout=60)


def make_files(folder: Path) -> None:
    files = folder / "files"
    (folder / f"{BAD}.py").write_text(TRAINING)
    (files / f"{BAD}.csv").write_text("no,profile\n")
    (files / f"{BAD}.ncu").write_text(KERNELS)
    (files / f"{BAD}.trace.json").write_text('{"traceEvents": [')
    for kind, suffix, text in [("cuda", "cu", "cudaFree(0);\n"), ("scripts", "py", "x.cuda()\n")]:
        (files / f"{BAD}.{kind}").mkdir()
        (files / f"{BAD}.{kind}" / f"{BAD}.{suffix}").write_text(text)


IN_GATE = ("run", "why", "trace", "passport diff")


def test_every_command_is_tried() -> None:
    assert list(ARGUMENTS) == [NAMES[id(command)] for command in COMMANDS]


@pytest.mark.slow
@pytest.mark.parametrize("command", gate_runs(IN_GATE, COMMANDS, lambda each: NAMES[id(each)]))
def test_no_name_ends_a_command(command: Command, folder: Path) -> None:
    if not is_there(command):
        pytest.skip(f"my_utils {NAMES[id(command)]} cannot be imported here")
    for status, arguments in ARGUMENTS[NAMES[id(command)]]:
        before = set(folder.rglob("*"))
        done = subprocess.run(
            [sys.executable, "-m", "my_utils", *command.words, *arguments],
            cwd=folder, env=environment(folder), capture_output=True, timeout=250, check=False,
        )  # fmt: skip
        said = (done.stdout + done.stderr).decode("ascii")
        expected = status if isinstance(status, tuple) else (status,)
        assert done.returncode in expected and "Traceback" not in said, said
        assert SHOWN.search(said) or ".no" not in arguments[-1], said
        for path in set(folder.rglob("*")) - before:
            if path.suffix in TEXT_SUFFIXES and LIVING not in str(path):
                path.read_bytes().decode()


@pytest.mark.thorough
def test_the_whole_training_is_recorded(folder: Path) -> None:
    """By a script, a folder, arguments and an environment whose bytes are not UTF-8."""
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "-o", f"{BAD}.whole", "--capture", "0",
         f"{BAD}.py", BAD],
        cwd=folder, env=environment(folder), capture_output=True, timeout=250, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"trained\n"), done.stderr
    rows = (folder / f"{BAD}.whole" / "profile_rank_0.csv").read_bytes().decode()
    assert rows.count(",optimizer,END,") == 30
    assert re.search(r",my_utils.run,INSTANT,.*script=[^,]*f\\xff\\xfeld\.py,", rows)
    assert b"warning" not in done.stderr.lower()
    (trace,) = (folder / f"{BAD}.whole" / "captures").glob("*__rank0.json")
    assert trace.read_text().endswith("}\n")

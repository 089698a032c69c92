"""`my_utils run --to` an object store, and what is read there: moto's server of S3 on this machine.

Places that are folders are in tests/core/test_sent_runs.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT, RunPython
from ..support.live_ranks import wait_until
from ..support.planted_runs import Run
from ..support.ranks import free_port
from ..support.s3_server import S3Server
from .test_several_hosts import outputs_of, start_on_host

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto", reason="moto is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.long_file, pytest.mark.timeout(600)]

# Sends a turn for each line of its input, and says how it went.
SENDING = """
import json, sys
from pathlib import Path
from my_utils.run.sending import Sending
sending = Sending(sys.argv[1], Path(sys.argv[2]), "first")
for line in sys.stdin:
    sending.send(over=line == "over\\n")
    print(json.dumps([sending.missing, sending.error]), flush=True)
"""

TRAIN = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    ends = torch.tensor(float(step >= 60 and os.path.exists(sys.argv[1])))
    dist.all_reduce(ends)
    if ends:
        break
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    time.sleep(0.05 if os.environ["RANK"] == "1" else 0.005)
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    found = S3Server(folder)
    found.start()
    yield found
    found.stop()


class Sender:
    """A process that sends what is in `logs`, in turns. said: what it printed as warnings."""

    def __init__(self, folder: Path, server: S3Server, **variables: str) -> None:
        logs = Run(ranks=2).write(folder / "logs")
        lines = [{"rank": rank, "pid": rank, "folder": str(logs), "own": 0} for rank in (0, 1)]
        (folder / "report").write_text("".join(f"rank {json.dumps(one)}\n" for one in lines))
        environment = {**os.environ, **server.environment, "PYTHONPATH": str(ROOT), **variables}
        self._errors = folder / "errors"
        with open(self._errors, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SENDING, server.place, str(folder / "report")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def turn(self, word: str = "turn") -> tuple[int, str]:
        """Files that are missing, and the error."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        missing, error = json.loads(self.process.stdout.readline())
        return missing, error

    def said(self) -> list[str]:
        return [line for line in self._errors.read_text().splitlines() if "my_utils" in line]


def verdict(run_python: RunPython, *places: str, **env: str) -> dict[str, Any]:
    done = run_python("-m", "my_utils", "why", *places, "--json", env=env)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.thorough
def test_a_full_place_and_a_slow_one(
    server: S3Server, tmp_path: Path, run_python: RunPython
) -> None:
    with Sender(tmp_path, server) as sender:
        for status in ("507", "503"):
            server.answer(status)
            missing, error = sender.turn()
            assert missing == 2 and error
        server.answer("slow")
        assert sender.turn("over") == (0, "")
        (warning,) = sender.said()
        assert warning.startswith(f"my_utils run: {server.place} takes no files: ")
    found = verdict(run_python, server.place, **server.environment)
    assert found == verdict(run_python, str(tmp_path / "logs"))


@pytest.mark.thorough
def test_a_server_that_stops_and_starts_again(
    server: S3Server, tmp_path: Path, run_python: RunPython
) -> None:
    server.stop()
    with Sender(tmp_path, server) as sender:
        missing, error = sender.turn()
        assert missing == 2 and "connect" in error
        server.start()
        assert sender.turn() == (0, "")
        assert verdict(run_python, server.place, **server.environment)["judged_ranks"] == 2
        server.stop()
        with open(tmp_path / "logs" / "profile_rank_0.csv", "ab") as csv:
            csv.write(b"1750000099.0,,0,0,iter,INSTANT,,\n")
        missing, error = sender.turn("over")
        assert missing == 1 and "connect" in error
        assert len(sender.said()) == 1


@pytest.mark.thorough
def test_without_credentials_and_without_a_bucket(
    server: S3Server, tmp_path: Path, run_python: RunPython
) -> None:
    without = {**server.environment, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    with Sender(tmp_path, server, **without) as sender:
        missing, error = sender.turn("over")
        assert missing == 2 and "credentials" in error
    done = run_python("-m", "my_utils", "why", server.place, env=without)
    assert done.returncode == 2 and "credentials" in done.stderr
    done = run_python("-m", "my_utils", "why", "s3://nobody/run", env=server.environment)
    assert done.returncode == 2
    assert done.stderr == (
        "my_utils why: error: s3://nobody/run: The specified bucket does not exist\n"
    )


def test_two_hosts_without_a_common_disk(
    server: S3Server, tmp_path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, end = tmp_path / "train.py", tmp_path / "end"
    script.write_text(TRAIN)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    port = free_port()
    processes = [
        start_on_host(
            tmp_path, host, "separate",
            ["env", f"RANK={host}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
             f"MASTER_PORT={port}", sys.executable, str(script), str(end)],
            options=["--to", server.place],
        )
        for host in range(2)
    ]  # fmt: skip
    try:
        wait_until(lambda: server.names().count("sent.json") == 2, 300.0)  # both while they train
    finally:
        end.touch()
    outputs = outputs_of(processes)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert f"my_utils run: sent to {server.place}\n" in output
    folders = [
        str(one)
        for host in range(2)
        for one in (tmp_path / f"of{host}" / "logs").iterdir()
        if not one.is_symlink()
    ]
    found = verdict(run_python, server.place)
    assert found["judged_ranks"] == 2
    expected = verdict(run_python, *sorted(folders))
    ledgers = [one.pop("ledger") for one in (found, expected)]
    assert re.sub(r"s3://\S+", "", json.dumps(found)) == json.dumps(expected)
    shares = [[(row["row"], row["share"]) for row in ledger["rows"]] for ledger in ledgers]
    assert shares[0] == shares[1]
    live = run_python("-m", "my_utils", "live", server.place, "--once", "--json")
    states = [one["state"] for one in json.loads(live.stdout)["ranks"]]
    assert states == ["closed", "closed"]

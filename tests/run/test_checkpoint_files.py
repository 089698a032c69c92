"""Which checkpoints a training saved and loaded, as rows and stages of `my_utils run`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..support import profile_rows
from ..support.variants import gate_runs

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

TRAIN = """
import os, sys, torch
how = sys.argv[1]
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
BEFORE
for step in range(4):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
AFTER
"""


def trained(folder: Path, before: str, after: str) -> list[profile_rows.Row]:
    (folder / "train.py").write_text(TRAIN.replace("BEFORE", before).replace("AFTER", after))
    command = [sys.executable, "-m", "my_utils.run", "--quiet", "-o", "logs", "train.py", "x"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=100)
    return profile_rows.read(folder / "logs" / "profile_rank_0.csv")


def files(rows: list[profile_rows.Row]) -> list[tuple[str, str, str]]:
    found = [row.metadata for row in rows if row.name == "my_utils.file" and "did" in row.metadata]
    return [(str(one["did"]), str(one["path"]), str(one["inode"])) for one in found]


def digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]


SELDOM = ("a path by name", "an open file", "safetensors", "lightning")
SAVES = {
    "torch": "torch.save(model.state_dict(), FILE)",
    "a path by name": "import pathlib\ntorch.save(obj=model.state_dict(), f=pathlib.Path(FILE))",
    "an open file": "with open(FILE, 'wb') as file: torch.save(model.state_dict(), file)",
    "safetensors": "import safetensors.torch as s; s.save_file(model.state_dict(), FILE)",
    "lightning": "from lightning.fabric.plugins.io import TorchCheckpointIO\n"
    "TorchCheckpointIO().save_checkpoint(model.state_dict(), FILE)",
    "distributed": "import torch.distributed.checkpoint as d\n"
    "d.save(model.state_dict(), checkpoint_id=FILE, no_dist=True)",
}
LOADS = {
    "torch": "torch.load(FILE)",
    "a path by name": "import pathlib; torch.load(f=pathlib.Path(FILE))",
    "an open file": "with open(FILE, 'rb') as file: torch.load(file)",
    "safetensors": "import safetensors.torch as s; s.load_file(FILE)",
    "lightning": "from lightning.fabric.plugins.io import TorchCheckpointIO\n"
    "TorchCheckpointIO().load_checkpoint(FILE)",
    "distributed": "import torch.distributed.checkpoint as d\n"
    "d.load(model.state_dict(), checkpoint_id=FILE, no_dist=True)",
}


@pytest.mark.parametrize("how", gate_runs(SAVES.keys() - SELDOM, SAVES))
def test_what_was_saved_is_known_again(tmp_path: Path, how: str) -> None:
    (tmp_path / "sub").mkdir()
    file = "sub/kept" if how == "a path by name" else "kept"
    save, load = (text.replace("FILE", repr(file)) for text in (SAVES[how], LOADS[how]))
    rows = trained(tmp_path, "", save)
    ((did, path, inode),) = files(rows)
    assert (did, path) == ("saved", digest(tmp_path / file))
    assert inode == str((tmp_path / file).stat().st_ino)
    assert "checkpoint" in {row.name for row in rows}
    os.rename(tmp_path / "logs", tmp_path / "first")
    rows = trained(tmp_path, load, "")
    assert files(rows) == [("restored", path, inode)]
    (restore,) = (row for row in rows if row.name == "restore" and row.kind == "END")
    assert restore.step == 0


@pytest.mark.thorough
def test_loads_of_later_steps_are_stages_alone(tmp_path: Path) -> None:
    """They continue no attempt; and memory is no file."""
    (tmp_path / "data.pt").write_bytes(b"")
    rows = trained(
        tmp_path, "import io; memory = io.BytesIO(); torch.save(1, memory)",
        "torch.save(2, 'data.pt'); torch.load('data.pt')",
    )  # fmt: skip
    assert [did for did, _, _ in files(rows)] == ["saved"]
    assert len([row for row in rows if row.name == "restore" and row.kind == "END"]) == 1


def test_functions_stay_what_they_are(tmp_path: Path) -> None:
    trained(
        tmp_path, "import inspect, pickle\n"
        "for one in (torch.save, torch.load):\n"
        "    assert inspect.isfunction(one) and pickle.loads(pickle.dumps(one)) is one\n"
        "    assert 'f' in inspect.signature(one).parameters and one.__module__ == "
        "'torch.serialization'", "",
    )  # fmt: skip

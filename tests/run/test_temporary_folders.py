"""`my_utils run` where other users have been at the folder for temporary files, and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from my_utils.run.agreement import Place, agree

from ..conftest import ROOT, RunPython
from ..support.other_users import OTHER, as_root, done_by, folder_for_all

RUN = ("-m", "my_utils", "run")
SHOWS_FOLDER = "import os; print(os.environ.get('MY_UTILS_RUN_DIR', 'nothing'))\n"
TRAINS = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""
NAME = f"my_utils-{os.geteuid()}"


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


PLANTS: dict[str, tuple[int, Callable[[Path], object]]] = {
    "a file": (OTHER, Path.touch),
    "a folder that is open to all": (OTHER, open_to_all),
    "a link to a folder of ours": (OTHER, lambda path: path.symlink_to(path.parent / "ours")),
    "a link to nothing": (OTHER, lambda path: path.symlink_to("nothing")),
    "a FIFO": (OTHER, os.mkfifo),
    "our folder, open to all": (os.geteuid(), open_to_all),
}


def project_in(folder: Path, text: str) -> Path:
    """A folder with train.py in which no `logs` can be made, also not by root."""
    (folder / "project").mkdir()
    (folder / "project" / "train.py").write_text(text)
    (folder / "project" / "logs").touch()
    return folder / "project"


@as_root
@pytest.mark.no_torch
@pytest.mark.parametrize("plant", PLANTS)
def test_a_name_that_is_not_ours_is_left_alone(
    plant: str, run_python: RunPython, tmp_path: Path
) -> None:
    project = project_in(tmp_path, SHOWS_FOLDER)
    with folder_for_all() as shared:
        (shared / "ours").mkdir(mode=0o700)
        user, make = PLANTS[plant]
        done_by(user, lambda: make(shared / NAME))
        before = (shared / NAME).lstat()
        done = run_python(*RUN, "train.py", cwd=project, env={"TMPDIR": str(shared)})
        first, *others = done.stderr.splitlines()
        assert first.startswith("my_utils run: cannot write to logs (File exists): files go to ")
        assert [line[:45] for line in others] == ["my_utils run: nothing was recorded: a Python "]
        assert done.returncode == 0
        assert Path(done.stdout.strip()).parents[1] == shared / f"{NAME}-1"
        made = (shared / f"{NAME}-1").stat()
        assert (made.st_uid, made.st_mode & 0o777) == (os.geteuid(), 0o700)
        after = (shared / NAME).lstat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        assert list((shared / "ours").iterdir()) == []


@as_root
@pytest.mark.thorough
def test_a_training_beside_a_neighbour_is_recorded(run_python: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    project = project_in(tmp_path, TRAINS)
    with folder_for_all() as shared:
        done_by(OTHER, (shared / NAME).touch)
        done = run_python(*RUN, "train.py", cwd=project, env={"TMPDIR": str(shared)})
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        (csv,) = shared.glob(f"{NAME}-1/logs/train-*/profile_rank_0.csv")
        assert csv.read_text().count(",optimizer,END,") == 12
        assert f"files: {csv.parent}\n" in done.stderr
        assert done.stderr.count("cannot write to logs") == 1


@as_root
@pytest.mark.no_torch
def test_a_note_of_another_user_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks without a store that one launcher started: they agree by a note that is theirs."""
    with folder_for_all() as shared:
        open_to_all(shared / NAME)
        monkeypatch.setattr("tempfile.tempdir", str(shared))
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        monkeypatch.delenv("MY_UTILS_RUN_REPORT", raising=False)
        ours, second, theirs = (Place(shared / name, name) for name in ("ours", "second", "theirs"))
        assert agree(2, lambda: ours) == ours
        (note,) = shared.glob("*/run-*")
        assert note.parent.name == f"{NAME}-1"
        lie = shared / NAME / note.name
        done_by(OTHER, lambda: lie.write_text(theirs.text()))
        assert agree(2, lambda: second) == ours


# --- without a folder for temporary files ---

# Where Python would make temporary files, nobody can write.
CLOSED = """
for folder in /tmp /var/tmp /usr/tmp "$PWD"; do
    test -d "$folder" || continue
    mount --bind "$folder" "$folder" && mount -o remount,ro,bind "$folder" || exit 99
done
cd "$PWD" && exec "$@"
"""


def run_closed(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare (Debian's package util-linux)")
    alone = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    done = subprocess.run(
        [*alone, "sh", "-c", CLOSED, "sh", sys.executable, *RUN, *options],
        cwd=folder, capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": "/nowhere", **variables},
    )  # fmt: skip
    if done.returncode == 99 or done.stderr.startswith("unshare:"):
        pytest.skip(f"this machine lets nobody mount here: {done.stderr.strip()}")
    return done


@pytest.mark.no_torch
def test_a_script_runs_where_no_folder_can_be_made(tmp_path: Path) -> None:
    done = run_closed(project_in(tmp_path, SHOWS_FOLDER), "train.py")
    assert (done.returncode, done.stdout) == (0, "nothing\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("my_utils run: nothing is recorded: no folder can be made in logs, nor ")


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", [{}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_a_training_is_recorded_without_temporary_files(
    tmp_path: Path, launcher: dict[str, str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    no_dill = "import sys; sys.modules['dill'] = None  # it cannot be imported there\n"
    project = project_in(tmp_path, no_dill + TRAINS)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as out:
        torchs = {"TORCHINDUCTOR_CACHE_DIR": out}  # torch itself fails without
        done = run_closed(project, "-o", f"{out}/run", "train.py", **torchs, **launcher)
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        csv = Path(out, "run", "profile_rank_0.csv").read_text()
        assert csv.count(",optimizer,END,") == 12
    warnings = [line for line in done.stderr.splitlines() if "temporary" in line]
    assert len(warnings) == ("RANK" not in launcher), done.stderr
    assert done.stderr.count("NOT JUDGED") == 1, "rank 0 says how it went"

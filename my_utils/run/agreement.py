"""Makes all ranks of a run agree on a folder: the first that asks proposes one, all use it.

Ranks of one job meet in torch's store, or in that of a launcher of several hosts, whose
`compare_set` lets the first proposal win: one round trip, and nobody waits for a rank. A launcher
that starts its ranks anew is the same process as before, so a note of what was agreed, under the
launcher's name on each host, keeps a restart in its folder also where the store is a new one. Ranks
that have no store agree by that note, on one host.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..core.ranks import boot_id, process_began_s
from ..core.store import default_store
from ..core.trusted_open import is_own_folder, open_without_waiting, own_temporary_folder
from ..core.warnings import warn_once
from .environment import DIR, ID, REPORT, passed_on
from .folder import RUNS, reserve_somewhere

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_KEY = "my_utils/run"
_STORE_WAIT_S = 10
_NOTE_BYTES_MAX = 16384
_SLURM_STEPS_MAX = 0xFFFFFFF0
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")


class Place(NamedTuple):
    """A run's folder and its id, which is the same for all of its ranks and attempts."""

    folder: Path
    run_id: str

    def text(self) -> str:
        return json.dumps({"folder": str(self.folder), "run_id": self.run_id})

    @classmethod
    def from_text(cls, text: str) -> Place:
        """ValueError for any other text."""
        try:
            about = json.loads(text)
            return cls(Path(about["folder"]), str(about["run_id"]))
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"no place of a run: {text[:100]!r}") from error


def given_place() -> Place | None:
    """What a parent has passed on by the environment."""
    folder = passed_on(DIR)
    return Place(Path(folder), passed_on(ID) or "") if folder else None


def new_place(name: str, world_size: int = 1, runs: Path | None = None) -> Place:
    """A folder in `runs`, by default `logs`, shared only by ranks of the same launch; where that
    cannot be made, in the folder for temporary files, with a warning. OSError if neither can."""
    runs = Path.cwd() / RUNS if runs is None else runs
    launch = unique_launch() if world_size > 1 else None
    if launch is not None:
        with contextlib.suppress(OSError):  # which is said below
            folder = runs / f"{name}-{launch}"
            folder.mkdir(parents=True, exist_ok=True)
            return Place(folder.resolve(), launch)
    folder, reason = reserve_somewhere(name, runs)
    if reason:
        warn_once("run:folder", f"cannot make a folder in {runs} ({reason}): files go to {folder}")
    return Place(folder, uuid.uuid4().hex)


def unique_launch() -> str | None:
    """What the launcher calls this launch, if no other launch is called so.

    torchrun's id is the word `none`, or what the user has chosen, perhaps twice: it counts only
    where torchrun has drawn it. Slurm counts its jobs and their steps.
    """
    drawn = os.environ.get("TORCHELASTIC_RUN_ID", "").lower()
    if _UUID.fullmatch(drawn):
        return drawn
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")
    # Numbers from here on are those of a job's own shell, which may start many runs.
    counted = job.isdigit() and step.isdigit() and int(step) < _SLURM_STEPS_MAX
    return f"slurm-{job}.{step}" if counted else None


def agree(world_size: int, propose: Callable[[], Place]) -> Place:
    """The place of all ranks. `propose` is called where nothing is known yet.

    Waits for no rank. Where ranks cannot meet, each host (or process) uses its own proposal.
    """
    note = _note_path()
    noted = None if note is None else _read_note(note)
    proposal = noted or propose()
    place = _agree_in_store(proposal) if world_size > 1 else None
    if note is not None and noted != (place or proposal):
        claimed = _claim_note(note, place or proposal)
        place = place or claimed
    if place is not None and place.folder != proposal.folder and proposal != given_place():
        with contextlib.suppress(OSError):  # others of this host may have written there
            proposal.folder.rmdir()
    return place or proposal


def _agree_in_store(proposal: Place) -> Place | None:
    try:
        store = run_store()
        if store is None:
            return None
        return Place.from_text(bytes(store.compare_set("place", "", proposal.text())).decode())
    except (RuntimeError, NotImplementedError, ValueError) as error:
        warn_once(
            "run:store",
            f"ranks cannot agree on a folder ({str(error).splitlines()[0]:.200}): those of this "
            f"host write to {proposal.folder}",
        )
        return None


def run_store() -> Store | None:
    """Where the ranks of a run meet; None where they cannot. RuntimeError or ValueError where the
    store of a launcher cannot be reached."""
    return default_store(_KEY) or _launchers_store()


def _launchers_store() -> Store | None:
    """The store in which torchrun's hosts have met, for ranks without a process group. One host
    needs none: its ranks have the note."""
    variables = os.environ
    on_one_host = variables.get("LOCAL_WORLD_SIZE") == variables.get("WORLD_SIZE")
    if on_one_host or variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    host, port = variables.get("MASTER_ADDR", ""), variables.get("MASTER_PORT", "")
    wait = timedelta(seconds=_STORE_WAIT_S)
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=wait)
    return PrefixStore(_KEY, store)


def _note_path() -> Path | None:
    """A file that all ranks which one launcher starts on this host know, also after a restart."""
    report = passed_on(REPORT)
    if report:
        return Path(f"{report}.agreed")
    launched = ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK")
    if not any(name in os.environ for name in launched):
        return None  # the parent may be a shell, which starts other runs as well
    parent = os.getppid()
    began = _began(parent)
    if not began:
        return None
    with contextlib.suppress(OSError):  # no folder for temporary files: no note
        return Path(own_temporary_folder()) / f"run-{boot_id()}-{parent}-{began}"
    return None


def launcher_began_s() -> float | None:
    """Unix time at which the parent of this process began; None if that is not known."""
    return process_began_s(int(_began(os.getppid()) or 0))


def _began(pid: int) -> str:
    """When a process began, in clock ticks after boot; empty if that is not known."""
    with contextlib.suppress(OSError, IndexError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return status.rpartition(")")[2].split()[19]
    return ""


def _read_note(note: Path) -> Place | None:
    with contextlib.suppress(OSError, ValueError):
        if is_own_folder(str(note.parent)):
            with open(note, encoding="utf-8", opener=open_without_waiting) as file:
                return Place.from_text(file.read(_NOTE_BYTES_MAX))
    return None


def _claim_note(note: Path, place: Place) -> Place:
    """Writes the note unless there is one; returns what it says."""
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, exist_ok=True)
        if not is_own_folder(str(note.parent)):
            return place
        handle, temporary = tempfile.mkstemp(dir=note.parent)
        try:
            os.write(handle, place.text().encode())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, note)
        finally:
            os.close(handle)
            os.unlink(temporary)
        return _read_note(note) or place
    return place

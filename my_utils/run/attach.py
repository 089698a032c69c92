"""A process that trains: it starts recording when torch is imported, and gets a folder later.

Until then everything waits in memory, so that launchers, loader workers and helpers, which never
take a step, leave no files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from .. import _core
from ..core.arguments import check_path
from ..core.identity import (
    Identity,
    attempt_from_environment,
    rank_from_environment,
    watch_identity,
    world_size_from_environment,
)
from ..core.process_end import call_at_end
from ..core.ranks import distributed
from ..core.run_files.run_file import read_run_file
from ..core.warnings import warn_once
from ..record.log.handlers import FallbackHandler
from ..record.log.logger import LOGGER_NAME, GlobalLogger
from .agreement import Place, agree, given_place, new_place
from .environment import (
    REPORT,
    SITE_FOLDER,
    is_on,
    mark_process_tree,
    passed_on,
    reach,
    remember,
)
from .folder import RUNS, complete_run_file, name_of_run, point_latest
from .report_file import report_rank

_NAME = "my_utils.run.torch_watch"
_PART_BYTES = 256 << 20  # of a CSV
_KEPT_BYTES = 2 << 30  # of a rank; windows of steps have what is older


class _Process:
    """What this process knows of its run. A forked child begins anew."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.rank: int | None = None  # None until it trains
        self.folder: Path | None = None
        self.place: Place | None = None  # None if the script has chosen its folder
        self.text: FallbackHandler | None = None
        self.quiet = False
        self.armed = False
        self.forked_from: Place | None = None  # that of the process that forked this one
        self.runs: Path | None = None  # in which the run's folder is made, None for `logs`


_process = _Process()


def auto(logs: str | os.PathLike[str] = RUNS) -> None:
    """Records the stages of this process's training, as `my_utils run` does from outside.

    One line anywhere before the first step; it may be before `import torch` or after it. The
    files go to a new folder in `logs`, which is made, one for all ranks, unless the script calls
    `GlobalLogger().setup` itself. Processes that this one starts are reached, too. Rank 0 prints
    the verdict at its exit.

    Idempotent and thread-safe; where `my_utils run` has reached the process already, or with
    MY_UTILS_RUN=0 in the environment, it does nothing. Raises TypeError where `logs` is no path,
    and nothing else.

    >>> import my_utils
    >>> my_utils.auto()  # doctest: +SKIP
    """
    runs = check_path("logs", logs).absolute()
    if not is_on():
        return
    _process.runs = runs
    os.environ.update(reach(os.environ))
    if _NAME not in sys.modules:
        sys.modules[_NAME] = module = _watch_module()
        module.watch()  # calls `torch_is_ready` once torch has been executed, or at once


def prints_verdict(wanted: bool) -> None:
    """Whether rank 0 prints the verdict at its exit, where no parent does."""
    _process.quiet = not wanted


def torch_is_ready(variables: Mapping[str, str]) -> None:
    """Called once torch has been executed in this process. Idempotent; never raises.

    variables: what the environment had when the process started.
    """
    if _process.armed or not hasattr(sys.modules.get("torch"), "optim"):
        return  # or another module of that name
    _process.armed = True
    remember(variables)
    try:
        from ..record.stages.unwritten import has_been_read
        from .report_file import watch_exits
        from .stages.recorder import arm

        has_been_read()  # a process that never trains writes nothing, and that is meant
        arm(begin_rank)
        watch_exits()
    except Exception as error:
        warn_once("run:arm", f"the stages of this run are not recorded: {_line(error)}")


def begin_rank() -> dict[str, object]:
    """Gives this process, which has proved to train, its files; called by the recorder. Returns
    what the row `my_utils.run` says of the run beside what the recorder knows. Raises only what a
    signal handler of the script raised."""
    global _process
    if _process.pid != os.getpid():
        before, _process = _process, _Process()
        _process.quiet, _process.armed = before.quiet, before.armed
        _process.runs = before.runs
        _process.forked_from = before.place or before.forked_from
    try:
        if _process.rank is None:
            _begin(_process)
    except Exception as error:
        from ..core.signals import is_of_a_signal

        if is_of_a_signal(error):
            raise
        warn_once("run:begin", f"the files of this run cannot be made: {_line(error)}")
    attempt = _core.output_state()["attempt"] or attempt_from_environment() or 1
    place = _process.place
    return {"script": _script(), "attempt": attempt, "run_id": place.run_id if place else ""}


def _begin(process: _Process) -> None:
    rank, world_size = _rank_and_world_size()
    process.rank = rank
    logger = GlobalLogger()
    if logger.is_set_up:
        process.folder, process.rank = logger.log_dir, logger.rank
        if process.folder is not None:
            forked = process.forked_from
            own = forked is None or forked.folder != process.folder
            report_rank(logger.rank, process.folder, own_setup=own)
    else:
        name, given = name_of_run([_script()]), given_place()
        process.place = _existing(
            agree(world_size, lambda: given or new_place(name, world_size, process.runs)),
            name,
        )
        process.folder = process.place.folder
        _take_over(process, logger, rank, world_size)
        mark_process_tree(*process.place)
        report_rank(rank, process.folder, own_setup=False)
        _write_run_file(process.place, given, rank, world_size)
    _meet(process.rank, world_size)
    watch_identity(_moved)
    if rank == 0 and passed_on(REPORT) is None:
        call_at_end(_print_verdict)


def _meet(rank: int, world_size: int) -> None:
    """Lets the parents of several hosts find each other."""
    if world_size == 1 or not passed_on(REPORT):
        return
    try:
        from .hosts.meeting import join_meeting

        join_meeting(rank, world_size)
    except (OSError, RuntimeError, ValueError) as error:
        warn_once(
            "run:hosts", f"what this host records stays on it: no meeting point: {_line(error)}"
        )


def _existing(place: Place, name: str) -> Place:
    """The place that was agreed on, made on this host where it has no disk with the others; a
    separate one where that cannot be made, or where another run has that name here."""
    own = given_place()
    if own is not None and _run_id_in(place.folder) not in (None, place.run_id, own.run_id):
        return Place(own.folder, place.run_id)
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        folder = own.folder if own is not None and own != place else new_place(name).folder
        warn_once(
            "run:folder",
            f"cannot make {place.folder}, where other ranks write ({error.strerror}): its rows "
            f"go to {folder}",
        )
        return Place(folder, place.run_id)
    return place


def _run_id_in(folder: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return str(read_run_file(folder).get("run_id") or "") or None
    return None


def _rank_and_world_size() -> tuple[int, int]:
    group = distributed()
    if group is not None:
        return int(group.get_rank()), int(group.get_world_size())
    rank = rank_from_environment() or 0
    return rank, max(world_size_from_environment() or 1, rank + 1)


def _take_over(process: _Process, logger: GlobalLogger, rank: int, world_size: int) -> None:
    """Sets the logger up, and lets text go where it went before: nothing that the script prints
    may change."""
    assert process.folder is not None
    text = logging.getLogger(LOGGER_NAME)
    level, propagates = text.level, text.propagate
    logger.setup(
        process.folder,
        rank=rank,
        world_size=world_size,
        console=False,
        max_csv_bytes=_PART_BYTES,
        keep_csv_bytes=_KEPT_BYTES,
    )
    text.propagate = propagates
    if level != logging.NOTSET:
        text.setLevel(level)
    process.text = FallbackHandler()
    process.text.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    text.addHandler(process.text)


def _moved(identity: Identity | None) -> None:
    """The script has set the logger up itself: from here on its folder is the run's."""
    process = _process
    if identity is None or process.pid != os.getpid() or process.rank is None:
        return
    if process.text is not None:
        logging.getLogger(LOGGER_NAME).removeHandler(process.text)
        process.text = None
    if str(process.folder) != identity.log_dir:
        before, process.folder = process.place, Path(identity.log_dir)
        process.rank = identity.rank
        report_rank(identity.rank, process.folder, own_setup=True)
        if before is not None and identity.rank == 0:
            with contextlib.suppress(OSError):
                complete_run_file(before.folder, {"moved_to": identity.log_dir}, leads=True)


def _write_run_file(place: Place, given: Place | None, rank: int, world_size: int) -> None:
    """given: by the parent here."""
    about = {
        "script": _script(),
        "command": sys.orig_argv,
        "started": time.time(),
        "world_size": world_size,
        "run_id": place.run_id,
        "torch": sys.modules["torch"].__version__,
        **_of_the_command(given, place),
    }
    try:
        complete_run_file(place.folder, about, leads=rank == 0)
    except OSError as error:
        warn_once("run:file", f"cannot write run.json: {_line(error)}")
    point_latest(place.folder, _process.runs)


def _of_the_command(given: Place | None, place: Place) -> dict[str, object]:
    """What the parent here has written into its folder, where the ranks have agreed on another."""
    if given is None or given.folder == place.folder:
        return {}
    try:
        known = read_run_file(given.folder)
    except (OSError, ValueError):
        return {}
    return {key: known[key] for key in ("script", "command", "started") if known.get(key)}


def _script() -> str:
    """The path of the script, or the name of the module, that this process runs."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    if spec is not None and spec.name != "__mp_main__":
        return str(spec.name).removesuffix(".__main__")
    return str(path or sys.argv[0] or "python")


def _print_verdict() -> None:
    process = _process
    if process.pid != os.getpid() or process.folder is None or process.quiet:
        return
    from .closing import print_from_another_process

    GlobalLogger().flush()
    print_from_another_process(process.folder)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _watch_module() -> ModuleType:
    """sitecustomize.py under another name, by which it does not begin by itself."""
    path = os.path.join(SITE_FOLDER, "sitecustomize.py")
    spec = spec_from_loader(_NAME, SourceFileLoader(_NAME, path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The command `musa-converter`: Python scripts for CUDA, rewritten in place for torch_musa.

    my_utils port scripts -r project -l project/train.py        (or musa-converter)

It rewrites what names, attributes, imports and device strings mean, not what they look like: other
packages' `cuda`, text, URLs and comments stay. What torch_musa has no counterpart of stays, and is
said. Run again it changes nothing. It needs libcst: pip install libcst.

Exit status: 0 done, or with --check nothing to do; 1 a file could not be converted, or with --check
would change; 2 wrong usage.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..core.bounded_read import read_regular
from ..core.command_line import CommandParser, add_quiet, fail, parser, run_cli, say
from ..core.extras import require
from ..core.files import on_whole_path
from ..core.process_end import end_with_parent
from ..core.progress import Progress
from ._converter_project import Said, said_by
from ._port_file import make_diff

__all__ = ["Outcome", "convert_project", "main"]

StrPath = str | os.PathLike[str]
# Fewer files are done faster than other processes are started.
FEW = 16
SKIPPED = {"__pycache__", "node_modules"}


@dataclass(frozen=True)
class _Task:
    path: Path
    is_launched: bool
    said: Said
    writes: bool
    wants_diff: bool


@dataclass(frozen=True)
class Outcome:
    """The outcome of one file. `error` says why it was left as it is, `notes` what is left in it
    to do by hand, by line."""

    path: Path
    changes: int = 0
    diff: str = ""
    error: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Project:
    scripts: list[Path] = field(default_factory=list)
    launched: set[Path] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def convert_project(
    root: StrPath,
    launch: Iterable[StrPath],
    excluded: Iterable[StrPath] = (),
    *,
    write: bool = True,
    diff: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Iterator[Outcome]:
    """Converts all Python files below `root`, one after the other in order of path.

    Parameters:
        root: a folder, or one file. Links, and names that begin with a dot, are ignored in it.
        launch: the scripts that are started; each imports torch_musa afterwards.
        excluded: files and folders to leave alone, from the working directory or from `root`.
        write: False to change no file.
        diff: fill in `Outcome.diff`.
        jobs: processes; None for one a processor.
        progress: show a bar on a terminal, and elsewhere a line every few seconds.

    ValueError for a path that is not there; ImportError without libcst.
    """
    require("libcst", "musa-converter")
    project = _project(Path(root), [Path(path) for path in launch], [Path(e) for e in excluded])
    said = Said()
    for path in project.scripts:
        said.add(_said_by(path))
    tasks = [_Task(path, path in project.launched, said, write, diff) for path in project.scripts]
    yield from (Outcome(Path(root), error=note) for note in project.notes)
    with Progress("musa-converter", len(tasks), "files", quiet=not progress) as bar:
        for outcome in _run(tasks, jobs):
            bar.advance()
            yield outcome


def _run(tasks: Sequence[_Task], jobs: int | None) -> Iterator[Outcome]:
    count = min(jobs or len(os.sched_getaffinity(0)), len(tasks))
    if count <= 1 or len(tasks) < FEW:
        yield from map(_convert_file, tasks)
        return
    with ProcessPoolExecutor(count, initializer=end_with_parent) as pool:
        yield from pool.map(_convert_file, tasks, chunksize=4)


def _said_by(path: Path) -> Said:
    try:
        return said_by(read_regular(path))
    except OSError:
        return Said()  # it is said when the file is converted


def _convert_file(task: _Task) -> Outcome:
    import libcst

    from ._converter_tree import convert

    try:
        data = read_regular(task.path)
        said = task.said
        converted = convert(data, task.is_launched, said.kept, said.own_fields)
        if converted.changes and task.writes:
            mode = stat.S_IMODE(task.path.stat().st_mode)
            with on_whole_path(task.path, mode) as temporary:
                temporary.write_bytes(converted.data)
    except libcst.ParserSyntaxError as error:
        return Outcome(task.path, error=f"line {error.raw_line}: {error.message}")
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return Outcome(task.path, error=str(error) or type(error).__name__)
    diff = ""
    if task.wants_diff:
        diff = make_diff(data, converted.data, str(task.path), str(task.path))
    return Outcome(task.path, converted.changes, diff, notes=converted.notes)


# --- which files ---


def _project(root: Path, launch: Sequence[Path], excluded: Sequence[Path]) -> _Project:
    if not root.exists():
        raise ValueError(f"root_path: there is no {root}")
    left_out = {place for path in excluded for place in _places(root, path, "excluded_path")}
    project = _Project()
    project.scripts.extend(_scripts(root, left_out))
    known = {os.path.abspath(path): path for path in project.scripts}
    for path in launch:
        place = _in_project(root, _places(root, path, "launch_path"))
        if not place.endswith(".py"):
            project.notes.append(
                f"{path} is not a Python script: add `import torch_musa` to the script that "
                "it starts"
            )
            continue
        script = known.setdefault(place, Path(place))
        if script not in project.scripts:
            project.scripts.append(script)
        project.launched.add(script)
    return project


def _in_project(root: Path, places: Sequence[str]) -> str:
    """The place that is part of the project, if one of them is: a file of the same name in the
    working directory is another one."""
    inside = os.path.join(os.path.abspath(root), "")
    return next((place for place in places if place.startswith(inside)), places[0])


def _places(root: Path, path: Path, name: str) -> list[str]:
    """Where a path leads from the working directory and from the root; one of them at least."""
    folder = root if root.is_dir() else root.parent
    places = dict.fromkeys([os.path.abspath(path), os.path.abspath(folder / path)])
    there = [place for place in places if os.path.lexists(place)]
    if not there:
        raise ValueError(f"{name}: there is no {path}, neither here nor in {root}")
    return there


def _scripts(path: Path, left_out: set[str]) -> Iterator[Path]:
    if os.path.abspath(path) in left_out:
        return
    if path.is_file():
        yield path
        return
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name in SKIPPED or entry.is_symlink():
            continue
        if entry.is_dir() or entry.name.endswith((".py", ".pyw")):
            yield from _scripts(path / entry.name, left_out)


# --- the command line ---


def command_parser() -> CommandParser:
    chosen = parser(
        "port scripts",
        "Rewrites the Python scripts of a project that uses CUDA for torch_musa, in place: "
        "torch.cuda becomes torch.musa, x.cuda() x.musa(), 'cuda:0' 'musa:0', 'nccl' 'mccl'. "
        "Comments, layout, prose and other packages' cuda stay unchanged. A name without a "
        "counterpart in torch_musa stays, and is reported with its line.",
        [
            "my_utils port scripts -r project -l project/train.py --dry-run",
            "my_utils port scripts -r project -l project/train.py -e project/third_party",
        ],
        statuses="0  done, or with --check nothing to do\n"
        "1  a file could not be converted (the others are), or with --check would change\n"
        "2  wrong arguments",
    )
    add = chosen.add_argument
    add("-r", "--root_path", "--root-path", required=True, metavar="ROOT",
        help="the folder of the project, or one script; all *.py below are converted")  # fmt: skip
    add("-l", "--launch_path", "--launch-path", nargs="+", default=[], metavar="LAUNCH",
        help="the script that starts the project; it gets `import torch_musa`, once, after its "
        "docstring and its imports from __future__ (default: no script gets it)")  # fmt: skip
    add("-e", "--excluded_path", "--excluded-path", nargs="+", default=[], metavar="EXCLUDED",
        help="files and folders to exclude, with everything below them")  # fmt: skip
    add("--dry-run", action="store_true", help="print a unified diff and write nothing")
    add("--check", action="store_true", help="write nothing; exit status 1 if that would change")
    add(
        "--jobs",
        type=int,
        metavar="N",
        help="number of processes (default: one a processor)",
    )
    add_quiet(chosen, "no progress and no closing line")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    own = command_parser()
    chosen = own.parse_args(argv)
    if chosen.jobs is not None and chosen.jobs < 1:
        own.error("--jobs: 1 or more")
    files = changed = places = errors = notes = 0
    try:
        for outcome in convert_project(
            chosen.root_path, chosen.launch_path, chosen.excluded_path,
            write=not (chosen.check or chosen.dry_run), diff=chosen.dry_run, jobs=chosen.jobs,
            progress=not chosen.quiet,
        ):  # fmt: skip
            files += 1
            changed += outcome.changes > 0
            places += outcome.changes
            errors += bool(outcome.error)
            notes += len(outcome.notes)
            print(outcome.diff, end="")
            for note in outcome.notes:
                say("port scripts", f"look: {outcome.path}: {note}")
            if outcome.error:
                say("port scripts", f"left: {outcome.path}: {outcome.error}")
    except ValueError as error:
        own.error(str(error))
    except ImportError as error:
        return fail("port scripts", error)
    if not chosen.quiet:
        said = "would change" if chosen.check or chosen.dry_run else "changed"
        left = f"; {notes} to look at" if notes else ""
        print(f"{files} files, {changed} {said} in {places} places{left}", file=sys.stderr)
    return int(errors > 0 or (chosen.check and changed > 0))


if __name__ == "__main__":
    sys.exit(main())

"""The plan of a port: every file, folder and link of a tree, with its new name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MARKER = ".simple_porting.json"
# Files that are scanned; all others are copied.
TEXTS = frozenset(
    {".c", ".cc", ".cpp", ".cxx", ".c++", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".h++"}
    | {".inc", ".inl", ".ipp", ".tcc", ".tpp", ".ixx", ".cppm"}
)


@dataclass(frozen=True)
class Entry:
    """One file, folder or link; paths are relative to the tree."""

    old: str
    new: str
    mode: int
    link: str | None = None  # what a link leads to, afterwards

    @property
    def is_text(self) -> bool:
        return os.path.splitext(self.old)[1].lower() in TEXTS


@dataclass
class Plan:
    """What a port makes. `notes` says what is left out, and why."""

    root: Path
    folders: list[Entry] = field(default_factory=list)
    files: list[Entry] = field(default_factory=list)
    links: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def made(self) -> list[str]:
        """The files and links that the output holds."""
        return [entry.new for entry in (*self.files, *self.links)]

    @property
    def renamed(self) -> dict[str, str]:
        return {entry.old: entry.new for entry in self.files if entry.old != entry.new}


def make_plan(
    root: Path, output: Path, suffixes: Mapping[str, str], ignored: Iterable[str]
) -> Plan:
    """Scans the tree. ValueError when two files would get the same name."""
    plan = Plan(root)
    left_out = _ignored_paths(root, ignored, plan.notes)
    found = list(_walk(root, "", left_out, plan.notes))
    for path, info in found:
        if stat.S_ISDIR(info.st_mode):
            plan.folders.append(Entry(path, path, stat.S_IMODE(info.st_mode)))
        elif stat.S_ISREG(info.st_mode):
            plan.files.append(Entry(path, _named(path, suffixes), stat.S_IMODE(info.st_mode)))
    for path, info in found:
        if stat.S_ISLNK(info.st_mode):
            plan.links.append(_link(plan, path, output, suffixes))
    _check_names(plan)
    return plan


def _ignored_paths(root: Path, ignored: Iterable[str], notes: list[str]) -> set[str]:
    """Each may be given from the working directory or from the root of the tree."""
    found = set()
    for path in ignored:
        places = {os.path.abspath(path), os.path.abspath(root / path)}
        there = {place for place in places if os.path.lexists(place)}
        if not there:
            notes.append(f"{path}: to be ignored, but not there")
        found |= there
    return found


def _walk(
    root: Path, folder: str, left_out: set[str], notes: list[str]
) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except OSError as error:
        notes.append(f"{folder or root}: {error.strerror}")
        return
    for entry in entries:
        path = os.path.join(folder, entry.name)
        if entry.name == MARKER or os.path.abspath(entry.path) in left_out:
            continue
        info = entry.stat(follow_symlinks=False)
        if not (stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode) or entry.is_symlink()):
            notes.append(f"{path}: neither a file nor a folder nor a link")
            continue
        yield path, info
        if stat.S_ISDIR(info.st_mode):
            yield from _walk(root, path, left_out, notes)


def _named(path: str, suffixes: Mapping[str, str]) -> str:
    stem, suffix = os.path.splitext(path)
    return stem + suffixes.get(suffix, suffix)


def _link(plan: Plan, path: str, output: Path, suffixes: Mapping[str, str]) -> Entry:
    """A link into the tree leads to the ported file, by its new name; others stay as they are."""
    target = os.readlink(plan.root / path)
    place = os.path.normpath(os.path.join(plan.root, os.path.dirname(path), target))
    inside = os.path.relpath(place, plan.root)
    new = plan.renamed.get(inside)
    is_folder = os.path.isdir(plan.root / path)
    name = path if is_folder else _named(path, suffixes)
    if os.path.isabs(target) and not inside.startswith(os.pardir):
        target = str(output / (new or inside))
    elif new is not None:
        target = os.path.splitext(target)[0] + os.path.splitext(new)[1]
    return Entry(path, name, 0, target)


def _check_names(plan: Plan) -> None:
    seen: dict[str, str] = {}
    for entry in (*plan.folders, *plan.files, *plan.links):
        other = seen.setdefault(entry.new, entry.old)
        if other != entry.old:
            raise ValueError(f"{other} and {entry.old} would both become {entry.new}")

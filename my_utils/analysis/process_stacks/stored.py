"""Finds the sampled profiles of `my_utils capture --stacks` in the folders of a run."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...core.bounded_read import read_whole
from ...profilers.capture.on_demand.control_file import captures_folder
from .record import RECORD_BYTES_MAX, StackRecord, read_record

_SUFFIX = ".stacks.json"


@dataclass
class StoredProfile:
    """The profile of one request. records: a rank each, by its number. problems: what could not be
    read."""

    id: str = ""
    records: list[StackRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def newest_profile(
    log_dirs: Sequence[str | os.PathLike[str]], ranks: Collection[int] | None = None
) -> StoredProfile | None:
    """The newest profile of a rank or more; None if there is none. ranks: only these."""
    files: dict[str, list[Path]] = {}
    for log_dir in log_dirs:
        folder = captures_folder(log_dir)
        for path in sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else ():
            files.setdefault(path.name.partition("__")[0], []).append(path)
    for id in sorted(files, reverse=True):  # an id begins with its time
        found = StoredProfile(id)
        for path in files[id]:
            _add(path, ranks, found)
        if found.records:
            found.records.sort(key=lambda record: record.rank)
            return found
    return None


def _add(path: Path, ranks: Collection[int] | None, found: StoredProfile) -> None:
    try:
        record = read_record(read_whole(path, RECORD_BYTES_MAX, "a profile")[0])
    except (OSError, ValueError) as error:
        found.problems.append(f"the profile {path} cannot be read: {error}")
        return
    is_profile = record.samples and record.kind == "profile" and not record.refused
    if is_profile and (ranks is None or record.rank in ranks):
        found.records.append(record)

"""`my_utils capture LOGS --stacks SECONDS`: a sampled profile of the ranks of a running job."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Literal, TypedDict

from ...core.files import atomic_write
from ...core.printable import encoded
from ...core.ranks import check_ranks
from ...profilers.capture.on_demand.control_file import captures_folder
from .profile import Sample, read_samples, share_lines, speedscope, trace_events
from .request import HZ, WAIT_S, request_stacks, wait_for_stacks

EXIT_FINE, EXIT_NOBODY, EXIT_FAILED = 0, 1, 3


class ProfileData(TypedDict):
    """A sampled profile of the ranks of a running job.

    id: that of the request.
    files: the profile for speedscope, and the trace; empty without samples.
    lines: what stands out, for a terminal.
    missing: why there are no stacks, by the label of a rank.
    """

    version: Literal[1]
    id: str
    files: list[str]
    lines: list[str]
    missing: dict[str, str]


def profile_job(
    log_dir: str,
    seconds: float,
    *,
    ranks: Collection[int] | None = None,
    output: str | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Takes the profile, writes its files and prints what stands out; returns the exit status.

    output: the folder of the files, `<log_dir>/captures` by default.
    """
    chosen = check_ranks("ranks", ranks)
    id = request_stacks(log_dir, ranks=chosen, seconds=seconds)
    found = wait_for_stacks(log_dir, id, chosen, seconds + 2 * WAIT_S)
    samples: list[Sample] = []
    for record in found.records:
        samples += read_samples(record, [log_dir])
    folder = Path(output or captures_folder(log_dir))
    files = _write(folder, id, samples) if samples else []
    lines = list(share_lines(samples))
    if as_json:
        data: ProfileData = {
            "version": 1,
            "id": id,
            "files": files,
            "lines": lines,
            "missing": found.missing,
        }
        print(json.dumps(data))
    elif not quiet:
        missing = [f"no stacks of {label}: {why}" for label, why in sorted(found.missing.items())]
        torn = sum(record.torn for record in found.records)
        size = f"{len(samples)} stacks of {len(found.records)} ranks, {torn} torn"
        print("\n".join([size, *lines, *missing, *files]))
    if not found.records:
        return EXIT_NOBODY
    return EXIT_FAILED if found.missing else EXIT_FINE


def _write(folder: Path, id: str, samples: list[Sample]) -> list[str]:
    """Writes both files; returns their paths."""
    interval_ns = 1_000_000_000 // HZ
    contents = {
        f"{id}.speedscope.json": speedscope(samples, interval_ns, f"my_utils {id}"),
        f"{id}.stacks.trace.json": trace_events(samples, interval_ns),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with atomic_write(folder / name) as file:
            file.write(encoded(content))
    return [os.fspath(folder / name) for name in contents]

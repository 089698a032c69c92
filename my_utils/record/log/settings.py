"""The arguments of `GlobalLogger.setup`, checked and complete; the rank from the environment."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from ...core.arguments import check_integer, check_level, check_output_path, check_text, kind
from ...core.identity import (
    attempt_from_environment,
    rank_from_environment,
    world_size_from_environment,
)
from ...core.ranks import host_name

# Limits of the C part, in bytes of UTF-8.
_LABEL_BYTES_MAX = 127
_MACHINE_BYTES_MAX = 255
_CSV_BYTES_MAX = 2**63 - 1
_WINDOWS_BYTES_MIN = 1 << 20
_ATTEMPTS_MAX = 2**16 - 1


class Settings(NamedTuple):
    """The arguments of setup(), checked and complete."""

    log_dir: str
    rank: int
    world_size: int
    label: str
    level: int
    console: bool
    max_csv_bytes: int
    keep_csv_bytes: int
    windows_bytes: int
    journal_dir: str
    io: str
    host: str
    machine: str
    attempt: int
    data_parallel: str

    def text_format(self) -> logging.Formatter:
        who = (
            f"rank {self.rank}/{self.world_size}{self.data_parallel} {self.label}".rstrip().replace(
                "%", "%%"
            )
        )
        return logging.Formatter(f"%(asctime)s [{who}] %(levelname)s %(message)s")

    def output(self) -> dict[str, Any]:
        """What `_core.open_output` takes."""
        of_text = ("level", "console", "data_parallel")
        return {"kind": "file"} | {k: v for k, v in self._asdict().items() if k not in of_text}


def check_settings(
    log_dir: object,
    rank: object,
    world_size: object,
    label: object,
    level: object,
    console: object,
    max_csv_bytes: object,
    keep_csv_bytes: object,
    windows_bytes: object,
    journal_dir: object,
    io: object,
    machine_id: object,
    data_parallel_rank: object,
    data_parallel_world_size: object,
) -> Settings:
    ranks = _choose_rank(rank, world_size)
    if not isinstance(console, bool):
        raise TypeError(f"console must be a bool, not {kind(console)}")
    if io not in ("auto", "inline", "background"):
        raise ValueError(f'io must be "auto", "inline" or "background", not {io!r}')
    max_bytes = check_integer("max_csv_bytes", max_csv_bytes, 0, _CSV_BYTES_MAX)
    keep_bytes = check_integer("keep_csv_bytes", keep_csv_bytes, 0, _CSV_BYTES_MAX)
    if 0 < keep_bytes < max_bytes:
        raise ValueError(
            f"keep_csv_bytes must be 0 (keep all) or at least max_csv_bytes ({max_bytes}), "
            f"not {keep_bytes}"
        )
    label = check_text("extra_log_label", label, _LABEL_BYTES_MAX)
    if machine_id is None:
        host = host_name()
        machine = f"{label or host}-rank{ranks[0]}"
    else:
        host = machine = check_text("machine_id", machine_id, _MACHINE_BYTES_MAX)
    return Settings(
        log_dir=check_output_path("log_dir", log_dir),
        rank=ranks[0],
        world_size=ranks[1],
        label=label,
        level=check_level(level),
        console=console,
        max_csv_bytes=max_bytes,
        keep_csv_bytes=keep_bytes,
        windows_bytes=_check_windows(windows_bytes),
        journal_dir="" if journal_dir is None else check_output_path("journal_dir", journal_dir),
        io=str(io),
        host=host,
        machine=machine,
        attempt=min(attempt_from_environment() or 0, _ATTEMPTS_MAX),
        data_parallel=_data_parallel_text(data_parallel_rank, data_parallel_world_size),
    )


def _check_windows(windows_bytes: object) -> int:
    found = check_integer("windows_bytes", windows_bytes, 0, _CSV_BYTES_MAX)
    if 0 < found < _WINDOWS_BYTES_MIN:
        raise ValueError(
            f"windows_bytes must be 0 (none) or at least {_WINDOWS_BYTES_MIN}, not {found}"
        )
    return found


def _data_parallel_text(rank: object, world_size: object) -> str:
    if rank is None and world_size is None:
        return ""
    shown = "?" if rank is None else check_integer("data_parallel_rank", rank, 0, 2**31 - 2)
    if world_size is None:
        return f" dp {shown}"
    size = check_integer("data_parallel_world_size", world_size, 1, 2**31 - 1)
    return f" dp {shown}/{size}"


def _choose_rank(rank: object, world_size: object) -> tuple[int, int]:
    if world_size is None:
        chosen_size = world_size_from_environment()
    else:
        chosen_size = check_integer("world_size", world_size, 1, 2**31 - 1)
    if rank is None:
        chosen_rank = rank_from_environment() or 0
    else:
        chosen_rank = check_integer("rank", rank, 0, 2**31 - 2)
        if world_size is not None and chosen_size is not None and chosen_rank >= chosen_size:
            raise ValueError(f"rank must be below world_size ({chosen_size}), not {chosen_rank}")
    # What only one of the two is known for cannot contradict the other.
    return chosen_rank, max(chosen_size or 1, chosen_rank + 1)

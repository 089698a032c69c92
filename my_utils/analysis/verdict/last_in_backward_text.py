"""The text for a rank that comes last inside backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...core.units import bytes_text

NOTABLE = 0.05  # of the steps
INSIDE_PAGE = "docs/runs/inside-backward.md"


def last_lines(detail: Mapping[str, Any]) -> Iterator[str]:
    """
    >>> detail = {"last_in": "backward", "last_rank": 5, "last_share": 0.96, "last_steps": 50,
    ...           "last_wait_ns": 21e6, "waiting": 7, "enqueued": False, "bucket": 3,
    ...           "bucket_bytes": 25 << 20, "bucket_modules": "layers 15-17",
    ...           "modules_before": "layers 18-20"}
    >>> for line in last_lines(detail):
    ...     print(line)
    in backward, rank 5 comes last to bucket 3 (layers 15-17, 25.00 MiB) in 96 % of 50 steps
    7 ranks wait 21.0 ms for it; a hook in layers 18-20, just before, shows here too
    """
    yield f"in {detail['last_in']}, {last_short(detail)} of {detail['last_steps']} steps"
    slow_share = detail.get("last_slow_share", 0.0)
    if slow_share - detail["last_share"] > NOTABLE:
        yield (
            f"it takes longest there in {100 * slow_share:.0f} %; others are held up elsewhere, "
            "and come later still in some steps"
        )
    waiting = detail["waiting"]
    ranks = "1 rank waits" if waiting == 1 else f"{waiting:,} ranks wait"
    clock = " (times of enqueueing, not of the GPU)" if detail["enqueued"] else ""
    if "gpu_error_ns" in detail:
        clock = f" (by the GPUs' events, ± {detail['gpu_error_ns'] * 1e-6:.2f} ms)"
    before = ""
    if detail.get("modules_before"):
        before = f"; a hook in {detail['modules_before']}, just before, shows here too"
    yield f"{ranks} {detail['last_wait_ns'] * 1e-6:.1f} ms for it{clock}{before}"


def last_short(detail: Mapping[str, Any]) -> str:
    """
    >>> last_short({"last_rank": 5, "last_share": 0.96})
    'rank 5 comes last, spread over the stage, in 96 %'
    """
    who, often = f"rank {detail['last_rank']}", f"in {100 * detail['last_share']:.0f} %"
    if "bucket" not in detail:
        return f"{who} comes last, spread over {detail.get('last_in', 'the stage')}, {often}"
    size = bytes_text(detail["bucket_bytes"])
    named = f"{detail['bucket_modules']}, {size}" if detail["bucket_modules"] else size
    place = f"{detail.get('bucket_kind', 'bucket')} {detail['bucket']}"
    return f"{who} comes last to {place} ({named}) {often}"

"""The kinds of findings, and the names of stages that belong to them."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "input", "h2d", "launch", "compute", "communication", "straggler", "moving imbalance",
    "optimizer", "checkpoint", "eval", "host hiccups", "untimed", "memory grows",
    "throughput falls", "slower since", "not judged inside", "warm-up", "short of cores",
    "slower rank",
]  # fmt: skip

KINDS: tuple[Kind, ...] = get_args(Kind)

UNTIMED = "untimed"

PAGES: dict[Kind, str] = {
    "input": "docs/runs/slow-input.md",
    "h2d": "docs/runs/slow-input.md",
    "launch": "docs/runs/device-bound.md",
    "compute": "docs/runs/device-bound.md",
    "communication": "docs/runs/communication.md",
    "not judged inside": "docs/runs/communication.md",
    "straggler": "docs/runs/slow-rank.md",
    "moving imbalance": "docs/runs/slow-rank.md",
    "host hiccups": "docs/runs/slow-rank.md",
    "short of cores": "docs/runs/short-of-cores.md",
    "optimizer": "docs/runs/slow-step-parts.md",
    "checkpoint": "docs/runs/slow-step-parts.md",
    "eval": "docs/runs/slow-step-parts.md",
    "untimed": "docs/runs/slow-step-parts.md",
    "memory grows": "docs/runs/slower-over-time.md",
    "throughput falls": "docs/runs/slower-over-time.md",
    "slower since": "docs/runs/slower-over-time.md",
    "warm-up": "docs/runs/slower-over-time.md",
    "slower rank": "docs/runs/slow-rank.md",
}

CAUSES_PAGE = "docs/runs/hiccups.md"  # of hiccups whose cause was measured

_INFORMS: tuple[Kind, ...] = ("compute", "not judged inside", "warm-up", "slower rank")

# Names of stages, as `my_utils run` records them and as people write them.
_NAMES: dict[Kind, tuple[str, ...]] = {
    "input": ("input", "data", "load", "loader", "dataloader", "data_loading", "fetch", "batch"),
    "h2d": ("h2d", "to_device", "to_gpu", "transfer", "copy"),
    "optimizer": ("optimizer", "optim", "optimizer_step", "opt"),
    "checkpoint": (
        "checkpoint", "ckpt", "save", "save_checkpoint", "checkpointing", "restore",
        "load_checkpoint",
    ),
    "eval": ("eval", "evaluate", "evaluation", "validate", "validation", "val"),
    "communication": (
        "collective", "all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter",
        "broadcast", "barrier", "all_to_all", "communication", "comm", "sync", "reduce", "send",
        "recv",
    ),
    "launch": ("launch",),
    "untimed": (UNTIMED,),
}  # fmt: skip
_OF_THE_HOST: tuple[Kind, ...] = ("input", "checkpoint")
_BY_NAME: dict[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names}


def kind_of_stage(stage: str) -> Kind | None:
    """The kind that a stage's own name stands for; None for computing, and for names of others.

    >>> kind_of_stage("iter/data"), kind_of_stage("forward")
    ('input', None)
    """
    return _BY_NAME.get(stage.rpartition("/")[2].lower())


def kind_of_slow_stage(stage: str) -> Kind:
    """The kind of a finding about ranks that are slow in the stage."""
    kind = kind_of_stage(stage)
    return "straggler" if kind is None or kind == "communication" else kind


def is_of_the_host(stage: str) -> bool:
    """Whether the stage, or one around it, is work of the host even if CUDA events are around it.

    >>> is_of_the_host("input/decode"), is_of_the_host("forward")
    (True, False)
    """
    return any(_BY_NAME.get(name.lower()) in _OF_THE_HOST for name in stage.split("/"))


def is_costly(kind: Kind) -> bool:
    """Whether a finding of this kind is one that costs, and not only something to know."""
    return kind not in _INFORMS

"""Runs a training script and records its stages, without a change of the script.

    my_utils run -- torchrun --nproc-per-node 8 train.py --lr 0.1

`command` is the program, `attach` what happens in a process that trains, `stages` what is recorded
there. docs/runs/run-without-an-edit.md describes it.
"""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .attach import auto

__all__ = ["auto"]

__getattr__, __dir__ = lazy_names(__name__)

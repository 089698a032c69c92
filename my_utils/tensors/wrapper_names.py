"""What wrappers add to the names of modules and their parameters."""

from __future__ import annotations

# DistributedDataParallel and DeepSpeed, torch.compile, FSDP 1, activation checkpointing, Fabric.
_WRAPPERS = frozenset(
    ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
)


def plain_name(name: str) -> str:
    """The name of a module without what wrappers add.

    >>> plain_name("module.layers.0._orig_mod.attn")
    'layers.0.attn'
    """
    return ".".join(word for word in name.split(".") if word not in _WRAPPERS)

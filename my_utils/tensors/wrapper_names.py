"""What wrappers add to the names of modules and their parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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


def plain_names(names: Sequence[str]) -> dict[str, str]:
    """By name: the same without what wrappers add, unless two would be one or nothing is left.

    >>> plain_names(["module.a", "module.b", "b"])
    {'module.a': 'a', 'module.b': 'module.b', 'b': 'b'}
    """
    plain = {name: plain_name(name) or name for name in names}
    times = Counter(plain.values())
    return {name: short if times[short] == 1 else name for name, short in plain.items()}

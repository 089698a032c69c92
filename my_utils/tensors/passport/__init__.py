"""The weights passport: the sums of a model's tensors, by name and place, from which equality is
decided whatever the layout.

`my_utils.tensors.passport(model)` takes the passport of what a rank has. Here is what reads and
compares them, and the layouts of engines and trainers.

>>> import torch
>>> from my_utils.tensors import passport
>>> from my_utils.tensors.passport import vllm_layout
>>> config = {"num_attention_heads": 2, "num_key_value_heads": 1}
>>> engine = {"l.qkv_proj.weight": torch.zeros(16, 8)}
>>> taken = passport(engine, layout=vllm_layout(config))
>>> [(tensor.name, tensor.shape) for tensor in taken.data.tensors]
[('l.q_proj.weight', (8, 8)), ('l.k_proj.weight', (4, 8)), ('l.v_proj.weight', (4, 8))]
"""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .checkpoints import read_weights
    from .compare import compare_weights
    from .file import PassportError
    from .history import history_of
    from .layouts import (
        Layout,
        megatron_layout,
        names_layout,
        packed_experts_layout,
        peft_layout,
        transposed_layout,
        vllm_layout,
    )

__all__ = [
    "Layout",
    "PassportError",
    "compare_weights",
    "history_of",
    "megatron_layout",
    "names_layout",
    "packed_experts_layout",
    "peft_layout",
    "read_weights",
    "transposed_layout",
    "vllm_layout",
]

__getattr__, __dir__ = lazy_names(__name__)

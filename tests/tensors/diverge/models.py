"""Models for the proof of `diverge`: families of transformers, built small and without downloads,
and random graphs of modules. The same number gives the same model, weights and batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["BLOCKS", "FAMILIES", "make"]

Batch = dict[str, torch.Tensor]

_TEXT = {"vocab_size": 64}
_HEADS = {"num_attention_heads": 2}
_LLAMA = {
    **_TEXT, **_HEADS, "hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1,
    "attention_dropout": 0.1, "attn_implementation": "eager",
}  # fmt: skip


def _tokens(*names: str) -> Batch:
    return {name: torch.randint(64, (2, 8)) for name in names}


def _gpt2(t: Any, layers: int) -> tuple[nn.Module, Batch]:
    config = t.GPT2Config(
        **_TEXT, n_positions=16, n_embd=16, n_layer=layers, n_head=2, attn_implementation="eager"
    )
    return t.GPT2LMHeadModel(config), _tokens("input_ids")


def _llama(t: Any, layers: int) -> tuple[nn.Module, Batch]:
    config = t.LlamaConfig(**_LLAMA, num_hidden_layers=layers)
    return t.LlamaForCausalLM(config), _tokens("input_ids")


def _mixtral(t: Any, layers: int) -> tuple[nn.Module, Batch]:
    config = t.MixtralConfig(**_LLAMA, num_hidden_layers=layers, num_local_experts=2)
    return t.MixtralForCausalLM(config), _tokens("input_ids")


def _t5(t: Any, layers: int) -> tuple[nn.Module, Batch]:
    config = t.T5Config(
        **_TEXT, d_model=16, d_kv=8, d_ff=32, num_layers=layers, num_heads=2,
        use_cache=False,  # a cache that forward fills is another one when it is computed again
    )  # fmt: skip
    return t.T5ForConditionalGeneration(config), _tokens("input_ids", "decoder_input_ids")


def _vit(t: Any, layers: int) -> tuple[nn.Module, Batch]:
    config = t.ViTConfig(
        **_HEADS, hidden_size=16, num_hidden_layers=layers, intermediate_size=32, image_size=8,
        patch_size=4, attention_probs_dropout_prob=0.1, hidden_dropout_prob=0.1,
        attn_implementation="eager",
    )  # fmt: skip
    return t.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 8, 8)}


def _mamba(t: Any, layers: int) -> tuple[nn.Module, Batch]:
    config = t.MambaConfig(
        **_TEXT, hidden_size=16, state_size=4, num_hidden_layers=layers, time_step_rank=2
    )
    return t.MambaForCausalLM(config), _tokens("input_ids")


def _bert(t: Any, layers: int) -> tuple[nn.Module, Batch]:
    config = t.BertConfig(
        **_TEXT, **_HEADS, hidden_size=16, num_hidden_layers=layers, intermediate_size=32,
        max_position_embeddings=16, attn_implementation="eager",
    )  # fmt: skip
    return t.BertForMaskedLM(config), _tokens("input_ids")


# --- random graphs ---


class Scaled(nn.Module):
    """Has its own parameter beside the modules in it, and drops without a module."""

    def __init__(self, choose: random.Random, width: int, depth: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.act = choose.choice((nn.ReLU, nn.SiLU, nn.GELU))()
        self.inner = graph(choose, width, depth - 1) if depth else nn.Linear(width, width)
        self.last = nn.Linear(width, width)
        self.residual = choose.random() < 0.7

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(self.first(self.norm(x)))
        y = nn.functional.dropout(y * self.scale, 0.1, self.training)
        y = self.last(self.inner(y))
        return x + y if self.residual else y


class Branches(nn.Module):
    """Calls its parts side by side, or one behind the other, and adds what they give."""

    def __init__(self, choose: random.Random, width: int, depth: int) -> None:
        super().__init__()
        parts = range(choose.randint(1, 3))
        self.parts = nn.ModuleList(Scaled(choose, width, depth) for _ in parts)
        self.side_by_side = choose.random() < 0.5
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x
        for part in self.parts:
            total = total + part(x if self.side_by_side else total)
        out: torch.Tensor = self.norm(total)
        return out


def graph(choose: random.Random, width: int, depth: int) -> nn.Module:
    return Branches(choose, width, depth) if choose.random() < 0.5 else Scaled(choose, width, depth)


class RandomGraph(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        choose = random.Random(number)
        width = choose.choice((4, 8, 16))
        self.embed = nn.Linear(6, width)
        self.layers = nn.ModuleList(
            Branches(choose, width, choose.randint(0, 1)) for _ in range(choose.randint(1, 2))
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embed(x)
        for layer in self.layers:
            y = layer(y)
        out: torch.Tensor = self.head(y)
        return out


FAMILIES: dict[str, Callable[[Any, int], tuple[nn.Module, Batch]] | None] = {
    "GPT-2": _gpt2, "Llama": _llama, "Mixtral": _mixtral, "T5": _t5, "ViT": _vit, "Mamba": _mamba,
    "BERT": _bert, "random graph": None,
}  # fmt: skip

# Where checkpointing and FSDP take hold: lists of blocks.
BLOCKS = {
    "GPT-2": ["transformer.h"], "Llama": ["model.layers"], "Mixtral": ["model.layers"],
    "T5": ["encoder.block", "decoder.block"], "ViT": ["vit.layers"], "Mamba": ["backbone.layers"],
    "BERT": ["bert.encoder.layer"], "random graph": ["layers"],
}  # fmt: skip


def make(family: str, number: int, layers: int = 2) -> tuple[nn.Module, Batch]:
    """A model in training mode, and a batch."""
    torch.manual_seed(number)
    build = FAMILIES[family]
    if build is None:
        return RandomGraph(number).train(), {"x": torch.randn(4, 6)}
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model, batch = build(transformers, layers)
    config: Any = model.config
    config.use_cache = False  # which a recomputation would fill a second time
    return model.train(), batch

"""Plants a bug in one layer of a GPT-2 and finds it.

Two runs of a transformers GPT-2 with random weights are recorded: one as it should be, and one in
which the attention of a single layer scales its scores wrongly. `my_utils.tensors.diverge` is given
the two files and names that layer. Needs `pip install transformers`; downloads nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from my_utils.module_hook import ForwardTraceRecorder
from my_utils.tensors import diverge

LAYERS = 6
SICK_LAYER = 3


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=LAYERS,
        n_head=4,
        n_embd=64,
        vocab_size=512,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: torch.nn.Module = GPT2LMHeadModel(config)
    return model.eval()


def record(model: torch.nn.Module, path: Path) -> None:
    """One forward pass with digests, statistics and a sample of every input and output."""
    tokens = torch.arange(2 * 32).reshape(2, 32) % 512
    recorder = ForwardTraceRecorder(
        model,
        name=path.stem,
        record_inputs=True,
        record_outputs=True,
        hash="tensor",
        stats=True,
        sample_mode="rand",
        sample_max_elems=1000,
        record_param_md5=True,
    )
    with recorder, torch.no_grad():
        model(tokens)
    recorder.save(path)


def plant(model: torch.nn.Module) -> None:
    """The mistake: attention scores of one layer are scaled by a little too much."""
    attention: Any = model.get_submodule(f"transformer.h.{SICK_LAYER}.attn")
    attention.scaling *= 1.001


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "recordings")
    record(make_model(), folder / "good.pt")
    sick = make_model()
    plant(sick)
    record(sick, folder / "bad.pt")
    status = diverge.main([str(folder / "good.pt"), str(folder / "bad.pt")])
    return 0 if status == diverge.EXIT_DIFFERENT else 1


if __name__ == "__main__":
    sys.exit(main())

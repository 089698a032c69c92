"""Megatron-core's own GPTModel on two pipeline stages: the passports of its ranks and the
torch_dist checkpoint that it saves, against the same weights under transformers' names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from my_utils.cli.command import main
from my_utils.tensors.passport import compare_weights, megatron_layout, read_weights
from my_utils.tensors.passport.compare import ComparedData, format_lines
from my_utils.tensors.passport.layouts import Layout

from ...support.ranks import Ranks

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]

HEADS, GROUPS, HEAD, HIDDEN, INNER, VOCABULARY, EXPERTS = 8, 2, 4, 32, 48, 100, 4
CONFIG = {
    "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "vocab_size": VOCABULARY,
    "num_experts": EXPERTS,
}  # fmt: skip
STAGES = f"""
import warnings
warnings.simplefilter("ignore")
torch.cuda.current_device = lambda: "cpu"
torch.cuda.set_device = lambda _: None
torch.cuda.synchronize = lambda *_: None
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig
from my_utils.tensors import passport
from my_utils.tensors.passport import megatron_layout

parallel_state.initialize_model_parallel(pipeline_model_parallel_size=world)
config = {CONFIG}
for kind, experts in (("dense", None), ("experts", {EXPERTS})):
    torch.manual_seed(rank)
    settings = TransformerConfig(
        num_layers=2 * world, hidden_size={HIDDEN}, num_attention_heads={HEADS},
        num_query_groups={GROUPS}, kv_channels={HEAD}, ffn_hidden_size={INNER},
        moe_ffn_hidden_size=experts and {INNER}, num_moe_experts=experts, gated_linear_unit=True,
        add_bias_linear=False, normalization="RMSNorm", use_cpu_initialization=True,
        pipeline_model_parallel_size=world, pipeline_dtype=torch.float32)
    model = GPTModel(
        settings, get_gpt_layer_local_spec(num_experts=experts, normalization="RMSNorm"),
        vocab_size=128, max_sequence_length=16, position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        pre_process=rank == 0, post_process=rank == world - 1)
    torch.save({{name: value for name, value in model.state_dict().items() if value is not None}},
               f"{{kind}}_state{{rank}}.pt")
    layout = megatron_layout(config, first_layer=2 * rank)
    passport(model, layout=layout).save(f"{{kind}}_pp/rank{{{{rank}}}}.json")
    os.makedirs(f"{{kind}}_dist", exist_ok=True)
    dist_checkpointing.save(model.sharded_state_dict(), f"{{kind}}_dist")
    dist.barrier()
dist.destroy_process_group()
"""
_PLAIN = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "mlp.router.weight": "mlp.gate.weight",
}


def of_transformers(stages: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """What a converter makes of the stages' own tensors."""
    found: dict[str, torch.Tensor] = {}
    for stage, state in enumerate(stages):
        for name, value in state.items():
            if not name.startswith("decoder.layers."):
                found[_PLAIN[name]] = value[:VOCABULARY] if value.dim() == 2 else value
                continue
            number, inner = name.removeprefix("decoder.layers.").split(".", 1)
            prefix = f"model.layers.{int(number) + 2 * stage}"
            if inner in _PLAIN:
                found[f"{prefix}.{_PLAIN[inner]}"] = value
            elif inner == "self_attention.linear_qkv.weight":
                each = HEADS // GROUPS * HEAD
                parts = value.view(GROUPS, -1, HIDDEN).split([each, HEAD, HEAD], 1)
                for letter, part in zip("qkv", parts, strict=True):
                    found[f"{prefix}.self_attn.{letter}_proj.weight"] = part.reshape(-1, HIDDEN)
            else:
                *_, expert, linear, _ = inner.split(".")
                module = f"mlp.experts.{expert}" if "experts" in inner else "mlp"
                halves = value.chunk(2) if linear == "linear_fc1" else (value,)
                names = ("gate", "up") if linear == "linear_fc1" else ("down",)
                for each_name, half in zip(names, halves, strict=True):
                    found[f"{prefix}.{module}.{each_name}_proj.weight"] = half
    return {name: value.contiguous().clone() for name, value in found.items()}


def compared(a: Path, b: Path, layout: Layout) -> ComparedData:
    return compare_weights(read_weights(str(a)), read_weights(str(b), None, layout))


def test_stages_and_torch_dist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    results = Ranks(STAGES, 2, tmp_path).finish(timeout_s=900)
    assert [status for status, _, _ in results] == [0, 0], results
    layout = megatron_layout(CONFIG)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    for kind, count, name in (
        ("dense", 39, "model.layers.3.mlp.up_proj.weight"),
        ("experts", 79, "model.layers.2.mlp.experts.1.down_proj.weight"),
    ):
        stages = [torch.load(tmp_path / f"{kind}_state{rank}.pt") for rank in range(2)]
        state = of_transformers(stages)
        plain = tmp_path / f"{kind}.safetensors"
        save_file(state, plain)
        sides = {"pp": Layout("", []), "dist": layout}
        for side, rules in sides.items():
            found = compared(plain, tmp_path / f"{kind}_{side}", rules)
            assert (found.status, found.equal) == ("equal", count), format_lines(found)

        state[name][17, 5] += 1
        save_file(state, plain)
        for side, rules in sides.items():
            found = compared(plain, tmp_path / f"{kind}_{side}", rules)
            assert [finding.name for finding in found.findings] == [name], format_lines(found)

        words = [str(plain), str(tmp_path / f"{kind}_dist"), "--map", f"megatron:{config}"]
        assert main(["passport", "diff", *words, "--quiet"]) == 1
        assert f"{name}: values differ: " in capsys.readouterr().out

"""Layouts: what engines and trainers hold, laid out here by the arithmetic of their loading code,
against the checkpoint that transformers writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from my_utils.cli.command import main
from my_utils.tensors import passport
from my_utils.tensors.passport.checkpoints import read_weights
from my_utils.tensors.passport.compare import ComparedData, compare_weights, format_lines
from my_utils.tensors.passport.file import write_passport
from my_utils.tensors.passport.layouts import (
    Cut,
    Layout,
    Shape,
    combined,
    megatron_layout,
    packed_experts_layout,
    peft_layout,
    transposed_layout,
    vllm_layout,
)

Values = dict[str, torch.Tensor]
HEADS, KV_HEADS, HEAD, HIDDEN, INNER, VOCABULARY = 8, 2, 4, 32, 48, 100


def llama(folder: Path) -> tuple[Any, Values]:
    """The config and the checkpoint of a small Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD,
        tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return config, load_file(folder / "model.safetensors")


def mixture(folder: Path, kind: str) -> tuple[Any, Any]:
    """The config and the model of a small mixture of experts."""
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    }  # fmt: skip
    if kind == "Mixtral":
        config: Any = transformers.MixtralConfig(**sizes, num_local_experts=4)
    else:
        sizes |= {"head_dim": HEAD, "num_experts": 4, "moe_intermediate_size": 24}
        config = transformers.Qwen3MoeConfig(**sizes)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.save_pretrained(folder)
    return config, model


def write_ranks(
    folder: Path, world: int, local: Callable[[int], Values], layout: Callable[[int], Layout]
) -> Path:
    """The passports of an engine's ranks, each of its own tensors."""
    for rank in range(world):
        data = passport(local(rank), layout=layout(rank)).data
        data.rank, data.world_size = rank, world
        write_passport(data, folder / f"rank{rank}.json")
    return folder


def compared(a: Path, b: Path) -> ComparedData:
    return compare_weights(read_weights(str(a), None, None), read_weights(str(b), None, None))


def part(tensor: torch.Tensor, dim: int, number: int, parts: int) -> torch.Tensor:
    size = tensor.shape[dim] // parts
    return tensor.narrow(dim, number * size, size)


def padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    more = -len(tensor) % multiple
    return torch.cat([tensor, tensor.new_full((more, tensor.shape[1]), 7.0)])


# --- vLLM and sglang ---


def vllm_local(state: Values, rank: int, world: int) -> Values:
    """What the weight loaders of vLLM put on a rank."""
    copies = max(world // KV_HEADS, 1)
    kv_parts = min(world, KV_HEADS)
    local: Values = {}
    for name, value in state.items():
        if "q_proj" in name:
            k, v = (state[name.replace("q_proj", other)] for other in ("k_proj", "v_proj"))
            heads = [part(one, 0, rank // copies, kv_parts) for one in (k, v)]
            fused = torch.cat([part(value, 0, rank, world), *heads])
            local[name.replace("q_proj", "qkv_proj")] = fused
        elif "gate_proj" in name:
            up = state[name.replace("gate_proj", "up_proj")]
            fused = torch.cat([part(value, 0, rank, world), part(up, 0, rank, world)])
            local[name.replace("gate_proj", "gate_up_proj")] = fused
        elif "o_proj" in name or "down_proj" in name:
            local[name] = part(value, 1, rank, world)
        elif "embed_tokens" in name or "lm_head" in name:
            local[name] = part(padded(value, 64), 0, rank, world)
        elif not any(one in name for one in ("k_proj", "v_proj", "up_proj")):
            local[name] = value
    return {name: value.clone() for name, value in local.items()}


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_vllm_with_heads_of_k_and_v_on_several_ranks(world: int, tmp_path: Path) -> None:
    config, state = llama(tmp_path / "hf")
    ranks = [vllm_local(state, rank, world) for rank in range(world)]

    def layout(rank: int) -> Layout:
        return vllm_layout(config, rank, world)

    pp = write_ranks(tmp_path / "pp", world, ranks.__getitem__, layout)
    found = compared(tmp_path / "hf", pp)
    assert (found.status, found.equal) == ("equal", 21), format_lines(found)

    qkv = ranks[-1]["model.layers.1.self_attn.qkv_proj.weight"]
    qkv[-1, 5] += 1  # the last row of v
    write_ranks(tmp_path / "pp", world, ranks.__getitem__, layout)
    found = compared(tmp_path / "hf", pp)
    assert {finding.name for finding in found.findings} == {
        "model.layers.1.self_attn.v_proj.weight"
    }
    kinds = {finding.kind for finding in found.findings}
    assert ("replicas" in kinds) == (world > KV_HEADS)


def test_a_vocabulary_of_unknown_size_has_no_padding(tmp_path: Path) -> None:
    config = {"num_attention_heads": 4, "num_key_value_heads": 2}
    name, value = "model.embed_tokens.weight", torch.randn(10, 3)
    save_file({name: value}, tmp_path / "model.safetensors")
    (tmp_path / "engine").mkdir()
    engine = write_ranks(
        tmp_path / "engine",
        2,
        lambda rank: {name: part(value, 0, rank, 2)},
        lambda rank: vllm_layout(config, rank, 2),
    )
    found = compared(tmp_path / "model.safetensors", engine)
    assert found.status == "equal", format_lines(found)


def test_vllm_swapped_k_and_v_are_named(tmp_path: Path) -> None:
    config, state = llama(tmp_path / "hf")
    k, v = (f"model.layers.0.self_attn.{one}_proj.weight" for one in "kv")
    wrong = {**state, k: state[v], v: state[k]}
    pp = write_ranks(
        tmp_path / "pp", 2, lambda rank: vllm_local(wrong, rank, 2),
        lambda rank: vllm_layout(config, rank, 2),
    )  # fmt: skip
    found = compared(tmp_path / "hf", pp)
    assert [finding.name for finding in found.findings] == [k, v]
    assert found.findings[0].text.endswith(f"A has the values of B under the name {v}")


def test_explain_names_the_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, state = llama(tmp_path / "hf")
    pp = write_ranks(
        tmp_path / "pp", 4, lambda rank: vllm_local(state, rank, 4),
        lambda rank: vllm_layout(config, rank, 4),
    )  # fmt: skip
    assert main(["passport", str(pp), "--explain", "model.layers.0.self_attn.k_proj.weight"]) == 0
    fused = "model.layers.0.self_attn.qkv_proj.weight, rule *qkv_proj.weight"
    assert capsys.readouterr().out.splitlines() == [
        "model.layers.0.self_attn.k_proj.weight: float32 [8, 32]",
        f"  rows 0-3: ranks 0-1: {fused}",
        f"  rows 4-7: ranks 2-3: {fused}",
    ]


@pytest.mark.parametrize(("tp", "ep"), [(2, 1), (1, 2), (1, 1)])
@pytest.mark.parametrize("kind", ["Qwen3Moe", "Mixtral"])
def test_vllm_experts(kind: str, tp: int, ep: int, tmp_path: Path) -> None:
    config, model = mixture(tmp_path / "hf", kind)
    experts = next(module for name, module in model.named_modules() if name.endswith(".experts"))
    gate, up = experts.gate_up_proj.detach().chunk(2, dim=1)
    down = experts.down_proj.detach()
    block = "block_sparse_moe" if kind == "Mixtral" else "mlp"

    def local(rank: int) -> Values:
        mine = slice(rank * 4 // ep, (rank + 1) * 4 // ep) if ep > 1 else slice(4)
        halves = [part(one[mine], 1, rank if tp > 1 else 0, tp) for one in (gate, up)]
        return {
            f"model.layers.0.{block}.experts.w13_weight": torch.cat(halves, 1),
            f"model.layers.0.{block}.experts.w2_weight": part(
                down[mine], 2, rank if tp > 1 else 0, tp
            ).clone(),
        }

    def layout(rank: int) -> Layout:
        if ep > 1:
            return vllm_layout(config, ep_rank=rank, ep_size=ep)
        return vllm_layout(config, rank, tp)

    pp = write_ranks(tmp_path / "pp", tp * ep, local, layout)
    found = compared(tmp_path / "hf", pp)
    assert (found.compared, found.equal) == (12, 12), format_lines(found)
    (tmp_path / "pp" / "rank0.json").unlink()
    if ep > 1:
        found = compared(tmp_path / "hf", pp)
        assert found.compared == 6
        assert sum(one.kind == "only" and "experts" in one.name for one in found.findings) == 6


# --- Megatron ---


def megatron_local(state: Values, rank: int, world: int) -> Values:
    """What a converter to Megatron writes for a rank of tensor parallelism."""
    each = HEADS // KV_HEADS
    local: Values = {}
    for layer in range(2):
        old, new = f"model.layers.{layer}", f"decoder.layers.{layer}"
        q, k, v = (state[f"{old}.self_attn.{one}_proj.weight"] for one in "qkv")
        groups = [
            q.view(KV_HEADS, each * HEAD, HIDDEN),
            k.view(KV_HEADS, HEAD, HIDDEN),
            v.view(KV_HEADS, HEAD, HIDDEN),
        ]
        qkv = torch.cat(groups, 1).reshape(-1, HIDDEN)
        gate, up = (state[f"{old}.mlp.{one}_proj.weight"] for one in ("gate", "up"))
        shards = [part(one, 0, rank, world) for one in (gate, up)]
        local |= {
            f"{new}.self_attention.linear_qkv.weight": part(qkv, 0, rank, world),
            f"{new}.self_attention.linear_qkv.layer_norm_weight": state[
                f"{old}.input_layernorm.weight"
            ],
            f"{new}.self_attention.linear_proj.weight": part(
                state[f"{old}.self_attn.o_proj.weight"], 1, rank, world
            ),
            f"{new}.mlp.linear_fc1.weight": torch.cat(shards),
            f"{new}.mlp.linear_fc1.layer_norm_weight": state[
                f"{old}.post_attention_layernorm.weight"
            ],
            f"{new}.mlp.linear_fc2.weight": part(
                state[f"{old}.mlp.down_proj.weight"], 1, rank, world
            ),
        }
    local |= {
        "embedding.word_embeddings.weight": part(
            padded(state["model.embed_tokens.weight"], 128 * world), 0, rank, world
        ),
        "output_layer.weight": part(padded(state["lm_head.weight"], 128 * world), 0, rank, world),
        "decoder.final_layernorm.weight": state["model.norm.weight"],
    }
    return local


@pytest.mark.parametrize("world", [1, 2])
def test_megatron(world: int, tmp_path: Path) -> None:
    config, state = llama(tmp_path / "hf")
    pp = write_ranks(
        tmp_path / "pp", world, lambda rank: megatron_local(state, rank, world),
        lambda rank: megatron_layout(config, rank, world),
    )  # fmt: skip
    found = compared(tmp_path / "hf", pp)
    assert (found.status, found.equal) == ("equal", 21), format_lines(found)


def test_megatron_experts_and_stages(tmp_path: Path) -> None:
    config, _ = mixture(tmp_path / "hf", "Qwen3Moe")
    state = load_file(tmp_path / "hf" / "model.safetensors")

    def local(rank: int) -> Values:
        values: Values = {
            "decoder.layers.0.mlp.router.weight": state["model.layers.0.mlp.gate.weight"]
        }
        for expert in range(2):
            name = f"model.layers.0.mlp.experts.{rank * 2 + expert}"
            gate, up, down = (state[f"{name}.{one}_proj.weight"] for one in ("gate", "up", "down"))
            values[f"decoder.layers.0.mlp.experts.linear_fc1.weight{expert}"] = torch.cat(
                [gate, up]
            )
            values[f"decoder.layers.0.mlp.experts.linear_fc2.weight{expert}"] = down
        return values

    pp = write_ranks(
        tmp_path / "pp", 2, local, lambda rank: megatron_layout(config, ep_rank=rank, ep_size=2)
    )
    found = compared(tmp_path / "hf", pp)
    assert (found.compared, found.equal) == (13, 13), format_lines(found)
    later = megatron_layout(config, first_layer=6)
    name = "decoder.layers.1.mlp.experts.local_experts.3.linear_fc2.weight"
    (cut,) = later.cuts(name, (4, 4))[1]
    assert cut.name == "model.layers.7.mlp.experts.3.down_proj.weight"


# --- transformers 5 and PEFT ---


@pytest.mark.parametrize("kind", ["Qwen3Moe", "Mixtral"])
def test_packed_experts_of_transformers(kind: str, tmp_path: Path) -> None:
    config, model = mixture(tmp_path / "hf", kind)
    assert any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters())
    passport(model, layout=packed_experts_layout(config)).save(tmp_path / "model.json")
    found = compared(tmp_path / "hf", tmp_path / "model.json")
    assert found.status == "equal", format_lines(found)
    experts = next(module for name, module in model.named_modules() if name.endswith(".experts"))
    with torch.no_grad():
        experts.down_proj[2, 1, 3] += 1
    passport(model, layout=packed_experts_layout(config)).save(tmp_path / "model.json")
    found = compared(tmp_path / "hf", tmp_path / "model.json")
    (finding,) = found.findings
    assert ".experts.2." in finding.name


def test_a_packed_checkpoint_against_one_of_experts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, model = mixture(tmp_path / "hf", "Qwen3Moe")
    torch.save(model.state_dict(), tmp_path / "packed.pt")
    words = ["passport", "diff", str(tmp_path / "packed.pt"), str(tmp_path / "hf")]
    assert main(words) == 1
    assert main([*words, "--map", "packed-experts"]) == 0


def test_peft(tmp_path: Path) -> None:
    """The base model below adapters, and the model with merged adapters."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    from transformers import LlamaForCausalLM

    llama(tmp_path / "hf")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "hf")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings)
    data = passport(adapted, layout=peft_layout())
    data.save(tmp_path / "adapted.json")
    found = compared(tmp_path / "hf", tmp_path / "adapted.json")
    assert found.status == "equal", format_lines(found)
    assert data.data.notes == [
        "left out by the layout: 8 tensors (base_model.model.model.layers.0.self_attn.q_proj."
        "lora_A.default.weight, base_model.model.model.layers.0.self_attn.q_proj.lora_B.default."
        "weight, base_model.model.model.layers.0.self_attn.v_proj.lora_A.default.weight, …)"
    ]
    adapted.merge_adapter()
    passport(adapted, layout=peft_layout()).save(tmp_path / "merged.json")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    found = compared(tmp_path / "merged", tmp_path / "merged.json")
    assert found.status == "equal", format_lines(found)
    found = compared(tmp_path / "hf", tmp_path / "merged.json")
    assert len(found.findings) == 4


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 16)
        self.body = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(self.embed(x)))
        return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Lora", {"modules_to_save": ["head"], "use_dora": True}),
        ("Lora", {"trainable_token_indices": {"embed": [1, 2]}}),
        ("LoHa", {}),
        ("LoKr", {}),
        ("OFT", {"oft_block_size": 4}),
        ("BOFT", {"boft_block_size": 4}),
        ("Vera", {}),
        ("IA3", {"feedforward_modules": []}),
        ("FourierFT", {"n_frequency": 4}),
        ("HRA", {}),
    ],
)
def test_the_base_below_adapters_of_other_kinds(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = Base()
    torch.save(base.state_dict(), tmp_path / "base.pt")
    config = getattr(peft, f"{kind}Config")(target_modules=["body"], **settings)
    adapted = peft.get_peft_model(base, config)
    passport(adapted, layout=peft_layout()).save(tmp_path / "adapted.json")
    found = compared(tmp_path / "base.pt", tmp_path / "adapted.json")
    assert (found.status, found.equal) == ("equal", 5), format_lines(found)
    passport(adapted).save(tmp_path / "all.json")
    names = ("base.pt", "all.json")
    a, b = (read_weights(str(tmp_path / name), None, peft_layout()) for name in names)
    found = compare_weights(a, b)
    assert (found.status, found.equal) == ("equal", 5), format_lines(found)
    assert any("left out by the layout" in note for note in found.notes)


@pytest.mark.slow
def test_experts_that_were_loaded_transposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Older files of Qwen3-VL have experts transposed. transformers sees that by their shapes, and
    so does not where twice the inner size is the hidden one (its issue 47031)."""
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration as Model

    torch.manual_seed(0)
    text = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "moe_intermediate_size": HIDDEN // 2, "num_hidden_layers": 2, "num_experts": 4,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
        "out_hidden_size": HIDDEN, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    model = Model(Qwen3VLMoeConfig(text_config=text, vision_config=vision))
    model.save_pretrained(tmp_path / "legacy")
    state = model.state_dict()
    legacy = {
        name: value.transpose(1, 2) if ".experts." in name else value
        for name, value in state.items()
    }
    save_file(
        {name: value.contiguous().clone() for name, value in legacy.items()},
        tmp_path / "legacy" / "model.safetensors",
    )
    loaded = Model.from_pretrained(tmp_path / "legacy", dtype=torch.float32)
    passport(loaded).save(tmp_path / "loaded.json")
    words = ["passport", str(tmp_path / "legacy"), "--map", "transposed:*.experts.*_proj"]
    assert main([*words, "-o", str(tmp_path / "legacy.json"), "--quiet"]) == 0
    passport(model).save(tmp_path / "model.json")
    found = compared(tmp_path / "model.json", tmp_path / "legacy.json")
    assert found.status == "equal", format_lines(found)

    found = compared(tmp_path / "legacy.json", tmp_path / "loaded.json")
    assert [(one.kind, one.name) for one in found.findings] == [
        ("values", f"model.language_model.layers.{layer}.mlp.experts.gate_up_proj")
        for layer in range(2)
    ]


def test_pieces_of_a_transposed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from my_utils.tensors.passport import views

    monkeypatch.setattr(views, "FILE_PIECE_BYTES", 500)
    value = torch.randn(3, 20, 37)
    save_file({"x": value}, tmp_path / "x.safetensors")
    passport({"x": value.transpose(1, 2)}).save(tmp_path / "x.json")
    layout = transposed_layout(["x"])
    a = read_weights(str(tmp_path / "x.safetensors"), None, layout)
    found = compare_weights(a, read_weights(str(tmp_path / "x.json")))
    assert found.status == "equal", format_lines(found)
    with pytest.raises(ValueError, match=r"y of shape \[3\] does not fit .* no two dimensions"):
        passport({"y": value[0, 0, :3]}, layout=transposed_layout(["y"]))


# --- several layouts ---


def packed_and_single() -> tuple[torch.Tensor, Values]:
    """The experts of a layer in one tensor (3, 2 · 6, 8), and each of them."""
    packed = torch.randn(3, 12, 8)
    parts = {"gate_proj": packed[:, :6], "up_proj": packed[:, 6:]}
    return packed, {
        f"l.mlp.experts.{expert}.{name}.weight": value[expert].clone()
        for name, value in parts.items()
        for expert in range(3)
    }


@pytest.mark.parametrize(
    "rules",
    [
        ["transposed:*gate_up_proj", "packed-experts", "base_model.model.*=*"],
        ["base_model.model.*=*", "transposed:*gate_up_proj", "packed-experts"],
        ["peft", "transposed:*gate_up_proj", "packed-experts"],
        ["transposed:*gate_up_proj", "packed-experts", "peft"],
        ["transposed:*", "transposed:*", "transposed:*gate_up_proj", "packed-experts", "peft"],
    ],
)
def test_layouts_one_after_the_other(
    rules: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, single = packed_and_single()
    name = "base_model.model.l.mlp.experts.gate_up_proj"
    adapter = {"base_model.model.x.lora_A.weight": torch.ones(2, 2)} if "peft" in rules else {}
    torch.save({name: packed.transpose(1, 2), **adapter}, tmp_path / "packed.pt")
    torch.save(single, tmp_path / "single.pt")
    words = [word for rule in rules for word in ("--map", rule)]
    files = [str(tmp_path / name) for name in ("packed.pt", "single.pt")]
    assert main(["passport", "diff", *files, *words, "--quiet"]) == 0, capsys.readouterr()
    assert "equal: 6 tensors, bit for bit" in capsys.readouterr().out


def test_what_was_cut_is_cut_and_transposed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, single = packed_and_single()
    turned = {name: value.T.contiguous() for name, value in single.items()}
    torch.save({"l.mlp.experts.gate_up_proj": packed, "e": torch.zeros(0, 4)}, tmp_path / "a.pt")
    torch.save({**turned, "e": torch.zeros(4, 0)}, tmp_path / "b.pt")
    rules = [word for rule in ("packed-experts", "transposed:*") for word in ("--map", rule)]
    for name in ("a", "b"):
        words = ["passport", str(tmp_path / f"{name}.pt"), *(rules if name == "a" else ())]
        assert main([*words, "-o", str(tmp_path / f"{name}.json"), "--quiet"]) == 0
    found = compared(tmp_path / "a.json", tmp_path / "b.json")
    assert (found.status, found.equal) == ("equal", 7), format_lines(found)


def test_a_shard_of_an_engine_whose_checkpoint_is_packed() -> None:
    """The rows that both layouts have: those of a rank of the first, in tensors of the second."""

    def rows(name: str, shape: Shape) -> Iterator[Cut]:  # the second half of 12 rows
        yield Cut("all", (12, 4), (6, 0), (0, 0), (6, 4))

    def thirds(name: str, shape: Shape) -> Iterator[Cut]:
        for number in range(3):
            yield Cut(f"third{number}", (4, 4), (0, 0), (4 * number, 0), (4, 4))

    both = combined([Layout("rows", [("*", rows)]), Layout("thirds", [("all", thirds)])])
    assert both is not None
    assert both.cuts("x", (6, 4))[1] == [
        Cut("third1", (4, 4), (2, 0), (0, 0), (2, 4)),
        Cut("third2", (4, 4), (0, 0), (2, 0), (4, 4)),
    ]


# --- wrong layouts ---


def test_a_wrong_shape_names_the_rule() -> None:
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10}
    layout = vllm_layout(config, 1, 2)
    with pytest.raises(
        ValueError,
        match=r"a.qkv_proj.weight of shape \[7, 3\] does not fit the rule \*qkv_proj.weight of the "
        r"layout vllm: 7 cannot be divided by 4",
    ):
        passport({"a.qkv_proj.weight": torch.zeros(7, 3)}, layout=layout)
    with pytest.raises(ValueError, match="tp_rank must be from 0 to before tp_size 2, not 2"):
        vllm_layout(config, 2, 2)
    with pytest.raises(ValueError, match="config must have num_attention_heads"):
        megatron_layout({})
    with pytest.raises(ValueError, match="2 cannot be divided by 4"):
        megatron_layout(config, 0, 4)

"""Times, FLOPs and parameters of the modules of a model of transformers, trained for some steps."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

import torch
from torch.utils.flop_counter import FlopCounterMode

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from my_utils.moduleProfiler import ModuleProfiler  # noqa: E402
from my_utils.profilers.torch_profiler.flops import count_flops  # noqa: E402

BATCH, LENGTH, WIDTH, WORDS, LAYERS = 4, 64, 128, 1000, 2
STEPS = 6


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Any, ModuleProfiler, Any, list[float]]]:
    model, given = gpt2(), tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with ModuleProfiler(model, backward=True, flops=True, memory=True) as profiler:
        for _ in range(STEPS):
            losses.append(step(model, given, optimizer))
    yield model, profiler, profiler.summary().set_index("module"), losses


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS,
        n_head=4,
        n_embd=WIDTH,
        vocab_size=WORDS,
        n_positions=LENGTH,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config).train()


def tokens() -> torch.Tensor:
    return torch.randint(WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def step(model: Any, given: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(input_ids=given, labels=given).loss
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_every_leaf_is_timed_forward_and_backward(trained: Any) -> None:
    model, _, rows, _ = trained
    leaves = {name for name, module in model.named_modules() if not list(module.children())}
    assert set(rows.index) == leaves
    # The first of the steps counts FLOPs. Attention drops nothing out by a module of its own.
    idle = {name for name in leaves if name.endswith("attn_dropout")}
    assert set(rows.index[rows.calls == 0]) <= idle
    busy = rows.drop(index=list(idle))
    assert set(busy.calls) == {STEPS - 1}
    with_nodes = busy[~busy.index.str.contains("drop")]
    assert set(with_nodes.backward_calls) == {STEPS - 1}
    assert rows.type["transformer.h.0.mlp.c_fc"] == "Conv1D"
    assert rows.attrs["unmatched"] == rows.attrs["abandoned"] == rows.attrs["dropped"] == 0


def test_the_training_is_what_it_is_without(trained: Any) -> None:
    model, given = gpt2(), tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert [step(model, given, optimizer) for _ in range(STEPS)] == trained[3]
    for mine, other in zip(trained[0].parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_flops_of_the_formulas_and_of_torch(trained: Any) -> None:
    model, profiler, rows, _ = trained
    places = BATCH * LENGTH
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}."
        assert rows.flops[block + "attn.c_attn"] == 2 * places * WIDTH * 3 * WIDTH
        assert rows.flops[block + "attn.c_proj"] == 2 * places * WIDTH * WIDTH
        assert rows.flops[block + "mlp.c_fc"] == 2 * places * WIDTH * 4 * WIDTH
        assert rows.flops[block + "mlp.c_proj"] == 2 * places * 4 * WIDTH * WIDTH
    assert rows.flops["lm_head"] == 2 * places * WIDTH * WORDS
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens(), labels=tokens())
    # Torch's counter knows neither norms nor sums, and attention on the CPU from 2.15 on.
    with torch.profiler.profile(record_shapes=True) as recorded, torch.no_grad():
        model(input_ids=tokens(), labels=tokens())
    found = count_flops(recorded).counted
    attention = LAYERS * 4 * places * LENGTH * WIDTH
    assert found["aten::scaled_dot_product_attention"] == attention
    products = found["aten::addmm"] + found["aten::mm"]
    assert counter.get_total_flops() in (products, products + attention)
    assert profiler.summary().attrs["model_flops"] == sum(found.values())
    norm = rows.flops["transformer.h.0.ln_1"]
    assert norm == 8 * places * WIDTH == found["aten::layer_norm"] / (2 * LAYERS + 1)
    assert rows.flops.sum() <= sum(found.values()) - attention


def test_parameters_and_memory(trained: Any) -> None:
    model, _, rows, _ = trained
    own = {
        name: sum(p.numel() for p in module.parameters()) for name, module in model.named_modules()
    }
    assert {name: int(rows.parameters[name]) for name in rows.index} == {
        name: own[name] for name in rows.index
    }
    assert rows.peak_memory_bytes["lm_head"] >= BATCH * LENGTH * WORDS * 4


def test_the_big_modules_come_first(trained: Any) -> None:
    rows = trained[2]
    assert rows.share_percent.is_monotonic_decreasing
    assert rows.share_percent.sum() == pytest.approx(100)
    whole = rows.total_ms + rows.recompute_ms + rows.backward_ms
    assert list(rows.share_percent) == pytest.approx(list(100 * whole / whole.sum()))
    assert rows.min_ms["lm_head"] > rows.min_ms["transformer.drop"], "the shortest of all steps"


def test_a_backward_as_torch_sees_it() -> None:
    model, given = gpt2(), tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, given, optimizer)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        ModuleProfiler(model, backward=True) as profiler,
        torch.profiler.profile(activities=activities) as peer,
    ):
        step(model, given, optimizer)
    rows = profiler.summary().set_index("module")
    nodes = {event.key: event.cpu_time_total / 1e3 for event in peer.key_averages()}
    # Conv1D is addmm: four a layer, which no other module makes.
    mine = rows.backward_ms[rows.type == "Conv1D"].sum()
    around = "autograd::engine::evaluate_function: "
    most = nodes[around + "AddmmBackward0"] + nodes[around + "ViewBackward0"]
    assert nodes["AddmmBackward0"] <= mine <= most


def test_checkpointed_blocks() -> None:
    model, given = gpt2(), tokens()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its next name
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModuleProfiler(model, backward=True) as profiler:
        for _ in range(2):
            step(model, given, optimizer)
    rows = profiler.summary().set_index("module")
    blocks = rows[rows.index.str.contains(r"\.h\.") & rows.type.isin(["Conv1D", "LayerNorm"])]
    assert set(blocks.calls) == set(blocks.backward_calls) == {2}
    assert set(blocks.recompute_calls) <= {0, 2} and blocks.recompute_calls.sum() >= 8
    assert rows.recompute_calls["lm_head"] == 0
    assert rows.attrs["unmatched"] == rows.attrs["abandoned"] == 0

"""The forward trace recorder on a model of transformers: outputs, tied weights, the cache."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from my_utils.module_hook import ForwardTraceRecorder  # noqa: E402

from ...conftest import RunPython  # noqa: E402
from .test_module_hook import hash_of, md5_of  # noqa: E402


def gpt2(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32, **changes
    )
    return transformers.GPT2LMHeadModel(config).eval()


def test_outputs_weights_and_order() -> None:
    model = gpt2()
    ids = torch.arange(6).reshape(2, 3)
    with torch.no_grad(), ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        result = model(input_ids=ids, labels=ids, output_hidden_states=True)
    events = {event.module: event for event in recorder.events}
    assert not [event.error for event in recorder.events if event.error]
    outputs = {meta.path: meta.hash for meta in events[""].outputs}
    assert outputs["logits"] == hash_of(result.logits) and outputs["loss"] == hash_of(result.loss)
    assert outputs["hidden_states.1"] == hash_of(result.hidden_states[1])
    inputs = {meta.path: meta.hash for meta in events[""].inputs}
    assert inputs == {"input_ids": hash_of(ids), "labels": hash_of(ids)}
    assert (
        events["transformer.h.0"].index < events["transformer.h.1"].index < events["lm_head"].index
    )
    weights = recorder.roots[0].weights
    assert {name: meta.hash for name, meta in weights.items()} == {
        name: md5_of(param) for name, param in model.named_parameters()
    }
    tied = events["lm_head"].params["weight"]
    assert tied.path == "transformer.wte.weight" and tied.hash == md5_of(model.lm_head.weight)


def test_a_training_step_with_checkpointing() -> None:
    model = gpt2().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its next name
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.arange(6).reshape(2, 3)
    with ForwardTraceRecorder(model, record_grads=True) as recorder:
        model(input_ids=ids, labels=ids).loss.backward()
    assert not recorder.snapshot().counts
    again = [event.module for event in recorder.events if event.phase == "recompute"]
    assert "transformer.h.1.ln_1" in again and "transformer.h.0.attn.c_attn" in again
    found = {meta.path: meta.hash for meta in recorder.snapshot().param_grads}
    assert found["transformer.wte.weight"] == hash_of(model.lm_head.weight.grad)


def record(folder: Path, name: str, model: Any) -> Path:
    ids = torch.arange(6).reshape(2, 3)
    with torch.no_grad(), ForwardTraceRecorder(model, sample_mode="rand") as recorder:
        model(input_ids=ids)
    return recorder.save(folder / name)


@pytest.mark.slow
def test_two_recordings_are_compared(tmp_path: Path, run_python: RunPython) -> None:
    good, bad = gpt2(), gpt2()
    bad.transformer.h[1].mlp.act = torch.nn.GELU()  # the exact one instead of tanh's
    paths = [record(tmp_path, "good.pt", good), record(tmp_path, "bad.pt", bad)]
    result = run_python("-m", "my_utils", "diverge", *map(str, paths), "--json")
    assert result.returncode == 1, result.stderr
    (rank,) = json.loads(result.stdout)["ranks"]
    assert rank["difference"]["module"] == "transformer.h.1.mlp.act"
    same = run_python("-m", "my_utils", "diverge", str(paths[0]), str(paths[0]))
    assert same.returncode == 0, same.stdout


def test_generation_with_a_cache() -> None:
    model = gpt2()
    with torch.no_grad(), ForwardTraceRecorder(model) as recorder:
        model.generate(torch.arange(3)[None], max_new_tokens=3, do_sample=False, pad_token_id=0)
    steps = [event for event in recorder.events if event.module == ""]
    assert [event.call for event in steps] == [0, 1, 2]
    assert steps[1].inputs[0].shape == (1, 1) and not recorder.snapshot().counts

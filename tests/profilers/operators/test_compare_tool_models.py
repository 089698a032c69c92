"""Faults planted into real models of transformers, found at the right operator and module, and
none found where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
import transformers
from torch import nn

from my_utils.compare_tool import CompareWithCPU, NanInfTracker, open_module_tracker
from my_utils.tensors import tensor_hash

from ...support.op_faults import Change, Fault, first_element, one_wrong_element, other_strides

pytestmark = pytest.mark.long_file

aten = torch.ops.aten
TEXT: dict[str, Any] = {"vocab_size": 32}


class Subject:
    """A model, its batch, and the names by which the log knows its parts."""

    def __init__(self, model: nn.Module, batch: dict[str, torch.Tensor], linear: str) -> None:
        self.model = model
        self.batch = batch
        self.linear = linear  # the second linear layer that runs
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-3, foreach=True
        )

    def step(self) -> None:
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def gpt2() -> Subject:
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=16, **TEXT)
    ids = torch.randint(0, 32, (2, 9))
    return Subject(transformers.GPT2LMHeadModel(config), _text(ids), "transformer.h.0.attn.c_proj")


def bert() -> Subject:
    config = transformers.BertConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=16,
        intermediate_size=32,
        max_position_embeddings=16,
        **TEXT,
    )
    batch = _text(torch.randint(0, 32, (2, 9)))
    batch["attention_mask"][1, 6:] = 0
    return Subject(
        transformers.BertForMaskedLM(config), batch, "bert.encoder.layer.0.attention.self.key"
    )


def vit() -> Subject:
    config = transformers.ViTConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=16,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        hidden_dropout_prob=0.1,
    )
    batch = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    return Subject(
        transformers.ViTForImageClassification(config), batch, "vit.layers.0.attention.k_proj"
    )


def _text(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


MODELS: dict[str, Callable[[], Subject]] = {"gpt2": gpt2, "bert": bert, "vit": vit}


@pytest.fixture(params=MODELS)
def subject(request: pytest.FixtureRequest) -> Subject:
    torch.manual_seed(0)
    return MODELS[request.param]()


def failures(subject: Subject, op: Any, change: Change, nth: int = 0) -> list[tuple[str, str]]:
    fault = Fault(op, change, nth)
    with open_module_tracker(subject.model), fault, CompareWithCPU(verbose=False) as compare:
        subject.step()
    assert fault.planted == 1 and compare.errors == 0
    return [(row.op, row.module) for row in compare.summary.rows if row.failed]


def test_clean_steps_have_no_findings_and_are_the_same(subject: Subject) -> None:
    start = {name: value.clone() for name, value in subject.model.state_dict().items()}

    def train(tool: Any) -> Any:
        torch.manual_seed(1)
        subject.model.load_state_dict(start)
        subject.optimizer.state.clear()
        with open_module_tracker(subject.model), tool:
            for _ in range(2):
                subject.step()
        return tensor_hash([*subject.model.state_dict().values(), torch.get_rng_state()])

    plain = train(CompareWithCPU(enabled=False))
    compare, tracker = CompareWithCPU(verbose=False), NanInfTracker()
    assert train(compare) == plain and train(tracker) == plain
    assert compare.summary.failed == 0 and compare.errors == 0
    assert compare.summary.passed > 300
    assert tracker.findings == [] and tracker.errors == 0


def test_one_wrong_element_in_a_linear_layer(subject: Subject) -> None:
    found = failures(subject, aten.addmm, one_wrong_element, 1)
    assert found == [("torch.ops.aten.addmm", subject.linear)]


def test_one_wrong_element_in_the_backward_pass(subject: Subject) -> None:
    ((op, module),) = failures(subject, aten.native_layer_norm_backward, _first_wrong)
    assert op == "torch.ops.aten.native_layer_norm_backward"
    last = {"GPT2LMHeadModel": "transformer.ln_f", "BertForMaskedLM": "cls.predictions.transform"}
    assert last.get(type(subject.model).__name__, "vit.layernorm") in module


def test_one_wrong_element_in_the_optimizer(subject: Subject) -> None:
    def spoil(result: Any) -> Any:
        result[3].view(-1)[0] += 1
        return result

    found = failures(subject, aten._foreach_sqrt, spoil)
    assert found == [("torch.ops.aten._foreach_sqrt", "")]


def _first_wrong(result: Any) -> Any:
    return (one_wrong_element(result[0]), *result[1:])


def test_wrong_strides(subject: Subject) -> None:
    is_gpt2 = isinstance(subject.model, transformers.GPT2LMHeadModel)
    ((_, module),) = failures(subject, aten.tanh if is_gpt2 else aten.gelu, other_strides)
    assert "h.0.mlp.act" in module or "layer.0.intermediate" in module or "layers.0.mlp" in module


def test_a_wrong_sign_of_infinity(subject: Subject) -> None:
    bias = subject.model.get_parameter(f"{subject.linear}.bias")
    bias.data[0] = math.inf
    found = failures(subject, aten.addmm, first_element(-math.inf), 1)
    assert found == [("torch.ops.aten.addmm", subject.linear)]


def test_a_wrong_random_replay(subject: Subject) -> None:
    def other_numbers(result: torch.Tensor) -> torch.Tensor:
        return result.logical_not_() if result.dtype is torch.bool else result.sub_(1).abs_()

    op = aten.bernoulli_  # what dropout draws with on the CPU
    found = failures(subject, op, other_numbers)
    assert [name for name, _ in found] == [f"torch.ops.{op}"]


def test_a_nan_in_the_backward_pass(subject: Subject) -> None:
    def spoil(result: Any) -> Any:
        return (first_element(math.nan)(result[0]), *result[1:])

    fault = Fault(aten.native_layer_norm_backward, spoil, 1)
    with open_module_tracker(subject.model), fault, NanInfTracker() as tracker:
        subject.step()
    first = tracker.first
    assert first is not None and first.role == "producer" and first is tracker.findings[0]
    assert first.op == "torch.ops.aten.native_layer_norm_backward"
    assert "(backward)" in first.title and "LayerNorm" in first.title and first.module
    assert all(found.role == "propagator" for found in tracker.findings[1:])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    subject = gpt2()
    subject.model.to(dtype)
    subject.optimizer = torch.optim.SGD(subject.model.parameters(), lr=1e-4)
    with CompareWithCPU(verbose=False) as compare:
        subject.step()
    assert compare.summary.failed == 0 and compare.errors == 0
    found = failures(subject, aten.addmm, one_wrong_element, 1)
    assert found == [("torch.ops.aten.addmm", subject.linear)]

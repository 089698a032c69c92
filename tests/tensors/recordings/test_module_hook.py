"""The forward trace recorder: what it notes of each call, against facts taken by hand."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import io
import itertools
import pickle
import random
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from my_utils import tensors
from my_utils.module_hook import ForwardTraceRecorder, TraceEvent
from my_utils.tensors.diverge import compare_recordings
from my_utils.tensors.recordings.sample import Sampler, random_places


def md5_of(tensor: Any) -> str:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return hashlib.md5(plain.view(torch.uint8).numpy().tobytes()).hexdigest()


def hash_of(tensor: Any) -> str:
    digest: str = tensors.tensor_hash(tensor.detach()).content
    return digest


def named(recorder: ForwardTraceRecorder, phase: str = "forward") -> dict[str, TraceEvent]:
    """The last event of each module."""
    return {event.module: event for event in recorder.events if event.phase == phase}


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.second(self.act(self.first(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# --- use ---


def test_the_usage_that_users_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(OrderedDict(attn=nn.Linear(4, 4), norm=nn.LayerNorm(4), mlp=Block()))
    x = torch.randn(2, 4)

    rec = ForwardTraceRecorder(
        model,
        name="forward_trace",
        record_inputs=False,
        record_outputs=True,
        include_name_regex="attn|mlp",
        sample_mode="head",
        sample_max_elems=10000,
    )
    rec.install()
    _ = model(x)
    rec.remove()
    rec.save("forward_trace.pt", extra={"note": "single step"})

    payload = torch.load("forward_trace.pt", weights_only=True)
    assert payload["extra"] == {"note": "single step"} and payload["name"] == "forward_trace"
    modules = [event["module"] for event in payload["events"]]
    assert modules == ["attn", "mlp", "mlp.first", "mlp.act", "mlp.second"]
    assert all(event["inputs"] == [] for event in payload["events"])
    expected = model[0](x).detach().reshape(-1)
    assert torch.equal(payload["events"][0]["outputs"][0]["sample"], expected)


def test_order_nesting_and_call_numbers() -> None:
    model = Net()
    with ForwardTraceRecorder(model) as recorder:
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))
    events = recorder.events
    block = ["blocks.0", "blocks.0.first", "blocks.0.act", "blocks.0.second"]
    other = [name.replace("0", "1") for name in block]
    assert [event.module for event in events] == ["", *block, *other, "head"] * 2
    assert [event.call for event in events] == [0] * 10 + [1] * 10
    assert [event.root for event in events] == [0] * 10 + [1] * 10
    assert [event.index for event in events] == list(range(20))
    ended = sorted(events[:10], key=lambda event: event.end_index)
    assert [event.module for event in ended] == [
        *block[1:], block[0], *other[1:], other[0], "head", ""
    ]  # fmt: skip
    assert [event.parent for event in events[:6]] == [-1, 0, 1, 1, 1, 0]
    assert [event.depth for event in events[:6]] == [0, 1, 2, 2, 2, 1]
    assert {event.status for event in events} == {"ok"} and events[1].type == "Block"


def test_filters() -> None:
    def recorded(**options: Any) -> list[str]:
        model = Net()
        with ForwardTraceRecorder(model, **options) as recorder:
            model(torch.ones(1, 4))
        return [event.module for event in recorder.events]

    assert recorded(include_name_regex=r"first$", exclude_name_regex="1") == ["blocks.0.first"]
    assert recorded(include_types=nn.ReLU) == ["blocks.0.act", "blocks.1.act"]
    assert recorded(include_types="ReLU") == ["blocks.0.act", "blocks.1.act"]
    assert recorded(include_types=["Block", nn.ReLU], exclude_name_regex="1") == [
        "blocks.0",
        "blocks.0.act",
    ]
    assert recorded(exclude_types=(nn.Linear, "torch.nn.modules.activation.ReLU")) == [
        "",
        "blocks.0",
        "blocks.1",
    ]
    assert recorded(include_name_regex="nothing") == []


def test_parents_skip_what_is_left_out() -> None:
    model = Net()
    with ForwardTraceRecorder(model, exclude_types=Block) as recorder:
        model(torch.ones(1, 4))
    assert {event.parent for event in recorder.events[1:]} == {0}
    assert {event.depth for event in recorder.events[1:]} == {1}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"sample_mode": "tail"}, ValueError, "sample_mode must be one of 'none', 'head', 'rand'"),
        ({"hash": "crc"}, ValueError, "hash must be one of"),
        ({"compiled": True}, ValueError, "compiled must be one of"),
        ({"params_at": "x"}, ValueError, "params_at must be one of"),
        ({"sample_max_elems": 0}, ValueError, "sample_max_elems must be at least 1"),
        ({"sample_max_elems": 1.5}, TypeError, "sample_max_elems must be an int"),
        ({"max_pending_bytes": "1"}, TypeError, "max_pending_bytes must be an int"),
        ({"record_inputs": 1}, TypeError, "record_inputs must be a bool"),
        ({"include_name_regex": "("}, ValueError, "include_name_regex is not a regular expression"),
        ({"exclude_name_regex": 3}, TypeError, "exclude_name_regex must be a str"),
        ({"include_types": [3]}, TypeError, "include_types must hold classes"),
        ({"record_param_md5": True, "record_param_hash": True}, ValueError, "choose one"),
        ({"name": 3}, TypeError, "name must be a str"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ForwardTraceRecorder(nn.Linear(1, 1), **options)


def test_a_model_that_is_none() -> None:
    with pytest.raises(TypeError, match="model must be a torch"):
        ForwardTraceRecorder([1])  # type: ignore[arg-type]


def test_events_are_complete_when_they_are_read() -> None:
    model, seen = Net(), []
    with ForwardTraceRecorder(model) as recorder:
        handle = model.blocks[0].register_forward_hook(lambda *_: seen.append(recorder.events))
        model(torch.ones(1, 4))
        first = recorder.events
        handle.remove()
        model(torch.ones(1, 4))
    (begun,) = seen
    assert begun[0] is first[0] and len(begun) < len(first) == len(recorder.events) / 2
    for event in first:
        assert type(event) is TraceEvent and event.status == "ok" and event.end_index >= 0
        assert len(event.inputs) == len(event.outputs) == 1 and event.grads == []
    assert pickle.loads(pickle.dumps(first)) == first


def test_pause_takes_the_hooks_off() -> None:
    model = Net()
    recorder = ForwardTraceRecorder(model).install()
    model(torch.ones(1, 4))
    recorder.pause()
    assert not recorder.recording and recorder.installed
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    model(torch.ones(1, 4))
    recorder.resume()
    model(torch.ones(1, 4))
    recorder.remove()
    assert len(recorder.roots) == 2
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(module._forward_hooks_always_called for module in model.modules())


def test_clear_begins_anew() -> None:
    model = Net()
    with ForwardTraceRecorder(model) as recorder:
        model(torch.ones(1, 4))
        recorder.clear()
        model(torch.ones(1, 4))
    assert [event.index for event in recorder.events] == list(range(10))
    assert {event.call for event in recorder.events} == {0} and len(recorder.roots) == 1


def test_misuse_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    from my_utils.core import warnings as _warnings

    for kind in ("forward_trace_installed", "forward_trace_empty", "forward_trace_resume"):
        _warnings.forget(kind)
    recorder = ForwardTraceRecorder(nn.Linear(1, 1))
    recorder.remove()
    recorder.resume()
    recorder.install().install()
    recorder.remove()
    assert "not installed" in caplog.text and "installed already" in caplog.text
    assert "before it saw any call" in caplog.text


# --- digests ---


@pytest.mark.parametrize(("kind", "oracle"), [("tensor", hash_of), ("md5", md5_of)])
def test_digests_are_of_the_values_at_the_time_of_the_call(kind: Any, oracle: Any) -> None:
    """ReLU(inplace) changes both what it takes and what the layer before gave."""
    model = Net()
    seen: dict[tuple[str, str], str] = {}

    def before(name: str) -> Any:
        return lambda module, args: seen.__setitem__((name, "in"), oracle(args[0]))

    def after(name: str) -> Any:
        return lambda module, args, output: seen.__setitem__((name, "out"), oracle(output))

    handles = [
        handle
        for name, module in model.named_modules()
        for handle in (
            module.register_forward_pre_hook(before(name)),
            module.register_forward_hook(after(name)),
        )
    ]
    with ForwardTraceRecorder(model, hash=kind, max_pending_bytes=300) as recorder:
        x = torch.randn(3, 4)
        model(x)
        x.zero_()
    for handle in handles:
        handle.remove()
    for event in recorder.events:
        assert event.inputs[0].hash == seen[event.module, "in"]
        assert event.outputs[0].hash == seen[event.module, "out"]
        assert event.inputs[0].hash_kind == kind
    first, act = named(recorder)["blocks.0.first"], named(recorder)["blocks.0.act"]
    assert first.outputs[0].hash == act.inputs[0].hash != act.outputs[0].hash


@pytest.mark.parametrize("max_pending_bytes", [0, 40, 1000, 1 << 20])
def test_md5_through_any_arena(max_pending_bytes: int) -> None:
    class Many(nn.Module):
        def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(tensor.t() if tensor.dim() == 2 else tensor for tensor in given)

    given = [
        torch.randn(7, 5),
        torch.randn(6, 8).t(),
        torch.tensor(3.0),
        torch.empty(0, 3),
        torch.randn(4).to(torch.bfloat16),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(8).to(torch.float8_e4m3fn),
        torch.ones(2, 3).expand(4, 2, 3),
        torch.tensor([True, False]),
    ]
    model = Many()
    with ForwardTraceRecorder(model, hash="md5", max_pending_bytes=max_pending_bytes) as recorder:
        outputs = model(*given)
    (event,) = recorder.events
    assert [meta.hash for meta in event.inputs] == [md5_of(tensor) for tensor in given]
    assert [meta.hash for meta in event.outputs] == [md5_of(tensor) for tensor in outputs]


def test_no_hash_and_statistics() -> None:
    model = nn.ReLU()
    x = torch.tensor([[1.0, -2.0], [float("nan"), float("inf")]])
    with ForwardTraceRecorder(model, hash="none", stats=True) as recorder:
        model(x)
    meta = recorder.events[0].inputs[0]
    assert meta.hash is None and meta.stats is not None
    assert (meta.stats["min"], meta.stats["max"], meta.stats["mean"]) == (-2.0, 1.0, -0.5)
    assert (meta.stats["nans"], meta.stats["pos_infs"], meta.stats["first_nan"]) == (1, 1, 2)


def test_the_form_of_tensors() -> None:
    x = torch.zeros(2, 3, 4, dtype=torch.float16).transpose(0, 2).requires_grad_()
    with ForwardTraceRecorder(nn.Identity()) as recorder:
        recorder.model(x)
    meta = recorder.events[0].inputs[0]
    assert (meta.shape, meta.stride, meta.dtype, meta.device) == (
        (4, 3, 2), (1, 4, 12), "float16", "cpu",
    )  # fmt: skip
    assert meta.requires_grad and meta.layout == "strided" and meta.note is None


def test_buffers_are_those_before_the_call() -> None:
    model = nn.BatchNorm1d(3)
    before = {name: md5_of(buffer) for name, buffer in model.named_buffers()}
    with ForwardTraceRecorder(
        model, record_buffer_md5=True, record_buffer_dtypes=True, record_param_dtypes=True
    ) as recorder:
        model(torch.randn(5, 3))
        between = {name: md5_of(buffer) for name, buffer in model.named_buffers()}
        model(torch.randn(5, 3))
    first, second = recorder.events
    assert {name: meta.hash for name, meta in first.buffers.items()} == before
    assert {name: meta.hash for name, meta in second.buffers.items()} == between != before
    assert first.buffer_dtypes["num_batches_tracked"] == "int64"
    assert first.param_dtypes == {"weight": "float32", "bias": "float32"}


# --- arguments and results ---

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    states: list[torch.Tensor]
    step: int


class ModelOutput(OrderedDict[str, Any]):
    """As in transformers: a dict whose items are attributes, too."""


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, *, mask: Any = None, **more: Any) -> Any:
        return ModelOutput(
            logits=x + 1,
            pair=Pair(x + 2, (x + 3, None)),
            result=Result(x + 4, [x + 5, x + 6], 7),
            named={"a": {"b": x + 8}, 3: x + 9},
        )


def test_keywords_and_nested_results() -> None:
    model = Nested()
    x, mask = torch.zeros(2), torch.ones(3)
    with ForwardTraceRecorder(model, stats=False, sample_mode="head") as recorder:
        model(x, mask=mask, scale=0.5, mode="mean", cache=object(), flags=[True, None])
    (event,) = recorder.events
    assert [meta.path for meta in event.inputs] == ["0", "mask"]
    assert event.input_values == {
        "scale": 0.5, "mode": "mean", "cache": "<object>", "flags.0": True, "flags.1": None,
    }  # fmt: skip
    expected = {
        "logits": 1, "pair.left": 2, "pair.right.0": 3, "result.loss": 4, "result.states.0": 5,
        "result.states.1": 6, "named.a.b": 8, "named.3": 9,
    }  # fmt: skip
    assert {
        meta.path: meta.sample[0].item() for meta in event.outputs if meta.sample is not None
    } == {path: float(value) for path, value in expected.items()}
    assert event.output_values == {"pair.right.1": None, "result.step": 7}


def test_a_container_that_holds_itself() -> None:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    with ForwardTraceRecorder(nn.Identity(), hash="none") as recorder:
        recorder.model(loop)
    assert 1 < len(recorder.events[0].inputs) < 100


def test_tensors_without_plain_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    sparse = torch.eye(3).to_sparse()
    rows = torch.eye(3).to_sparse_csr()
    fake = FakeTensorMode().from_tensor(torch.ones(2))
    meta = torch.empty(2, 2, device="meta")
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    plain = torch.ones(2)
    with ForwardTraceRecorder(nn.Identity(), record_outputs=False) as recorder:
        recorder.model([sparse, rows, fake, meta, quantized, plain])
    (event,) = recorder.events
    assert event.error is None
    found = {entry.path: entry for entry in event.inputs}
    assert found["0.0"].layout == "sparse_coo" and found["0.0"].hash is None
    assert found["0.0.values"].hash == hash_of(sparse._values())
    assert found["0.0.indices"].hash == hash_of(sparse._indices())
    assert found["0.1.col_indices"].hash == hash_of(rows.col_indices())
    for path, word in (("0.2", "fake"), ("0.3", "meta"), ("0.4", "quantized")):
        note = found[path].note
        assert found[path].hash is None and note is not None and word in note.lower()
    assert found["0.3"].shape == (2, 2) and found["0.3"].device == "meta"
    assert found["0.5"].hash == hash_of(plain)


def freed(left: int = 0) -> torch.Tensor:
    """As sharded parameters and offloaded activations are between their uses."""
    tensor = torch.ones(200, 200)
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.parametrize(
    "options",
    [
        {"hash": "md5"},
        {"sample_mode": "head"},
        {"sample_mode": "head", "sample_max_elems": None},
        {"sample_mode": "rand", "sample_max_elems": 3},
    ],
)
def test_what_torch_cannot_copy_has_a_note(options: Any, tmp_path: Path) -> None:
    whole = torch.quantize_per_tensor(torch.ones(20, 4), 0.1, 0, torch.quint8)
    scales, zeros = torch.ones(4), torch.zeros(4, dtype=torch.int64)
    channels = torch.quantize_per_channel(torch.ones(20, 4), scales, zeros, 1, torch.qint8)
    plain = torch.ones(2)
    with ForwardTraceRecorder(nn.Identity(), record_outputs=False, **options) as recorder:
        recorder.model([freed(), freed(400), whole, channels, plain])
    recorder.save(tmp_path / "trace.pt")
    (event,) = ForwardTraceRecorder.load(tmp_path / "trace.pt").events
    assert event.error is None
    *odd, last = event.inputs
    for meta, word in zip(odd, ("freed", "cut", "quantized", "quantized"), strict=True):
        assert meta.hash is None and meta.sample is None and word in str(meta.note)
    assert last.note is None and last.hash is not None


class Unused(nn.Module):
    """Its weight is in no calculation: torch would end the process."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(freed())
        self.bias = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


def test_parameters_that_are_freed_have_a_note() -> None:
    with ForwardTraceRecorder(Unused(), record_param_md5=True) as recorder:
        recorder.model(torch.ones(3))
    weights = recorder.roots[0].weights
    assert "freed" in str(weights["weight"].note) and weights["weight"].hash is None
    assert weights["bias"].hash == md5_of(recorder.model.bias)
    assert recorder.snapshot().counts == {}


@pytest.mark.parametrize("dtype", ["uint4", "int3"])
@pytest.mark.parametrize("mode", ["head", "rand"])
def test_samples_of_types_of_less_than_a_byte_are_bytes(
    mode: Any, dtype: str, tmp_path: Path
) -> None:
    packed = torch.arange(100, dtype=torch.uint8)
    with ForwardTraceRecorder(nn.Identity(), sample_mode=mode, sample_max_elems=3) as recorder:
        recorder.model(packed.view(getattr(torch, dtype)))
    recorder.save(tmp_path / "trace.pt")
    (event,) = ForwardTraceRecorder.load(tmp_path / "trace.pt").events
    expected = Sampler(mode, 3).take(packed)
    sample = event.outputs[0].sample
    assert sample is not None and expected is not None
    assert sample.tolist() == expected.tolist() and sample.dtype == torch.uint8


def test_transforms_of_torch_func() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    params: dict[str, torch.Tensor] = dict(model.named_parameters())

    def loss(given: dict[str, torch.Tensor]) -> Any:
        return torch.func.functional_call(model, given, (torch.ones(2, 3),)).sum()

    options: dict[str, Any] = {
        "hash": "md5", "record_param_md5": True, "stats": True, "sample_mode": "rand",
    }  # fmt: skip
    with ForwardTraceRecorder(model, **options) as recorder:
        expected = torch.func.vmap(model)(torch.ones(4, 3))
        grads = torch.func.grad(loss)(params)
    assert torch.equal(expected, model(torch.ones(4, 3))) and grads["0.bias"].tolist() == [2.0] * 3
    for event in recorder.events:
        assert event.error is None
        for meta in event.outputs:
            assert meta.hash is None and meta.sample is None and "vmap" in str(meta.note)


def test_what_torch_traces_is_not_recorded() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    model = Net()
    plain = str(make_fx(model)(torch.ones(1, 4)).graph)
    with ForwardTraceRecorder(model, hash="md5", sample_mode="head", stats=True) as recorder:
        assert str(make_fx(model)(torch.ones(1, 4)).graph) == plain
        assert recorder.events == []
        exported = torch.export.export(model, (torch.ones(1, 4),))
        assert recorder.events == [] and "copy_" not in str(exported.graph)
        traced = torch.jit.trace(model, torch.ones(1, 4), check_trace=False)
        assert recorder.events == [] and "aten::copy_" not in str(traced.inlined_graph)
        model(torch.ones(1, 4))
    assert len(recorder.events) == 10


# --- sharing, exceptions, modes ---


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.decoder = self.encoder
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.decoder(self.encoder(self.embed(x))))


def test_shared_modules_and_parameters() -> None:
    model = Shared()
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        model(torch.tensor([1, 2]))
    names = [event.module for event in recorder.events]
    assert names == ["", "embed", "encoder", "encoder", "head"]
    assert [event.call for event in recorder.events] == [0, 0, 0, 1, 0]
    info = {module.name: module for module in recorder.snapshot().modules}
    assert info["encoder"].aliases == ["decoder"] and "decoder" not in info
    assert info["head"].params == {"weight": "embed.weight"}
    assert sorted(recorder.roots[0].weights) == ["embed.weight", "encoder.bias", "encoder.weight"]
    tied = named(recorder)["head"].params["weight"]
    assert tied.hash == md5_of(model.embed.weight)
    assert tied is named(recorder)["embed"].params["weight"]


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        raise KeyError("no such thing")


def test_exceptions_are_noted_and_go_on() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Fails()), nn.ReLU())
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        with pytest.raises(KeyError, match="no such thing"):
            model(torch.ones(1, 2))
        model[1] = nn.Identity()
        model(torch.ones(1, 2))
    status = [(event.module, event.status) for event in recorder.events]
    assert status == [
        ("", "raised"), ("0", "ok"), ("1", "raised"), ("1.0", "raised"),
        ("", "ok"), ("0", "ok"), ("2", "ok"),
    ]  # fmt: skip
    assert recorder.events[3].exception == "KeyError: 'no such thing'"
    assert recorder.events[4].parent == -1 and recorder.roots[0].status == "raised"
    assert recorder.roots[0].weights["0.weight"].hash == md5_of(model[0].weight)


def test_none_given_while_an_exception_is_handled_is_no_exception() -> None:
    class Gives(nn.Module):
        def forward(self) -> None:
            return None

    with ForwardTraceRecorder(Gives()) as recorder:
        try:
            raise ValueError
        except ValueError:
            recorder.model()
    assert recorder.events[0].status == "ok"
    assert recorder.events[0].output_values == {"": None}


def test_a_call_that_was_interrupted_stays_open() -> None:
    class Interrupts(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(2, 2), Interrupts())
    with ForwardTraceRecorder(model) as recorder:
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 2))
        model[1].forward = lambda x: x
        model(torch.ones(1, 2))
    assert [event.status for event in recorder.events] == ["open", "ok", "open", "ok", "ok", "ok"]
    assert [event.depth for event in recorder.events] == [0, 1, 1, 0, 1, 1]
    assert len(recorder.roots) == 2 and recorder.roots[0].status == "open"


def test_an_interrupted_call_of_a_part_leaves_the_later_ones_whole() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, interrupt: bool) -> Any:
            if interrupt:
                raise KeyboardInterrupt
            return self.fc(x)

    model = nn.ModuleDict({"part": Part()})
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        for interrupt in (True, False, False):
            with contextlib.suppress(KeyboardInterrupt):
                model["part"](torch.ones(1, 2), interrupt)
    assert [(e.module, e.root, e.depth) for e in recorder.events] == [
        ("part", 0, 0), ("part", 1, 0), ("part.fc", 1, 1), ("part", 2, 0), ("part.fc", 2, 1)
    ]  # fmt: skip
    assert [root.status for root in recorder.roots] == ["open", "ok", "ok"]
    weight = md5_of(model.get_parameter("part.fc.weight"))
    assert [recorder.events[place].params["weight"].hash for place in (2, 4)] == [weight, weight]


class Recursive(nn.Module):
    """Calls itself, and scales what it gives in its outermost call."""

    def __init__(self, factor: float = 1.0, error: type[BaseException] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.factor, self.error = nn.Linear(2, 2), factor, error

    def forward(self, x: torch.Tensor, depth: int = 0) -> Any:
        x = self.fc(x)
        if depth == 1 and self.error is not None:
            raise self.error
        if depth < 2:
            with contextlib.suppress(ValueError, KeyboardInterrupt):
                x = self(x, depth + 1)
        return x * self.factor if depth == 0 else x


def test_a_module_that_calls_itself() -> None:
    recordings = []
    for factor in (1.0, 2.0):
        model = Recursive(factor)
        with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
            y = model(torch.ones(1, 2))
        recordings.append(recorder.snapshot())
    assert [(e.module, e.parent, e.depth, e.status) for e in recorder.events] == [
        ("", -1, 0, "ok"), ("fc", 0, 1, "ok"), ("", 0, 1, "ok"), ("fc", 2, 2, "ok"),
        ("", 2, 2, "ok"), ("fc", 4, 3, "ok"),
    ]  # fmt: skip
    assert recorder.events[0].outputs[0].hash == hash_of(y)
    assert [root.status for root in recorder.roots] == ["ok"]
    assert recorder.roots[0].weights["fc.weight"].hash == md5_of(model.fc.weight)
    assert compare_recordings(*recordings).status == "different"


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "open"), (ValueError, "raised")])
def test_a_module_that_calls_itself_and_fails_inside(
    error: type[BaseException], status: str
) -> None:
    model = Recursive(error=error)
    with ForwardTraceRecorder(model) as recorder:
        y = model(torch.ones(1, 2))
    assert [(e.module, e.status) for e in recorder.events] == [
        ("", "ok"), ("fc", "ok"), ("", status), ("fc", "ok")
    ]  # fmt: skip
    assert recorder.events[0].outputs[0].hash == hash_of(y)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["tensor", "md5"])
def test_without_gradients(mode: Any, kind: Any) -> None:
    model = Net()
    recorder = ForwardTraceRecorder(
        model, hash=kind, record_param_md5=True, record_grads=True, max_pending_bytes=200
    )
    with mode(), recorder:
        expected = md5_of(model(torch.ones(1, 4)))
    recorder.install()
    model(torch.ones(1, 4))
    recorder.remove()
    assert not recorder.events[0].grad_enabled and recorder.events[10].grad_enabled
    assert all(event.error is None for event in recorder.events)
    if kind == "md5":
        assert recorder.events[0].outputs[0].hash == expected
    assert recorder.events[0].outputs[0].hash == recorder.events[10].outputs[0].hash


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(checkpoint(self.block, x, use_reentrant=reentrant))

    model = Checkpointed()
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    names = ["block", "block.first", "block.act", "block.second"]
    forward = [event for event in recorder.events if event.phase == "forward"]
    again = [event for event in recorder.events if event.phase == "recompute"]
    assert [event.module for event in forward] == ["", *names, "head"] * 2
    assert [event.call for event in forward] == [0] * 6 + [1] * 6
    assert [event.module for event in again] == names * 2
    assert [event.call for event in again] == [0] * 4 + [1] * 4
    if not reentrant:
        assert again[0].status == "stopped" and again[3].status == "stopped"
        assert again[1].status == "ok"
    assert again[1].outputs[0].hash == named(recorder)["block.first"].outputs[0].hash
    assert all(event.params == {} for event in again)
    roots = [root for root in recorder.roots if root.phase == "recompute"]
    assert len(roots) == 2 and all(not root.weights for root in roots)


def test_calls_in_several_threads() -> None:
    model = Net()
    with ForwardTraceRecorder(model, hash="md5", record_param_md5=True) as recorder:
        threads = [
            threading.Thread(target=lambda: [model(torch.ones(1, 4)) for _ in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = recorder.events
    assert len(events) == 4 * 20 * 10 and len(recorder.roots) == 80
    assert sorted(event.end_index for event in events) == list(range(800))
    assert {event.depth for event in events if event.module == "head"} == {1}
    assert len({event.outputs[0].hash for event in events if event.module == ""}) == 1
    for event in events:
        assert event.parent == -1 or events[event.parent].root == event.root


def test_copies_of_a_hooked_model_record_nothing() -> None:
    model = Net()
    with ForwardTraceRecorder(model) as recorder:
        copied = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        buffer = io.BytesIO()
        torch.save(model, buffer)
        x = torch.ones(1, 4)
        assert torch.equal(copied(x), loaded(x))
        assert recorder.events == []
        model(x)
    assert len(recorder.events) == 10


# --- parameters ---


def test_md5_of_parameters() -> None:
    model = Net()
    with ForwardTraceRecorder(model, record_param_md5=True, hash="none") as recorder:
        model(torch.ones(1, 4))
        first = {name: md5_of(param) for name, param in model.named_parameters()}
        with torch.no_grad():
            model.head.weight.add_(1)
        model(torch.ones(1, 4))
        second = {name: md5_of(param) for name, param in model.named_parameters()}
    roots = recorder.roots
    assert {name: meta.hash for name, meta in roots[0].weights.items()} == first
    assert {name: meta.hash for name, meta in roots[1].weights.items()} == second
    for event in recorder.events:
        expected = first if event.root == 0 else second
        prefix = f"{event.module}." if event.module else ""
        for local, meta in event.params.items():
            assert meta.hash == expected[prefix + local]
    assert set(recorder.events[-1].params) == {"weight", "bias"}


def test_parameters_that_no_hook_sees() -> None:
    """MultiheadAttention uses out_proj's parameters without calling it."""
    model = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True))
    model.forward = lambda x: model[0](x, x, x)  # type: ignore[method-assign]
    for options in ({"record_param_md5": True}, {"record_param_md5": True, "params_at": "call"}):
        with ForwardTraceRecorder(model, **options) as recorder:
            model(torch.ones(1, 2, 4))
        weights = recorder.roots[0].weights
        assert "0.out_proj" not in [event.module for event in recorder.events]
        assert {name: meta.hash for name, meta in weights.items()} == {
            name: md5_of(param) for name, param in model.named_parameters()
        }


def test_the_weights_of_what_the_filters_let_pass_only() -> None:
    model = Net()
    with ForwardTraceRecorder(
        model, include_name_regex=r"^blocks\.1$", record_param_md5=True
    ) as recorder:
        model(torch.ones(1, 4))
    assert sorted(recorder.roots[0].weights) == [
        f"blocks.1.{name}"
        for name in ("first.bias", "first.weight", "second.bias", "second.weight")
    ]


def test_a_submodule_that_is_called_alone_is_a_root() -> None:
    model = Net()
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        model.blocks[0](torch.ones(1, 4))
    assert recorder.roots[0].module == "blocks.0"
    assert len(recorder.roots[0].weights) == 4
    assert all(meta.hash for meta in recorder.roots[0].weights.values())


class Writes(nn.Module):
    """Changes its weight after it was used, in a way of which autograd may know nothing."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner = nn.Linear(300, 3, bias=False)
        self.other = nn.Linear(3, 3)
        self.way = way

    def forward(self, x: torch.Tensor) -> Any:
        result = self.inner(x)
        weight = self.inner.weight
        if self.way == "in place":
            with torch.no_grad():
                weight.mul_(2)
        elif self.way == "data":
            weight.data.mul_(2)
        elif self.way == "numpy":
            array = weight.detach().numpy()
            np.multiply(array, 2, out=array)
        elif self.way == "pointer":
            weight.data = weight.data * 2
        elif self.way == "replace":
            self.inner.weight = nn.Parameter(weight.detach() * 2)
        return self.other(result)


WAYS = ["in place", "data", "numpy", "pointer"]


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_that_changes_during_the_call(way: str) -> None:
    model = Writes(way)
    with torch.no_grad(), ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        model(torch.ones(1, 300))
    changed = named(recorder)["inner"].params["weight"]
    assert changed.changed and changed.hash is None and "changed" in str(changed.note)
    assert recorder.roots[0].weights["inner.weight"].changed
    same = named(recorder)["other"].params["weight"]
    assert not same.changed and same.hash == md5_of(model.other.weight)


@pytest.mark.parametrize("way", [*WAYS, "replace"])
@pytest.mark.parametrize("option", ["record_param_md5", "record_param_hash"])
def test_params_at_call_have_the_values_of_the_call(way: str, option: str) -> None:
    model = Writes(way)
    oracle = md5_of if option == "record_param_md5" else hash_of
    before = oracle(model.inner.weight)
    with (
        torch.no_grad(),
        ForwardTraceRecorder(model, params_at="call", **{option: True}) as recorder,  # type: ignore[arg-type]
    ):
        model(torch.ones(1, 300))
        between = oracle(model.inner.weight)
        model(torch.ones(1, 300))
    hashes = [event.params["weight"].hash for event in recorder.events if event.module == "inner"]
    assert hashes == [before, between] and before != between
    assert oracle(model.inner.weight) not in hashes


def test_a_parameter_that_changes_between_two_calls_in_one_root() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            x = self.inner(x)
            self.inner.weight.data.add_(1)
            return self.inner(x)

    model = Twice()
    with torch.no_grad(), ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        model(torch.ones(1, 3))
    first, second = (event.params["weight"] for event in recorder.events[1:])
    assert first.changed and first.hash is None
    assert not second.changed and second.hash == md5_of(model.inner.weight)


# --- gradients ---


@pytest.mark.parametrize("kind", ["tensor", "md5"])
def test_gradients(kind: Any) -> None:
    oracle = hash_of if kind == "tensor" else md5_of
    model = Net()  # with ReLU(inplace=True), at which hooks of whole modules fail
    kept: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            output.register_hook(lambda grad: kept.__setitem__(name, grad.clone()))

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    with ForwardTraceRecorder(model, record_grads=True, hash=kind) as recorder:
        model(torch.randn(2, 4)).square().sum().backward()
    for handle in handles:
        handle.remove()
    for event in recorder.events:
        grads = {meta.path: meta.hash for meta in event.grads}
        assert grads["outputs"] == oracle(kept[event.module]), event.module
    inputs = {meta.path: meta.hash for meta in named(recorder)["head"].grads}
    assert inputs["inputs.0"] == oracle(kept["blocks.1"])
    found = {meta.path: meta.hash for meta in recorder.snapshot().param_grads}
    expected = {name: oracle(param.grad) for name, param in model.named_parameters()}
    assert found == expected


def test_gradient_hooks_do_not_stay() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    with ForwardTraceRecorder(model, record_grads=True) as recorder:
        model(x).sum().backward()
    assert len(recorder.events[0].grads) == 2
    model(x).sum().backward()
    assert len(recorder.events[0].grads) == 2 and not x._backward_hooks


def test_pause_takes_the_hooks_of_gradients_off() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    recorder = ForwardTraceRecorder(model, record_grads=True).start()

    def step() -> tuple[int, int]:
        model(x).sum().backward()
        return len(recorder.snapshot().param_grads), sum(len(e.grads) for e in recorder.events)

    assert step() == (2, 2)
    recorder.pause()
    assert step() == (2, 2) and not x._backward_hooks
    for count in (4, 6):
        recorder.pause()
        recorder.resume()
        assert step() == (count, count)
    recorder.stop()


def test_a_leaf_brings_gradients_to_the_calls_of_its_step_only() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    with ForwardTraceRecorder(model, record_grads=True) as recorder:
        for _ in range(3):
            model(x).sum().backward()
        (model(x) + model(x)).sum().backward()  # both calls before the only backward
        first = recorder.events[:5]
        recorder.clear()
        model(x).sum().backward()
        paths = [[meta.path for meta in event.grads] for event in [*first, *recorder.events]]
    assert paths == [["outputs", "inputs.0"]] * 6


def test_recording_does_not_change_results() -> None:
    def train(record: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(Net(), nn.Dropout(0.5), nn.BatchNorm1d(2))
        options: dict[str, Any] = {
            "record_grads": True, "record_param_md5": True, "record_buffer_md5": True,
            "hash": "md5", "sample_mode": "rand", "sample_max_elems": 3,
        }  # fmt: skip
        recorder = ForwardTraceRecorder(model, **options)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            if record:
                recorder.install()
            loss = model(torch.randn(6, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.remove()
        return [param.detach() for param in model.parameters()]

    for plain, recorded in zip(train(False), train(True), strict=True):
        assert torch.equal(plain, recorded)


# --- samples ---


def generator_states() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        numpy_state[1].tolist(),  # type: ignore[index]
        numpy_state[2],  # type: ignore[index]
    )


def test_no_random_generator_is_touched() -> None:
    model = Net()
    before = generator_states()
    with ForwardTraceRecorder(
        model, sample_mode="rand", sample_max_elems=2, hash="md5", stats=True, record_param_md5=True
    ) as recorder:
        model(torch.ones(5, 4))
    assert recorder.events[0].outputs[0].sample is not None
    assert generator_states() == before


def places_in_plain_python(elements: int, wanted: int, seed: int) -> list[int]:
    def mixed(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    edges = [i * elements // wanted for i in range(wanted + 1)]
    start = mixed(seed % 2**64) + mixed(elements)
    return [
        low + mixed((start + i * 0x9E3779B97F4A7C15) % 2**64) % (high - low)
        for i, (low, high) in enumerate(itertools.pairwise(edges))
    ]


def test_random_samples_are_the_same_in_each_run() -> None:
    assert random_places(1000, 5, 0).tolist() == [83, 288, 422, 741, 939]
    for case in ((1000, 5, 1), (2**40, 3, -1), (7, 7, 2**70), (12345, 678, 9)):
        assert random_places(*case).tolist() == places_in_plain_python(*case)


def test_random_places_are_spread_and_different() -> None:
    for elements, wanted in ((10, 9), (1000, 999), (12345, 100), (2**45 + 3, 1000)):
        places = random_places(elements, wanted, 3).tolist()
        assert len(set(places)) == wanted and places == sorted(places)
        assert places[0] >= 0 and places[-1] < elements
        gaps = np.diff(places)
        assert gaps.max() <= 2 * (elements // wanted + 1)


DTYPES = [
    torch.bool, torch.uint8, torch.int16, torch.uint32, torch.int64, torch.uint64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["head", "rand"])
def test_samples_of_any_dtype_and_strides(dtype: torch.dtype, mode: Any) -> None:
    whole = torch.arange(60).reshape(5, 12).to(torch.float32).to(dtype)
    places = list(range(7)) if mode == "head" else random_places(30, 7, 5).tolist()
    for view in (whole.t()[::2], whole[:, ::2]):
        sample = Sampler(mode, 7, seed=5).take(view)
        assert sample is not None and sample.dtype == dtype and sample.shape == (7,)
        expected = view.contiguous().reshape(-1).to(torch.complex128)[places]
        assert torch.equal(sample.to(torch.complex128), expected)


@pytest.mark.parametrize("mode", ["head", "rand"])
def test_samples_of_conjugated_and_small_tensors(mode: Any) -> None:
    def taken(x: torch.Tensor, wanted: int | None) -> torch.Tensor:
        sample = Sampler(mode, wanted, seed=2).take(x)
        assert sample is not None
        return sample

    x = torch.randn(6, dtype=torch.complex64).conj()
    places = list(range(4)) if mode == "head" else random_places(6, 4, 2).tolist()
    assert torch.equal(taken(x, 4), x.resolve_conj()[places])
    assert taken(torch.tensor(3.0), 10).tolist() == [3.0]
    assert taken(torch.ones(2, 2), None).tolist() == [1.0] * 4
    assert taken(torch.ones(0, 2), 4).tolist() == []


# --- trouble ---


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("not now")


class GivesHostile(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Hostile(a=x)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    from my_utils.core import warnings as _warnings

    _warnings.forget("forward_trace_hook")
    yield caplog
    _warnings.forget("forward_trace_hook")


def test_an_error_in_a_hook_does_not_reach_the_training(
    warned: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with ForwardTraceRecorder(GivesHostile()) as recorder:
        for _ in range(3):
            assert set(recorder.model(torch.ones(1))) == {"a"}
    assert [event.error for event in recorder.events] == ["RuntimeError: not now"] * 3
    assert recorder.events[0].inputs[0].hash is not None
    assert warned.text.count("not now") == 1
    again = ForwardTraceRecorder.load(recorder.save(tmp_path / "a.pt"))
    assert again.counts == {"hook_errors": 3} and again.events[0].error == "RuntimeError: not now"


@pytest.mark.parametrize("kind", ["md5", "hash"])
@pytest.mark.parametrize("script", [False, True])
def test_modules_of_torch_jit_are_left_alone(script: bool, kind: str) -> None:
    linear = nn.Linear(2, 2)
    scripted = torch.jit.script(linear) if script else torch.jit.trace(linear, torch.ones(1, 2))
    model = nn.Sequential(scripted, nn.ReLU())
    options: dict[str, Any] = {f"record_param_{kind}": True}
    with ForwardTraceRecorder(model, **options) as recorder:
        expected = model(torch.ones(1, 2))
    assert expected.shape == (1, 2)
    assert {"", "1"} <= {event.module for event in recorder.events}
    weights = {name: meta.hash for name, meta in recorder.roots[0].weights.items()}
    oracle = md5_of if kind == "md5" else hash_of
    assert weights == {"0.weight": oracle(linear.weight), "0.bias": oracle(linear.bias)}


def test_lazy_modules() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        model(torch.ones(1, 2))
    assert named(recorder)["0"].params["weight"].hash == md5_of(model[0].weight)


def test_gradients_of_lazy_modules_are_said_to_be_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with ForwardTraceRecorder(model, record_grads=True) as recorder:
        model(torch.ones(1, 2)).sum().backward()
    assert {meta.path for meta in recorder.snapshot().param_grads} == {"1.weight", "1.bias"}
    assert "the gradients of 0.weight are not recorded: it is lazy" in caplog.text


# --- files ---


def test_a_file_with_everything(tmp_path: Path) -> None:
    model = nn.Sequential(Net(), nn.BatchNorm1d(2))
    with ForwardTraceRecorder(
        model,
        name="all",
        record_param_md5=True,
        record_buffer_hash=True,
        record_param_dtypes=True,
        record_grads=True,
        stats=True,
        sample_mode="rand",
        sample_max_elems=3,
        include_types=(nn.Module,),
    ) as recorder:
        model(torch.randn(3, 4)).sum().backward()
    path = recorder.save(tmp_path / "rank{rank}.pt", extra={"step": 3})
    assert path == tmp_path / "rank0.pt"
    again = recorder.load(path)
    assert repr(again.events) == repr(recorder.events)
    assert repr(again.roots) == repr(recorder.roots)
    assert again.extra == {"step": 3} and again.name == "all" and again.world_size == 1
    assert again.settings["sample_mode"] == "rand" and again.settings["seed"] == 0
    assert again.param_grads and again.torch == torch.__version__


def test_the_rank_of_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with ForwardTraceRecorder(nn.ReLU()) as recorder:
        recorder.model(torch.ones(1))
    path = recorder.save(tmp_path / "{rank}.pt")
    assert path.name == "3.pt"
    assert (recorder.load(path).rank, recorder.load(path).world_size) == (3, 8)


def test_rows_that_wait_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """How they are kept and fetched; the CPU stands for the device here."""
    from my_utils.tensors import torch_ops as _torch_ops
    from my_utils.tensors.recordings import metadata as recorder_facts

    monkeypatch.setattr(recorder_facts, "_ROWS", 4)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    _torch_ops.register()
    rows = recorder_facts._DeviceRows()
    for count in (10, 4, 1):
        given = [torch.randn(i + 1) for i in range(count)]
        metas = [recorder_facts.describe_tensor(str(i), x) for i, x in enumerate(given)]
        for meta, x in zip(metas, given, strict=True):
            rows.add_hash(meta, x)
            rows.add_stats(meta, x)
        rows.flush()
        assert [meta.hash for meta in metas] == [hash_of(x) for x in given]
        for meta, x in zip(metas, given, strict=True):
            assert meta.stats is not None and meta.stats["max"] == x.max().item()
            assert meta.stats["count"] == x.numel() and meta.stats["first_nan"] == -1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["tensor", "md5"])
def test_on_a_gpu(kind: Any) -> None:
    model = Net().cuda()
    with ForwardTraceRecorder(
        model, hash=kind, stats=True, sample_mode="rand", sample_max_elems=3, record_param_md5=True
    ) as recorder:
        x = torch.randn(3, 4).cuda()
        model(x)
    oracle = hash_of if kind == "tensor" else md5_of
    event = recorder.events[0]
    assert event.inputs[0].hash == oracle(x.cpu()) and event.inputs[0].device == "cuda:0"
    assert event.inputs[0].stats is not None and event.inputs[0].stats["count"] == 12
    sample = event.inputs[0].sample
    assert sample is not None and torch.equal(sample, x.cpu().reshape(-1)[random_places(12, 3, 0)])
    assert recorder.roots[0].weights["head.weight"].hash == md5_of(model.head.weight)


@pytest.mark.gpu
def test_hooks_on_a_gpu_do_not_wait() -> None:
    model = Net().cuda()
    with ForwardTraceRecorder(
        model, stats=True, sample_mode="rand", sample_max_elems=3
    ) as recorder:
        model(torch.ones(3, 4).cuda())  # what is made once a shape or a device
        x = torch.ones(3, 4).cuda()
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert all(event.error is None for event in recorder.events)


# --- parameters of others ---


def test_parameters_of_others() -> None:
    model = Net()
    recorder = ForwardTraceRecorder(
        model, include_module_types=(nn.Linear,), exclude_module_types=None, sample_mode="rand",
        sample_max_elems=3, sample_seed=5, cast_float32=False, save_stats_only=False,
        max_modules=None, verbose=False, record_param_dtypes_each_call=True,
        record_buffer_dtypes_each_call=True, record_param_md5_each_call=True,
        record_buffer_md5_each_call=True, record_param_md5_per_param=True,
        record_buffer_md5_per_buffer=True,
    )  # type: ignore[call-arg]  # fmt: skip
    settings = recorder.snapshot().settings
    assert settings["include_types"] == [str(nn.Linear)] and settings["seed"] == 5
    for name in ("param_dtypes", "buffer_dtypes", "param_md5", "buffer_md5"):
        assert settings[f"record_{name}"] is True


@pytest.mark.parametrize(
    "given, message",
    [
        ({"cast_float32": True}, "takes only cast_float32=False"),
        ({"save_stats_only": True}, "sample_mode='none' keeps no values, stats=True figures"),
        ({"max_modules": 3}, "include_name_regex and include_types choose modules"),
        ({"verbose": True}, r"snapshot\(\).modules"),
        ({"record_param_md5_per_param": False}, "takes only record_param_md5_per_param=True"),
        ({"sample_seed": 1, "seed": 1}, "got seed and sample_seed, which are the same"),
    ],
)
def test_parameters_of_others_say_what_to_use(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ForwardTraceRecorder(Net(), **given)

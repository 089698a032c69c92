"""The first place where two recordings part: on recordings made by hand, then on real models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

from my_utils.module_hook import ModuleInfo, Recording, RootCall, TraceEvent, TraceTensorMeta
from my_utils.tensors import diverge
from my_utils.tensors.diverge.align import align, pair_up
from my_utils.tensors.diverge.ranks import join_ranks
from my_utils.tensors.diverge.text import render
from my_utils.tensors.recordings.recording import save_recording
from my_utils.tensors.wrapper_names import plain_name

from ...support.schemas import loads_checked


def meta(path: str, digest: str | None, **more: Any) -> TraceTensorMeta:
    settings: dict[str, Any] = {"shape": (4, 8), "dtype": "float32", "device": "cpu"} | more
    return TraceTensorMeta(path, hash=digest, hash_kind="tensor" if digest else None, **settings)


def event(
    index: int,
    module: str,
    x: str | None,
    y: str | None,
    *,
    end: int | None = None,
    parent: int = -1,
    weight: str | None = None,
    **more: Any,
) -> TraceEvent:
    """A call with one input, one output and one weight, by their digests."""
    return TraceEvent(
        index=index,
        module=module,
        type="Linear",
        end_index=index if end is None else end,
        parent=parent,
        depth=0 if parent < 0 else 1,
        root=more.pop("root", 0),
        inputs=[meta("0", x)] if x else [],
        outputs=[meta("", y)] if y else [],
        params={"weight": meta("weight", weight)} if weight else {},
        **more,
    )


def run(*events: TraceEvent, **more: Any) -> Recording:
    roots = sorted({item.root for item in events})
    return Recording(
        name="run", roots=[RootCall(root, events[0].module) for root in roots],
        events=list(events), **more,
    )  # fmt: skip


def chain(digests: str, **more: Any) -> Recording:
    """A model of three layers; `digests` are of x, after each layer, and the model's result."""
    x, a, b, c = list(digests[:4])
    result = digests[4:5] or c
    return run(
        event(0, "", x, result, end=3),
        event(1, "in", x, a, end=0, parent=0),
        event(2, "mid", a, b, end=1, parent=0),
        event(3, "out", b, c, end=2, parent=0),
        **more,
    )


def with_gradients(digest: str) -> Recording:
    """The backward of `mid` gives other gradients to its input and to its weight."""
    recording = chain("1234")
    outer, before, mid, last = recording.events
    last.grads = [meta("outputs", "s", arrived=0), meta("inputs.0", "t", arrived=1)]
    mid.grads = [meta("outputs", "t", arrived=2), meta("inputs.0", digest, arrived=4)]
    before.grads = [meta("outputs", digest, arrived=5), meta("inputs.0", digest * 2, arrived=7)]
    outer.grads = [meta("outputs", "s", arrived=0), meta("inputs.0", digest * 2, arrived=8)]
    names = ("mid.weight", "in.weight")
    recording.param_grads = [
        meta(name, digest, arrived=3 * (place + 1)) for place, name in enumerate(names)
    ]
    recording.modules = [
        ModuleInfo(name, "Linear", params={"weight": f"{name}.weight"})
        for name in ("in", "mid", "out")
    ]
    return recording


def first(report: diverge.RankReport) -> tuple[str, str]:
    assert report.difference is not None
    assert report.difference.call is not None
    return report.difference.cause.value, report.difference.call.name


class TestCauses:
    def test_the_same(self) -> None:
        report = diverge.compare_recordings(chain("1234"), chain("1234"))
        assert (report.status, report.reason, report.difference) == ("same", "", None)
        assert len(report.checks) == 4

    def test_another_result_from_the_same_inputs_names_the_innermost_module(self) -> None:
        report = diverge.compare_recordings(chain("1234"), chain("12cd"))
        assert first(report) == ("result", "mid")

    def test_other_inputs_of_the_model(self) -> None:
        report = diverge.compare_recordings(chain("1234"), chain("abcd"))
        assert first(report) == ("inputs", "")

    def test_other_weights_are_told_from_another_result(self) -> None:
        runs = [run(event(0, "fc", "1", y, weight=w)) for y, w in (("2", "w"), ("3", "v"))]
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("weights", "fc")
        assert "weight (other bits)" in report.difference.text  # type: ignore[union-attr]

    def test_weights_of_a_module_that_is_never_called(self) -> None:
        runs = []
        for y, digest in (("2", "aa"), ("3", "bb")):
            recording = run(event(0, "attn", "1", y))
            recording.roots[0].weights = {"attn.out_proj.weight": meta("w", digest)}
            runs.append(recording)
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("weights", "attn")
        assert "out_proj.weight" in report.difference.text  # type: ignore[union-attr]

    def test_the_code_between_two_modules(self) -> None:
        other = chain("1234")
        other.events[2].inputs = [meta("0", "ff")]
        other.events[2].outputs = [meta("", "fe")]
        report = diverge.compare_recordings(chain("1234"), other)
        assert first(report) == ("between", "")
        text = report.difference.text  # type: ignore[union-attr]
        assert "the code of the model (Linear) itself, after in and before it calls mid" in text

    def test_the_mode(self) -> None:
        runs = [run(event(0, "drop", "1", y, training=t)) for y, t in (("2", True), ("3", False))]
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("settings", "drop")
        assert "training mode in A, evaluation mode in B" in report.difference.text  # type: ignore[union-attr]

    def test_an_argument_that_is_no_tensor(self) -> None:
        runs = [
            run(event(0, "fc", "1", y, input_values={"scale": s}))
            for y, s in (("2", 0.5), ("3", 0.25))
        ]
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("settings", "fc")
        assert "argument scale is 0.5 in A, 0.25 in B" in report.difference.text  # type: ignore[union-attr]

    def test_an_exception_in_one_run(self) -> None:
        broken = run(event(0, "fc", "1", None, status="raised", exception="ValueError: no"))
        report = diverge.compare_recordings(run(event(0, "fc", "1", "2")), broken)
        assert first(report) == ("exception", "fc")
        assert "raised in B only: ValueError: no" in report.difference.text  # type: ignore[union-attr]

    def test_weights_that_changed_nothing(self) -> None:
        runs = [run(event(0, "fc", "1", "2", weight=w)) for w in ("w", "v")]
        assert first(diverge.compare_recordings(*runs)) == ("weights", "fc")

    def test_gradients_of_parameters(self) -> None:
        runs = [chain("1234"), chain("1234")]
        for recording, digest in zip(runs, ("a", "b"), strict=True):
            recording.param_grads = [meta("out.weight", "s"), meta("in.weight", digest)]
        report = diverge.compare_recordings(*runs)
        assert report.difference is not None
        assert report.difference.cause is diverge.Cause.UNDECIDED
        assert "in.weight" in report.difference.text

    def test_the_first_gradient_in_backward_order_and_a_parameter_of_that_call(self) -> None:
        runs = [with_gradients(digest) for digest in "ab"]
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("gradients", "mid")
        assert "arose in its backward" in report.difference.text  # type: ignore[union-attr]

    def test_gradients_that_two_places_can_have_made_are_not_decided(self) -> None:
        runs = [with_gradients(digest) for digest in "ab"]
        for recording in runs:
            recording.param_grads = []
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("not decided", "")
        text = report.difference.text  # type: ignore[union-attr]
        assert (
            "at an input of mid (Linear); that arose in the backward of it, or of the code" in text
        )

    def test_gradients_of_runs_of_other_numbers_of_ranks_are_not_compared(self) -> None:
        runs = [with_gradients(digest) for digest in "ab"]
        runs[1].world_size = 2
        report = diverge.compare_recordings(*runs)
        assert report.status == "same"
        assert "means of local batches" in report.reason

    def test_a_shard_is_not_compared_with_the_whole(self) -> None:
        runs = [chain("1234"), chain("1234")]
        runs[0].param_grads = [meta("in.weight", "aa", shape=(4, 8))]
        shard = {"shape": (2, 8), "placements": "(Shard(dim=0),)", "global_shape": (4, 8)}
        runs[1].param_grads = [meta("in.weight", "bb", **shard)]
        assert diverge.compare_recordings(*runs).status == "same"

    def test_the_own_weight_of_a_module_around_others(self) -> None:
        runs = [chain("1234"), chain("1ab4")]
        for recording, digest in zip(runs, ("aa", "bb"), strict=True):
            recording.events[2].inputs = [meta("0", digest)]
            recording.events[0].params = {"token": meta("token", digest)}
            recording.roots[0].weights = {
                "token": meta("token", digest), "out.weight": meta("out.weight", digest)
            }  # fmt: skip
        runs[1].events[1].outputs = runs[0].events[1].outputs
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("weights", "")
        text = report.difference.text  # type: ignore[union-attr]
        assert text.startswith("different weights before the call: token (other bits); it shows in")

    def test_what_is_given_first_goes_before_what_comes_out_later(self) -> None:
        runs = [chain("1234"), chain("1234")]
        runs[1].events[2].inputs = [meta("0", "ff")]
        runs[1].events[2].outputs = [meta("", "fe")]
        for recording, digest in zip(runs, ("w", "v"), strict=True):
            recording.events[2].params = {"weight": meta("weight", digest)}
        assert first(diverge.compare_recordings(*runs)) == ("between", "")

    def test_another_class(self) -> None:
        runs = [run(event(0, "act", "1", "2")), run(event(0, "act", "1", "3"))]
        runs[0].events[0].type, runs[1].events[0].type = "ReLU", "FSDPGELU"
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("class", "act")
        assert "another class: ReLU in A, GELU in B" in report.difference.text  # type: ignore[union-attr]

    def test_the_mode_of_code_between_two_calls(self) -> None:
        runs = [chain("1234"), chain("1234")]
        runs[1].events[2].inputs = [meta("0", "ff")]
        runs[1].events[2].outputs = [meta("", "fe")]
        runs[0].events[0].training = True
        assert first(diverge.compare_recordings(*runs)) == ("settings", "")

    def test_an_input_that_was_written_to_in_place(self) -> None:
        runs = [chain("1234"), chain("1234")]
        runs[1].events[2].written = [meta("0", "ff")]
        runs[1].events[3].inputs = [meta("0", "fe")]
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("result", "mid")
        assert report.difference.evidence[0].path == "input 0"  # type: ignore[union-attr]

    def test_inputs_that_cannot_be_compared_decide_nothing(self) -> None:
        runs = [chain("1234"), chain("12cd")]
        for recording in runs:
            recording.events[2].inputs = [meta("0", None, note="a fake tensor has no memory")]
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("not decided", "")
        assert "mid (Linear) gives the first result that differs" in report.difference.text  # type: ignore[union-attr]

    def test_a_hint_for_dropout(self) -> None:
        runs = [chain("1234"), chain("12cd")]
        for recording in runs:
            for item in recording.events:
                item.type, item.training = "Dropout", True
        assert "seeds" in diverge.compare_recordings(*runs).difference.text  # type: ignore[union-attr]


class TestAlignment:
    @pytest.mark.parametrize(
        "name",
        ["module.h.0", "_orig_mod.h.0", "module._orig_mod.h.0", "h._fsdp_wrapped_module.0", "h.0"],
    )
    def test_what_wrappers_add(self, name: str) -> None:
        assert plain_name(name) == "h.0"

    def test_a_wrapped_model_beside_a_plain_one(self) -> None:
        wrapped = run(
            event(0, "", "1", "4", end=3),
            event(1, "module", "1", "4", end=2, parent=0),
            event(2, "module.in", "1", "2", end=0, parent=1),
            event(3, "module.out", "2", "f", end=1, parent=1),
        )
        plain = run(
            event(0, "", "1", "4", end=2),
            event(1, "in", "1", "2", end=0, parent=0),
            event(2, "out", "2", "4", end=1, parent=0),
        )
        report = diverge.compare_recordings(plain, wrapped)
        assert (report.only_a, report.only_b, len(report.checks)) == (0, 0, 3)
        assert first(report) == ("result", "out")
        assert first(diverge.compare_recordings(wrapped, plain)) == ("result", "out")

    def test_a_model_inside_a_larger_one(self) -> None:
        larger = run(event(0, "net.in", "1", "2"), event(1, "net.out", "2", "f"))
        report = diverge.compare_recordings(
            run(event(0, "in", "1", "2"), event(1, "out", "2", "3")), larger
        )
        assert first(report) == ("result", "out")

    @pytest.mark.parametrize(("digests", "found"), [("1234", None), ("12cd", ("result", "mid"))])
    def test_a_part_of_a_larger_model_with_weights_of_its_own(
        self, digests: str, found: tuple[str, str] | None
    ) -> None:
        part, larger = chain("1234"), chain(digests)
        part.roots[0].weights = {"mid.weight": meta("mid.weight", "w")}
        for item in larger.events:
            item.index, item.end_index = item.index + 2, item.end_index + 1
            item.parent, item.depth = (
                max(item.parent, 0) + 1 if item.parent >= 0 else 0,
                item.depth + 1,
            )
            item.module = f"net.{item.module}" if item.module else "net"
        larger.events[0].parent = 0
        for item in larger.events[1:]:
            item.parent = 2
        outer = event(0, "", "x", "y", end=5)
        larger.events = [outer, event(1, "pre", "x", "1", end=0, parent=0), *larger.events]
        larger.roots[0].weights = {
            "pre.weight": meta("pre.weight", "p"), "net.mid.weight": meta("net.mid.weight", "w"),
        }  # fmt: skip
        report = diverge.compare_recordings(part, larger)
        assert report.status == ("same" if found is None else "different")
        assert found is None or first(report) == found

    @pytest.mark.parametrize(("digests", "found"), [("1234", None), ("12cd", ("result", "mid"))])
    def test_a_renamed_module(self, digests: str, found: tuple[str, str] | None) -> None:
        runs = [chain("1234"), chain(digests)]
        runs[1].events[2].module = "middle"
        for recording, name in zip(runs, ("mid", "middle"), strict=True):
            recording.roots[0].weights = {f"{name}.weight": meta(f"{name}.weight", "w")}
        report = diverge.compare_recordings(*runs)
        assert report.renamed == {"middle": "mid"}
        assert report.status == ("same" if found is None else "different")
        assert found is None or first(report) == found

    def test_models_that_have_no_module_in_common(self) -> None:
        a = run(event(0, "", "1", "2", end=1), event(1, "fc", "1", "2", end=0, parent=0))
        b = run(event(0, "", "1", "3", end=1), event(1, "conv", "1", "3", end=0, parent=0))
        b.events[0].type, b.events[1].type = "Other", "Conv1d"
        report = diverge.compare_recordings(a, b)
        assert (report.status, report.only_a, report.only_b) == ("not comparable", 2, 2)

    def test_a_part_of_a_larger_model_of_which_a_module_was_renamed(self) -> None:
        part = run(
            event(0, "", "1", "3", end=2), event(1, "body.fc", "1", "2", end=0, parent=0),
            event(2, "head", "2", "3", end=1, parent=0),
        )  # fmt: skip
        larger = run(
            event(0, "", "x", "y", end=3), event(1, "net", "1", "9", end=2, parent=0),
            event(2, "net.trunk.fc", "1", "8", end=0, parent=1),
            event(3, "net.head", "8", "9", end=1, parent=1),
        )  # fmt: skip
        larger.events[0].type = "Larger"
        report = diverge.compare_recordings(part, larger)
        assert report.renamed == {"trunk.fc": "body.fc"}
        assert first(report) == ("result", "body.fc")

    def test_calls_from_a_graph_whose_parents_were_recorded_before_what_is_in_them(self) -> None:
        graph = chain("12cd")
        for item in graph.events:
            item.compiled, item.training = item.index > 0, False
        graph.events[0].end_index = 0  # hooks saw the end of the model before the graph was read
        for place, item in enumerate(graph.events[1:]):
            item.end_index = place + 1
        assert first(diverge.compare_recordings(chain("1234"), graph)) == ("result", "mid")
        assert first(diverge.compare_recordings(graph, chain("1234"))) == ("result", "mid")

    def test_an_extra_call_at_the_beginning(self) -> None:
        several = run(*(event(i, "", d, d.upper(), root=i) for i, d in enumerate("xabc")))
        fewer = run(*(event(i, "", d, d.upper(), root=i) for i, d in enumerate("abc")))
        report = diverge.compare_recordings(several, fewer)
        assert (report.status, report.only_a, report.only_b) == ("same", 1, 0)
        assert "1 calls are in one recording only" in report.reason

    def test_an_extra_call_of_a_module_in_the_middle(self) -> None:
        a = run(*(event(i, "fc", d, d.upper()) for i, d in enumerate("abcd")))
        b = run(*(event(i, "fc", d, d.upper()) for i, d in enumerate("abxcd")))
        found = align(a, b)
        assert len(found.pairs) == 4
        assert (found.only_a, [call.event.index for call in found.only_b]) == ([], [2])

    def test_recomputed_calls_are_left_out(self) -> None:
        again = chain("1234")
        again.events.append(event(4, "mid", "9", "8", end=4, phase="recompute"))
        report = diverge.compare_recordings(chain("1234"), again)
        assert (report.status, report.only_b) == ("same", 0)

    def test_nothing_in_common(self) -> None:
        other = run(event(0, "c.d", "1", "2"))
        other.events[0].type = "Conv1d"
        report = diverge.compare_recordings(run(event(0, "a.b", "1", "2")), other)
        assert report.status == "not comparable"

    def test_sequences_of_other_keys_are_paired_in_order(self) -> None:
        assert pair_up("ab", "xyz") == [(0, 0), (1, 1), (None, 2)]


def with_samples(values: list[float], dtype: torch.dtype = torch.float32) -> Recording:
    recording = run(event(0, "fc", "1", "2"))
    name = str(dtype).removeprefix("torch.")
    digest = f"{name} {values}"
    sample = torch.tensor(values).to(dtype)
    recording.events[0].outputs = [
        meta("", digest, shape=(len(values),), dtype=name, sample=sample)
    ]
    return recording


class TestFigures:
    def test_of_a_sample(self) -> None:
        report = diverge.compare_recordings(
            with_samples([3.0, 4.0, 0.0]), with_samples([3.0, 4.0, 0.5])
        )
        figures = report.difference.evidence[0].figures  # type: ignore[union-attr]
        assert figures is not None
        assert figures.max_abs == 0.5
        assert figures.rel_l2 == pytest.approx(0.5 / math.hypot(3, 4, 0.5))

    def test_a_nan_is_no_distance_of_nought(self) -> None:
        report = diverge.compare_recordings(
            with_samples([3.0, 4.0]), with_samples([math.nan, math.nan])
        )
        figures = report.difference.evidence[0].figures  # type: ignore[union-attr]
        assert figures is not None
        assert math.isnan(figures.max_abs or 0) and math.isnan(figures.rel_l2 or 0)
        assert figures.nans == (0, 2)

    def test_a_tolerance_lets_it_pass(self) -> None:
        runs = with_samples([3.0, 4.0]), with_samples([3.0, 4.001])
        assert diverge.compare_recordings(*runs).status == "different"
        assert diverge.compare_recordings(*runs, rtol=1e-3).status == "same"
        assert diverge.compare_recordings(*runs, atol=1e-4).status == "different"

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
    def test_another_dtype_is_compared_by_value(self, dtype: torch.dtype) -> None:
        report = diverge.compare_recordings(
            with_samples([1.01, -2.02, 30.3]), with_samples([1.01, -2.02, 30.3], dtype)
        )
        assert report.status == "same"
        report = diverge.compare_recordings(
            with_samples([1.01, -2.02, 30.3]), with_samples([1.01, 2.02, 30.3], dtype)
        )
        assert first(report) == ("result", "fc")

    def test_another_dtype_without_values_is_not_known(self) -> None:
        runs = with_samples([1.0]), with_samples([1.0], torch.bfloat16)
        for recording in runs:
            recording.events[0].outputs[0].sample = None
            recording.events[0].inputs = []
        report = diverge.compare_recordings(*runs)
        assert report.status == "not comparable"
        assert "float32 in A, bfloat16 in B" in report.reason

    def test_samples_of_other_places_are_not_compared(self) -> None:
        runs = with_samples([1.0, 2.0]), with_samples([2.0, 1.0])
        runs[0].settings, runs[1].settings = {"seed": 1}, {"seed": 2}
        report = diverge.compare_recordings(*runs, rtol=10.0)
        assert report.status == "different"
        assert report.difference.evidence[0].figures is None  # type: ignore[union-attr]

    def test_another_shape_is_a_difference(self) -> None:
        runs = [run(event(0, "fc", "1", "2")), run(event(0, "fc", "1", "3"))]
        runs[1].events[0].outputs[0].shape = (4, 9)
        assert first(diverge.compare_recordings(*runs)) == ("result", "fc")

    def test_a_reshaped_tensor_is_the_same(self) -> None:
        runs = [run(event(0, "fc", "1", "2")), run(event(0, "fc", "1", "2"))]
        runs[1].events[0].outputs[0].shape = (1, 32)
        assert diverge.compare_recordings(*runs).status == "same"

    @pytest.mark.parametrize("bad", [True, None, "recording.json"])
    def test_what_is_no_recording(self, bad: Any) -> None:
        """As `ForwardTraceRecorder.recording`, which is a bool."""
        with pytest.raises(TypeError, match=f"first must be a Recording, .* not {bad!r}"):
            diverge.compare_recordings(bad, bad)

    @pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
    def test_tolerances_that_are_none(self, bad: float) -> None:
        with pytest.raises(ValueError, match="rtol must be"):
            diverge.compare_recordings(chain("1234"), chain("1234"), rtol=bad)


def statistics(values: torch.Tensor) -> dict[str, float | int]:
    data = values.double()
    return {
        "count": values.numel(), "finite": values.numel(),
        "min": data.min().item(), "max": data.max().item(), "mean": data.mean().item(),
        "std": data.std().item(), "l1": data.abs().sum().item(), "l2": data.norm().item(),
        "abs_max": data.abs().max().item(), "zeros": int((data == 0).sum()),
        "nans": 0, "pos_infs": 0, "neg_infs": 0, "first_nan": -1, "first_inf": -1,
    }  # fmt: skip


def of_batch(batch: torch.Tensor, rank: int, world_size: int, factor: float = 2.0) -> Recording:
    """One call of a layer that multiplies by `factor`, with statistics."""
    result = batch * factor
    recording = run(event(0, "fc", "x", "y", weight="w"), rank=rank, world_size=world_size)
    for metas, values in (
        (recording.events[0].inputs, batch),
        (recording.events[0].outputs, result),
    ):
        metas[0].shape = tuple(values.shape)
        metas[0].hash = repr(values.tolist())
        metas[0].stats = statistics(values)
    return recording


class TestRanks:
    def test_statistics_of_parts_are_those_of_the_whole(self) -> None:
        torch.manual_seed(0)
        batch = torch.randn(12, 5) * 3 + 100
        parts = [of_batch(part, rank, 3) for rank, part in enumerate(batch.split(4))]
        joined = join_ranks(parts).events[0].inputs[0]
        assert joined.shape == (12, 5)
        assert joined.stats is not None
        expected = statistics(batch)
        for name, value in joined.stats.items():
            assert value == pytest.approx(expected[name], rel=1e-12), name

    def test_one_rank_beside_two(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        batch = torch.randn(4, 8)
        for rank, part in enumerate(batch.split(2)):
            save_recording(of_batch(part, rank, 2), tmp_path / f"two/rank_{rank}.pt")
            save_recording(of_batch(part, rank, 2, 2.5), tmp_path / f"wrong/rank_{rank}.pt")
        save_recording(of_batch(batch, 0, 1), tmp_path / "one.pt")
        report = diverge.compare_files(tmp_path / "one.pt", tmp_path / "two")
        assert (report.status, len(report.ranks)) == ("same", 1)
        report = diverge.compare_files(tmp_path / "wrong", tmp_path / "one.pt")
        assert report.status == "different"
        assert first(report.ranks[0]) == ("result", "fc")

    def test_directories_rank_by_rank(self, tmp_path: Path) -> None:
        for rank in range(3):
            save_recording(chain("1234", rank=rank, world_size=3), tmp_path / f"a/{rank}.pt")
            digests = "1234" if rank != 1 else "1d34"
            save_recording(chain(digests, rank=rank, world_size=3), tmp_path / f"b/{rank}.pt")
        (tmp_path / "b/notes.pt").write_bytes(b"no recording")
        report = diverge.compare_files(tmp_path / "a", tmp_path / "b")
        assert [rank.status for rank in report.ranks] == ["same", "different", "same"]
        assert report.first is not None
        assert report.first.rank == 1
        assert any("notes.pt" in note for note in report.notes)

    @pytest.mark.parametrize(
        ("wrong", "end"),
        [({1}, "on rank 1"), ({0, 2}, "on ranks 0,2"), ({0, 1, 2}, "on ranks 0-2")],
    )
    def test_the_last_line_names_all_ranks_that_differ(
        self, tmp_path: Path, wrong: set[int], end: str
    ) -> None:
        for rank in range(3):
            save_recording(chain("1234", rank=rank, world_size=3), tmp_path / f"a/{rank}.pt")
            digests = "1d34" if rank in wrong else "1234"
            save_recording(chain(digests, rank=rank, world_size=3), tmp_path / f"b/{rank}.pt")
        text = render(diverge.compare_files(tmp_path / "a", tmp_path / "b"))
        assert text.splitlines()[-1] == f"the runs differ {end}"

    def test_what_recordings_say_steers_no_terminal(self, tmp_path: Path) -> None:
        odd = chain("1234")
        odd.name = odd.torch = "a\x1b[2Jb\r"
        save_recording(odd, tmp_path / "a.pt")
        save_recording(chain("1d34"), tmp_path / "b.pt")
        text = render(diverge.compare_files(tmp_path / "a.pt", tmp_path / "b.pt"))
        assert r"a\x1b[2Jb\r" in text
        assert all(line.isprintable() for line in text.splitlines())

    def test_two_files_of_one_rank(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            save_recording(chain("1234"), tmp_path / f"{name}.pt")
        with pytest.raises(ValueError, match="a second recording of rank 0"):
            diverge.compare_files(tmp_path, tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    def write(*recordings: Recording) -> list[str]:
        return [
            str(save_recording(recording, tmp_path / f"{place}.pt"))
            for place, recording in enumerate(recordings)
        ]

    return write


class TestCommandLine:
    def test_same(
        self, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert diverge.main(files(chain("1234"), chain("1234"))) == 0
        assert capsys.readouterr().out.endswith("no difference\n")

    def test_different(
        self, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert diverge.main(files(chain("1234"), chain("12cd"))) == 1
        text = capsys.readouterr().out
        assert "first difference: mid (Linear), call 0" in text
        assert "different result from the same inputs" in text
        rows = text.split("how the difference grows")[1]
        assert rows.index("mid (") < rows.index("out (") < rows.index("the model (")

    def test_not_comparable(
        self, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert diverge.main([*files(chain("1234")), "nowhere.pt"]) == 2
        assert "nowhere.pt" in capsys.readouterr().err
        assert diverge.main(files(chain("1234"), run(event(0, "no.thing", "1", "2")))) == 2

    def test_json(
        self, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert diverge.main([*files(chain("1234"), chain("12cd")), "--json"]) == 1
        data = loads_checked("diverge", capsys.readouterr().out)
        (rank,) = data["ranks"]
        assert data["status"] == rank["status"] == "different"
        assert rank["difference"]["module"] == "mid"
        assert [call["module"] for call in rank["growth"]] == ["mid", "out", ""]

    def test_json_has_no_nan(
        self, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs = files(with_samples([1.0, math.nan]), with_samples([math.inf, 0.0]))
        assert diverge.main([*runs, "--json"]) == 1

        def refuse(text: str) -> None:
            raise AssertionError(f"{text} is not JSON")

        out = capsys.readouterr().out
        json.loads(out, parse_constant=refuse)
        loads_checked("diverge", out)

    def test_the_limit(
        self, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = files(chain("1234"), chain("12cd"))
        diverge.main([*paths, "--limit", "1"])
        assert "and 2 more calls" in capsys.readouterr().out
        diverge.main([*paths, "--limit", "0"])
        assert "more calls" not in capsys.readouterr().out


# --- what a recorder wrote ---


class Scale(torch.nn.Module):
    """Has no parameters, and a number that a mistake may change."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Block(torch.nn.Module):
    def __init__(self, factor: float, shift: float) -> None:
        super().__init__()
        self.up, self.scale = torch.nn.Linear(8, 16), Scale(factor)
        self.down = torch.nn.Linear(16, 8)
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.scale(self.up(x)) + self.shift)  # type: ignore[no-any-return]


def model_of(factor: float = 1.0, shift: float = 0.0) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(1.0, 0.0), Block(factor, shift), Block(1.0, 0.0))


def recorded(
    model: torch.nn.Module, path: Path, batch: torch.Tensor | None = None, calls: int = 1
) -> Path:
    from my_utils.module_hook import ForwardTraceRecorder

    if batch is None:
        batch = torch.linspace(-1, 1, 32).reshape(4, 8)
    recorder = ForwardTraceRecorder(
        model, record_inputs=True, record_outputs=True, hash="tensor", stats=True,
        sample_mode="rand", sample_max_elems=20, record_param_md5=True,
    )  # fmt: skip
    with recorder, torch.no_grad():
        for call in range(calls):
            model(batch + call)
    recorder.save(path)
    return path


class Encoded(torch.nn.Module):
    """Multiplies what an encoder gives, and returns `extra` beside it."""

    def __init__(self, detach: bool = False, extra: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enc, self.side = torch.nn.Sequential(torch.nn.Linear(4, 4)), Side(extra)
        self.w = torch.nn.Parameter(torch.ones(4))
        self.detach = detach

    def forward(self, x: torch.Tensor) -> Any:
        y = self.enc(x)
        self.side(x)
        return ((y.detach() if self.detach else y) * self.w).sum()


class Side(torch.nn.Module):
    def __init__(self, extra: Any) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: torch.Tensor) -> Any:
        return self.extra


def step_of(model: torch.nn.Module, backward: bool = True, **more: Any) -> Recording:
    from my_utils.module_hook import ForwardTraceRecorder

    with ForwardTraceRecorder(model, **{"record_grads": True, **more}) as recorder:
        loss = model(torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_())
        if backward:
            loss.sum().backward()
    return recorder.snapshot()


class TestWhatOneRunLacks:
    def test_gradients_behind_a_detached_tensor(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [str(tmp_path / name) for name in ("a.pt", "b.pt")]
        for path, detach in zip(paths, (False, True), strict=True):
            save_recording(step_of(Encoded(detach)), path)
        assert diverge.main(paths) == 1
        text = capsys.readouterr().out
        assert "before it came to the result of enc (Sequential): outputs (only in A)" in text
        assert "gradients in A only: enc.0.bias, enc.0.weight" in text

    def test_gradients_of_parameters_alone(self) -> None:
        frozen = Encoded()
        frozen.enc.requires_grad_(False)
        exclude: dict[str, Any] = {"include_name_regex": "^enc.0$"}
        report = diverge.compare_recordings(
            step_of(frozen, **exclude), step_of(Encoded(), **exclude)
        )
        assert first(report) == ("gradients", "enc.0")
        assert "gradients in B only: enc.0.bias, enc.0.weight" in report.difference.text  # type: ignore[union-attr]

    def test_a_backward(self) -> None:
        runs = step_of(Encoded(), backward=False), step_of(Encoded())
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("gradients", "")
        assert "outputs (only in B)" in report.difference.text  # type: ignore[union-attr]

    @pytest.mark.parametrize("kind", ["grads", "outputs", "inputs"])
    def test_what_was_not_asked_for_is_not_missed(self, kind: str) -> None:
        runs = step_of(Encoded()), step_of(Encoded(), **{f"record_{kind}": False})
        assert diverge.compare_recordings(*runs).status == "same"
        assert diverge.compare_recordings(*reversed(runs)).status == "same"

    def test_gradients_that_checkpointing_takes_in_the_backward(self) -> None:
        from torch.utils.checkpoint import checkpoint

        class Checkpointed(Encoded):
            def forward(self, x: torch.Tensor) -> Any:
                y = checkpoint(self.enc, x, use_reentrant=True)
                self.side(x)
                return (y * self.w).sum()

        report = diverge.compare_recordings(step_of(Encoded()), step_of(Checkpointed()))
        assert (report.status, report.reason) == ("same", "")

    def test_a_tensor_that_a_module_returns(self) -> None:
        runs = step_of(Encoded(extra=torch.ones(2))), step_of(Encoded())
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("result", "side")
        assert report.difference.evidence[0].why == "only in A"  # type: ignore[union-attr]

    def test_a_number_that_a_module_returns(self) -> None:
        runs = [step_of(Encoded(extra=("mean", number))) for number in (1.0, 2.0)]
        report = diverge.compare_recordings(*runs)
        assert first(report) == ("result", "side")
        (check,) = report.difference.evidence  # type: ignore[union-attr]
        assert (check.path, check.why) == ("1", "1.0 in A, 2.0 in B")
        assert diverge.compare_recordings(*runs, rtol=0.5).status == "same"

    def test_objects_of_which_only_the_class_is_known(self) -> None:
        runs = [step_of(Encoded(extra=thing)) for thing in (object(), Path("."))]
        assert diverge.compare_recordings(*runs).status == "same"


class TestRealRecordings:
    @pytest.fixture
    def good(self, tmp_path: Path) -> Path:
        return recorded(model_of(), tmp_path / "good.pt")

    def report(self, good: Path, bad: Path) -> diverge.RankReport:
        (rank,) = diverge.compare_files(good, bad).ranks
        return rank

    def test_the_same(self, good: Path, tmp_path: Path) -> None:
        assert self.report(good, recorded(model_of(), tmp_path / "again.pt")).status == "same"

    def test_a_leaf_that_computes_something_else(self, good: Path, tmp_path: Path) -> None:
        report = self.report(good, recorded(model_of(factor=1.5), tmp_path / "bad.pt"))
        assert first(report) == ("result", "1.scale")
        (check,) = report.difference.evidence  # type: ignore[union-attr]
        assert check.figures is not None
        assert check.figures.rel_l2 == pytest.approx(1 / 3, rel=1e-6)

    def test_the_code_between_leaves(self, good: Path, tmp_path: Path) -> None:
        report = self.report(good, recorded(model_of(shift=0.1), tmp_path / "bad.pt"))
        assert first(report) == ("between", "1")
        assert "after scale and before it calls down" in report.difference.text  # type: ignore[union-attr]

    def test_a_weight(self, good: Path, tmp_path: Path) -> None:
        model = model_of()
        with torch.no_grad():
            model[2].up.weight[3, 2] += 1e-3  # type: ignore[index, operator, union-attr]
        report = self.report(good, recorded(model, tmp_path / "bad.pt"))
        assert first(report) == ("weights", "2.up")

    def test_the_batch(self, good: Path, tmp_path: Path) -> None:
        report = self.report(good, recorded(model_of(), tmp_path / "bad.pt", torch.ones(4, 8)))
        assert first(report) == ("inputs", "")

    def test_a_wrapped_model(self, good: Path, tmp_path: Path) -> None:
        class Wrapper(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module = model_of(factor=1.5)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.module(x)  # type: ignore[no-any-return]

        report = self.report(good, recorded(Wrapper(), tmp_path / "bad.pt"))
        assert (report.only_a, report.only_b) == (0, 0)
        assert first(report) == ("result", "1.scale")

    def test_bfloat16(self, good: Path, tmp_path: Path) -> None:
        batch = torch.linspace(-1, 1, 32).reshape(4, 8).bfloat16()
        report = self.report(good, recorded(model_of().bfloat16(), tmp_path / "bf16.pt", batch))
        linear = [check for check in report.checks if check.name == "0.up"]
        assert linear[0].output_verdict in (diverge.Verdict.CLOSE, diverge.Verdict.DIFFERENT)
        assert linear[0].input_verdict is diverge.Verdict.CLOSE
        worse = self.report(
            good, recorded(model_of(factor=1.5).bfloat16(), tmp_path / "bad.pt", batch)
        )
        assert worse.difference is not None

    def test_calls_that_only_one_run_made(self, tmp_path: Path) -> None:
        three = recorded(model_of(), tmp_path / "three.pt", calls=3)
        two = recorded(model_of(), tmp_path / "two.pt", calls=2)
        report = self.report(three, two)
        assert (report.status, report.only_a, report.only_b) == ("same", 13, 0)

    def test_two_ranks_beside_one(self, tmp_path: Path) -> None:
        from my_utils.tensors.recordings.recording import load_recording

        torch.manual_seed(1)
        batch = torch.randn(4, 8)
        recorded(model_of(), tmp_path / "one.pt", batch)
        for factor, folder in ((1.0, "fine"), (1.5, "broken")):
            for rank, part in enumerate(batch.split(2)):
                path = recorded(model_of(factor), tmp_path / f"{folder}/{rank}.pt", part)
                recording = load_recording(path)
                recording.rank, recording.world_size = rank, 2
                save_recording(recording, path)
        assert diverge.compare_files(tmp_path / "one.pt", tmp_path / "fine").status == "same"
        report = diverge.compare_files(tmp_path / "one.pt", tmp_path / "broken")
        assert first(report.ranks[0]) == ("result", "1.scale")

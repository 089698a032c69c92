"""The ledger of a device: against a clock that ticks each nanosecond, and against TraceLens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.gpu_trace.breakdown import (
    COMPUTE,
    HOST_WAITS,
    IDLE,
    IN_OPERATORS,
    IN_PYTHON,
    LAUNCHED,
    ROWS,
    UNLAUNCHED,
    Breakdown,
    break_down,
)
from my_utils.analysis.gpu_trace.kinds import COMMUNICATION, COPIES, FILLS, kind_of
from my_utils.cli.diff import main as diff
from my_utils.cli.why import main

from ...conftest import ROOT
from ...support.schemas import loads_checked

pytestmark = pytest.mark.no_torch

KINETO = ROOT.parent / "shared" / "corpus" / "kineto"
KERNELS = {
    "sm80_xmma_gemm_f16": "matmul",
    "flash_fwd_kernel": "attention",
    "vectorized_elementwise_kernel": "elementwise",
    "ncclDevKernel_AllReduce_Sum": COMMUNICATION,
    "Memcpy HtoD": COPIES,
    "Memset (Device)": FILLS,
}
Event = dict[str, Any]


def slice_of(category: str, name: str, begin: int, end: int, **args: Any) -> Event:
    """begin, end: ns. A trace has µs with three digits."""
    return {
        "ph": "X", "cat": category, "name": name, "ts": begin / 1000, "dur": (end - begin) / 1000,
        "pid": 1, "tid": args.pop("tid", 7), "args": args,
    }  # fmt: skip


def device_event(name: str, begin: int, end: int, **args: Any) -> Event:
    kinds = {"Memcpy HtoD": "gpu_memcpy", "Memset (Device)": "gpu_memset"}
    return slice_of(kinds.get(name, "kernel"), name, begin, end, **args)


def found(folder: Path, events: list[Event]) -> Breakdown:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (one,) = break_down(str(path))
    return one


def by_the_clock(events: list[Event]) -> dict[str, int]:
    """Looks at each ns by itself."""
    spans = []
    for one in events:
        begin = round(1000 * one["ts"])
        spans.append((begin, begin + round(1000 * one["dur"]), one))
    device = [one for one in spans if one[2]["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    host = [one for one in spans if one[2]["cat"] in ("cpu_op", "cuda_runtime")]
    launches = {
        one[2]["args"]["correlation"]: (one[0], one[2]["tid"])
        for one in host
        if "correlation" in one[2]["args"]
    }
    rows = dict.fromkeys(ROWS, 0)
    begin, end = min(one[0] for one in device), max(one[1] for one in device)
    for now in range(begin, end):
        running = [KERNELS[one[2]["name"]] for one in device if one[0] <= now < one[1]]
        if running:
            rows[min(running, key=ROWS.index)] += 1
            continue
        after = min((one for one in device if one[0] > now), key=lambda one: one[0])
        launch, thread = launches.get(after[2]["args"].get("correlation"), (None, None))
        here = [one for one in host if one[0] <= now < one[1] and one[2]["tid"] == thread]
        if launch is None:
            rows[UNLAUNCHED] += 1
        elif now >= launch:
            rows[LAUNCHED] += 1
        elif any("Synchronize" in one[2]["name"] for one in here):
            rows[HOST_WAITS] += 1
        else:
            rows[IN_OPERATORS if here else IN_PYTHON] += 1
    return rows


def random_events(chance: random.Random) -> list[Event]:
    """Kernels of two streams, most with their launches by one of two threads, which also run
    operators and wait. No two begin at once: which of them ended a gap would be anyone's guess."""
    events = []
    begins = chance.sample(range(2000), chance.randint(1, 25))
    for number, begin in enumerate(begins):
        args = {"correlation": number} if chance.random() < 0.8 else {}
        name = chance.choice(list(KERNELS))
        events.append(device_event(name, begin, begin + chance.randint(1, 150), device=0, **args))
        if args:
            at = max(begin - chance.randint(0, 200), 0)
            tid = chance.randint(7, 8)
            events.append(slice_of("cuda_runtime", "cudaLaunchKernel", at, at + 5, tid=tid, **args))
    for _ in range(chance.randint(0, 12)):
        begin, tid = chance.randint(0, 2000), chance.randint(7, 8)
        end = begin + chance.randint(1, 300)
        events.append(slice_of("cpu_op", "aten::mm", begin, end, tid=tid))
        if chance.random() < 0.4:
            name = "cudaStreamSynchronize"
            events.append(slice_of("cuda_runtime", name, begin, end + 20, tid=tid))
    chance.shuffle(events)
    return events


@pytest.mark.parametrize("seed", range(60))
def test_each_nanosecond_is_in_the_row_of_a_clock(seed: int, tmp_path: Path) -> None:
    events = random_events(random.Random(seed))
    one = found(tmp_path, events)
    assert one.rows == by_the_clock(events)
    assert sum(one.rows.values()) == one.span_ns


def test_what_is_hidden_behind_compute(tmp_path: Path) -> None:
    gemm, reduce = "sm80_xmma_gemm_f16", "ncclDevKernel_AllReduce_Sum"
    one = found(tmp_path, [device_event(gemm, 0, 60), device_event(reduce, 40, 140, stream=20)])
    assert (one.communication_ns, one.rows[COMMUNICATION]) == (100, 80)
    assert one.hidden_share == pytest.approx(0.2)


def test_kernels_by_operator_and_shape(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[8, 4], [4, 2]]}
    events = [slice_of("cpu_op", "aten::mm", 0, 9, **{"External id": 3}, **shapes)]
    events += [
        device_event("sm80_xmma_gemm_f16", at, at + 7, **{"External id": 3}) for at in (10, 20)
    ]
    events += [device_event("sm80_xmma_gemm_f16", 30, 35)]
    first, second = found(tmp_path, events).longest
    assert (first.operator, first.shapes) == ("aten::mm", "[[8, 4], [4, 2]]")
    assert (first.count, first.ns, second.operator, second.ns) == (2, 14, "", 5)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", "matmul"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", "matmul"),
        ("void fmha_cutlassF_f16_aligned_64x64_rf_sm80", "attention"),
        ("void cudnn::ops::nchwToNhwcKernel<float>", "elementwise"),
        ("attn_fwd", "attention"),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "convolution"),
        ("void cudnn::bn_bw_1C11_kernel_new<float>", "normalization"),
        ("my_kernel", "other kernels"),
        ("sm80_xmma_fprop_implicit_gemm_f16f16", "convolution"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Adam>", "optimizer"),
        ("void cunn_SoftMaxForward<4, float>", "softmax and loss"),
        ("void at::native::reduce_kernel<512, 1, MeanOps>", "reduction"),
        ("triton_poi_fused_add_0", "elementwise"),
        ("void at::native::batch_norm_collect_statistics_kernel", "normalization"),
    ],
)
def test_kinds(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


# computation, exposed communication, exposed copies, idle and all time in µs, as TraceLens 0.9
# (2026-11, gpu_event_analyser.compute_metrics_dict) gives them.
TRACELENS = {
    "amd_trace/mi250_minitoy_train_ROCm6_2_kineto": (110.9, 0.0, 38.2, 8762.8, 8911.9),
    "critical_path/alexnet/benchmark_result_2869224_1695835535_trace":
        (10638.0, 0.0, 55503.0, 12854103.0, 12920244.0),
    "critical_path/cuda_event_sync/event_sync_trace": (49.0, 0.0, 2.0, 212.0, 263.0),
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005": (45644.9, 0.0, 2.4, 4005.5, 49652.8),
    "h100/gaunernst_bert-small-uncased__1016001": (307.2, 0.0, 2.2, 3598.4, 3907.8),
    "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005": (43062.0, 0.0, 0.8, 4023.0, 47085.8),
    "mi300/resnet_act_checkpoint": (26175.0, 55371.2, 2455.8, 2565.6, 86567.7),
    "nccl_parser_config/nccl_data": (116046.6, 39529.3, 1924.2, 503050.9, 660551.0),
    "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace":
        (468761.2, 0.0, 3701.2, 7566.8, 480029.2),
    "trace_filter/sampled_rank-0": (210348.0, 336981.0, 327.0, 675191.0, 1222847.0),
    "trace_filter/sampled_rank-1": (272004.0, 303520.0, 4526.0, 651136.0, 1231186.0),
}  # fmt: skip


@pytest.mark.skipif(not KINETO.is_dir(), reason=f"corpus of other people's traces not in {KINETO}")
@pytest.mark.parametrize("name", TRACELENS)
def test_against_tracelens(name: str) -> None:
    """Its times are floats of a microsecond since 1970, of which the last bits are missing."""
    (one,) = break_down(str(KINETO / f"{name}.json.gz"))
    us = {row: ns / 1000 for row, ns in one.rows.items()}
    ours = (
        sum(us[row] for row in COMPUTE), us[COMMUNICATION], us[COPIES],
        sum(us[row] for row in IDLE), one.span_ns / 1000,
    )  # fmt: skip
    assert ours == pytest.approx(TRACELENS[name], rel=1e-3, abs=20)


def test_why_shows_it_where_nothing_else_can_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = slice_of("user_annotation", "ProfilerStep#3", 0, 500)
    launch = slice_of("cuda_runtime", "cudaLaunchKernel", 10, 15, correlation=1)
    kernel = device_event("sm80_xmma_gemm_f16", 20, 95, correlation=1)
    path = tmp_path / "trace.json"
    events = [step, launch, kernel, device_event("Memcpy HtoD", 100, 120)]
    path.write_text(json.dumps({"traceEvents": events}))
    assert main([str(path)]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("NOT JUDGED: 1 step") and len(lines) <= 12
    assert any(
        "computes 75.0 %, communicates 0.0 %, copies 20.0 %, idle 5.0 %" in one for one in lines
    )
    assert main([str(path), "--ledger"]) == 4
    table = capsys.readouterr().out.splitlines()
    assert [line.split() for line in table if line.startswith("  sum ")] == [
        ["sum", "100.0", "%", "0.1", "µs"]
    ]
    assert main([str(path), "--json"]) == 4
    (device,) = loads_checked("why", capsys.readouterr().out)["devices"]
    assert (device["path"], device["span_ns"]) == (str(path), 100)
    assert sum(row["ns"] for row in device["rows"]) == 100
    assert (device["launch_median_ns"], device["longest"][0]["count"]) == (10, 1)


@pytest.mark.parametrize("steps", [0, 2])
def test_two_traces(steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a step where both mark them. What is the same in both is there, too."""
    marks = [slice_of("user_annotation", f"ProfilerStep#{at}", 0, 9) for at in range(steps)]
    paths = []
    for name, took in (("a", 100), ("b", 300)):
        events = [device_event("sm80_xmma_gemm_f16", 0, took), device_event("flash_fwd", 500, 520)]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"traceEvents": [*marks, *events]}))
        paths.append(str(path))
    assert diff(paths) == 0
    head, _, *table, foot = capsys.readouterr().out.splitlines()
    assert head.startswith("B takes a device ") and ("a step" in head) == bool(steps)
    assert table[0].split() == ["matmul", "0.000", "ms", "0.000", "ms", "+0.000", "ms"]
    assert foot.startswith(" and ".join(paths))
    assert diff([*paths, "--json", "-o", str(tmp_path / "d.json")]) == 0
    data = loads_checked("diff-traces", capsys.readouterr().out)
    assert data == json.loads((tmp_path / "d.json").read_text())
    rows = {one["row"]: (one["a_ns"], one["b_ns"]) for one in data["rows"]}
    of = max(steps, 1)
    assert rows["matmul"] == (100 // of, 300 // of) and rows["attention"] == (20 // of, 20 // of)
    assert rows["sum"] == (520 // of, 520 // of)


def test_a_trace_that_takes_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of which nothing is a share."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [device_event("flash_fwd", 5, 5)]}))
    assert diff([str(path), str(path)]) == 0
    assert "%" not in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gate", "iter:+2%"], "--gate is for runs, not for traces"),
        (["--steps", "1:2"], "--steps is for runs, not for traces"),
        (["-o", "d.html"], "known are .json and .txt"),
    ],
)
def test_what_is_for_runs(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(SystemExit, match="2"):
        diff([str(path), str(path), *words])
    assert says in capsys.readouterr().err
    assert diff([str(path), str(path)]) == 4
    assert "no device did anything" in capsys.readouterr().err


def test_a_trace_of_the_host_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [slice_of("cpu_op", "aten::mm", 0, 9)]}))
    assert break_down(str(path)) == []
    assert main([str(path), "--json", "--ledger"]) == 4
    assert "devices" not in loads_checked("why", capsys.readouterr().out)


def test_damaged_events_are_told_and_change_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [device_event("flash_fwd", 10 * at, 10 * at + 6) for at in range(50)]
    events = {
        "whole": whole,
        "damaged": [*whole[:10], *(one | {"dur": "1,5"} for one in whole[10:])],
        "nothing": [one | {"ts": "x"} for one in whole],
        "odd": [*whole, whole[0] | {"ts": -1e15}, whole[0] | {"dur": 1e15}, whole[0] | {"dur": -3}],
        "not JSON": [*whole, whole[0] | {"name": "C:@"}],
    }
    paths = {name: str(tmp_path / f"{name}.json") for name in events}
    for name, path in paths.items():
        text = json.dumps({"traceEvents": events[name]})
        Path(path).write_text(text.replace("C:@", "C:\\x"))  # as in paths of Windows
    said = {
        "whole": [],
        "damaged": [f"{paths['damaged']}: 40 events are left out: they are damaged"],
        "nothing": [f"{paths['nothing']}: 50 events are left out: they are damaged"],
        "odd": [f"{paths['odd']}: 3 events are left out: they are damaged"],
        "not JSON": [f"{paths['not JSON']}: 1 event is left out: it is damaged"],
    }
    for name, path in paths.items():
        assert main([path, "--ledger", "--json"]) == 4
        assert loads_checked("why", capsys.readouterr().out)["notes"] == said[name]
        assert main([path, "--ledger"]) == 4
        shown = " ".join(capsys.readouterr().out.split())
        assert (" left out: " in shown) == bool(said[name])
        assert name in ("damaged", "nothing") or "LEDGER of device 0" in shown
        assert name in ("damaged", "nothing") or "0.496 µs, 50 calls" in shown
        assert diff([paths["whole"], path]) == (4 if name == "nothing" else 0)
        assert capsys.readouterr().err.splitlines()[: len(said[name])] == [
            f"my_utils diff: {one}" for one in said[name]
        ]


@pytest.mark.parametrize("broken", ["[]", '{"traceEvents": [1, {"ph": "X"}]}'])
def test_what_holds_no_slices(broken: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(broken)
    assert break_down(str(path)) == []


def test_more_devices_than_a_host_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    events = [device_event("gemm", 10 * at, 10 * at + 6, device=at) for at in range(257)]
    path.write_text(json.dumps({"traceEvents": events}))
    assert main([str(path), "--ledger", "--json"]) == 4
    notes = loads_checked("why", capsys.readouterr().out)["notes"]
    assert notes == [f"{path}: 257 devices: no host has so many"]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void split_embedding_codegen_forward_kernel<float>(fbgemm_gpu::Tensor)", "indexing"),
        ("void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>(int)", "other kernels"),
        ("fbgemm_gpu::f8f8bf16<cutlass::gemm::GemmUniversal>", "matmul"),
        ("igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", "convolution"),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightI", "convolution"),
        ("void convertTensor_kernel<float, half>(int)", "other kernels"),
        ("void distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::"
         "normal_and_transform<float, float>>(int)", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
         "at::native::NormTwoOps<float, float, float>>>(int)", "reduction"),
        ("void multi_tensor_apply_kernel<List<1>, LpNormFunctor<float>>", "optimizer"),
        ("void GammaBetaBackwardCUDAKernel_32x32<float, float>(long)", "normalization"),
        ("void rms_norm_kernel<float>(int)", "normalization"),
        ("void normalize_kernel<float>(int)", "normalization"),
    ],
)  # fmt: skip
def test_a_word_in_the_name_of_another_kernel_is_not_its_kind(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_a_run_is_not_compared_with_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = tmp_path / "trace.json", tmp_path / "logs"
    path.write_text(json.dumps({"traceEvents": [device_event("gemm", 0, 6)]}))
    run.mkdir()
    (run / "profile_rank_0.csv").write_text("")
    for sides in ([str(path), str(run)], [str(run), str(path)]):
        assert diff(sides) == 4
        said = f"my_utils diff: error: not compared: {run}: no trace, as the other side is"
        assert capsys.readouterr().err.splitlines()[0] == said

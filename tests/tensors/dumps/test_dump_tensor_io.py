"""DumpTensorIO: tensors by (dump_id, tag, rank), and the report of a comparison."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from my_utils.core import warnings as _warnings
from my_utils.dump_utils import DumpError, DumpTensorIO
from my_utils.tensors.dumps.tensor_io import _read_pt

from ...conftest import ROOT, RunPython
from ...support.dump_values import assert_same, tensor_bytes
from .test_dump_tensors import DTYPES, random_tensor

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAN_DPO_PREVAE_TENSOR_DIR", raising=False)
    monkeypatch.delenv("WAN_DPO_PREVAE_COMPARE_FILE", raising=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(tmp_path: Path, dtype: str) -> None:
    tensors = DumpTensorIO(tmp_path, strict=True)
    for i, shape in enumerate([(3, 4), (), (0, 2)]):
        tensor = random_tensor(dtype, *shape)
        tensors.dump(tensor, i, "x")
        assert_same(tensors.load(i, "x"), tensor)
        assert_same(tensors.load(i, "x", verify=False), tensor)


def test_views_and_parameters(tmp_path: Path) -> None:
    tensors = DumpTensorIO(tmp_path, strict=True)
    big = torch.randn(1000, 1000)
    views = [big[:, 3], big[:5, :5].T, torch.randn(3, dtype=torch.complex64).conj()]
    views += [torch.nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True) * 2]
    for i, tensor in enumerate(views):
        path = tensors.dump(tensor, i, "x")
        assert path is not None
        assert os.path.getsize(path) < 10_000
        assert tensor_bytes(tensors.load(i, "x")) == tensor_bytes(tensor)


def test_keys_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = DumpTensorIO(tmp_path, strict=True)
    keys: list[tuple[Any, Any, int | None]] = [
        (1, "a", 0), (1, "a", 1), (1, "a/b", 0), (1, "a_b", 0), (1, "a b", 0), ("../x", "..", 0),
        ("", "", 0), ("x" * 300, "日本", 0),
    ]  # fmt: skip
    for i, key in enumerate(keys):
        tensors.dump(torch.tensor([i]), *key)
    assert [tensors.load(*key).item() for key in keys] == list(range(len(keys)))
    assert len({tensors.path(*key) for key in keys}) == len(keys)
    assert all(Path(tensors.path(*key)).resolve().is_relative_to(tmp_path) for key in keys)
    assert tensors.path(1, "a", 1) == str(tmp_path / "1" / "a" / "rank_1.safetensors")
    monkeypatch.setenv("RANK", "1")
    assert tensors.load(1, "a").item() == 1


def test_a_later_dump_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    tensors = DumpTensorIO(tmp_path, strict=True)
    for i in range(3):
        path = tensors.dump(torch.full((1000,), i), 1, "x")
    assert path is not None
    assert tensors.load(1, "x")[0] == 2
    assert len(list(Path(path).parent.iterdir())) == 1


def test_the_readers_of_safetensors_open_the_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = DumpTensorIO(tmp_path).dump(torch.arange(3), 1, "x")
    assert path is not None
    assert load_file(path)["tensor"].tolist() == [0, 1, 2]


# --- the report ---


def report(path: Path) -> list[dict[str, Any]]:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    lines = path.read_text(encoding="ascii").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_the_report(tmp_path: Path) -> None:
    tensors = DumpTensorIO(tmp_path, compare_file=tmp_path / "r" / "{dump_id}_{rank}.jsonl")
    base = torch.linspace(1, 2, 12).reshape(3, 4)
    tensors.dump(base, 7, "latent")
    wrong = base.clone()
    wrong[1, 2] += 0.5
    tensors.compare(base, 7, "latent")
    tensors.compare(base * (1 + 1e-7), 7, "latent")
    tensors.compare(wrong, 7, "latent", atol=0.1, rtol=0.0)
    tensors.compare(base.double(), 7, "latent")
    tensors.compare(base.T, 7, "latent")
    tensors.compare(base, 7, "never dumped")
    lines = report(tmp_path / "r" / "7_0.jsonl")
    statuses = [line["status"] for line in lines]
    assert statuses == ["same", "close", "different", "close", "shape", "missing"]
    found = lines[2]
    assert (found["mismatches"], found["elements"]) == (1, 12)
    assert found["max_abs"] == pytest.approx(0.5)
    assert found["max_abs_index"] == [1, 2]
    assert (found["atol"], found["rtol"], found["equal_nan"]) == (0.1, 0.0, False)
    (first,) = found["first"]
    assert first["index"] == [1, 2]
    assert first["value"] == pytest.approx(wrong[1, 2].item())
    assert first["expected"] == pytest.approx(base[1, 2].item())
    assert (lines[3]["dtype"], lines[3]["expected_dtype"]) == ("float64", "float32")
    assert (lines[4]["shape"], lines[4]["expected_shape"]) == ([4, 3], [3, 4])
    assert (found["dump_id"], found["tag"], found["rank"]) == (7, "latent", 0)


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    tensors = DumpTensorIO(tmp_path, compare_file=tmp_path / "r.jsonl")
    tensors.dump(torch.tensor([1.0, float("nan"), 2.0]), 1, "x")
    tensors.compare(torch.tensor([1.0, 3.0, float("inf")]), 1, "x")
    tensors.compare(torch.tensor([1.0, float("nan"), 2.0]), 1, "x", equal_nan=True)
    tensors.dump(torch.tensor([1j, 2.0]), 2, "x")
    tensors.compare(torch.tensor([1j, complex(0, float("inf"))]), 2, "x")
    lines = report(tmp_path / "r.jsonl")
    assert [line["status"] for line in lines] == ["different", "same", "different"]
    assert lines[0]["first"][0]["expected"] == "nan"
    assert lines[0]["first"][1]["value"] == "inf"
    assert lines[2]["first"][0]["value"] == [0.0, "inf"]


def test_trouble_is_told_and_goes_into_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warnings.forget("tensor dump")
    tensors = DumpTensorIO(tmp_path, compare_file=tmp_path / "r.jsonl")
    path = tensors.dump(torch.ones(4), 1, "x")
    assert path is not None
    data = bytearray(Path(path).read_bytes())
    data[-1] ^= 1
    Path(path).write_bytes(data)
    line = tensors.compare(torch.ones(4), 1, "x")
    assert line is not None
    assert line["status"] == "error"
    assert "does not match its digest" in line["reason"]
    assert tensors.failed == 1
    with pytest.raises(DumpError, match="does not match its digest"):
        DumpTensorIO(tmp_path, strict=True).compare(torch.ones(4), 1, "x")
    (tmp_path / "1").rename(tmp_path / "aside")
    (tmp_path / "1").write_text("in the way")
    assert tensors.dump(torch.ones(4), 1, "x") is None
    assert tensors.dump(torch.ones(4).to_sparse(), 2, "x") is None
    assert tensors.failed == 3
    assert sum(record.name == "my_utils" for record in caplog.records) == 1


@pytest.mark.slow
def test_lines_of_many_processes_do_not_mix(tmp_path: Path) -> None:
    program = f"""
import sys, torch
from my_utils.dump_utils import DumpTensorIO
tensors = DumpTensorIO({str(tmp_path)!r}, compare_file={str(tmp_path / "r.jsonl")!r})
tensors.dump(torch.ones(8), 1, "x", int(sys.argv[1]))
for i in range(100):
    tensors.compare(torch.zeros(8), 1, "x", int(sys.argv[1]))
"""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(3)
    ]
    assert [child.wait(110) for child in children] == [0, 0, 0]
    lines = report(tmp_path / "r.jsonl")
    assert sorted(line["rank"] for line in lines) == [0] * 100 + [1] * 100 + [2] * 100


# --- environment, arguments ---


def test_the_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAN_DPO_PREVAE_TENSOR_DIR", str(tmp_path / "tensors"))
    monkeypatch.setenv("WAN_DPO_PREVAE_COMPARE_FILE", str(tmp_path / "{tag}_{rank}.jsonl"))
    tensors = DumpTensorIO()
    assert tensors.enabled
    tensors.dump(torch.ones(2), 3, "vae", rank=5)
    tensors.compare(torch.ones(2), 3, "vae", rank=5)
    assert (tmp_path / "tensors" / "3" / "vae" / "rank_5.safetensors").exists()
    assert report(tmp_path / "vae_5.jsonl")[0]["status"] == "same"


def test_without_a_root_nothing_happens() -> None:
    tensors = DumpTensorIO()
    assert not tensors.enabled
    assert tensors.dump(torch.ones(1), 1, "x") is None
    assert tensors.compare(torch.ones(1), 1, "x") is None
    with pytest.raises(ValueError, match="root_dir must be given, or WAN_DPO_PREVAE_TENSOR_DIR"):
        tensors.load(1, "x")


def test_wrong_arguments(tmp_path: Path) -> None:
    tensors = DumpTensorIO(tmp_path)
    with pytest.raises(TypeError, match=r"tensor must be a torch\.Tensor, not list"):
        tensors.dump([1], 1, "x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank must be at least 0, not -1"):
        tensors.dump(torch.ones(1), 1, "x", -1)
    with pytest.raises(TypeError, match="rank must be an int, not '0'"):
        tensors.load(1, "x", "0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compare_file may have the fields"):
        DumpTensorIO(tmp_path, compare_file="{host}.jsonl")
    with pytest.raises(ValueError, match="compare_file must be a path with"):
        DumpTensorIO(tmp_path, compare_file="{rank")
    with pytest.raises(FileNotFoundError):
        tensors.load(1, "x")


# --- files that are not to be trusted ---


def test_any_changed_bit_is_found(tmp_path: Path) -> None:
    tensors = DumpTensorIO(tmp_path)
    wanted = torch.arange(6.0)
    path = Path(str(tensors.dump(wanted, 1, "x")))
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            found = tensors.load(1, "x")
        except DumpError:
            continue
        # What says nothing of the tensor, as the key, may differ.
        assert_same(found, wanted)


def test_truncated_and_linked_files(tmp_path: Path) -> None:
    tensors = DumpTensorIO(tmp_path)
    path = Path(str(tensors.dump(torch.arange(6.0), 1, "x")))
    data = path.read_bytes()
    for length in (0, 5, 8, 100, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(DumpError, match="rank_0"):
            tensors.load(1, "x")
    path.write_bytes(data)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DumpError, match="plain file"):
        tensors.load(1, "x")


def test_pt_files(tmp_path: Path) -> None:
    """Of the same name, as a script with torch.save may have left them."""
    tensors = DumpTensorIO(tmp_path)
    path = Path(tensors.path(1, "x")).with_suffix(".pt")
    path.parent.mkdir(parents=True)
    torch.save(torch.arange(3), path)
    assert tensors.load(1, "x").tolist() == [0, 1, 2]
    torch.save({"a": torch.arange(3)}, path)
    with pytest.raises(DumpError, match="holds dict, no tensor"):
        tensors.load(1, "x")
    torch.save(Fraction(1, 2), path)  # other libraries may have allowed a Path
    with pytest.raises(DumpError, match="cannot be read: UnpicklingError"):
        tensors.load(1, "x")
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DumpError, match="cannot be read"):
        tensors.load(1, "x")


def freed() -> Any:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "x.int_repr()"),
        (lambda: torch.nested.nested_tensor([torch.ones(3)], layout=torch.jagged), "x.values()"),
        (freed, "its storage was freed or cut"),
        (lambda: torch.ones(3).to_sparse(), "x.indices() and x.values()"),
        (lambda: torch.ones(3, device="meta"), "a meta tensor has only a shape"),
        (lambda: torch.nested.nested_tensor([torch.ones(3)]), "x.values()"),
        (torch.nn.UninitializedParameter, "has none before the first forward"),
    ],
    ids=["quantized", "nested", "freed", "sparse", "meta", "nested strided", "lazy"],
)
def test_what_has_no_elements_in_memory_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Any, reason: str
) -> None:
    _warnings.forget("tensor dump")
    tensors = DumpTensorIO(tmp_path, compare_file=tmp_path / "r.jsonl")
    tensors.dump(torch.ones(3), "a", "x")
    for _ in range(2):
        line = tensors.compare(make(), "a", "x")
        assert line is not None and line["status"] == "error" and reason in line["reason"]
    assert tensors.failed == 2
    assert sum(record.name == "my_utils" for record in caplog.records) == 1
    written = [json.loads(text) for text in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [reason in line["reason"] for line in written] == [True, True]
    tensors.strict = True
    with pytest.raises(DumpError, match=re.escape(reason)):
        tensors.dump(make(), "a", "x")
    with pytest.raises(TypeError, match=re.escape(reason)):
        tensors.compare(make(), "a", "x")


def test_a_sharded_tensor_is_compared_with_its_own_dump(run_python: RunPython) -> None:
    result = run_python("-c", _SHARDED)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "same [2, 3] [2, 3]\nsame\nsame\n"


_SHARDED = """
import torch
from torch.distributed import device_mesh, init_process_group
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from my_utils.dump_utils import DumpTensorIO

init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = device_mesh.init_device_mesh("cpu", (2,))
local = torch.arange(6.0).reshape(2, 3)
sharded = DTensor.from_local(local, mesh, [Shard(0)])
tensors = DumpTensorIO("dumps", strict=True)
tensors.dump(sharded, 1, "x")
line = tensors.compare(sharded, 1, "x")
print(line["status"], line["shape"], line["expected_shape"])
print(tensors.compare(local, 1, "x")["status"])
print(tensors.compare_tensors(tensors.load(1, "x"), sharded)["status"])
"""


# --- methods of others ---


def test_methods_of_others(tmp_path: Path) -> None:
    tensors = DumpTensorIO(tmp_path, compare_file=tmp_path / "report_{rank}.jsonl")
    tensor = torch.arange(4.0)
    path = tensors.dump(tensor, 7, "latent", 0)
    assert tensors.tensor_path(7, "latent", 0) == path
    expected = tensors.load_tensors(7, "latent", 0, map_location="cpu")  # type: ignore[call-arg]
    assert_same(expected, tensor)
    assert tensors.load_tensors(8, "latent", 0) is None
    result = tensors.compare_tensors(expected, tensor + 1, rtol=1e-5, atol=1e-8)
    assert (result["status"], result["max_abs"]) == ("different", 1.0)
    assert tensors.compare_tensors(expected, tensor.clone())["status"] == "same"
    assert tensors.compare_tensors(None, tensor) == {"status": "missing"}
    assert not (tmp_path / "report_0.jsonl").exists()
    tensors.write_compare_result({"dump_id": 7, "tag": "latent", **result}, 0)
    tensors.write_compare_result({"note": "mine"}, rank=0)
    lines = report(tmp_path / "report_0.jsonl")
    assert [line.get("status", line.get("note")) for line in lines] == ["different", "mine"]


def test_parameters_of_others_say_what_to_use(tmp_path: Path) -> None:
    DumpTensorIO(tmp_path, tensor_dir_env="WAN_DPO_PREVAE_TENSOR_DIR")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"root_dir=os.environ\[name\] reads another variable"):
        DumpTensorIO(tensor_dir_env="OTHER")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"root_dir=os.environ.get\('WAN_DPO_PREVAE_TENSOR_DIR', f"):
        DumpTensorIO(default_tensor_dir=tmp_path)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"result.to\(device\) moves it"):
        DumpTensorIO(tmp_path).load_tensors(7, "latent", 0, map_location="cuda")  # type: ignore[call-arg]


@pytest.mark.parametrize("bomb", ["deep", "packed"])
def test_a_file_of_another_tool_is_checked_before_torch_reads_it(bomb: str, tmp_path: Path) -> None:
    """Nested keys end the process in torch's reader, and packed zeros fill the memory."""
    torch.save(torch.ones(4), tmp_path / "good.pt")
    kind = zipfile.ZIP_DEFLATED if bomb == "packed" else zipfile.ZIP_STORED
    with (
        zipfile.ZipFile(tmp_path / "good.pt") as good,
        zipfile.ZipFile(tmp_path / "bad.pt", "w", kind) as bad,
    ):
        for entry in good.infolist():
            data = good.read(entry)
            if bomb == "deep" and entry.filename.endswith("data.pkl"):
                data = b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s."
            bad.writestr(entry.filename, data)
    reason = "nested more than 300 deep" if bomb == "deep" else "has compressed entries"
    with pytest.raises(DumpError, match=reason):
        _read_pt(str(tmp_path / "bad.pt"))
    assert torch.equal(_read_pt(str(tmp_path / "good.pt")), torch.ones(4))

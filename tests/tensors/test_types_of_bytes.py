"""Types of less than a byte, int4 and the others: in dumps, recordings and hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from my_utils.dump_utils import DumpConfig, DumpTensorIO, UniversalDumper, UniversalLoader
from my_utils.module_hook import ForwardTraceRecorder
from my_utils.tensors import md5, tensor_hash

NAMES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)]
NAMES = [name for name in (*NAMES, "bits8", "bits4x2") if hasattr(torch, name)]


def made(name: str) -> torch.Tensor:
    return torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(getattr(torch, name))


@pytest.mark.parametrize("background", [False, True])
def test_dumps(tmp_path: Path, background: bool) -> None:
    values = {name: made(name) for name in NAMES}
    values |= {f"{name}_rows": made(name)[1:] for name in NAMES}
    values |= {f"{name}_columns": made(name)[:, 1:3] for name in NAMES}
    values |= {f"{name}_empty": made(name)[:0] for name in NAMES}
    config = DumpConfig(root_dir=tmp_path, enable=True, asynchronous=background)
    dumper = UniversalDumper(config)
    path = dumper.dump(stage="s", obj=values, data_id=1, branch="b")
    dumper.close()
    assert dumper.failed == 0
    loaded = UniversalLoader(root_dir=tmp_path).load(path)
    for name, value in values.items():
        assert loaded[name].dtype is value.dtype and loaded[name].shape == value.shape
        assert torch.equal(loaded[name].view(torch.uint8), value.view(torch.uint8)), name


@pytest.mark.parametrize("name", NAMES)
def test_hashes_and_recordings(name: str, tmp_path: Path) -> None:
    value = made(name)
    assert tensor_hash(value).content == tensor_hash(value.view(torch.uint8)).content
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.register_buffer("packed", value)
    with ForwardTraceRecorder(model, record_buffer_md5=True) as recorder:
        model(torch.ones(1, 2))
    recorder.save(tmp_path / "recording.pt")
    loaded = ForwardTraceRecorder.load(tmp_path / "recording.pt")
    meta = loaded.events[0].buffers["packed"]
    assert (meta.dtype, meta.hash) == (name, md5(value.view(torch.uint8)))


@pytest.mark.parametrize("name", NAMES)
def test_tensor_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAN_DPO_PREVAE_TENSOR_DIR", str(tmp_path))
    files = DumpTensorIO()
    assert files.dump(made(name), dump_id=1, tag="a") is not None
    result = files.compare(made(name), dump_id=1, tag="a")
    assert result is not None and result["status"] == "same", result

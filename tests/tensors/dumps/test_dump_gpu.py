"""Dumps of tensors that lie on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.dump_utils import DumpConfig, UniversalDumper, UniversalLoader

from ...support.dump_values import assert_same, round_trip

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")
pytestmark = pytest.mark.gpu


def test_tensors_come_back_on_the_cpu_or_where_they_were(tmp_path: Path) -> None:
    tensor = torch.arange(12.0, device="cuda").reshape(3, 4)
    obj = {"t": tensor, "view": tensor.T[::2], "p": torch.nn.Parameter(tensor.half())}
    found = round_trip(obj, tmp_path)
    assert {value.device.type for value in found.values()} == {"cpu"}
    assert_same(found, obj)
    found = round_trip(obj, tmp_path, save_tensor_cpu=False)
    assert {value.device for value in found.values()} == {tensor.device}
    assert type(found["p"]) is torch.nn.Parameter
    assert_same(found, obj)


def test_asynchronous_dumps_have_the_values_of_the_call(tmp_path: Path) -> None:
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path, asynchronous=True, strict=True))
    tensor = torch.zeros(4 << 20, device="cuda")
    made = []
    for i in range(8):
        tensor.fill_(i)
        made.append(dumper.dump("s", {"t": tensor, "part": tensor[::1000]}))
    tensor.fill_(-1)
    dumper.close()
    for i, dump_dir in enumerate(made):
        assert dump_dir is not None
        found = UniversalLoader(tmp_path).load(dump_dir)
        assert bool((found["t"] == i).all())
        assert bool((found["part"] == i).all())

"""Weights under HSDP on a mesh of two by two ranks: what torch.distributed.checkpoint saves of them
and the ranks' own passports, against each other and the plain weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from my_utils.tensors.passport import compare_weights, read_weights
from my_utils.tensors.passport.compare import ComparedData, finding_lines, format_lines

from ...support.planted_weights import PLANTED, check_named, model
from ...support.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHARDED = """
from pathlib import Path
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from my_utils.tensors import passport

torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

def module_of(values):
    top = torch.nn.Module()
    for name, value in values.items():
        module = top
        *path, last = name.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        module.register_parameter(last, torch.nn.Parameter(value))
    return top

for file in sorted(Path("plain").glob("*.pt")):
    net = fully_shard(module_of(torch.load(file)), mesh=mesh)
    passport(net).save(f"live/{file.stem}/rank{{rank}}.json")
    dcp.save(net.state_dict(), checkpoint_id=f"dcp/{file.stem}")
dist.barrier()
dist.destroy_process_group()
"""


def compared(a: Path, b: Path) -> ComparedData:
    return compare_weights(read_weights(str(a)), read_weights(str(b)))


@pytest.mark.thorough
def test_planted_differences(tmp_path: Path) -> None:
    """Each is named in the checkpoint and in the passports, which are equal to each other."""
    (tmp_path / "plain").mkdir()
    save_file(model(), tmp_path / "plain.safetensors")
    torch.save(model(), tmp_path / "plain" / "none.pt")
    for plant, _ in PLANTED:
        values = model()
        plant(values)
        torch.save(values, tmp_path / "plain" / f"{plant.__name__}.pt")
    run_ranks(SHARDED, 4, tmp_path)
    for name, wanted in [("none", []), *((plant.__name__, lines) for plant, lines in PLANTED)]:
        live, saved = (tmp_path / side / name for side in ("live", "dcp"))
        same = compared(live, saved)
        assert same.status == "equal", (name, format_lines(same))
        for side in (live, saved):
            found = compared(tmp_path / "plain.safetensors", side)
            check_named(finding_lines(found.findings), wanted)
            assert not found.notes, (name, found.notes)

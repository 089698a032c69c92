"""Checkpoints that the real tools wrote, and files that are damaged or hostile."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict_saver import save as save_parts

from my_utils.tensors import passport
from my_utils.tensors.passport.checkpoints import read_weights
from my_utils.tensors.passport.compare import ComparedData, compare_weights, format_lines
from my_utils.tensors.passport.file import PassportError
from my_utils.tensors.passport.weights import Weights

from ...support.ranks import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "w": torch.randn(37, 53, generator=generator),
        "b": torch.randn(7, generator=generator).bfloat16(),
        "t": torch.randn(9, 31, generator=generator).T,
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        "bits": torch.randint(0, 255, (11,), generator=generator, dtype=torch.uint8),
        "fp8": torch.randn(5, 6, generator=generator).to(torch.float8_e4m3fn),
        "flags": torch.tensor([True, False, True]),
    }


def read(path: Path, dtype: torch.dtype | None = None) -> Weights:
    return read_weights(str(path), dtype, None)


def compared(a: Path, b: Path, ignore: tuple[str, ...] = ()) -> ComparedData:
    return compare_weights(read(a), read(b), ignore)


def check_equal(a: Path, b: Path, count: int) -> None:
    found = compared(a, b)
    assert (found.status, found.equal) == ("equal", count), format_lines(found)


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    return Path(passport(values()).save(tmp_path / "pp" / "rank{rank}.json"))


def test_safetensors(tmp_path: Path, taken: Path) -> None:
    flat = {name: value.contiguous() for name, value in values().items()}
    save_file(flat, tmp_path / "x.safetensors", metadata={"format": "pt"})
    check_equal(taken, tmp_path / "x.safetensors", 8)


def test_torch_save(tmp_path: Path, taken: Path) -> None:
    """Also views of one storage, and values that are no tensors."""
    torch.save(values(), tmp_path / "x.pt")
    check_equal(taken, tmp_path / "x.pt", 8)
    base = torch.randn(10, 6)
    views = {"all": base, "part": base[2:5, 1:4], "t": base.T, "same": base, "n": 5}
    torch.save({"model": views}, tmp_path / "views.bin")
    passport({"model": views}).save(tmp_path / "views.json")
    check_equal(tmp_path / "views.json", tmp_path / "views.bin", 4)
    weights = read(tmp_path / "views.bin")
    assert weights.tensors["model.same"][0].tied == "model.all"
    assert weights.notes == ["views.bin: 1 value that is no tensor"]


def test_distributed_checkpoint_and_its_converters(tmp_path: Path, taken: Path) -> None:
    whole = {name: value for name, value in values().items() if name != "empty"}
    save_parts(whole, checkpoint_id=tmp_path / "dcp")
    passport(whole).save(tmp_path / "whole.json")
    check_equal(tmp_path / "whole.json", tmp_path / "dcp", 7)
    check_equal(tmp_path / "whole.json", tmp_path / "dcp" / ".metadata", 7)
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "back.pt")
    check_equal(tmp_path / "dcp", tmp_path / "back.pt", 7)
    torch_save_to_dcp(tmp_path / "back.pt", tmp_path / "again")
    check_equal(tmp_path / "again", tmp_path / "back.pt", 7)


def test_a_cast_while_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from my_utils.tensors.passport import views

    monkeypatch.setattr(views, "FILE_PIECE_BYTES", 200)
    save_file({"w": values()["w"]}, tmp_path / "x.safetensors")
    torch.save({"w": values()["w"]}, tmp_path / "x.pt")
    passport({"w": values()["w"].bfloat16()}).save(tmp_path / "x.json")
    for name in ("x.safetensors", "x.pt"):
        found = compare_weights(read(tmp_path / name, torch.bfloat16), read(tmp_path / "x.json"))
        assert found.status == "equal"


def test_a_model_of_transformers_in_shards(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=16)
    model = GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    check_equal(tmp_path / "one", tmp_path / "shards", 28)
    check_equal(tmp_path / "one", tmp_path / "shards" / "model.safetensors.index.json", 28)
    passport(model).save(tmp_path / "model.json")
    found = compared(tmp_path / "model.json", tmp_path / "shards")
    assert (found.status, found.equal) == ("equal", 28)
    assert (
        "lm_head.weight is only in A; its values are those of transformer.wte.weight (tied)"
        in found.notes
    )


class Tied(torch.nn.Module):
    """safetensors keeps the name that is first by the alphabet, torch the first that is used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.decode = torch.nn.Linear(8, 10, bias=False)
        self.decode.weight = self.embed.weight


def test_tied_weights_of_which_another_name_is_kept(tmp_path: Path) -> None:
    model = Tied()
    passport(model).save(tmp_path / "model.json")
    save_model(model, str(tmp_path / "both.safetensors"))
    check_equal(tmp_path / "model.json", tmp_path / "both.safetensors", 2)
    save_file({"embed.weight": model.embed.weight.detach()}, tmp_path / "first.safetensors")
    check_equal(tmp_path / "both.safetensors", tmp_path / "first.safetensors", 1)
    save_file({"decode.weight": model.embed.weight.detach()}, tmp_path / "last.safetensors")
    for name in ("first", "last"):
        check_equal(tmp_path / "model.json", tmp_path / f"{name}.safetensors", 1)
    save_file({"decode.weight": torch.zeros(10, 8)}, tmp_path / "other.safetensors")
    found = compared(tmp_path / "model.json", tmp_path / "other.safetensors")
    assert {finding.name for finding in found.findings} == {"embed.weight", "decode.weight"}


def test_an_index_by_any_name(tmp_path: Path) -> None:
    """As diffusers has it, of a variant here, in a folder of a pipeline."""
    folder = tmp_path / "pipeline" / "unet"
    folder.mkdir(parents=True)
    for number, name in enumerate("ab"):
        save_file({name: torch.full((3,), number)}, folder / f"x.fp16-{number}.safetensors")
    places = {"weight_map": {"a": "x.fp16-0.safetensors", "b": "x.fp16-1.safetensors"}}
    index = folder / "x.safetensors.index.fp16.json"
    index.write_text(json.dumps(places), encoding="utf-8")
    check_equal(folder, index, 2)
    (tmp_path / "pipeline" / "model_index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PassportError, match="but in its folders unet: name one of them"):
        read(tmp_path / "pipeline")
    (folder / "x.fp16-1.safetensors").unlink()
    with pytest.raises(OSError, match=r"x\.fp16-1\.safetensors"):
        read(folder)


def test_what_torch_saved_in_another_way(tmp_path: Path, taken: Path) -> None:
    torch.save(values(), tmp_path / "x.pth.tar")
    check_equal(taken, tmp_path / "x.pth.tar", 8)
    torch.save(values(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(PassportError, match=r"of torch before 1\.6: load it and save it again"):
        read(tmp_path / "old.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(PassportError, match=r"objects of torch\..*Linear: save a state dict of"):
        read(tmp_path / "module.pt")


@pytest.mark.slow
def test_shards_of_fsdp_and_the_writer_of_hugging_face(tmp_path: Path) -> None:
    program = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.fsdp import fully_shard
from my_utils.tensors import passport
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(12, 31), torch.nn.Linear(31, 5))
if rank == 0:
    passport(dict(net.state_dict())).save("whole.json")
fully_shard(net)
state = net.state_dict()
dcp.save(state, checkpoint_id="dcp")
dcp.save(state, storage_writer=HuggingFaceStorageWriter("hf", save_distributed=True))
dist.barrier()
dist.destroy_process_group()
"""
    run_ranks(program, 2, tmp_path)
    text = json.loads((tmp_path / "whole.json").read_text(encoding="utf-8"))
    text["world_size"] = 1  # rank 0 wrote it for a model that only it had
    text["groups"] = [{}]
    (tmp_path / "whole.json").write_text(json.dumps(text), encoding="utf-8")
    check_equal(tmp_path / "whole.json", tmp_path / "dcp", 4)
    check_equal(tmp_path / "whole.json", tmp_path / "hf", 4)
    next((tmp_path / "dcp").glob("__1_*")).unlink()
    with pytest.raises(OSError, match=r"__1_0\.distcp"):
        read(tmp_path / "dcp")


@pytest.mark.thorough
def test_dtensors_of_one_rank_and_those_without_elements(tmp_path: Path) -> None:
    """A file of one rank's DTensors is refused with what to do; an empty one is in passports."""
    program = """
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from my_utils.tensors import passport
from my_utils.tensors.passport import PassportError, read_weights
mesh = init_device_mesh("cpu", (world,))
whole = {"w": torch.arange(12.0).reshape(6, 2), "z": torch.zeros(0, 2), "y": torch.zeros(4, 0)}
parts = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in whole.items()}
passport(parts).save("pp/rank{rank}.json")
if rank == 0:
    torch.save(whole, "whole.pt")
    torch.save(parts, "parts.pt")
    try:
        read_weights("parts.pt")
    except PassportError as error:
        print(error)
dist.barrier()
dist.destroy_process_group()
"""
    said = run_ranks(program, 2, tmp_path)[0]
    assert "parts.pt: w: a DTensor, of which the file has what one rank had: save its full" in said
    check_equal(tmp_path / "pp", tmp_path / "whole.pt", 3)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_pairs_of_numbers_of_four_bits(tmp_path: Path) -> None:
    bits = torch.arange(24, dtype=torch.uint8).reshape(4, 6)
    save_file({"w": bits.view(torch.float4_e2m1fn_x2)}, tmp_path / "x.safetensors")
    torch.save({"w": bits.view(torch.float4_e2m1fn_x2)}, tmp_path / "x.pt")
    check_equal(tmp_path / "x.safetensors", tmp_path / "x.pt", 1)
    (tmp_path / "x.safetensors").write_bytes(header_of({"x": entry(0, 1, [3], "F4")}, b"1"))
    with pytest.raises(PassportError, match=r"x: no pairs of numbers are in shape \[3\]"):
        read(tmp_path / "x.safetensors")


# --- damaged and hostile files ---


def header_of(entries: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header: the file ends"),
        (header_of({}, length=2**63), "a header of 9223372036854775808 bytes"),
        (header_of({}, length=200 << 20), "a header of 209715200 bytes"),
        (header_of(b'{"x": '), "header: "),
        (header_of(b"[" * 100_000), "header: "),
        (header_of({"x": 5}), "x: "),
        (header_of({"x": entry(0, 16, [4])}, b"1234"), "x: bytes 0 to 16"),
        (header_of({"x": entry(8, 4, [1])}, bytes(8)), "x: bytes 8 to 4"),
        (header_of({"x": entry(-4, 0, [1])}, bytes(8)), "x: bytes -4 to 0"),
        (header_of({"x": entry(0, 8, [3])}, bytes(8)), r"x: 8 bytes for shape \[3\]"),
        (header_of({"x": entry(0, 8, [-2])}, bytes(8)), "x: no shape of a tensor"),
        (header_of({"x": entry(0, 8, [2**40, 2**40])}, bytes(8)), r"x: more than 2\^63 bytes"),
        (header_of({"x": entry(0, 8, [1] * 100)}, bytes(8)), "x: no shape of a tensor"),
        (header_of({"x": entry(0, 0, [0, 2**62, 2**62])}), "x: no shape of a tensor"),
        (header_of({"x": entry(0, 8, [2], "F9")}, bytes(8)), "x: dtype 'F9' is not known"),
        (
            header_of({"x": entry(0, 8, [2]), "y": entry(4, 8, [1])}, bytes(8)),
            "y: bytes 4 to 8 overlap others",
        ),
    ],
)
def test_a_wrong_safetensors_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(PassportError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    torch.save(values(), tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "x.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(PassportError, match=r"x\.pt: is cut short, damaged or no"):
        read(tmp_path / "x.pt")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "jagged"])
def test_tensors_without_strides_are_refused(layout: str, tmp_path: Path) -> None:
    dense = [torch.ones(2), torch.ones(3)]
    sparse = torch.eye(3).to_sparse(layout=getattr(torch, layout)) if layout != "jagged" else None
    nested = torch.nested.nested_tensor(dense, layout=torch.jagged)
    torch.save({"v": dense[0], "w": nested if sparse is None else sparse}, tmp_path / "x.pt")
    with pytest.raises(PassportError, match=f"w: a tensor of layout {layout} cannot be hashed"):
        read(tmp_path / "x.pt")


class Boom:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/passport-boom",)


def test_pickles_run_nothing(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2), "x": Boom()}, tmp_path / "x.pt")
    with pytest.raises(PassportError, match="cannot be read as plain data"):
        read(tmp_path / "x.pt")
    save_parts({"w": torch.zeros(2)}, checkpoint_id=tmp_path / "dcp")
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Boom(), protocol=4))
    with pytest.raises(PassportError, match=r"names posix\.system, which no checkpoint needs"):
        read(tmp_path / "dcp")
    assert not os.path.exists("/tmp/passport-boom")


def change_metadata(folder: Path, change: Any) -> None:
    path = folder / ".metadata"
    data = pickle.loads(path.read_bytes())
    change(data)
    path.write_bytes(pickle.dumps(data))


def set_info(**fields: object) -> Any:
    def change(data: Any) -> None:
        for info in data.storage_data.values():
            info.__dict__.update(fields)

    return change


def set_chunk(**fields: object) -> Any:
    def change(data: Any) -> None:
        data.state_dict_metadata["w"].chunks[0].__dict__.update(fields)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_info(relative_path="../x"), r"'\.\./x' is not the name of a file in the folder"),
        (set_info(relative_path="/etc/passwd"), "is not the name of a file in the folder"),
        (set_info(offset=10**9), r"w: bytes 1000000000 to"),
        (set_info(length=100), "w: is cut short"),
        (set_info(transform_descriptors=["zstd"]), "w: is packed"),
        (set_chunk(offsets=(1, 0)), "is not in the tensor"),
        (set_chunk(sizes=(1, 1)), r"w: holds no tensor of shape \[1, 1\]"),
        (lambda data: data.storage_data.clear(), r"w: the part at \[0, 0\] is in no file"),
        (lambda data: data.__dict__.pop("storage_data"), "without storage_data"),
        (lambda data: data.__dict__.update(storage_data=5), "has no tables of tensors"),
    ],
)
def test_wrong_metadata_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    save_parts({"w": torch.zeros(3, 4)}, checkpoint_id=tmp_path / "dcp")
    change_metadata(tmp_path / "dcp", change)
    with pytest.raises(PassportError, match=message):
        read(tmp_path / "dcp")


def test_a_bomb_of_tuples_is_refused(tmp_path: Path) -> None:
    save_parts({"w": torch.zeros(2)}, checkpoint_id=tmp_path / "dcp")
    bomb: object = ()
    for _ in range(60):
        bomb = (bomb, bomb)
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps({bomb_key(40): 1, "x": bomb}))
    with pytest.raises(PassportError, match=r"contains itself, or grows|more than"):
        read(tmp_path / "dcp")


def bomb_key(depth: int) -> Any:
    key: object = ()
    for _ in range(depth // 2):
        key = (key, 1)
    return key


def test_an_index_may_name_files_of_its_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": torch.zeros(2)}, folder / "a.safetensors")
    save_file({"w": torch.ones(2), "v": torch.ones(2)}, folder / "stale.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "../a.safetensors"}}), encoding="utf-8")
    with pytest.raises(PassportError, match=r"'\.\./a\.safetensors' is not the name of a file"):
        read(folder)
    index.write_text(json.dumps({"weight_map": {"v": "a.safetensors"}}), encoding="utf-8")
    with pytest.raises(PassportError, match=r"v is not in a\.safetensors, where the index has it"):
        read(folder)
    index.write_text(json.dumps({"weight_map": {"v": "stale.safetensors"}}), encoding="utf-8")
    assert read(folder).notes == [
        "not read: a.safetensors",
        "stale.safetensors: 1 tensors are not in the index",
    ]
    index.unlink()
    with pytest.raises(PassportError, match=r"w is in a\.safetensors and in stale\.safetensors"):
        read(folder)


def test_what_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    with pytest.raises(PassportError, match="neither a checkpoint nor passports are in it"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")
    (tmp_path / "x.bmp").write_bytes(b"x")
    with pytest.raises(PassportError, match=r"no checkpoint by its name; known are \.safetensors"):
        read(tmp_path / "x.bmp")


@pytest.mark.slow
def test_memory_is_bounded_by_pieces(tmp_path: Path) -> None:
    """Of two files of 600 MB no more than pieces is in memory at any time."""
    save_file({"w": torch.zeros(150_000_000)}, tmp_path / "a.safetensors")
    torch.save({"w": torch.zeros(150_000_000)}, tmp_path / "b.pt")
    code = """
import resource, sys, torch
from my_utils.cli.passport_diff import main
import my_utils.tensors.passport.checkpoints
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
status = main(["a.safetensors", "b.pt", "--dtype", "bfloat16", "--quiet"])
print(status, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )  # fmt: skip
    status, grown_mb = map(int, done.stdout.splitlines()[-1].split())
    assert status == 0, done.stdout
    assert grown_mb < 100


# --- folders of trainers ---


def save_trainer(folder: Path, weights: str, value: float) -> None:
    """What a trainer leaves beside its weights; `value` is in these alone."""
    folder.mkdir()
    torch.save({"w": torch.full((3,), value)}, folder / weights)
    torch.save({"state": {0: {"exp_avg": torch.zeros(3)}}}, folder / "optimizer.pt")
    torch.save({"last_epoch": 3}, folder / "scheduler.pt")
    torch.save({"cpu": torch.zeros(3)}, folder / "rng_state.pth")
    torch.save({"momentum": torch.zeros(3)}, folder / "optimizer_1.bin")
    torch.save({"lr": 0.1}, folder / "training_args.bin")


@pytest.mark.parametrize(
    "weights",
    [
        "pytorch_model.bin", "pytorch_model_fsdp.bin", "pytorch_model_1.bin", "adapter_model.bin",
        "diffusion_pytorch_model.fp16.bin", "pytorch_lora_weights.bin", "mine.ckpt",
    ],
)  # fmt: skip
def test_a_trainers_optimizer_is_not_taken_for_its_model(weights: str, tmp_path: Path) -> None:
    """Neither is what else it needs to go on; and what is not read is said."""
    for name, value in (("a", 1.0), ("b", 2.0)):
        save_trainer(tmp_path / name, weights, value)
    found = compared(tmp_path / "a", tmp_path / "b")
    assert [(one.name, one.kind) for one in found.findings] == [("w", "values")]
    not_read = "not read: optimizer.pt, optimizer_1.bin, rng_state.pth, …"
    assert found.notes == [f"A: {not_read}", f"B: {not_read}"]


def test_what_other_readers_of_folders_leave_out_is_said(tmp_path: Path) -> None:
    """Those of safetensors, of an index, and of torch.distributed.checkpoint."""
    folder = tmp_path / "hub"
    save_trainer(folder, "pytorch_model.bin", 1.0)
    save_file({"w": torch.ones(3)}, folder / "model-1.safetensors")
    assert read(folder).notes[0].startswith("not read: optimizer.pt, optimizer_1.bin, pytorch_mod")
    index = {"weight_map": {"w": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"w": torch.ones(3)}, folder / "consolidated.safetensors")
    assert read(folder).notes == [
        "not read: consolidated.safetensors, optimizer.pt, optimizer_1.bin, …"
    ]
    save_parts({"w": torch.ones(3)}, checkpoint_id=tmp_path / "parts")
    torch.save({"args": 1}, tmp_path / "parts" / "common.pt")
    assert read(tmp_path / "parts").notes == ["not read: common.pt"]


def test_a_folder_with_a_trainers_state_alone_is_none_of_weights(tmp_path: Path) -> None:
    """As accelerate leaves of FSDP, whose parts are in folders."""
    save_trainer(tmp_path / "a", "pytorch_model.bin", 1.0)
    (tmp_path / "a" / "pytorch_model.bin").unlink()
    with pytest.raises(PassportError, match=r"no weights are in it, only optimizer\.pt, "):
        read(tmp_path / "a")
    save_parts({"w": torch.ones(3)}, checkpoint_id=tmp_path / "a" / "pytorch_model_fsdp_0")
    with pytest.raises(PassportError, match="in its folders pytorch_model_fsdp_0: name one"):
        read(tmp_path / "a")

"""Tensors, arrays and images in dumps: what comes back, and what other programs see of it."""

from __future__ import annotations

import collections
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from my_utils import tensors
from my_utils.dump_utils import DumpConfig, UniversalDumper, UniversalLoader

from ...support.dump_values import Plain, assert_same, round_trip, tensor_bytes

torch = pytest.importorskip("torch", reason="torch is not installed")
safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")

DTYPES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip


def random_tensor(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Of random bits, so with NaNs of all kinds."""
    kind = getattr(torch, dtype)
    size = torch.empty((), dtype=kind).element_size()
    generator = np.random.default_rng(seed)
    count = int(np.prod(shape)) * size
    high = 2 if dtype == "bool" else 256
    data = generator.integers(0, high, count, dtype=np.uint8)
    return (
        torch.from_numpy(data).view(kind).reshape(shape)
        if count
        else torch.empty(shape, dtype=kind)
    )


def tree_of(dump_dir: str) -> Any:
    return json.loads(Path(dump_dir, "tree.json").read_text(encoding="utf-8"))["root"]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_odd_shapes(tmp_path: Path, dtype: str, verify: bool) -> None:
    obj = [random_tensor(dtype, *shape) for shape in [(3, 5), (), (0,), (2, 0, 3), (1, 1)]]
    assert_same(round_trip(obj, tmp_path, verify=verify), obj)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_readers_of_safetensors_open_the_file(tmp_path: Path, dtype: str) -> None:
    tensor = random_tensor(dtype, 4, 3)
    dump_dir = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True)).dump("s", {"x": tensor})
    from safetensors.torch import load_file

    found = load_file(f"{dump_dir}/tensors.safetensors")
    assert list(found) == ["x"]
    assert tensor_bytes(found["x"]) == tensor_bytes(tensor)


def test_the_tree_says_what_the_tensors_are(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    dump_dir = UniversalDumper(DumpConfig(root_dir=tmp_path)).dump("s", {"a": {"b/c": tensor}})
    assert dump_dir is not None
    node = tree_of(dump_dir)["a"]["b/c"]
    digest = tensors.tensor_hash(tensor)
    assert node["dtype"] == digest.dtype == "float32"
    assert tuple(node["shape"]) == digest.shape == (3, 4)
    assert node["digest"] == digest.content


def test_views_store_their_own_elements_only(tmp_path: Path) -> None:
    big = torch.randn(1000, 1000)
    obj = {
        "row": big[3], "column": big[:, 3], "step": big[::100, ::7], "swapped": big[:5, :7].T,
        "expanded": torch.ones(1, 3, 1).expand(1000, 3, 100_000), "reversed": big[0, :9].flip(0),
        "conj": torch.randn(5, dtype=torch.complex64).conj(),
        "neg": torch.randn(5, dtype=torch.complex64).conj().imag,
        "array": np.arange(10_000.0)[::-50], "broadcast": np.broadcast_to(np.float32(3), (9, 9)),
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    }  # fmt: skip
    dump_dir = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True)).dump("s", obj)
    assert dump_dir is not None
    assert Path(dump_dir, "tensors.safetensors").stat().st_size < 30_000
    found = UniversalLoader(tmp_path).load(dump_dir)
    for name in obj.keys() - {"expanded"}:
        assert_same(found[name], obj[name])
    assert found["expanded"].shape == (1000, 3, 100_000)
    assert found["expanded"].stride() == (0, 1, 0)


def test_parameters_and_gradients(tmp_path: Path) -> None:
    obj = {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        "result": torch.ones(2, requires_grad=True) * 2,
        "integer": torch.arange(3),
    }
    found = round_trip(obj, tmp_path)
    assert_same(found, obj)
    assert all(tensor.is_leaf for tensor in found.values())


def test_small_types_of_torch(tmp_path: Path) -> None:
    obj = [
        torch.Size([1, 2]), torch.Size([]), torch.float8_e5m2, torch.device("cuda", 3),
        torch.device("cpu"), torch.strided, torch.sparse_coo, torch.channels_last,
    ]  # fmt: skip
    assert_same(round_trip(obj, tmp_path), obj)


def test_return_types_of_torch(tmp_path: Path) -> None:
    obj = torch.randn(3, 4).max(dim=1)
    found = round_trip(obj, tmp_path)
    assert type(found) is type(obj)
    assert_same(tuple(found), tuple(obj))


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr", "csc", "bsr", "bsc"])
def test_sparse_tensors(tmp_path: Path, layout: str) -> None:
    dense = torch.tensor([[0.0, 1, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0], [0, 0, 0, 4]])
    blocks = (2, 2) if layout.startswith("b") else None
    if layout == "uncoalesced":
        obj = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (3, 3), requires_grad=True)
    elif layout == "coo":
        obj = dense.to_sparse()
    else:
        obj = dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"), blocksize=blocks)
    found = round_trip({"x": obj}, tmp_path)["x"]
    assert found.layout == obj.layout
    assert found.requires_grad == obj.requires_grad
    assert torch.equal(found.to_dense(), obj.to_dense())
    if obj.layout == torch.sparse_coo:
        assert found.is_coalesced() == obj.is_coalesced()
        assert torch.equal(found._indices(), obj._indices())


def test_tensors_without_memory(tmp_path: Path) -> None:
    meta = torch.empty(10**6, 10**6, device="meta", dtype=torch.bfloat16)
    found = round_trip([meta], tmp_path)[0]
    assert (found.device.type, found.shape, found.dtype) == ("meta", meta.shape, meta.dtype)
    released = torch.ones(3)
    released.untyped_storage().resize_(0)
    whole = torch.ones(3, 4)
    sliced = whole[1:]
    whole.untyped_storage().resize_(0)
    zero = torch._efficientzerotensor(3)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path))
    dump_dir = dumper.dump("s", {
        "a": released, "b": zero, "c": fake, "d": torch.ones(1),
        "like it": torch.ones(2, 4), "sliced": sliced,
    })  # fmt: skip
    assert dump_dir is not None
    found = UniversalLoader(tmp_path).load(dump_dir, allow_pickle=True)
    assert torch.equal(found["d"], torch.ones(1))
    assert torch.equal(found["like it"], torch.ones(2, 4))


def test_odd_tensors_go_through_pickle(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.tensor([0.1, 0.5]), 0.1, 0, torch.quint8)
    found = round_trip([quantized], tmp_path, allow_pickle=True)[0]
    assert torch.equal(found.dequantize(), quantized.dequantize())


def test_inside_vmap_nothing_breaks(tmp_path: Path) -> None:
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path))

    def work(row: Any) -> Any:
        dumper.dump("inside", {"row": row, "n": 1})
        return row * 2

    assert torch.equal(torch.vmap(work)(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert dumper.failed == 0


def test_tensors_in_pickled_objects_are_in_the_one_file(tmp_path: Path) -> None:
    shared = torch.randn(100, 100)
    layer = torch.nn.Linear(4, 3)
    obj = {"t": shared, "plain": Plain(t=shared, view=shared[0], a=np.ones(3)), "layer": layer}
    dump_dir = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True)).dump("s", obj)
    assert dump_dir is not None
    assert Path(dump_dir, "pickle_00000.pkl").stat().st_size < 300
    found = UniversalLoader(tmp_path).load(dump_dir, allow_pickle=True)
    assert found["plain"].t is found["t"]
    assert torch.equal(found["plain"].view, shared[0])
    assert_same(found["layer"].state_dict(), layer.state_dict())
    assert type(found["layer"].weight) is torch.nn.Parameter


def test_a_state_dict(tmp_path: Path) -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict()
    found = round_trip(state, tmp_path)
    assert_same(found, state)


def test_a_tensor_in_several_places_is_one(tmp_path: Path) -> None:
    tensor, array = torch.randn(3), np.ones(2)
    found = round_trip({"a": tensor, "b": [tensor, array], "c": array}, tmp_path)
    assert found["a"] is found["b"][0]
    assert found["c"] is found["b"][1]


def test_names_in_the_file_are_paths_and_do_not_collide(tmp_path: Path) -> None:
    obj = {
        "a": {"b": torch.ones(1)}, "a/b": torch.zeros(1), "": torch.ones(2),
        "(root)": torch.ones(3), "__metadata__": torch.ones(4), "a~1b": torch.ones(5),
        7: torch.ones(6),
    }  # fmt: skip
    assert_same(round_trip(obj, tmp_path), obj)
    obj.pop(7)
    assert_same(round_trip(obj, tmp_path), obj)
    assert_same(round_trip(torch.ones(3), tmp_path), torch.ones(3))


def test_limits_of_tensors(tmp_path: Path) -> None:
    tensor, array = torch.arange(100.0).reshape(10, 10), np.arange(100).reshape(10, 10)
    obj = {"t": tensor.T, "a": array, "small": tensor[:3, :3]}
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path, max_tensor_elements=15, strict=True))
    dump_dir = dumper.dump("s", obj)
    assert dump_dir is not None
    found = UniversalLoader(tmp_path).load(dump_dir)
    assert torch.equal(found["t"], tensor.T.reshape(-1)[:15])
    assert found["a"].tolist() == list(range(15))
    assert torch.equal(found["small"], tensor[:3, :3])
    assert tree_of(dump_dir)["t"]["shape"] == [10, 10]


def test_mapped_tensors_may_be_changed_and_the_file_is_not(tmp_path: Path) -> None:
    obj = {"t": torch.ones(1000), "a": np.ones(1000)}
    dump_dir = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True)).dump("s", obj)
    assert dump_dir is not None
    loader = UniversalLoader(tmp_path)
    before = hashlib.sha256(Path(dump_dir, "tensors.safetensors").read_bytes()).digest()
    found = loader.load(dump_dir, verify=False)
    found["t"] += 1
    found["a"] += 1
    assert hashlib.sha256(Path(dump_dir, "tensors.safetensors").read_bytes()).digest() == before
    assert_same(loader.load(dump_dir), obj)


def test_loading_maps_and_reads_nothing_before_it_is_touched(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    dump_dir = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True)).dump(
        "s", [torch.ones(16 << 20)]
    )
    assert dump_dir is not None
    before = resident()
    found = UniversalLoader(tmp_path).load(dump_dir, verify=False)
    assert resident() - before < 16 << 20
    assert found[0][-1] == 1


def test_the_device_is_noted_where_it_is_asked_for(tmp_path: Path) -> None:
    """Tensors on the CPU have nothing to note; test_dump_gpu.py has the others."""
    parameter = torch.nn.Parameter(torch.ones(2))
    assert_same(round_trip([parameter], tmp_path, save_tensor_cpu=False), [parameter])
    texts = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert texts and not any('"device"' in text for text in texts)


# --- numpy ---

ARRAYS: dict[str, Any] = {
    "0-dim": np.array(3.5),
    "big-endian": np.arange(6, dtype=">i4").reshape(2, 3),
    "big-endian floats": np.array([1.5, np.nan], dtype=">f8"),
    "structured": np.array([(1, 2.5, "ab"), (3, 4.5, "c")], dtype="i4, f8, U3"),
    "nested structure": np.zeros(3, dtype=[("p", [("x", "f4"), ("y", ">i2", (2, 2))]), ("q", "?")]),
    "padded structure": np.zeros(2, dtype=np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    "text": np.array(["a", "längere"]),
    "bytes": np.array([b"a", b"bcd"]),
    "void": np.array([b"\0\1", b"\2\3"], dtype="V2"),
    "datetime": np.array(["2024-01-01", "NaT"], dtype="M8[ns]"),
    "timedelta": np.array([1, 2], dtype="m8[15m]"),
    "longdouble": np.array([1, 2], dtype=np.longdouble),
    "complex": np.array([1 + 2j, np.nan]),
    "half": np.array([1, 2], dtype=np.float16),
    "empty": np.empty((0, 3), dtype=np.int16),
    "empty structure": np.empty((2, 0), dtype="i4, f8"),
    "objects": np.array([[1, "a"], [None, [2]]], dtype=object),
    "0-dim object": np.array({"a": 1}, dtype=object),
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(tmp_path: Path, name: str, verify: bool) -> None:
    obj = {"x": ARRAYS[name]}
    found = round_trip(obj, tmp_path, verify=verify)
    assert_same(found, obj)
    assert found["x"].flags.writeable


def test_scalars_and_types_of_numpy(tmp_path: Path) -> None:
    obj = [
        np.float32(0.1), np.float64(np.nan), np.int8(-1), np.uint64(2**64 - 1), np.bool_(True),
        np.complex64(1j), np.datetime64("2024-01-01T00:00", "m"), np.timedelta64(3, "D"),
        np.str_("tëxt"), np.str_(""), np.bytes_(b"x"), np.longdouble(1) / 3, np.float16(1),
        np.dtype("f4"), np.dtype(">M8[us]"), np.dtype("i4, f8"), np.dtype(object), np.dtype("U5"),
    ]  # fmt: skip
    assert_same(round_trip(obj, tmp_path), obj)
    structured = np.array([(1, 2.5)], dtype="i4, f8")[0]
    found = round_trip([structured], tmp_path)[0]
    assert (found.dtype, found.item()) == (structured.dtype, structured.item())


def test_a_memory_map_comes_back_as_an_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x.bin", dtype="f4", mode="w+", shape=(3, 4))
    mapped[:] = 2
    found = round_trip(mapped, tmp_path)
    assert type(found) is np.ndarray
    assert np.array_equal(found, mapped)


def test_arrays_that_only_pickle_takes(tmp_path: Path) -> None:
    masked = np.ma.array([1, 2], mask=[True, False])
    found = round_trip([masked], tmp_path, allow_pickle=True)[0]
    assert found.tolist() == [None, 2]


numbers = hnp.scalar_dtypes() | hnp.array_dtypes()


@pytest.mark.slow
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    numbers.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))),
    st.integers(-3, 3).filter(bool),
)
def test_any_array_comes_back(tmp_path: Path, array: Any, step: int) -> None:
    view = array[::step] if array.ndim else array
    if view.dtype.itemsize:
        assert_same(round_trip([view, array], tmp_path), [view, array])


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_view_of_a_tensor_comes_back(tmp_path: Path, data: Any) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    tensor = random_tensor(
        data.draw(st.sampled_from(DTYPES)), *shape, seed=data.draw(st.integers(0, 9))
    )
    for _ in range(data.draw(st.integers(0, 3))):
        if not tensor.ndim:
            break
        dim = data.draw(st.integers(0, tensor.ndim - 1))
        action = data.draw(st.sampled_from(["narrow", "swap", "step", "select", "expand"]))
        size = tensor.shape[dim]
        if action == "swap":
            tensor = tensor.transpose(0, dim)
        elif action == "step":
            tensor = tensor[(slice(None),) * dim + (slice(None, None, 2),)]
        elif action == "select" and size:
            tensor = tensor.select(dim, size - 1)
        elif action == "expand":
            tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
        elif action == "narrow" and size:
            tensor = tensor.narrow(dim, 1, size - 1)
    found = round_trip({"x": tensor, "same": [tensor]}, tmp_path)
    assert found["x"] is found["same"][0]
    assert found["x"].dtype == tensor.dtype
    assert found["x"].shape == tensor.shape
    assert_same(list(found["x"].shape), list(tensor.shape))
    assert tensor_bytes(found["x"]) == tensor_bytes(tensor)


# --- TensorDict and images ---


def test_tensordict(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict", reason="tensordict is not installed")
    obj = tensordict.TensorDict(
        {"a": torch.randn(2, 3), "n": {"b": torch.arange(2)}, "text": "words"}, batch_size=[2]
    )
    locked = tensordict.TensorDict({"x": torch.ones(4)}, batch_size=[4], names=["t"]).lock_()
    found = round_trip({"td": obj, "a": obj["a"], "locked": locked}, tmp_path)
    assert type(found["td"]) is tensordict.TensorDict
    assert found["td"].batch_size == torch.Size([2])
    assert found["a"] is found["td"]["a"]
    assert torch.equal(found["td"]["n", "b"], torch.arange(2))
    assert found["td"]["n"].batch_size == torch.Size([2])
    assert found["td"]["text"] == "words"
    assert found["locked"].is_locked
    assert found["locked"].names == ["t"]


MODES = [
    "1",
    "L",
    "LA",
    "P",
    "RGB",
    "RGBA",
    "RGBX",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "I;16",
]


def image_of(mode: str) -> Any:
    pil = pytest.importorskip("PIL.Image", reason="PIL is not installed")
    size = (17, 9)
    image = pil.new(mode, size)
    data = np.random.default_rng(1).integers(0, 255, len(image.tobytes()), dtype=np.uint8)
    if mode == "P":
        image = pil.frombytes(mode, size, data.tobytes())
        image.putpalette(np.random.default_rng(2).integers(0, 255, 768, dtype=np.uint8).tobytes())
        return image
    return pil.frombytes(mode, size, data.tobytes())


@pytest.mark.parametrize("kind", ["png", "tiff", "bmp", "webp"])
@pytest.mark.parametrize("mode", MODES)
def test_images_of_every_mode_and_format(tmp_path: Path, mode: str, kind: str) -> None:
    image = image_of(mode)
    found = round_trip({"i": image, "same": image}, tmp_path, image_format=kind)
    assert found["i"] is found["same"]
    assert (found["i"].mode, found["i"].size) == (image.mode, image.size)
    assert found["i"].tobytes() == image.tobytes()
    if mode == "P":
        assert found["i"].convert("RGB").tobytes() == image.convert("RGB").tobytes()


def test_images_are_files_that_pil_opens(tmp_path: Path) -> None:
    from PIL import Image

    image = image_of("RGB")
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True))
    dump_dir = dumper.dump("s", {"a": [image, image_of("L")]})
    assert dump_dir is not None
    with Image.open(Path(dump_dir, "image_00000.png")) as found:
        assert found.tobytes() == image.tobytes()
    assert tree_of(dump_dir)["a"][1]["$image"] == "image_00001.png"


def test_transparency_palettes_and_opened_images(tmp_path: Path) -> None:
    from PIL import Image

    image = image_of("P")
    image.info["transparency"] = 3
    found = round_trip(image, tmp_path)
    assert found.info["transparency"] == 3
    assert found.getpalette() == image.getpalette()
    image_of("RGB").save(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as opened:
        found = round_trip(opened, tmp_path)
    assert type(found) is Image.Image
    assert found.tobytes() == image_of("RGB").tobytes()


def test_jpeg_is_for_those_who_ask(tmp_path: Path) -> None:
    image = image_of("RGB")
    found = round_trip([image, image_of("RGBA")], tmp_path, image_format="jpg")
    assert found[0].size == image.size
    assert found[1].tobytes() == image_of("RGBA").tobytes()  # JPEG has no RGBA


def test_a_batch_as_training_has_it(tmp_path: Path) -> None:
    obj = {
        "input_ids": torch.randint(0, 100, (4, 16)), "lengths": [16, 3, 8, 1],
        "meta": [{"id": i, "path": Path(f"/data/{i}"), "score": np.float32(i)} for i in range(4)],
        "cache": collections.OrderedDict(k=torch.randn(2, 2).bfloat16()), "lr": 1e-4,
    }  # fmt: skip
    assert_same(round_trip(obj, tmp_path), obj)
    assert_same(round_trip(obj, tmp_path, asynchronous=True), obj)


def test_batches_and_outputs_of_transformers_are_no_pickles(tmp_path: Path) -> None:
    """Also what a fast tokenizer adds, which comes from Rust."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    from transformers.modeling_outputs import CausalLMOutputWithPast

    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="?")
    batch = tokenizer(["a b", "b"], padding=True, return_tensors="pt")
    output = CausalLMOutputWithPast(loss=torch.ones(1), logits=torch.zeros(2, 3))
    found, told = round_trip([batch, output], tmp_path)
    assert type(found) is type(batch) and type(told) is type(output)
    assert torch.equal(found["input_ids"], batch["input_ids"])
    assert (found.tokens(0), found.word_ids(1)) == (batch.tokens(0), batch.word_ids(1))
    assert torch.equal(told.logits, output.logits) and told.keys() == output.keys()

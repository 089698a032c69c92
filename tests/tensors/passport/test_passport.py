"""The passport of a model on one rank, its file, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from my_utils.tensors import TensorSums, passport, tensor_hash, tensor_sums
from my_utils.tensors.passport.boxes import Box, gaps, place_text, tilings
from my_utils.tensors.passport.file import (
    FORMAT,
    GroupData,
    PassportData,
    PassportError,
    TensorData,
    part_data,
    read_passport,
)
from my_utils.tensors.passport.weights import Weights, merged

from ...support.schemas import schema
from ...support.tensor_hash_oracle import to_hex
from ...support.tilings import random_tiling, view_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("derived", torch.arange(4), persistent=False)


def taken(model: Any, folder: Path, **options: Any) -> Weights:
    path = passport(model, **options).save(folder / "rank{rank}.json")
    assert path.endswith("rank0.json")
    return merged([read_passport(path)], path)


def test_it_has_what_a_state_dict_has_and_no_more(tmp_path: Path) -> None:
    model = Net()
    weights = taken(model, tmp_path)
    assert set(weights.tensors) == set(model.state_dict())
    assert weights.tensors["head.weight"][0].tied == "embed.weight"
    assert weights.tensors["embed.weight"][0].tied == ""
    assert weights.tensors["norm.running_mean"][0].kind == "statistics"


def test_the_sums_are_those_of_the_tensors(tmp_path: Path) -> None:
    model = Net()
    weights = taken(model, tmp_path)
    for name, value in model.state_dict().items():
        assert weights.tensors[name][0].totals == [tensor_sums(value)], name


def test_a_file_is_what_its_schema_says(tmp_path: Path) -> None:
    model = Net()
    path = passport(model, step=7).save(tmp_path / "new" / "folder.json")
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    jsonschema.validate(data, schema("passport"))
    assert (data["format"], data["hash"], data["step"]) == (FORMAT, 2, 7)
    plain = {key: value for key, value in data.items() if key != "tensors"}
    with pytest.raises(jsonschema.ValidationError, match="'tensors' is a required"):
        jsonschema.validate(plain, schema("passport"))


def test_a_cast_is_that_of_torch_whatever_the_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from my_utils.tensors.passport import views

    monkeypatch.setattr(views, "PIECE_BYTES", 100)
    values = {"x": torch.randn(37, 53), "t": torch.randn(9, 31).T, "n": torch.arange(5)}
    weights = taken(values, tmp_path, dtype="bfloat16")
    for name in ("x", "t"):
        assert weights.tensors[name][0].dtype == "bfloat16"
        assert weights.tensors[name][0].totals == [tensor_sums(values[name].bfloat16())]
    assert weights.tensors["n"][0].dtype == "int64"


def test_what_wrappers_add_to_names_is_removed(tmp_path: Path) -> None:
    model = torch.compile(nn.Linear(2, 2))
    assert set(taken(model, tmp_path).tensors) == {"weight", "bias"}
    values = {"module.a": torch.zeros(1), "a": torch.ones(1), "module._orig_mod.b": torch.ones(2)}
    assert set(taken(values, tmp_path).tensors) == {"module.a", "a", "b"}


def test_a_nested_mapping_has_names_with_dots(tmp_path: Path) -> None:
    values = {"model": {"w": torch.zeros(2)}, "step": 3, "opt": {"m": {0: torch.ones(1)}}}
    assert set(taken(values, tmp_path).tensors) == {"model.w", "opt.m.0"}


def test_tensors_that_wrap_others_are_those(tmp_path: Path) -> None:
    """As quantized ones of torchao and quanto do."""
    wrapped = torch.nn.Parameter(TwoTensor(torch.ones(3), torch.zeros(3)))
    module = torch.nn.Module()
    module.register_parameter("weight", wrapped)
    plain = {"weight.a": torch.ones(3), "weight.b": torch.zeros(3)}
    for model in (module, {"weight": wrapped}):
        assert passport(model).data.tensors == passport(plain).data.tensors


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="model must be a module or a mapping of tensors, not 3"):
        passport(3)
    with pytest.raises(ValueError, match="dtype must be a dtype of torch such as 'bfloat16'"):
        passport({}, dtype="bfloat")
    with pytest.raises(ValueError, match=r"floating-point type, not torch\.int8"):
        passport({}, dtype=torch.int8)
    with pytest.raises(TypeError, match="layout must be a Layout or None, not 'vllm'"):
        passport({}, layout="vllm")
    with pytest.raises(ValueError, match="step must be at least 0, not -1"):
        passport({}, step=-1)
    with pytest.raises(TypeError, match=r"x: .*a meta tensor has only a shape"):
        passport({"x": torch.empty(3, device="meta")})
    with pytest.raises(TypeError, match=r"a\.x: a tensor of layout sparse_coo cannot be hashed"):
        passport({"a": {"x": torch.eye(3).to_sparse()}})


# --- boxes ---


def file_of(tensor: torch.Tensor, boxes: list[Box], rank: int, world: int) -> PassportData:
    name, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    parts = []
    for box in boxes:
        parts.append(part_data(box, tensor_sums(view_of(tensor, box), shape, box.at)))
    data = TensorData("x", name, shape, parts)
    return PassportData(
        FORMAT, 1, 2, "test", rank, world, "", None, "", "", [GroupData()], [data], []
    )


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.uint8]),
    chance=st.randoms(use_true_random=False),
    world=st.integers(1, 4),
)
def test_any_tiling_over_any_ranks_is_the_whole(
    shape: tuple[int, ...], dtype: torch.dtype, chance: random.Random, world: int
) -> None:
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    tensor = torch.randn(shape, generator=generator).to(dtype)
    by_rank: list[list[Box]] = [[] for _ in range(world)]
    for box in random_tiling(shape, chance):
        by_rank[chance.randrange(world)].append(box)
    files = [file_of(tensor, boxes, rank, world) for rank, boxes in enumerate(by_rank)]
    (found,) = merged(files, "x").tensors["x"]
    assert found.totals == [tensor_sums(tensor)]
    assert found.missing_text() == ""
    assert found.replica_problems() == []


@settings(max_examples=30, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_missing_elements_are_counted(chance: random.Random) -> None:
    shape = (chance.randrange(1, 9), chance.randrange(1, 9), chance.randrange(1, 5))
    boxes = random_tiling(shape, chance)
    kept = [box for box in boxes if chance.random() < 0.5]
    grid = torch.zeros(shape)
    for box in kept:
        grid[tuple(slice(at, at + size) for at, size in zip(*box, strict=True))] += 1
    missing = gaps(kept, shape)
    for box in missing:
        grid[tuple(slice(at, at + size) for at, size in zip(*box, strict=True))] += 1
    assert bool((grid == 1).all())
    assert bool(tilings(kept, shape)) == (not missing)


def test_several_tilings_of_one_tensor_are_found_and_compared() -> None:
    x = torch.randn(64, 8)
    rows = [Box((0, 0), (32, 8)), Box((32, 0), (32, 8))]
    columns = [Box((0, 0), (64, 4)), Box((0, 4), (64, 4))]
    other = x.clone()
    other[5, 6] += 1
    for second, problems in ((x, []), (other, [({2, 3}, "", "ranks 0-1 against ranks 2-3")])):
        files = [
            file_of(tensor, [box], rank, 4)
            for rank, (tensor, box) in enumerate(
                [(x, rows[0]), (x, rows[1]), (second, columns[0]), (second, columns[1])]
            )
        ]
        (found,) = merged(files, "x").tensors["x"]
        assert len(found.tilings) == 2
        assert found.replica_problems() == problems


@pytest.mark.parametrize(
    ("box", "shape", "text"),
    [
        (Box((2,), (3,)), (9,), "elements 2-4"),
        (Box((76, 0), (4, 8)), (100, 8), "rows 76-79"),
        (Box((0, 3), (100, 1)), (100, 8), "columns 3"),
        (Box((1, 0, 2), (1, 4, 2)), (3, 4, 5), "rows 1, dimension 2: 2-3"),
        (Box((), ()), (), ""),
        (Box((0, 0), (100, 8)), (100, 8), ""),
    ],
)
def test_places_in_words(box: Box, shape: tuple[int, ...], text: str) -> None:
    assert place_text(box, shape) == text


# --- files that are wrong ---


def wrong(data: dict[str, Any], change: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(data))
    change(copy)
    return copy  # type: ignore[no-any-return]


def set_part(key: str, value: object) -> Any:
    def change(data: dict[str, Any]) -> None:
        data["tensors"][0]["parts"][0][key] = value

    return change


def set_tensor(key: str, value: object) -> Any:
    def change(data: dict[str, Any]) -> None:
        data["tensors"][0][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(format="other"), "not a passport"),
        (lambda data: data.update(version=2), "has version 2; this my_utils reads 1"),
        (lambda data: data.update(hash=1), "sums of version 1 of the tensor hash"),
        (set_part("at", [1, 0]), "x, part 0: at .* is not in the tensor"),
        (set_part("at", [-1, 0]), "x, part 0: at .* is not in the tensor"),
        (set_part("at", [0]), "x, part 0: 1 and 2 numbers for 2 dimensions"),
        (set_part("at", [0, 2**70]), "x, part 0|out of range|Integer"),
        (set_part("sums", "00"), "x, part 0: sums must have 128 digits, not 2"),
        (set_part("sums", "zz" * 64), "x, part 0: non-hexadecimal"),
        (set_part("cut", [[1000, "00"]]), "x, part 0: "),
        (set_part("cut", [[-1, "00"]]), "x, part 0: "),
        (set_part("cut", [[0, "00"], [0, "00"]]), "x, part 0: "),
        (set_tensor("shape", [-5, 4]), "x: no shape of a tensor"),
        (set_tensor("shape", [2**40, 2**40]), r"x: more than 2\^63 bytes"),
        (set_tensor("dtype", "float7"), "x: unknown dtype 'float7'"),
        (set_tensor("group", 3), "x: group 3 of 1"),
        (set_tensor("name", None), "Expected `str`, got `null`"),
        (lambda data: data.update(groups=[{"ranks": "x"}]), "ranks of a group must be numbers"),
    ],
)
def test_a_wrong_file_is_refused_with_the_part(change: Any, message: str, tmp_path: Path) -> None:
    path = Path(passport({"x": torch.zeros(3, 4)}).save(tmp_path / "x.json"))
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(wrong(data, change)), encoding="utf-8")
    with pytest.raises(PassportError, match=message) as caught:
        read_passport(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": ', '{"format": NaN}', "[" * 100_000, '{"format": 1e999}']
)
def test_no_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PassportError):
        read_passport(path)


@pytest.mark.slow
def test_a_million_parts_are_refused(tmp_path: Path) -> None:
    path = Path(passport({"x": torch.zeros(3, 4)}).save(tmp_path / "x.json"))
    data = json.loads(path.read_text(encoding="utf-8"))
    part = json.dumps(data["tensors"][0]["parts"][0])
    data["tensors"][0]["parts"] = "PARTS"
    text = json.dumps(data).replace('"PARTS"', f"[{','.join([part] * 1_000_000)}]")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PassportError, match="x: more than 65536 parts"):
        read_passport(path)


def test_files_that_do_not_belong_together_are_refused() -> None:
    x = torch.zeros(4, 4)
    whole = [Box((0, 0), (4, 4))]
    with pytest.raises(PassportError, match="several passports of rank 0"):
        merged([file_of(x, whole, 0, 2), file_of(x, whole, 0, 2)], "pp")
    other = file_of(x, whole, 1, 2)
    other.step = 5
    with pytest.raises(PassportError, match="several values of step: 5, None"):
        merged([file_of(x, whole, 0, 2), other], "pp")
    with pytest.raises(PassportError, match=r"x: float64 \[4, 4\] on rank 1, float32 \[4, 4\]"):
        merged([file_of(x, whole, 0, 2), file_of(x.double(), whole, 1, 2)], "pp")


def test_the_sums_in_a_file_are_those_of_the_definition(tmp_path: Path) -> None:
    """Against the oracle in plain Python."""
    from ...support import tensor_hash_oracle as oracle

    x = torch.arange(6000, dtype=torch.int16)
    weights = taken({"x": x}, tmp_path)
    (total,) = weights.tensors["x"][0].totals
    assert isinstance(total, TensorSums)
    digest = oracle.mix((*total.sums[:4],), total.nbytes + 1)
    assert to_hex(digest) == tensor_hash(x).content

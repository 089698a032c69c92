"""ChecksumUtils: what keeps samples and checksums together, and what shows as a mismatch."""

from __future__ import annotations

import collections
import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import default_collate

import my_utils
from my_utils.tensors.checksums.batches import DataConsistencyError, Verification
from my_utils.utils import ChecksumUtils

from ...conftest import RunPython
from ...support.ranks import Ranks

pytestmark = pytest.mark.long_file

KEY = ChecksumUtils.KEY
Batch = dict[str, Any]


@pytest.fixture(autouse=True)
def checks_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChecksumUtils, "enabled", True)


class Lines(logging.Handler):
    """The messages that a logger got."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("test_checksums")
    logger.propagate = False
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def check(batch: Any) -> Verification:
    return ChecksumUtils.verify(batch, logging.getLogger("test_checksums"))


def found(batch: Any) -> list[tuple[str, int | None, str]]:
    return [(one.key, one.sample, one.problem) for one in check(batch).mismatches]


def plain_batch(size: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(size)
    return {
        "x": torch.randn(size, 3, 4, generator=generator),
        "mask": torch.rand(size, 5, generator=generator) > 0.5,
        "labels": torch.arange(size),
        "half": torch.randn(size, 2, generator=generator).to(torch.bfloat16),
    }


def pick(batch: Batch, rows: Any) -> Batch:
    return {key: value[rows] for key, value in batch.items()}


# --- what keeps samples and checksums together -----------------------------------------------


def test_sign_is_a_shallow_copy() -> None:
    batch = plain_batch()
    before = {key: value.clone() for key, value in batch.items()}
    signed = ChecksumUtils.sign(batch)
    assert set(signed) == {*batch, KEY} and KEY not in batch
    assert all(signed[key] is batch[key] for key in batch)
    assert signed[KEY].dtype == torch.int64 and len(signed[KEY]) == 6
    assert all(torch.equal(batch[key], before[key]) for key in batch)


def test_verify_takes_the_checksums_out_of_the_batch_itself() -> None:
    signed = ChecksumUtils.sign(plain_batch())
    result = check(signed)
    assert result and result.ok and result.checked and result.mismatches == []
    assert result.batch is signed and KEY not in signed

    def model(x: object, mask: object, labels: object, half: object) -> bool:
        return True

    assert model(**signed)


ARRANGEMENTS: dict[str, Callable[[Batch], Batch]] = {
    "slice": lambda batch: pick(batch, slice(1, 4)),
    "every second": lambda batch: pick(batch, slice(None, None, 2)),
    "shuffle": lambda batch: pick(batch, torch.tensor([3, 0, 5, 1, 4, 2])),
    "mask": lambda batch: pick(batch, torch.tensor([True, False, True, True, False, True])),
    "repeat": lambda batch: {k: v.repeat_interleave(2, 0) for k, v in batch.items()},
    "one row": lambda batch: pick(batch, 2),
    "nothing": lambda batch: pick(batch, slice(0, 0)),
    "split and put together": lambda batch: {
        key: torch.cat(list(reversed(value.split(2)))) for key, value in batch.items()
    },
    "cloned": lambda batch: {key: value.clone() for key, value in batch.items()},
    "as numpy": lambda batch: {
        k: v if v.dtype == torch.bfloat16 else v.numpy() for k, v in batch.items()
    },
    "another order of keys": lambda batch: dict(reversed(batch.items())),
    "pickled": lambda batch: pickle.loads(pickle.dumps(batch)),
    "one more key": lambda batch: {**batch, "position_ids": torch.zeros(6)},
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_arranging_samples_is_no_mismatch(name: str) -> None:
    assert check(ARRANGEMENTS[name](ChecksumUtils.sign(plain_batch()))).mismatches == []


def test_batches_put_together() -> None:
    parts = [ChecksumUtils.sign(plain_batch(size)) for size in (2, 5, 1)]
    whole = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    assert len(whole[KEY]) == 8
    assert check(whole)


def sample(index: int) -> Batch:
    return {
        "x": torch.full((2, 3), float(index)),
        "label": index,
        "weight": index / 7,
        "flag": index % 2 == 0,
        "scalar": torch.tensor(index),
        "array": np.full(4, index, np.float32),
        "number": np.float32(index),
        "text": f"sample {index}",
        "pair": (torch.tensor([index]), {"deep": torch.ones(2, dtype=torch.int8)}),
    }


def test_samples_that_are_collated_later() -> None:
    samples = [ChecksumUtils.sign(sample(index), batched=False) for index in range(5)]
    assert samples[0][KEY].dim() == 1
    assert check(copy.copy(samples[3]))  # as it is
    batch = default_collate(samples)
    assert batch[KEY].shape[0] == 5
    assert (
        check(pick({k: batch[k] for k in ("x", "label", "scalar", KEY)}, slice(1, 3))).ok is False
    )
    assert check(batch).mismatches == []

    batch = default_collate(samples)
    batch["pair"][1]["deep"][4, 0] = 3
    batch["label"][2] = 9
    batch["text"][0] = "another"
    assert sorted(found(batch)) == [
        ("label", 2, "differs"), ("pair[1].deep", 4, "differs"), ("text", 0, "differs"),
    ]  # fmt: skip


def test_a_collate_function_that_leaves_lists() -> None:
    samples = [ChecksumUtils.sign(sample(index), batched=False) for index in range(3)]
    lists: Batch = {key: [one[key] for one in samples] for key in samples[0] if key != "pair"}
    lists["label"][1] = 2
    assert sorted(found(lists)) == [
        ("label", 1, "moved"), ("pair[0]", None, "missing"), ("pair[1].deep", None, "missing"),
    ]  # fmt: skip


def test_what_all_samples_share_may_come_back_once_a_sample() -> None:
    batch: Batch = {"x": torch.ones(3, 2), "scale": torch.tensor(2.0), "rate": 0.5, "tag": "a"}
    signed = ChecksumUtils.sign(batch)
    rows = [
        {
            "x": signed["x"][n],
            KEY: signed[KEY][n],
            "scale": signed["scale"],
            "rate": 0.5,
            "tag": "a",
        }
        for n in (2, 0, 1)
    ]
    again = default_collate(rows)
    assert again["scale"].shape == again["rate"].shape == (3,) and again["tag"] == ["a"] * 3
    assert check(copy.copy(again)).mismatches == []
    again["scale"][1] = 3
    assert found(again) == [("scale", 1, "differs")]


def test_samples_with_mappings_that_end_up_in_a_list() -> None:
    samples = [
        ChecksumUtils.sign({"target": {"boxes": torch.ones(n, 4), "id": n}}, batched=False)
        for n in (1, 5, 2)
    ]
    batch: Batch = {key: [one[key] for one in samples] for key in samples[0]}
    assert check(copy.copy(batch)).mismatches == []
    batch["target"][1] = {"boxes": torch.zeros(5, 4), "id": 5}
    assert found(batch) == [("target.boxes", 1, "differs")]


def test_nested_payloads() -> None:
    batch = {
        "inputs": {
            "ids": torch.arange(8).reshape(4, 2),
            "pixels": [torch.ones(4, 3), torch.ones(4, 3)],
        },
        "views": (torch.zeros(4), torch.ones(4, 1)),
        "texts": ["a", "b", "c", "d"],
        "boxes": [torch.ones(n, 4) for n in (2, 0, 3, 1)],
        "targets": [{"id": n, "box": torch.ones(n)} for n in range(4)],
        "temperature": 0.7,
        "table": torch.arange(10),
        "scale": torch.tensor(2.0),
        "nothing": None,
        7: np.arange(4),
    }
    assert check(ChecksumUtils.sign(batch)).mismatches == []

    signed: Any = copy.deepcopy(ChecksumUtils.sign(batch))
    signed["inputs"]["pixels"][1][2, 0] = 5
    signed["texts"][3] = "D"
    signed["boxes"][0][0, 0] = 0
    signed["targets"][1]["id"] = 8
    signed["temperature"] = 0.8
    signed["table"][9] = 0
    signed["scale"] += 1
    signed[7][0] = 77
    every = [0, 1, 2, 3]
    assert sorted(found(signed)) == sorted(
        [("inputs.pixels[1]", 2, "differs"), ("texts", 3, "differs"), ("boxes", 0, "differs")]
        + [("targets", 1, "differs"), ("[7]", 0, "differs")]
        + [(key, n, "differs") for key in ("temperature", "table", "scale") for n in every]
    )


def test_lists_and_tuples() -> None:
    pair: Any = (torch.randn(3, 2), torch.arange(3))
    signed = ChecksumUtils.sign(pair)
    assert isinstance(signed, tuple) and len(signed) == 3 and set(signed[2]) == {KEY}
    result = check(signed)
    assert result.ok and len(result.batch) == 2 and result.batch[0] is pair[0]

    as_list: list[Any] = list(ChecksumUtils.sign(pair))
    assert check(as_list).batch is as_list and len(as_list) == 2

    samples = [ChecksumUtils.sign((torch.ones(2) * n, n), batched=False) for n in range(4)]
    batch = default_collate(samples)
    batch[1][3] = 0
    assert found(batch) == [("[1]", 3, "moved")]
    assert len(batch) == 2


def test_other_mappings() -> None:
    ordered: Any = collections.OrderedDict(plain_batch())
    signed = ChecksumUtils.sign(ordered)
    assert isinstance(signed, collections.OrderedDict) and KEY not in ordered and check(signed)
    user: Any = collections.UserDict(plain_batch())
    signed_user = ChecksumUtils.sign(user)
    assert isinstance(signed_user, collections.UserDict) and KEY not in user
    assert check(signed_user) and KEY not in signed_user


def test_signing_again_replaces_the_checksums() -> None:
    signed = ChecksumUtils.sign(plain_batch())
    signed["x"] += 1
    assert check(ChecksumUtils.sign(signed)).mismatches == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_selection_is_sound_and_any_flipped_bit_is_found(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 9))
    batch = plain_batch(size)
    rows = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=12))
    signed = pick(ChecksumUtils.sign(batch), torch.tensor(rows))
    assert check(dict(signed)).mismatches == []

    key = data.draw(st.sampled_from(["x", "labels", "half"]))
    row = data.draw(st.integers(0, len(rows) - 1))
    raw = signed[key][row].reshape(-1).view(torch.uint8)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    result = found(signed)
    assert [one[:2] for one in result] == [(key, row)]


# --- what shows as a mismatch ----------------------------------------------------------------


def swap(batch: Batch) -> None:
    batch["x"][[1, 4]] = batch["x"][[4, 1]]


def transpose(batch: Batch) -> None:
    batch["x"][2] = batch["x"][2].t().reshape(3, 4)


def roll(batch: Batch) -> None:
    batch["x"][2] = batch["x"][2].roll(1, 0)


def minus_zero(batch: Batch) -> None:
    batch["zero"][0] = -0.0


def nan_payload(batch: Batch) -> None:
    batch["zero"].view(torch.int32)[1, 2] ^= 1


def one_bit(batch: Batch) -> None:
    batch["half"].view(torch.int16)[5, 1] ^= 1


def same_bit_in_two_places(batch: Batch) -> None:
    batch["x"].view(torch.int32)[3, 0, :2] ^= 1 << 7


def shuffled_labels(batch: Batch) -> None:
    batch["labels"] = batch["labels"][torch.tensor([1, 0, 2, 3, 4, 5])]


def shuffled_inputs(batch: Batch) -> None:
    order = torch.tensor([1, 0, 2, 3, 4, 5])
    for key in ("x", "mask", "half", "zero", KEY):
        batch[key] = batch[key][order]


def swapped_keys(batch: Batch) -> None:
    batch["labels"], batch["other"] = batch["other"], batch["labels"]


MUTATIONS: dict[Callable[[Batch], None], list[tuple[str, int | None, str]]] = {
    swap: [("x", 1, "moved"), ("x", 4, "moved")],
    transpose: [("x", 2, "differs")],
    roll: [("x", 2, "differs")],
    minus_zero: [("zero", 0, "differs")],
    nan_payload: [("zero", 1, "differs")],
    one_bit: [("half", 5, "differs")],
    same_bit_in_two_places: [("x", 3, "differs")],
    shuffled_labels: [("labels", 0, "moved"), ("labels", 1, "moved")],
    shuffled_inputs: [(key, n, "moved") for key in ("labels", "other") for n in (0, 1)],
    swapped_keys: [(key, n, "differs") for key in ("labels", "other") for n in range(6)],
}


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_every_change_is_found(mutate: Callable[[Batch], None]) -> None:
    batch = plain_batch()
    batch["zero"] = torch.zeros(6, 3)
    batch["zero"][1, 2] = float("nan")
    batch["other"] = torch.arange(10, 16)
    signed = ChecksumUtils.sign(batch)
    mutate(signed)
    assert sorted(found(signed)) == sorted(MUTATIONS[mutate])
    assert KEY not in signed


def test_a_sample_of_another_shape_or_dtype_of_the_same_bits() -> None:
    signed = ChecksumUtils.sign({"x": torch.ones(2, 3, 4), "y": torch.ones(2)})
    assert found({**signed, "x": signed["x"].reshape(2, 12)}) == [
        ("x", 0, "differs"), ("x", 1, "differs"),
    ]  # fmt: skip
    assert found({**signed, "y": signed["y"].view(torch.int32)}) == [
        ("y", 0, "differs"), ("y", 1, "differs"),
    ]  # fmt: skip


def test_padding_and_casts_after_signing() -> None:
    signed = ChecksumUtils.sign(plain_batch())
    padded = {**signed, "x": torch.nn.functional.pad(signed["x"], (0, 2))}
    assert {one[::2] for one in found(padded)} == {("x", "differs")}
    cast = {**signed, "x": signed["x"].half()}
    assert {one[::2] for one in found(cast)} == {("x", "differs")}


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.float64, torch.bfloat16])
def test_checksums_that_were_cast(dtype: torch.dtype, log: Lines) -> None:
    signed = ChecksumUtils.sign(plain_batch())
    signed[KEY] = signed[KEY].to(dtype)
    there_and_back = {**signed, KEY: signed[KEY].to(torch.int64)}
    assert found(signed) == [("", None, "cast")]
    name = str(dtype).removeprefix("torch.")
    assert log.lines == [f"data inconsistency: the checksums are {name}, not int64: they were cast"]
    assert found(there_and_back) == [("", n, "damaged") for n in range(6)]


def test_a_damaged_checksum_is_not_taken_for_changed_data() -> None:
    signed = ChecksumUtils.sign(plain_batch())
    signed[KEY][2, -1] ^= 1
    signed["labels"][4] = 99
    assert found(signed) == [("", 2, "damaged"), ("labels", 4, "differs")]
    cut = ChecksumUtils.sign(plain_batch())
    cut[KEY] = cut[KEY][:, :-3]
    assert found(cut) == [("", n, "damaged") for n in range(6)]
    gone = ChecksumUtils.sign(plain_batch())
    gone[KEY] = gone[KEY][:0]
    assert found(gone) == [("", None, "length")]


def test_keys_that_are_gone_and_rows_that_are_missing() -> None:
    signed = ChecksumUtils.sign(plain_batch())
    del signed["mask"]
    signed["labels"] = signed["labels"][:4]
    assert sorted(found(signed)) == [("labels", None, "length"), ("mask", None, "missing")]


def test_a_batch_without_checksums(log: Lines) -> None:
    result = check(plain_batch())
    assert not result and [one.problem for one in result.mismatches] == ["unsigned"]
    assert log.lines == ["data inconsistency: the batch carries no checksums"]


def test_what_the_log_says(log: Lines) -> None:
    signed = ChecksumUtils.sign(plain_batch())
    signed["x"][[0, 1, 2, 5]] += 1
    shuffled_labels(signed)
    signed["half"][3] = 0
    check(signed)
    assert log.lines == [
        "data inconsistency: key 'half', sample 3: differs from the signed data; arrived as "
        "bfloat16 of shape (2,)",
        "data inconsistency: key 'labels', samples 0-1: they have the data of samples 1, 0",
        "data inconsistency: key 'x', samples 0-2, 5: differs from the signed data; arrived as "
        "float32 of shape (3, 4)",
    ]


def test_what_differs_says_what_arrived(log: Lines) -> None:
    payload: Batch = {
        "x": torch.ones(3, 2),
        "array": np.ones((3, 4)),
        "whole": torch.ones(7),
        "texts": ["a", "b", "c"],
        "ragged": [torch.ones(1), torch.ones(2), torch.ones(4)],
    }
    signed = ChecksumUtils.sign(payload)
    signed["x"] = signed["x"].half()
    signed["array"] = signed["array"].reshape(3, 2, 2)
    signed["whole"] = signed["whole"].double()
    signed["texts"] = ["a", "b", 3]
    signed["ragged"] = [item.half() for item in signed["ragged"]]
    details = {one.key: one.detail.partition("arrived as ")[2] for one in check(signed).mismatches}
    assert details == {
        "x": "float16 of shape (2,)",
        "array": "float64 of shape (2, 2)",
        "whole": "float64 of shape (7,)",
        "texts": "int",
        "ragged": "float16 of shape (4,)",
    }
    assert (
        "data inconsistency: key 'ragged', samples 0-2: differs from the signed data; the first "
        "arrived as float16 of shape (1,)" in log.lines
    )


def test_the_logger_of_the_process_by_default(caplog: pytest.LogCaptureFixture) -> None:
    signed = ChecksumUtils.sign(plain_batch())
    signed["x"] += 1
    with caplog.at_level(logging.ERROR):
        ChecksumUtils.verify(signed)
    assert "key 'x', samples 0-5" in caplog.text


def test_strict_raises_after_the_checksums_are_out(log: Lines) -> None:
    signed = ChecksumUtils.sign(plain_batch())
    signed["x"][2] = 0
    with pytest.raises(DataConsistencyError, match="key 'x', sample 2") as caught:
        ChecksumUtils.verify(signed, logging.getLogger("test_checksums"), strict=True)
    assert KEY not in signed and len(log.lines) == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.verification.mismatches == caught.value.verification.mismatches


# --- what it takes ---------------------------------------------------------------------------


def test_off_returns_the_payload_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChecksumUtils, "enabled", False)
    payload = plain_batch()
    assert ChecksumUtils.sign(payload) is payload
    result = ChecksumUtils.verify(payload, logging.getLogger("test_checksums"), strict=True)
    assert result.batch is payload and result.ok and not result.checked


@pytest.mark.parametrize("value", ["1", "0", "", None])
def test_the_environment_turns_it_on(value: str | None, run_python: RunPython) -> None:
    code = (
        "import sys; from my_utils.utils import ChecksumUtils; "
        "print(ChecksumUtils.enabled, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    env = {} if value is None else {"DEBUG_DATA_CONSISTENCY": value}
    assert run_python("-c", code, env=env).stdout == f"{value == '1'} False False\n"


def test_it_is_one_of_the_main_names() -> None:
    assert my_utils.ChecksumUtils is ChecksumUtils


class Pair(NamedTuple):
    a: int
    b: int


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"payload must be .*, not Tensor; pass \{'x': x\}"):
        ChecksumUtils.sign(torch.ones(3))
    with pytest.raises(TypeError, match=r"not Pair; pass x\._asdict\(\)"):
        ChecksumUtils.sign(Pair(1, 2))
    with pytest.raises(TypeError, match="batched must be a bool, not 1"):
        ChecksumUtils.sign({}, batched=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"logger must be a logging\.Logger, not str"):
        ChecksumUtils.verify({}, "log")  # type: ignore[arg-type]


def test_what_cannot_be_read_is_left_alone() -> None:
    batch: Batch = {
        "x": torch.ones(3, 2),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.ones(3, 2, device="meta"),
        "nested": torch.nested.nested_tensor([torch.ones(2)] * 3, layout=torch.jagged),
        "objects": [object()] * 3,
        "records": np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
        "names": np.array(["a", None, "b"], dtype=object),
    }
    signed = ChecksumUtils.sign(batch)
    signed["x"][1] = 5
    assert found(signed) == [("x", 1, "differs")]


@pytest.mark.parametrize(
    "values",
    [
        np.array(["u1", "u2", "u33"]),
        np.array([b"u1", b"u2", b"u3"]),
        np.array(["2026-01-01", "2026-01-02", "NaT"], dtype="datetime64[D]"),
        np.array([1, 2, 3], dtype="timedelta64[s]"),
        np.arange(6, dtype=">f4").reshape(3, 2),
        np.array([["a", "b"], ["c", "d"], ["e", "f"]]).T.copy().T,
    ],
    ids=lambda values: str(values.dtype),
)
def test_arrays_of_texts_dates_and_other_byte_orders(values: Any) -> None:
    batch: Batch = {"x": torch.ones(3, 2), "ids": values, "all": {"ids": values[:2]}}

    def signed() -> Any:
        return pickle.loads(pickle.dumps(ChecksumUtils.sign(batch)))

    assert check(signed())
    part = {k: v[1:] if k != "all" else v for k, v in signed().items()}
    assert check(part)
    changed = signed()
    changed["ids"][1] = values[0]
    changed["all"]["ids"] = changed["all"]["ids"][::-1]
    wrong = {(key, problem) for key, _, problem in found(changed)}
    assert wrong == {("ids", "moved"), ("all.ids", "differs")}
    single = ChecksumUtils.sign({"id": values[0]}, batched=False)
    single["id"] = values[1]
    assert not check(single)


def test_payloads_without_samples() -> None:
    payloads: list[Any] = [{}, {"a": None}, {"n": 3}, [], {"x": torch.ones(0, 3)}]
    for payload in payloads:
        assert check(ChecksumUtils.sign(payload)).mismatches == []
    assert found({**ChecksumUtils.sign({"n": 3}), "n": 4}) == [("n", None, "differs")]


def test_long_names_and_odd_keys() -> None:
    long = "a_rather_long_name_of_a_key_" * 4
    payload = {long + "1": torch.ones(2), long + "2": torch.zeros(2), ("t", 1): torch.ones(2)}
    signed = ChecksumUtils.sign(payload)
    assert check(copy.copy(signed)).mismatches == []
    signed[long + "2"][1] = 1
    ((key, index, problem),) = found(signed)
    assert key.endswith("name_of_a_key_2") and (index, problem) == (1, "differs")


@pytest.mark.parametrize(
    "payload",
    [
        {1: torch.zeros(3), "1": torch.ones(3)},
        {True: torch.zeros(3), "True": torch.ones(3)},
        {"a.b": torch.zeros(3), "a": {"b": torch.ones(3)}},
        {"a[0]": torch.zeros(3), "a": [torch.ones(3)]},
        {"": {"b": torch.zeros(3)}, "b": torch.ones(3)},
        {"a": torch.zeros(3), "a\0": torch.ones(3)},
        {"a": {1: torch.zeros(3), "1": torch.ones(3), "[1]": torch.full((3,), 2.0)}},
    ],
    ids=lambda payload: ", ".join(map(repr, payload)),
)
@pytest.mark.parametrize("batched", [True, False])
def test_no_two_places_have_one_name(payload: dict[Any, Any], batched: bool) -> None:
    leaves = torch.utils._pytree.tree_leaves(payload)
    for number in range(len(leaves)):
        signed = ChecksumUtils.sign(payload, batched=batched)
        changed = iter(leaf + 9 * (i == number) for i, leaf in enumerate(leaves))
        kept = signed.pop(KEY)
        arrived = torch.utils._pytree.tree_map(lambda _, new=changed: next(new), signed)
        assert len({one.key for one in check({**arrived, KEY: kept}).mismatches}) == 1
        signed[KEY] = kept
        assert check(signed).mismatches == []


def test_gradients_and_strides_do_not_matter() -> None:
    weights = torch.randn(4, 6, requires_grad=True)
    batch = {"a": weights, "b": weights.t().contiguous().t(), "c": weights[:, ::2]}
    signed = ChecksumUtils.sign(batch)
    assert signed["a"] is weights
    assert check({key: value.detach().clone() for key, value in signed.items()})


@pytest.mark.gpu
def test_tensors_on_a_gpu() -> None:
    signed = ChecksumUtils.sign({key: value.cuda() for key, value in plain_batch().items()})
    assert signed[KEY].device.type == "cpu"
    moved = {key: value.cuda() for key, value in signed.items()}
    assert check(dict(moved))
    moved["x"][2, 0, 0] += 1
    assert found(moved) == [("x", 2, "differs")]


class TestTensorDict:
    @pytest.fixture
    def tensordict(self) -> Any:
        return pytest.importorskip("tensordict", reason="tensordict is not installed")

    def make(self, tensordict: Any, size: list[int]) -> Any:
        data = {"x": torch.randn(*size, 3), "in": {"y": torch.arange(size[0] * 2).view(-1, 2)}}
        if len(size) > 1:
            data["in"] = {"y": torch.randn(*size)}
        made = tensordict.TensorDict(data, batch_size=size)
        made["note"] = "for all samples"
        return made

    @pytest.mark.parametrize("locked", [False, True])
    def test_round_trip(self, tensordict: Any, locked: bool) -> None:
        batch = self.make(tensordict, [5])
        if locked:
            batch.lock_()
        signed = ChecksumUtils.sign(batch)
        assert KEY not in batch.keys() and batch.is_locked is locked  # noqa: SIM118
        assert signed["x"] is batch["x"]
        assert check(signed[1:3])
        assert check(torch.cat([signed[3:], signed]))
        assert check(torch.stack([signed[n] for n in (4, 0, 2)]))
        if locked:
            signed.lock_()
        result = check(signed)
        assert result.ok and result.batch is signed and signed.is_locked is locked
        assert set(signed.keys()) == {"x", "in", "note"}

    def test_changes(self, tensordict: Any) -> None:
        signed = ChecksumUtils.sign(self.make(tensordict, [5])).clone()
        signed["in", "y"][3, 1] = 77
        signed["x"][[0, 1]] = signed["x"][[1, 0]]
        assert sorted(found(signed)) == [
            ("in.y", 3, "differs"), ("x", 0, "moved"), ("x", 1, "moved"),
        ]  # fmt: skip

    def test_more_dimensions_of_samples(self, tensordict: Any) -> None:
        signed = ChecksumUtils.sign(self.make(tensordict, [4, 3]))
        assert check(signed[2:])
        assert check(signed[torch.tensor([3, 1])].clone())
        changed = signed.clone()
        changed["x"][1, 2, 0] += 1
        assert found(changed) == [("x", 1, "differs")]

    def test_one_a_sample_in_a_list(self, tensordict: Any) -> None:
        """Each is a batch itself, of as many rows as there are samples."""
        episodes = [self.make(tensordict, [2]) for _ in range(2)]
        signed: Any = ChecksumUtils.sign({"episodes": episodes, "reward": torch.ones(2)})
        assert check(dict(signed))
        signed["episodes"][1]["x"][0, 0] += 1
        ((key, _, problem),) = found(signed)
        assert (key, problem) == ("episodes[1].x", "differs")

    def test_single_samples_in_a_list(self, tensordict: Any) -> None:
        samples = [
            ChecksumUtils.sign({"obs": self.make(tensordict, [2])}, batched=False) for _ in "ab"
        ]
        batch = {key: [sample[key] for sample in samples] for key in samples[0]}
        assert check(dict(batch))

    def test_single_samples_that_are_stacked(self, tensordict: Any) -> None:
        samples = [
            ChecksumUtils.sign(
                tensordict.TensorDict({"x": torch.full((2,), float(n))}, batch_size=[]),
                batched=False,
            )
            for n in range(3)
        ]
        batch: Any = torch.stack(samples)
        assert check(batch.clone())
        batch["x"][1] = 9
        assert found(batch) == [("x", 1, "differs")]
        with pytest.raises(ValueError, match=r"a TensorDict of batch size \[5\]"):
            ChecksumUtils.sign(self.make(tensordict, [5]), batched=False)

    def test_a_locked_part_of_another(self, tensordict: Any) -> None:
        whole = tensordict.TensorDict(
            {"part": ChecksumUtils.sign(self.make(tensordict, [5]))}, batch_size=[]
        ).lock_()
        result = check(whole["part"])
        assert result.ok and KEY not in result.batch.keys()  # noqa: SIM118

    def test_inside_a_dict(self, tensordict: Any) -> None:
        signed = ChecksumUtils.sign({"data": self.make(tensordict, [4]), "y": torch.arange(4)})
        signed["data"]["x"][2] = 0
        assert found(signed) == [("data.x", 2, "differs")]


# --- payloads that cross processes -----------------------------------------------------------

LOADER = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from my_utils.utils import ChecksumUtils

class Samples(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        sample = {"x": torch.full((3,), float(index)), "y": index, "name": f"n{index}"}
        return ChecksumUtils.sign(sample, batched=False)

def spoil(samples):
    batch = torch.utils.data.default_collate(samples)
    if batch["y"][0] >= 10:
        batch["x"][1] *= 2
    return batch

def sign_batch(samples):
    batch = torch.utils.data.default_collate(samples)
    del batch[ChecksumUtils.KEY]
    return ChecksumUtils.sign(batch)

if __name__ == "__main__":
    for name in sys.argv[3:]:
        loader = DataLoader(
            Samples(), batch_size=5, num_workers=int(sys.argv[2]),
            multiprocessing_context=sys.argv[1], collate_fn=globals().get(name),
        )
        results = [ChecksumUtils.verify(batch) for batch in loader]
        keys = {tuple(sorted(result.batch)) for result in results}
        print([[tuple(one)[:3] for one in result.mismatches] for result in results], keys)
"""


def run_loader(tmp_path: Path, run_python: RunPython, *arguments: str) -> list[str]:
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    env = {"DEBUG_DATA_CONSISTENCY": "1", "OMP_NUM_THREADS": "1"}
    result = run_python(script, *arguments, env=env, timeout=200)
    assert result.returncode == 0, result.stderr
    lines: list[str] = result.stdout.splitlines()
    assert result.stderr.count("data inconsistency: key 'x', sample 1") == 2
    return lines


SPOILT = "[('x', 1, 'differs')]"
LOADED = {
    "default": "[[], [], [], []] {('name', 'x', 'y')}",
    "spoil": f"[[], [], {SPOILT}, {SPOILT}] {{('name', 'x', 'y')}}",
    "sign_batch": "[[], [], [], []] {('name', 'x', 'y')}",
}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_from_forked_workers_of_a_data_loader(tmp_path: Path, run_python: RunPython) -> None:
    lines = run_loader(tmp_path, run_python, "fork", "2", *LOADED)
    assert lines == list(LOADED.values())


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_from_a_spawned_worker_of_a_data_loader(tmp_path: Path, run_python: RunPython) -> None:
    assert run_loader(tmp_path, run_python, "spawn", "1", "spoil") == [LOADED["spoil"]]


DISTRIBUTED = """
import sys
import torch
import torch.distributed as dist
from my_utils.utils import ChecksumUtils

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
batch = {"x": torch.arange(12.0).reshape(4, 3), "y": torch.arange(4)}
if rank == 0:
    signed = ChecksumUtils.sign(batch)
    dist.broadcast_object_list([signed], src=0)
    for key in sorted(signed):
        dist.send(signed[key], 1)
    signed["x"] = signed["x"].flip(0).contiguous()
    for key in sorted(signed):
        dist.send(signed[key], 1)
else:
    objects = [None]
    dist.broadcast_object_list(objects, src=0)
    template = {key: value.clone() for key, value in objects[0].items()}
    print(ChecksumUtils.verify(objects[0]).ok, sorted(objects[0]))
    for _ in range(2):
        received = {key: torch.empty_like(value) for key, value in template.items()}
        for key in sorted(received):
            dist.recv(received[key], 0)
        print([tuple(one)[:3] for one in ChecksumUtils.verify(received).mismatches])
dist.barrier()
dist.destroy_process_group()
"""


def test_over_torch_distributed(tmp_path: Path, run_python: RunPython) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(rank: int) -> Any:
        env = {
            "DEBUG_DATA_CONSISTENCY": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        arguments = ("-c", DISTRIBUTED, str(rank), str(tmp_path / "store"))
        return run_python(*arguments, env=env, timeout=100)

    with ThreadPoolExecutor(2) as pool:
        sender, receiver = pool.map(work, range(2))
    assert sender.returncode == receiver.returncode == 0, sender.stderr + receiver.stderr
    assert receiver.stdout.splitlines() == [
        "True ['x', 'y']",
        "[]",
        "[('x', 0, 'moved'), ('x', 1, 'moved'), ('x', 2, 'moved'), ('x', 3, 'moved')]",
    ]


SHARDED = """
import sys
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from my_utils.utils import ChecksumUtils

ChecksumUtils.enabled = True
mesh = init_device_mesh("cpu", (2,))
grid = init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))

def whole(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)

def cut(shape, *placements, over=mesh):
    return distribute_tensor(whole(*shape), over, list(placements))

def sequential(wrap):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2))
    for layer in (*model, model):
        wrap(layer)
    return model

rows = cut((6, 4), Shard(0))
fsdp = sequential(lambda layer: fully_shard(layer, mesh=mesh))
optimizer = torch.optim.AdamW(fsdp.parameters())
fsdp(torch.ones(2, 4)).sum().backward()
optimizer.step()
tp = torch.nn.Sequential(torch.nn.Linear(4, 5))
parallelize_module(tp, mesh, {"0": ColwiseParallel()})
payloads = {
    "rows": {"x": rows},
    "list": [rows],
    "with labels of the whole": {"x": rows, "y": torch.ones(6)},
    "with labels of the shard": {"x": rows, "y": torch.ones(3)},
    "nested": {"a": {"b": [rows, {"c": rows}]}, "texts": ["p", "q", "r"]},
    "uneven": {"x": cut((5, 4), Shard(0)), "n": 3},
    "an empty shard": {"x": cut((1, 4), Shard(0)), "y": torch.ones(3)},
    "columns": {"x": cut((6, 3), Shard(1))},
    "replicas": {"x": cut((6, 4), Replicate())},
    "partial": {"x": DTensor.from_local(torch.ones(4, 2) * (rank + 1), mesh, [Partial()])},
    "two dimensions": {"x": cut((6, 4), Shard(0), Shard(0), over=grid)},
    "two others": {"x": cut((6, 4), Shard(0), Shard(1), over=grid)},
    "shapes disagree": {"x": DTensor.from_local(torch.ones(4 + rank, 2), mesh, [Shard(0)])},
    "still on its way": {"x": rows.redistribute(mesh, [Replicate()], async_op=True)},
    "parameters of FSDP": fsdp.state_dict(),
    "state of the optimizer": optimizer.state_dict(),
    "parameters of TP": tp.state_dict(),
}
try:
    from tensordict import TensorDict
    payloads["TensorDict"] = TensorDict({"x": rows, "y": torch.ones(6)}, batch_size=[6])
    payloads["TensorDict in it"] = {"d": TensorDict({"x": rows}, batch_size=[])}
except ImportError:
    pass
for name, payload in payloads.items():
    result = ChecksumUtils.verify(ChecksumUtils.sign(payload))
    if not result.checked or result.mismatches:
        print(name, result.mismatches)
signed = ChecksumUtils.sign({"x": rows})
signed["x"].to_local()[1] += 1
found = ChecksumUtils.verify(signed).mismatches
print(*[f"{one.key} {one.sample} {one.problem} {one.detail}" for one in found])
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_shards_are_signed_by_their_local_rows(tmp_path: Path) -> None:
    said = "x 1 differs differs from the signed data; arrived as float32 of shape (4,)"
    ended = Ranks(SHARDED, 2, tmp_path).finish(200)
    assert [(status, out.splitlines()) for status, out, _ in ended] == [(0, [said])] * 2, ended


RAY = """
import os, sys
import ray
import torch

path = os.environ["PYTHONPATH"]
ray.init(
    address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
    runtime_env={"env_vars": {"DEBUG_DATA_CONSISTENCY": "1", "PYTHONPATH": path}},
)

@ray.remote
class Rollout:
    def make(self, spoil):
        from my_utils.utils import ChecksumUtils
        batch = {"tokens": torch.arange(20).reshape(4, 5), "reward": torch.rand(4)}
        signed = ChecksumUtils.sign(batch)
        if spoil:
            signed["reward"] = signed["reward"].roll(1)
        return signed

from my_utils.utils import ChecksumUtils
worker = Rollout.remote()
for spoil in (False, True):
    batch = ray.get(worker.make.remote(spoil))
    result = ChecksumUtils.verify(batch)
    print(len(result.mismatches), sorted(batch))
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_from_an_actor_of_ray(run_python: RunPython) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    env = {
        "DEBUG_DATA_CONSISTENCY": "1", "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    result = run_python("-c", RAY, env=env, timeout=110)
    assert result.returncode == 0, result.stderr
    keys = "['reward', 'tokens']"
    assert result.stdout.splitlines() == [f"0 {keys}", f"4 {keys}"]

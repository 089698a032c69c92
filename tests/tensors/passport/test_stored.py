"""Weights that no parameter or buffer shows, and files that torch writes by another function than
`torch.save`: they are in the passport, or a sentence says what to do."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save as save_parts

from my_utils.cli.command import main
from my_utils.tensors import passport
from my_utils.tensors.passport import stored

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4), nn.LSTM(4, 4))


def quantized(model: nn.Module) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM})


def taken(model: Any, path: Path) -> Path:
    return Path(passport(model).save(path))


def diff(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, list[str]]:
    status = main(["passport", "diff", *map(str, words), "--quiet"])
    out = capsys.readouterr()
    return status, (out.out or out.err).splitlines()


def add_to_last_bias(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[2].get_parameter("bias")[3] += 0.5


def first_only(model: nn.Module) -> nn.Module:
    return model[:3] if isinstance(model, nn.Sequential) else model


@pytest.mark.parametrize(
    "form",
    [
        quantized,
        lambda model: quantized(model).state_dict(),
        lambda model: torch.jit.script(quantized(first_only(model))),
        lambda model: torch.jit.freeze(torch.jit.script(first_only(model).eval())),
        lambda model: torch.jit.freeze(torch.jit.script(quantized(first_only(model)).eval())),
    ],
    ids=["quantized", "its state dict", "compiled", "frozen", "quantized and frozen"],
)
def test_weights_in_packed_objects_are_compared(
    form: Callable[[nn.Module], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = net()
    add_to_last_bias(changed)
    first, same, other = (
        taken(form(model), tmp_path / f"{name}.json")
        for name, model in (("first", net()), ("same", net()), ("other", changed))
    )
    assert diff(capsys, first, same)[0] == 0
    status, lines = diff(capsys, first, other)
    assert status == 1
    wrong = [line for line in lines if "values differ" in line]
    assert len(wrong) == 1
    assert wrong[0].startswith("2.")
    assert "0 tensors" not in lines[0]


def test_the_module_and_its_state_dict_have_the_same_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = quantized(net())
    status, lines = diff(
        capsys,
        taken(model, tmp_path / "a.json"),
        taken(model.state_dict(), tmp_path / "b.json"),
    )
    assert status == 0, lines


def test_quantized_integers_scales_and_axes_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, scales = torch.arange(16.0).view(4, 4), torch.full((4,), 0.5)
    zeros = torch.zeros(4, dtype=torch.int64)

    def of(axis: int, scale: float) -> Path:
        tensors = {
            "rows": torch.quantize_per_channel(values, scales, zeros, axis, torch.qint8),
            "whole": torch.quantize_per_tensor(values * scale, scale, 0, torch.quint8),
        }
        return taken(tensors, tmp_path / f"{axis}_{scale}.json")

    assert diff(capsys, of(0, 0.5), of(0, 0.5))[0] == 0
    assert "rows.q_per_channel_axis: values differ" in diff(capsys, of(0, 0.5), of(1, 0.5))[1][3]
    assert "whole.q_scale: values differ" in diff(capsys, of(0, 0.5), of(0, 0.25))[1][3]


class WithState(nn.Module):
    """Its extra state is a tensor, as that of layers with fp8, or bytes."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.state = state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def test_an_extra_state_is_compared_where_both_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.ModuleDict({"fp8": WithState({"scale": torch.ones(3)})})
    live = taken(model, tmp_path / "live.json")
    torch.save(model.state_dict(), tmp_path / "all.pt")
    assert diff(capsys, live, tmp_path / "all.pt")[0] == 0
    torch.save({"fp8.weight": torch.ones(2)}, tmp_path / "weights.pt")
    status, lines = diff(capsys, live, tmp_path / "weights.pt")
    assert status == 0
    assert lines[-1] == "A: not compared: 1 tensor of extra states"


def test_values_that_cannot_be_read_are_named() -> None:
    model = nn.ModuleDict({"fp8": WithState(io.BytesIO(b"amax"))})
    assert passport(model).data.notes == [
        "not in it, because their values are hidden: fp8._extra_state"
    ]


def test_a_module_that_cannot_save_is_named() -> None:
    class Broken(WithState):
        def get_extra_state(self) -> Any:
            raise RuntimeError("needs a GPU")

    data = passport(nn.ModuleDict({"fp8": Broken(None)})).data
    assert [tensor.name for tensor in data.tensors] == ["fp8.weight"]
    assert data.notes == [
        "not in it, because their values are hidden: what fp8 saves beside parameters"
    ]


def test_lists_and_modules_in_a_mapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the names that torch.distributed.checkpoint gives them."""
    actor = nn.Linear(2, 2)
    ema = [torch.ones(2), {"x": [torch.zeros(3), 1]}]
    live = taken({"actor": actor, "ema": ema, "step": 3, "betas": [0.9, 0.99]}, tmp_path / "a.json")
    state = {"actor": actor.state_dict(), "ema": ema, "step": 3}
    torch.save(state, tmp_path / "state.pt")
    save_parts(state, checkpoint_id=tmp_path / "dcp")
    for other in ("state.pt", "dcp"):
        status, lines = diff(capsys, live, tmp_path / other)
        assert status == 0, lines
        assert "A: 3 values that are no tensors" in lines
        assert "4 tensors" in lines[0]


def test_conjugated_and_negated_tensors_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = torch.randn(5, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    lazy = {"conjugate": values.conj(), "imaginary": values.clone().conj().imag}
    torch.save(lazy, tmp_path / "x.pt")
    plain = {name: value.resolve_conj().resolve_neg() for name, value in lazy.items()}
    for name, state in (("lazy", lazy), ("plain", plain)):
        status, lines = diff(capsys, taken(state, tmp_path / f"{name}.json"), tmp_path / "x.pt")
        assert status == 0, lines


def test_types_of_less_than_a_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    other = packed.clone()
    other[2] += 1
    a, b = (
        taken({"w": one.view(vars(torch)["int4"])}, tmp_path / f"{place}.json")
        for place, one in enumerate((packed, other))
    )
    assert diff(capsys, a, a)[0] == 0
    status, lines = diff(capsys, a, b)
    assert (status, lines[-1]) == (1, "w: values differ: in one block of 4 KiB")


def test_without_any_tensor_nothing_is_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = taken(nn.ReLU(), tmp_path / "empty.json")
    status, lines = diff(capsys, empty, empty)
    assert (status, lines[-1]) == (2, "no tensor is in A and in B")
    full = taken(nn.Linear(2, 2), tmp_path / "full.json")
    status, lines = diff(capsys, full, empty)
    assert (status, lines[-1]) == (2, "no tensor is in B")


def test_what_has_no_values_or_no_name_is_refused() -> None:
    with pytest.raises(TypeError, match="weight: an UninitializedParameter has no values before"):
        passport(nn.LazyLinear(2))
    with pytest.raises(ValueError, match=r"a\.b: two tensors have this name"):
        passport({"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested deeper than 300, or holds itself"):
        passport({"x": endless})


def test_values_that_are_held_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 ** 30 of them, in 30 lists."""
    monkeypatch.setattr(stored, "VALUES_MAX", 10_000)
    held: list[Any] = [torch.ones(1)]
    for _ in range(30):
        held = [held, held]
    with pytest.raises(ValueError, match=r"x\.0\.0.* is one of more than 10,000 values"):
        passport({"x": held})


def test_names_in_a_file_are_those_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compiled module, and what DDP saves."""
    model = net()
    live = taken(model, tmp_path / "live.json")
    compiled: Any = torch.compile(model)
    torch.save(compiled.state_dict(), tmp_path / "compiled.pt")
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save(state, tmp_path / "ddp.pt")
    save_file(state, tmp_path / "ddp.safetensors")
    for file in ("compiled.pt", "ddp.pt", "ddp.safetensors"):
        status, lines = diff(capsys, live, tmp_path / file)
        assert status == 0, lines
    assert main(["passport", str(tmp_path / "ddp.pt"), "-o", str(tmp_path / "x.json")]) == 0
    assert diff(capsys, live, tmp_path / "x.json")[0] == 0
    torch.save({"module": torch.ones(2)}, tmp_path / "one.pt")
    assert diff(capsys, taken({"module": torch.ones(2)}, live), tmp_path / "one.pt")[0] == 0


@pytest.fixture
def nothing_is_safe() -> Iterator[None]:
    """What other tests let torch load."""
    kept = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    yield
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(kept)


class Evaluated:
    def __reduce__(self) -> Any:
        return eval, ("open('evaluated', 'w')",)


@pytest.mark.usefixtures("nothing_is_safe")
def test_objects_beside_the_weights_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments of a script, as timm and others save them. Nothing of them runs."""
    monkeypatch.chdir(tmp_path)
    model = net()
    live = taken({"model": model}, tmp_path / "live.json")
    beside = {
        "args": argparse.Namespace(lr=1, to=tmp_path),
        "best": np.float64(2),
        "e": Evaluated(),
    }
    torch.save({"model": model.state_dict(), **beside}, tmp_path / "x.pth.tar")
    status, lines = diff(capsys, live, tmp_path / "x.pth.tar")
    assert status == 0, lines
    left_out = (
        "B: x.pth.tar: left out: args, best, e: objects of argparse.Namespace, builtins.eval, "
    )
    assert lines[3].startswith(left_out)
    assert lines[4] == "B: x.pth.tar: 3 values that are no tensors"
    assert not (tmp_path / "evaluated").exists()


@pytest.mark.usefixtures("nothing_is_safe")
@pytest.mark.parametrize("is_safe", [False, True])
def test_arrays_of_numpy_are_left_out_by_name(
    is_safe: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also within lists, and where the program lets torch load them."""
    if is_safe:
        make: Any = np.zeros(1).__reduce__()[0]
        kind = type(np.dtype(np.float32))
        torch.serialization.add_safe_globals([make, np.ndarray, np.dtype, kind])
    for name, value in (("a", 1), ("b", 2)):
        array = np.full(3, value, np.float32)
        torch.save(
            {"w": torch.ones(2), "net": {"v": array}, "kept": [1, (array,)]},
            tmp_path / f"{name}.pt",
        )
    status, lines = diff(capsys, tmp_path / "a.pt", tmp_path / "b.pt")
    assert status == 0
    assert lines[3].startswith("A: a.pt: left out: net.v, kept")
    assert ("objects of numpy" in lines[3]) is not is_safe


@pytest.mark.usefixtures("nothing_is_safe")
@pytest.mark.parametrize("is_safe", [False, True])
@pytest.mark.parametrize(
    "value",
    [nn.Linear(2, 2), argparse.Namespace(ema=[{"w": torch.ones(2)}])],
    ids=["module", "args"],
)
def test_objects_with_tensors_in_them_are_refused(
    value: object, is_safe: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the program lets torch load their class."""
    torch.save({"model": net().state_dict(), "value": value}, tmp_path / "x.pt")
    if is_safe:
        torch.serialization.add_safe_globals([type(value), set])
    assert main(["passport", str(tmp_path / "x.pt"), "--quiet"]) == 2
    assert "x.pt: cannot be read as plain data (it holds objects of" in capsys.readouterr().err


def write_script(path: Path) -> None:
    torch.jit.script(net()[:3]).save(path)


def write_exported(path: Path) -> None:
    torch.export.save(torch.export.export(net()[:3], (torch.randn(2, 8),)), path)


def write_quantized(path: Path) -> None:
    torch.save(quantized(net()[:3]).state_dict(), path)


def write_meta(path: Path) -> None:
    torch.save({"w": torch.ones(2, device="meta")}, path)


def write_gguf(path: Path) -> None:
    path.write_bytes(b"GGUF")


def write_deepspeed(path: Path) -> None:
    """The names of `DeepSpeedEngine._get_ckpt_name` and `_get_zero_ckpt_name`."""
    path.mkdir()
    torch.save({"module": {"w": torch.ones(2)}}, path / "mp_rank_00_model_states.pt")
    torch.save({}, path / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")


@pytest.mark.parametrize(
    ("write", "name", "sentence"),
    [
        (write_script, "x.pt", "is a TorchScript archive: take the passport of torch.jit.load"),
        (write_exported, "x.pt2", "is an exported program: take the passport of torch.export.load"),
        (write_quantized, "x.pt", "it holds quantized tensors: take the passport of what torch"),
        (write_meta, "x.pt", "w: the file has no plain values of it"),
        (write_gguf, "x.gguf", "take the passport of the tensors that gguf.GGUFReader gives"),
        (write_deepspeed, "global_step10", "make a checkpoint of them with its zero_to_fp32.py"),
    ],
)
def test_what_to_do_with_another_kind_of_file(
    write: Callable[[Path], None],
    name: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / name)
    assert main(["passport", str(tmp_path / name), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert str(tmp_path / name) in error


def test_what_these_sentences_advise_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net()[:3].eval()
    live = taken(model, tmp_path / "live.json")
    torch.jit.script(model).save(tmp_path / "x.pt")
    exported = torch.export.export(model, (torch.randn(2, 8),))
    torch.export.save(exported, tmp_path / "x.pt2")
    for loaded in (
        torch.jit.load(tmp_path / "x.pt"),
        torch.export.load(tmp_path / "x.pt2").module(),
    ):
        status, lines = diff(capsys, live, taken(loaded, tmp_path / "loaded.json"))
        assert status == 0, lines

"""What `my_utils passport diff` and `history` answer: planted differences are named exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from my_utils.cli import passport as passport_command
from my_utils.cli.command import main
from my_utils.tensors import passport

from ...conftest import ROOT
from ...docs.folders import passports
from ...support.planted_weights import (
    PLANTED,
    UP,
    Q,
    Values,
    check_named,
    model,
    other_dtype,
)
from ...support.schemas import loads_checked


def diff(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, list[str]]:
    status = main(["passport", "diff", *map(str, words), "--quiet"])
    out = capsys.readouterr()
    assert out.err == "" or status == 2
    return status, (out.out or out.err).splitlines()


def write_safetensors(values: Values, folder: Path) -> Path:
    save_file(values, folder / "model.safetensors")
    return folder / "model.safetensors"


def write_torch(values: Values, folder: Path) -> Path:
    torch.save(values, folder / "model.pt")
    return folder / "model.pt"


def write_passport(values: Values, folder: Path) -> Path:
    return Path(passport(values).save(folder / "model.json"))


@pytest.mark.parametrize("write", [write_safetensors, write_torch, write_passport])
@pytest.mark.parametrize(
    ("plant", "wanted"), PLANTED, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_planted_difference_is_named(
    plant: Callable[[Values], None],
    wanted: list[str],
    write: Callable[[Values, Path], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of it, and nothing else."""
    a = write_safetensors(model(), tmp_path)
    folder = tmp_path / "b"
    folder.mkdir()
    changed = model()
    plant(changed)
    status, lines = diff(capsys, a, write(changed, folder))
    assert status == (2 if plant is other_dtype else 1)
    check_named(lines[3:], wanted)


def quantized(values: Values) -> Values:
    """Weights in blocks of 128 by 128 as DeepSeek's checkpoints have them."""
    found: Values = {}
    for name, value in values.items():
        blocks = value.view(-1, 128, value.shape[1] // 128, 128).transpose(1, 2)
        scales = blocks.abs().amax((2, 3)) / 448
        scaled = (blocks / scales[:, :, None, None]).transpose(1, 2).reshape(value.shape)
        found[name] = scaled.to(torch.float8_e4m3fn)
        found[f"{name}_scale_inv"] = scales
    return found


def test_blocks_of_float8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(3)
    values = {
        f"layers.{i}.mlp.weight": torch.randn(256, 384, generator=generator) for i in range(3)
    }
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    a = write_safetensors(quantized(values), folders[0])
    b = write_torch(quantized(values), folders[1])
    status, lines = diff(capsys, a, b)
    assert (status, lines[2]) == (0, "equal: 6 tensors, bit for bit")

    plain = {name: value.bfloat16() for name, value in values.items()}
    status, lines = diff(capsys, a, write_safetensors(plain, folders[2]))
    assert status == 2
    assert lines[2:] == [
        "not comparable: 0 of 3 common tensors are equal",
        "layers.0.mlp.weight and 2 more: float8_e4m3fn in A, bfloat16 in B: values of "
        "float8_e4m3fn are scaled, quantize both sides in the same way",
        "A: not compared: the scales of 3 tensors",
    ]

    changed = quantized(values)
    changed["layers.1.mlp.weight_scale_inv"][1, 2] *= 2
    del changed["layers.2.mlp.weight_scale_inv"]
    status, lines = diff(capsys, a, write_safetensors(changed, folders[1]))
    assert (status, lines[3:]) == (
        1,
        [
            "layers.1.mlp.weight_scale_inv: values differ: in one block of 4 KiB",
            "layers.2.mlp.weight_scale_inv: only in A",
        ],
    )


def test_equal_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = diff(
        capsys, write_safetensors(model(), tmp_path), write_torch(model(), tmp_path)
    )
    assert (status, lines[2]) == (0, "equal: 19 tensors, bit for bit")


def test_at_most_twelve_lines_and_the_rest_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_torch({f"w{i}": torch.full((4, i + 1), 1.0) for i in range(40)}, tmp_path)
    folder = tmp_path / "b"
    folder.mkdir()
    b = write_torch({f"w{i}": torch.full((4, i + 2), 2.0) for i in range(40)}, folder)
    status, lines = diff(capsys, a, b)
    assert (status, len(lines)) == (1, 12)
    assert lines[-1] == "and 32 more lines: --json has all"
    assert main(["passport", "diff", str(a), str(b), "--json"]) == 1
    data = loads_checked("passport-diff", capsys.readouterr().out)
    assert len(data["findings"]) == 40
    assert {finding["kind"] for finding in data["findings"]} == {"shape"}


def test_map_ignore_and_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = model()
    a = write_torch({"model": values, "optim": {"step": torch.zeros(1)}}, tmp_path)  # type: ignore[dict-item]
    b = write_passport({name: value.bfloat16() for name, value in values.items()}, tmp_path)
    status, lines = diff(capsys, a, b)
    assert status == 2
    assert "no name is in both: try --map 'model.*=*'" in lines
    words = ("--map", "model.*=*", "--ignore", "optim*", "--dtype", "bfloat16")
    status, lines = diff(capsys, a, b, *words)
    assert (status, lines[2]) == (0, "equal: 19 tensors, bit for bit")
    b = write_passport(values, tmp_path)
    status, lines = diff(capsys, a, b, *words)
    assert status == 2
    assert lines[3].endswith(
        "bfloat16 in A, float32 in B: take the passport of B with dtype='bfloat16'"
    )


@pytest.mark.parametrize("rule", ["model.*=*", "_orig_mod.model.*=*", "module.model.*=*"])
def test_map_of_names_in_wrappers(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the hint says it, and as the file has it."""
    torch.save({"_orig_mod.model.a": torch.ones(3), "module.b": torch.ones(2)}, tmp_path / "a.pt")
    torch.save({"a": torch.ones(3), "b": torch.ones(2)}, tmp_path / "b.pt")
    status, lines = diff(capsys, tmp_path / "a.pt", tmp_path / "b.pt", "--map", rule)
    assert status == 0, lines
    assert "equal: 2 tensors, bit for bit" in lines


def test_map_of_tied_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a passport, and of a checkpoint."""
    embed = torch.ones(4, 4)
    tied = {"model.embed": embed, "model.lm_head": embed}
    passport(tied).save(tmp_path / "a.json")
    torch.save(tied, tmp_path / "a.pt")
    torch.save({"embed": embed}, tmp_path / "b.pt")
    for name in ("a.json", "a.pt"):
        status, lines = diff(capsys, tmp_path / name, tmp_path / "b.pt", "--map", "model.*=*")
        assert status == 0, lines
        assert "lm_head is only in A; its values are those of embed (tied)" in lines


def test_a_folder_of_several_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (100, 200):
        passport(model()).save(tmp_path / f"step{step}_rank{{rank}}.json")
    status, lines = diff(capsys, tmp_path, tmp_path)
    assert status == 2
    assert lines[-1].endswith(
        "several passports of rank 0: choose those of one step by a glob, such as "
        "'pp/step100_*.json'"
    )
    one = tmp_path / "step100_*.json"
    assert diff(capsys, one, one)[0] == 0


def test_wrong_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(write_torch(model(), tmp_path))
    assert main(["passport", "diff", a, a, "--dtype", "int8"]) == 2
    assert "dtype must be a floating-point type" in capsys.readouterr().err
    assert main(["passport", "diff", a, str(tmp_path / "none.pt")]) == 2
    assert "none.pt: No such file or directory" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["passport", "diff", a, a, "--map", "x"])
    assert "'x' is not OLD=NEW, nor one of packed-experts, peft" in capsys.readouterr().err


def test_the_passport_of_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_safetensors(model(), tmp_path)
    output = tmp_path / "a.json"
    assert main(["passport", str(a), "-o", str(output)]) == 0
    out = capsys.readouterr().out
    assert out == f"{a}: 19 tensors, float32, 76.25 KiB\n"
    loads_checked("passport", output.read_text(encoding="utf-8"))
    assert diff(capsys, a, output)[0] == 0
    assert main(["passport", str(output), "--explain", "embed"]) == 0
    assert capsys.readouterr().out == ("embed: float32 [64, 32]\n  all: rank 0: under this name\n")
    assert main(["passport", str(tmp_path / "none.pt")]) == passport_command.EXIT_UNREADABLE


def test_what_files_say_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_torch({"a\x1b[2Jb": torch.zeros(1), "c": torch.zeros(1)}, tmp_path)
    folder = tmp_path / "b"
    folder.mkdir()
    b = write_torch({"c": torch.zeros(1)}, folder)
    status, lines = diff(capsys, a, b)
    assert (status, lines[3]) == (1, "a\\x1b[2Jb: only in A; its values are those of c")


def test_the_answers_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passports(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "correctness" / "weights-passport.md").read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    answers = [answer for language, answer in fences if not language]
    assert main(["passport", "diff", "pp/trainer_*.json", "pp/engine_*.json"]) == 1
    assert capsys.readouterr().out in answers
    assert main(["passport", "history", "pp/history"]) == 1
    assert capsys.readouterr().out in answers


# --- replicas, and their history ---


def of_ranks(values: list[Values], folder: Path, step: int, name: str = "trainer") -> None:
    """As DDP's ranks would write them: all are in one group."""
    for rank, mine in enumerate(values):
        data = passport(mine, step=step).data
        data.rank, data.world_size = rank, len(values)
        path = folder / f"{name}_step{step}_rank{rank}.json"
        from my_utils.tensors.passport.file import write_passport as write

        write(data, path)


def test_history_says_since_when_and_who(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in range(10, 110, 10):
        ranks = [model() for _ in range(4)]
        if step >= 60:
            ranks[2][UP][40, 7] += 1
        of_ranks(ranks, tmp_path, step)
    assert main(["passport", "history", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "trainer: differ since step 51 to 60",
        f"  {UP}: replicas differ: rows 32-63: rank 2 against the 3 others",
    ]
    assert main(["passport", "history", str(tmp_path), "--json"]) == 1
    data = loads_checked("passport-history", capsys.readouterr().out)
    assert data["since"] == {"trainer": [50, 60]}
    assert [one["step"] for one in data["steps"]] == list(range(10, 110, 10))


def test_history_of_two_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        of_ranks([model()], tmp_path, step, "trainer")
        engine = model()
        if step == 3:
            engine[Q] += 1
        of_ranks([engine], tmp_path, step, "engine")
    assert main(["passport", "history", str(tmp_path)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "engine against trainer: differ since step 3"
    assert out[1].startswith(f"  {Q}: values differ")


def test_history_of_another_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which was not compared, and is no difference; a difference beside it is one."""
    for step in (10, 20):
        of_ranks([{"w": torch.ones(3), "v": torch.ones(2)}], tmp_path, step, "trainer")
        engine = {"w": torch.ones(3).bfloat16(), "v": torch.ones(2)}
        of_ranks([engine], tmp_path, step, "engine")
    assert main(["passport", "history", str(tmp_path)]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "not comparable: no difference in 2 steps",
        "engine against trainer: not compared since step 10",
        "  w: bfloat16 in A, float32 in B: take the passport of B with dtype='bfloat16'",
    ]
    assert main(["passport", "history", str(tmp_path), "--json"]) == 2
    data = loads_checked("passport-history", capsys.readouterr().out)
    assert (data["status"], data["since"]) == ("not comparable", {})
    of_ranks([{**engine, "v": torch.zeros(2)}], tmp_path, 30, "engine")
    of_ranks([{"w": torch.ones(3), "v": torch.ones(2)}], tmp_path, 30, "trainer")
    assert main(["passport", "history", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("engine against trainer: differ since step 30\n")


def test_history_without_a_difference_or_a_passport(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["passport", "history", str(tmp_path)]) == 2
    assert "no passport is in it" in capsys.readouterr().err
    of_ranks([model(), model()], tmp_path, 5)
    assert main(["passport", "history", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "equal: no difference in 1 step\n"


def test_a_shard_twice_and_a_shard_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 wrote the shard of rank 0 again: its rows are in no part."""
    whole = write_passport({"w": torch.arange(64.0).reshape(16, 4)}, tmp_path)
    data = json.loads(whole.read_text(encoding="utf-8"))
    half = passport({"w": torch.arange(32.0).reshape(8, 4)}).data
    folder = tmp_path / "pp"
    folder.mkdir()
    for rank in range(2):
        mine: dict[str, Any] = json.loads(json.dumps(data))
        (part,) = mine["tensors"][0]["parts"]
        part["size"], part["sums"] = [8, 4], half.tensors[0].parts[0].sums
        mine.update(rank=rank, world_size=2)
        (folder / f"rank{rank}.json").write_text(json.dumps(mine), encoding="utf-8")
    status, lines = diff(capsys, whole, folder)
    assert (status, lines[3:]) == (1, ["B: w: 32 of 64 elements are in no part (rows 8-15)"])

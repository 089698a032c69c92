"""Random states: a run that goes on from them is the run that did not stop, bit for bit."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

from my_utils.core.warnings import forget
from my_utils.CtrlRandom.control_random import ControlRandom

from ...conftest import RunPython


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    ControlRandom.setup(tmp_path / "states", rank=0)
    yield tmp_path / "states"
    ControlRandom.setup()


TRAIN = """
import random, sys
import numpy as np
import torch
from my_utils.CtrlRandom.control_random import ControlRandom
from my_utils.tensors import tensor_hash

first, last, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
random.seed(first); np.random.seed(first); torch.manual_seed(0)
ControlRandom.setup("states")
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
sampler = np.random.default_rng(first)
if first:
    saved = ControlRandom.load_random("middle")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sampler = saved["sampler"]
for step in range(first, last):
    x = torch.randn(4, 8) * random.gauss(1, 0.1) + float(np.random.normal() + sampler.random())
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    if step == 4:
        ControlRandom.save_random("middle", {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "sampler": sampler,
        })
print([digest.combined for digest in tensor_hash(list(model.parameters()))])
"""


@pytest.mark.slow
@pytest.mark.timeout(320)  # torch is imported twice, with its compiler
def test_a_run_that_goes_on_is_the_run_that_did_not_stop(run_python: RunPython) -> None:
    whole = run_python("-c", TRAIN, "0", "10", "whole", timeout=150)
    rest = run_python("-c", TRAIN, "5", "10", "rest", timeout=150)
    assert whole.returncode == rest.returncode == 0, whole.stderr + rest.stderr
    assert whole.stdout == rest.stdout
    assert len(whole.stdout) > 4 * 32


def draws() -> list[Any]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), torch.rand(3).tolist()]


def test_all_generators_come_back() -> None:
    random.gauss(0, 1)  # leaves half a pair behind
    np.random.standard_normal()
    ControlRandom.save_random("here")
    wanted = draws()
    assert draws() != wanted
    assert ControlRandom.load_random("here") is None
    assert draws() == wanted


def test_generators_may_be_left_alone() -> None:
    ControlRandom.save_random("here", 3)
    wanted = draws()
    ControlRandom.save_random("later")
    after = draws()
    ControlRandom.load_random("later")
    assert ControlRandom.load_random("here", restore_states=False) == 3
    assert draws() == after != wanted


DATA: dict[str, Any] = {
    "tensor": torch.arange(6).reshape(2, 3).T,
    "array": np.array([[1.5, np.nan]], np.float32)[:, ::-1],
    "empty": np.zeros((0, 4), np.uint16),
    "big": np.arange(3, dtype=">i8"),
    "nested": [1, 2.5, "text", None, (True, b"bytes")],
}


def test_data_come_back() -> None:
    ControlRandom.save_random("data", DATA)
    back = ControlRandom.load_random("data")
    assert torch.equal(back["tensor"], DATA["tensor"])
    for name in ("array", "empty", "big"):
        wanted = np.asarray(DATA[name])
        assert back[name].dtype == wanted.dtype
        np.testing.assert_array_equal(back[name], wanted)
    assert back["nested"] == DATA["nested"]


def test_data_with_the_key_that_marks_kinds() -> None:
    data = {"__kind__": "ndarray", "a": [{"__kind__": ("dict", 1), "items": {"__kind__": 2}}]}
    ControlRandom.save_random("marked", data)
    assert ControlRandom.load_random("marked") == data


def test_generators_among_the_data() -> None:
    generators = {
        "python": random.Random(3),
        "torch": torch.Generator().manual_seed(4),
        "numpy": [np.random.default_rng(5), np.random.Generator(np.random.Philox(6))],
    }
    ControlRandom.save_random("generators", generators)
    for _ in range(2):
        back = ControlRandom.load_random("generators")
        assert back["python"].random() == random.Random(3).random()
        wanted = torch.rand(2, generator=torch.Generator().manual_seed(4))
        assert torch.equal(torch.rand(2, generator=back["torch"]), wanted)
        assert back["numpy"][0].random() == np.random.default_rng(5).random()
        assert back["numpy"][1].random() == np.random.Generator(np.random.Philox(6)).random()


def test_the_file_reads_without_pickle(folder: Path) -> None:
    path = ControlRandom.save_random("step 3/noise", DATA)
    assert path is not None
    assert path.parent == folder / "rank_0"
    assert path.suffix == ".pt"
    payload = torch.load(path, weights_only=True)
    assert (payload["tag"], payload["rank"]) == ("step 3/noise", 0)


def test_save_in_one_run_and_load_in_the_other() -> None:
    noise = torch.randn(5)
    assert ControlRandom.deal_with_random(True, "noise", noise) is noise
    other = torch.randn(5)
    back = ControlRandom.deal_with_random(False, "noise", other)
    assert torch.equal(back, noise)
    assert torch.equal(ControlRandom.deal_with_random(0, "noise"), noise)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="save must be a bool, not 'no'"):
        ControlRandom.deal_with_random("no", "noise", other)  # type: ignore[arg-type]


def test_ranks_have_files_of_their_own(folder: Path) -> None:
    for rank in (0, 1):
        ControlRandom.setup(folder, rank=rank)
        ControlRandom.save_random("x", rank)
    for rank in (0, 1):
        ControlRandom.setup(folder, rank=rank)
        assert ControlRandom.load_random("x") == rank


def test_the_database(folder: Path, tmp_path: Path) -> None:
    for tag in ("a", "b", 7):
        ControlRandom.save_random(tag, f"data of {tag}")
    expected = {"a": "data of a", "b": "data of b", "7": "data of 7"}
    assert ControlRandom.read_database() == expected
    ControlRandom.setup(tmp_path / "another", rank=0)
    assert ControlRandom.read_database(folder) == expected
    assert ControlRandom.load_random("b") == "data of b"
    ControlRandom.save_random("b", "new")
    assert ControlRandom.load_random("b") == "new"
    assert ControlRandom.read_database(folder / "rank_0" / "a.pt") == {"a": "data of a"}
    assert ControlRandom.read_database(folder / "rank_0")["7"] == "data of 7"


def test_what_was_not_saved(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no random states of rank 0"):
        ControlRandom.read_database()
    ControlRandom.save_random("a")
    with pytest.raises(KeyError, match=r"no random states were saved as 'b'.*which has a"):
        ControlRandom.load_random("b")


def test_damaged_files(folder: Path) -> None:
    path = ControlRandom.save_random("a", torch.arange(100))
    assert path is not None
    whole = path.read_bytes()
    other = bytes([whole[500] ^ 1])
    for content in (whole[:-30], whole[:500] + other + whole[501:], b"", b"PK"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.pt"):
            ControlRandom.load_random("a")


def test_a_disk_that_takes_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    forget("control_random")
    folder.write_text("a file where the folder should be")
    for _ in range(3):
        assert ControlRandom.save_random("a") is None
    assert caplog.text.count("random states could not be saved") == 1


@pytest.mark.parametrize(
    ("tag", "data", "error", "message"),
    [
        (1.5, None, TypeError, r"tag must be a str or an int, not 1\.5"),
        ("", None, ValueError, "tag must not be empty"),
        ("a", {"f": [print]}, TypeError, r"random_data\['f'\]\[0\] is a builtins"),
        ("a", np.array([object()]), TypeError, "random_data is an array of object"),
    ],
)
def test_wrong_arguments(
    folder: Path, tag: Any, data: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ControlRandom.save_random(tag, data)
    assert not folder.exists()


def test_threads(folder: Path) -> None:
    def work(number: int) -> None:
        for step in range(5):
            ControlRandom.save_random(f"{number}.{step}", (number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = ControlRandom.read_database()
    assert found == {f"{n}.{s}": (n, s) for n in range(4) for s in range(5)}


@pytest.mark.gpu
def test_states_of_a_gpu() -> None:
    torch.cuda.init()
    ControlRandom.save_random("here")
    wanted = torch.rand(3, device="cuda")
    ControlRandom.load_random("here")
    assert torch.equal(torch.rand(3, device="cuda"), wanted)

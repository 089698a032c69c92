"""The watch in one process: arguments, when it checks, and what does not end a training."""

from __future__ import annotations

import copy
import gc
import logging
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from my_utils import GlobalLogger  # noqa: E402
from my_utils.core.run_files.files import REPLICAS_FOLDER  # noqa: E402
from my_utils.core.warnings import forget  # noqa: E402
from my_utils.tensors import ReplicaWatch  # noqa: E402
from my_utils.tensors.replicas.file import SumsReader, files_in  # noqa: E402
from my_utils.tensors.replicas.tensors import Finder, Tracked  # noqa: E402

from ...support.live_ranks import wait_until  # noqa: E402


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3}, "model must be a module, modules by name, or None, not 3"),
        ({"model": {}}, "model must be a module"),
        ({"every": 0}, "every must be at least 1"),
        ({"every": 1.5}, "every must be"),
        ({"optimizer": 3}, "optimizer must be an optimizer or None, not 3"),
        ({"gradients": 1}, "gradients must be"),
        ({"log_dir": 3}, "log_dir must be a path"),
        ({"timer": 3}, "timer must be a MyTimer or None"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ReplicaWatch(**arguments)


def test_a_wrong_step() -> None:
    with pytest.raises(TypeError, match="step must be an int or None"):
        ReplicaWatch(torch.nn.Linear(1, 1)).step("7")  # type: ignore[arg-type]


def test_one_rank_has_nothing_to_watch(caplog: pytest.LogCaptureFixture) -> None:
    forget("replicas:alone")
    model = torch.nn.Linear(1, 1)
    watch = ReplicaWatch(model, every=1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            watch.step()
    assert [record.message for record in caplog.records] == [
        "there is one rank, which has no replica to watch"
    ]


# --- one rank of two, whose other one is not there ---


class Replicated(torch.nn.Linear):  # type: ignore[misc,name-defined]
    """Counts as wrapped by DDP on ranks 0 and 1."""


@pytest.fixture
def two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from my_utils.tensors.passport import placements
    from my_utils.tensors.passport.file import GroupData

    monkeypatch.setattr(
        placements, "replicated_by",
        lambda module: GroupData("0-1") if isinstance(module, Replicated) else None,
    )  # fmt: skip
    GlobalLogger().setup(tmp_path, rank=0, world_size=2, console=False)
    yield tmp_path
    GlobalLogger().close()


def steps_in(folder: Path) -> list[list[int]]:
    """Of the checks in each file that is whole."""
    files = [file.path for file in files_in([str(folder)])]
    return [[check.step for check in SumsReader(file).checks()] for file in files]


def checks_in(folder: Path) -> list[int]:
    [file] = files_in([str(folder)])
    return [check.step for check in SumsReader(file.path).checks()]


def test_the_first_step_and_each_so_many_are_checked(two_ranks: Path) -> None:
    model = Replicated(4, 4)
    watch = ReplicaWatch(model, every=5)
    for _ in range(12):
        watch.step()
    for step in (101, 102, 105):
        watch.step(step)
    watch.close()
    watch.close()
    watch.step(110)
    assert checks_in(two_ranks) == [1, 5, 10, 105]
    assert watch.checks == 4
    GlobalLogger().flush()
    rows = [row.split(",") for row in (two_ranks / "profile_rank_0.csv").read_text().splitlines()]
    assert [row[3] for row in rows if row[4:6] == ["replicas", "START"]] == ["1", "5", "10", "105"]


def values_at(tracked: Tracked, place: int) -> Any:
    return tracked.sources[place].values


def test_the_tensors_are_found_again_where_they_are(two_ranks: Path) -> None:
    """A state that the optimizer has not made yet, another module, memory that moves."""
    model = torch.nn.Sequential(Replicated(4, 4), Replicated(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    finder = Finder({"": model}, optimizer, gradients=False, rank=0, world_size=2)
    first = finder.tracked()
    assert [tensor.name for tensor in first.classes[0].tensors] == [
        "0.weight", "0.bias", "1.weight", "1.bias",
    ]  # fmt: skip
    assert finder.tracked() is first
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    second = finder.tracked()
    assert [one.kind for one in second.classes] == ["parameters", "optimizer state"]
    assert second.classes[1].tensors[0].name == "momentum_buffer of 0.weight"
    assert finder.tracked() is second
    model[1].bias.data = torch.full((4,), 7.0)
    moved = finder.tracked()
    assert moved is not second
    assert values_at(moved, 3).eq(7).all()
    model[1] = Replicated(4, 2)
    assert finder.tracked().classes[0].tensors[2].shape == (2, 4)


def digests_in(folder: Path, kind: str) -> list[bytes]:
    """Of each check, the digest of the tensors of a kind."""
    found = []
    for file in files_in([str(folder)]):
        reader = SumsReader(file.path)
        kinds = [one.kind for one in reader.data.classes]
        if kind in kinds:
            found += [check.digests[kinds.index(kind)] for check in reader.checks()]
    return found


def test_a_state_that_is_loaded_is_checked(two_ranks: Path) -> None:
    """As after a rollback; the one of before is not kept alive until the next check."""
    model = Replicated(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    watch = ReplicaWatch(model, 1, optimizer)
    watch.step()
    watch.step()
    state = optimizer.state_dict()
    old = weakref.ref(optimizer.state[model.weight]["momentum_buffer"])
    optimizer.load_state_dict(copy.deepcopy(state))
    del state
    gc.collect()
    assert old() is None
    watch.step()
    optimizer.state[model.weight]["momentum_buffer"].mul_(2)
    watch.step()
    watch.close()
    first, second, loaded, changed = digests_in(two_ranks, "optimizer state")
    assert first == second == loaded != changed


def test_gradients_are_let_go_of_after_a_check(two_ranks: Path) -> None:
    model = Replicated(4, 4)
    watch = ReplicaWatch(model, 1, gradients=True)
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        watch.step()
        gradients = [weakref.ref(parameter.grad) for parameter in model.parameters()]
        model.zero_grad()
        gc.collect()
        assert [gradient() for gradient in gradients] == [None, None]
    watch.step()
    watch.close()
    first, second, absent = digests_in(two_ranks, "gradients")
    assert first == second != absent


def test_a_gradient_that_is_not_there_is_none(two_ranks: Path) -> None:
    model = Replicated(4, 4)
    finder = Finder({"": model}, None, gradients=True, rank=0, world_size=2)
    classes = finder.tracked().classes
    assert [source.tensor is None for source in finder.tracked().sources] == [
        False, False, True, True,
    ]  # fmt: skip
    model(torch.ones(1, 4)).sum().backward()
    assert finder.tracked().classes == classes
    assert not any(source.tensor is None for source in finder.tracked().sources)


def test_tensors_of_tensors_are_watched_and_others_are_said(two_ranks: Path) -> None:
    """Those that wrap others, quantized ones, and parameters that have no shape yet."""
    from torch.testing._internal.two_tensor import TwoTensor

    model = Replicated(4, 4)
    model.register_buffer("pair", TwoTensor(torch.ones(3), torch.zeros(3)))
    model.register_buffer("whole", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
    model.later = torch.nn.LazyLinear(2)
    finder = Finder({"": model}, None, gradients=True, rank=0, world_size=2)
    first = finder.tracked()
    assert [(one.kind, [tensor.name for tensor in one.tensors]) for one in first.classes] == [
        ("parameters", ["weight", "bias"]),
        ("gradients", ["gradient of weight", "gradient of bias"]),
        ("buffers", ["pair.a"]),
        ("buffers", ["pair.b"]),
    ]
    assert first.notes == [
        "2 tensors not checked: no values before a forward (later.weight, …)",
        "3 tensors not checked: quantized tensors of torch (whole.int_repr, …)",
    ]
    assert values_at(finder.tracked(), 4).eq(1).all()
    model.pair = TwoTensor(torch.full((3,), 7.0), torch.zeros(3))
    assert values_at(finder.tracked(), 4).eq(7).all()


def test_tensors_that_come_and_go_have_two_files(two_ranks: Path) -> None:
    """As many times as they do so."""
    model = Replicated(4, 4)
    watch = ReplicaWatch(model, every=1)
    for step in range(1, 61):
        model.to(torch.float64 if step % 2 else torch.float32)
        watch.step()
        wait_until(lambda: sum(map(len, steps_in(two_ranks))) == watch.checks)
    watch.close()
    assert steps_in(two_ranks) == [list(range(1, 61, 2)), list(range(2, 61, 2))]


def test_plain_tensors_are_not_guessed_to_be_replicas(two_ranks: Path) -> None:
    model = torch.nn.Linear(4, 4)
    finder = Finder({"": model}, None, gradients=False, rank=0, world_size=2)
    tracked = finder.tracked()
    assert tracked.classes == []
    assert tracked.notes[0].startswith("2 tensors not checked: plain tensors: no mesh, DDP or")


def test_a_model_and_its_optimizer_are_not_kept_alive(
    two_ranks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Sequential(Replicated(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch = ReplicaWatch(model, 1, optimizer, gradients=True)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    watch.step()
    kept = [weakref.ref(thing) for thing in (model, model[0], model[0].weight, optimizer)]
    del model, optimizer
    gc.collect()
    assert [reference() for reference in kept] == [None] * 4
    with caplog.at_level(logging.WARNING):
        watch.step()
    watch.close()
    assert not caplog.records
    assert checks_in(two_ranks) == [1]
    with pytest.raises(ValueError, match="or it is gone"):
        watch.replay(lambda: None)


def test_tied_weights_are_hashed_once(two_ranks: Path) -> None:
    model = torch.nn.Sequential(Replicated(4, 4), Replicated(4, 4))
    model[1].weight = model[0].weight
    finder = Finder({"": model}, None, gradients=True, rank=0, world_size=2)
    names = [tensor.name for one in finder.tracked().classes for tensor in one.tensors]
    assert sorted(names) == [
        "0.bias", "0.weight", "1.bias",
        "gradient of 0.bias", "gradient of 0.weight", "gradient of 1.bias",
    ]  # fmt: skip


def test_a_folder_that_cannot_be_made_is_one_warning(
    two_ranks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forget("replicas:file")
    (two_ranks / REPLICAS_FOLDER).write_text("in the way")
    model = Replicated(4, 4)
    watch = ReplicaWatch(model, every=1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            watch.step()
        watch.close()
    [message] = [r.message for r in caplog.records if "replicas" in r.message]
    assert "the sums of replicas are not written any more" in message
    assert "the training goes on" in message


def test_a_timeout_of_the_script_is_raised(two_ranks: Path) -> None:
    """By its signal handler, in the middle of a check."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("too late")

    class Interrupted(Replicated):
        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            signal.raise_signal(signal.SIGALRM)

    model = Interrupted(4, 4)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(TimeoutError, match="too late"):
            ReplicaWatch(model, every=1).step()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_tensor_without_memory_is_left_out(
    two_ranks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forget("replicas:memory")
    model = Replicated(4, 4, device="meta")
    watch = ReplicaWatch(model, every=1)
    with caplog.at_level(logging.WARNING):
        watch.step()
        watch.step()
    watch.close()
    assert sum("cannot be hashed are not checked" in r.message for r in caplog.records) == 1
    assert checks_in(two_ranks) == [1, 2]


# --- trainers ---


@pytest.mark.slow
def test_as_a_callback_of_transformers(two_ranks: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = Replicated(4, 1)

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            return {"loss": (self.layer(x) - labels).square().mean()}

    data = [{"x": torch.ones(4), "labels": torch.ones(1)}] * 40
    arguments = transformers.TrainingArguments(
        output_dir=str(two_ranks / "out"), max_steps=10, per_device_train_batch_size=2,
        report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    watch = ReplicaWatch(every=4)
    transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[watch]).train()
    assert isinstance(watch, transformers.TrainerCallback)
    assert checks_in(two_ranks) == [1, 4, 8]


@pytest.mark.slow
def test_as_a_callback_of_lightning(two_ranks: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Model(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = Replicated(4, 1)

        def training_step(self, batch: Any) -> Any:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=2)
    trainer = lightning.Trainer(
        max_steps=5, accumulate_grad_batches=2, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ReplicaWatch(every=2)],
    )  # fmt: skip
    trainer.fit(Model(), loader)
    assert checks_in(two_ranks) == [1, 2, 4]

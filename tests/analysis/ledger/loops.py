"""Loops of several libraries and layouts that time their own parts: `loops.py FOLDER LOOP PLANT…`.

Each plant adds what it takes, by the script's own clock, to the row of that name.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.analysis.ledger.own_clock import ATTEMPT, RANK, WORLD, timed, write

FOLDER, LOOP, *PLANTS = sys.argv[1:]
STEPS, EVERY = 120, 10
WIDTH = 64


class Items(Dataset[Any]):
    """Whose reading takes 4 ms, if planted. keyed: each is what HF's Trainer takes."""

    def __init__(self, count: int, keyed: bool = False) -> None:
        self.count, self.keyed = count, keyed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        if "input" in PLANTS:
            with timed("input"):
                time.sleep(0.004)
        item = torch.ones(WIDTH)
        return {"x": item, "labels": item.mean()} if self.keyed else item


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        found = self.last(torch.relu(self.first(x)))
        return found if labels is None else {"loss": found.mean() - labels.mean()}


def is_due(step: int) -> bool:
    return step % EVERY == EVERY - 1 and step > 30


def between_steps(step: int) -> None:
    """What a script does beside training."""
    if not is_due(step):
        return
    if "pause" in PLANTS and RANK == 0:
        with timed("pause"):
            time.sleep(0.03)
    if "file" in PLANTS and RANK == 0:
        with timed("pause"), open(Path(FOLDER) / "notes.bin", "wb") as file:
            for _ in range(20):
                file.write(bytes(2_000_000))
            os.fsync(file.fileno())


def late() -> None:
    if "late" in PLANTS and RANK == 1:
        with timed("late"):
            time.sleep(0.01)


def batches() -> Iterator[torch.Tensor]:
    return iter(DataLoader(Items(STEPS), batch_size=1))


def plain(model: nn.Module, after: Callable[[], None] = lambda: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(batches()):
        late()
        model(batch).sum().backward()
        after()
        optimizer.step()
        optimizer.zero_grad()
        between_steps(step)


def ddp() -> None:
    plain(nn.parallel.DistributedDataParallel(Model()))


def two_meetings() -> None:
    """Rank 1 is late before backward, rank 0 before a second meeting."""

    def meet_again() -> None:
        if RANK == 0:
            with timed("late"):
                time.sleep(0.006)
        dist.all_reduce(torch.ones(4))

    plain(nn.parallel.DistributedDataParallel(Model()), meet_again)


def accumulation() -> None:
    """Four backwards a step, of which the last meets."""
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        for part in range(4):
            late()
            with model.no_sync() if part < 3 else torch.enable_grad():
                model(torch.ones(4, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        between_steps(step)


def pipeline() -> None:
    """Two stages, of which the last one sleeps, too."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    part = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-3)
    stage = PipelineStage(part, RANK, WORLD, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    batch = torch.ones(4, WIDTH)
    for step in range(STEPS):
        late()
        schedule.step(*([batch] if RANK == 0 else []), target=batch)
        optimizer.step()
        optimizer.zero_grad()
        between_steps(step)


def stages() -> None:
    """A script that times its stages by MyTimer alone."""
    from my_utils.logger import GlobalLogger
    from my_utils.utils import MyTimer

    log, timer, model = GlobalLogger(), MyTimer(), Model()
    log.setup(str(Path(FOLDER) / "logs"), rank=0, world_size=1, console=False)
    rows = {"data": "input", "h2d": "copies", "forward": "compute", "eval": "evaluation"}
    for step in range(STEPS):
        timer.set_step(step)
        for stage, row in rows.items():
            if stage != "eval" or is_due(step):
                with timed(row), timer.time_stage(stage):
                    for _ in range(10):
                        model(torch.ones(1000, WIDTH))
        timer.step()
    log.close()


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    model = Model()
    fully_shard(model.first)
    fully_shard(model)
    plain(model)


def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (WORLD,))
    plan = {"first": ColwiseParallel(), "last": RowwiseParallel()}
    plain(parallelize_module(Model(), mesh, plan))


def accelerated() -> None:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        Model(), torch.optim.SGD(Model().parameters(), lr=1e-3),
        DataLoader(Items(STEPS * WORLD), batch_size=1),
    )  # fmt: skip
    for step, batch in enumerate(loader):
        if "checkpoint" in PLANTS and is_due(step):
            with timed("checkpoint"):
                accelerator.save_state(str(Path(FOLDER) / "state"))
        late()
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
        between_steps(step)


def hf_trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Timed(Trainer):
        def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
            with timed("evaluation"):
                return super().evaluate(*args, **options)

        def _save_checkpoint(self, *args: Any, **options: Any) -> None:
            with timed("checkpoint"):
                super()._save_checkpoint(*args, **options)

    evaluates, saves = (
        "steps" if plant in PLANTS else "no" for plant in ("evaluation", "checkpoint")
    )

    class DiesOnce(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if ATTEMPT == 0 and state.global_step == 75:
                write(FOLDER)
                os._exit(3)

    options = TrainingArguments(
        output_dir=str(Path(FOLDER) / "out"), max_steps=STEPS, per_device_train_batch_size=1,
        report_to=[], use_cpu=True, save_strategy=saves, save_steps=20, eval_steps=20,
        disable_tqdm=True, save_total_limit=1, logging_steps=1000,
        eval_strategy=evaluates,
    )  # fmt: skip
    data = Items(STEPS * WORLD, keyed=True)
    held = Items(160, keyed=True) if "evaluation" in PLANTS else None
    dies: list[TrainerCallback] = [DiesOnce()] if "death" in PLANTS else []
    trainer = Timed(Model(), options, train_dataset=data, eval_dataset=held, callbacks=dies)
    trainer.train(resume_from_checkpoint=ATTEMPT > 0)


def lightning_trainer() -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def training_step(self, batch: torch.Tensor, number: int) -> Any:
            late()
            between_steps(number)
            return self.inner(batch).sum()

        def validation_step(self, batch: torch.Tensor, number: int) -> None:
            with timed("evaluation"):
                time.sleep(0.01)
                self.inner(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    held = DataLoader(Items(8), batch_size=1) if "evaluation" in PLANTS else None

    class Timed(lightning.Trainer):
        def save_checkpoint(self, *args: Any, **options: Any) -> None:
            with timed("checkpoint"):
                super().save_checkpoint(*args, **options)

    is_saved = "checkpoint" in PLANTS
    save = lightning.pytorch.callbacks.ModelCheckpoint(every_n_train_steps=15)
    trainer = Timed(
        max_steps=STEPS, accelerator="cpu", devices=1, logger=False,
        enable_checkpointing=is_saved, callbacks=save if is_saved else None,
        enable_progress_bar=False, val_check_interval=20, default_root_dir=FOLDER,
        num_sanity_val_steps=0, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Items(STEPS), batch_size=1), held)


LOOPS = {
    "plain": lambda: plain(Model()),
    "ddp": ddp,
    "two meetings": two_meetings,
    "accumulation": accumulation,
    "pipeline": pipeline,
    "stages": stages,
    "fsdp": fsdp,
    "tensor parallel": tensor_parallel,
    "accelerate": accelerated,
    "hf": hf_trainer,
    "lightning": lightning_trainer,
}

gc.disable()
torch.set_num_threads(1)
if WORLD > 1:
    dist.init_process_group("gloo")
LOOPS[LOOP]()
write(FOLDER)
if WORLD > 1:
    dist.barrier()
    dist.destroy_process_group()

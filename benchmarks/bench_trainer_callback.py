"""What `ProfCallback` adds to a step outside its windows, called as transformers' Trainer calls it.

The peers are a callback that steps torch's profiler through the whole training, which has its
schedule wait, and one that does nothing: the Trainer's way of calling takes most of the time.
What it takes for the Trainer's own callback is taken off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.harness import Claim, take_turns
from my_utils.profiling.trainer_callback import ProfCallback

STEPS = 2000
LATER = 10**9  # a step that no run comes to


def calls_of(*callbacks: Any) -> Callable[[], None]:
    """The Trainer's calls for steps that neither log nor evaluate nor save."""
    from transformers import DefaultFlowCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, use_cpu=True, logging_strategy="no", save_strategy="no", report_to=[]
        )
    handler: Any = CallbackHandler
    chain = handler([DefaultFlowCallback(), *callbacks], None, None, None, None)
    state, control = TrainerState(max_steps=LATER, epoch=0.5), TrainerControl()

    def repeat() -> None:
        nonlocal control
        for _ in range(STEPS):
            control = chain.on_step_begin(args, state, control)
            control = chain.on_step_end(args, state, control)

    return repeat


def plain_calls(callback: Any) -> Callable[[], None]:
    """The two methods alone, with as many keywords as the Trainer gives."""
    state, control = SimpleNamespace(global_step=1, epoch=0.5), SimpleNamespace()
    keywords = dict.fromkeys(("model", "optimizer", "lr_scheduler", "train_dataloader"))

    def repeat() -> None:
        for _ in range(STEPS):
            callback.on_step_begin(None, state, control, **keywords)
            callback.on_step_end(None, state, control, **keywords)

    return repeat


def ours(folder: str) -> ProfCallback:
    callback = ProfCallback(folder, wait_steps=LATER)
    callback.on_train_begin(None, SimpleNamespace(global_step=0, max_steps=0), None)
    return callback


def run(smoke: bool) -> list[Claim]:
    from transformers import TrainerCallback

    class Empty(TrainerCallback):
        """What any callback costs."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            pass

    class Stepped(TrainerCallback):
        """The peer."""

        profile: Any = None

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.profile.step()

    stepped = Stepped()
    with_peer = calls_of(stepped)

    def peer() -> None:
        schedule = torch.profiler.schedule(wait=LATER, warmup=1, active=1)
        with torch.profiler.profile(schedule=schedule) as stepped.profile:
            with_peer()

    with tempfile.TemporaryDirectory() as folder:
        times = take_turns(
            {"none": calls_of(), "ours": calls_of(ours(folder)), "empty": calls_of(Empty()),
             "torch": peer, "methods": plain_calls(ours(folder))},
            calls=STEPS, rounds=3 if smoke else 41,
        )  # fmt: skip
    methods, base = times.pop("methods"), times.pop("none")
    ns = {name: value - base for name, value in times.items()}
    what = "a step outside the windows of ProfCallback"
    return [
        Claim("its two methods", methods, "2 µs", 2000, "ns", 1),
        Claim(what, ns["ours"], "an empty callback", ns["empty"], "ns", 1.5),
        Claim(what, ns["ours"], "torch's own schedule", ns["torch"], "ns", 5, faster=True),
    ]  # fmt: skip

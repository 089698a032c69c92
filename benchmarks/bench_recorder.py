"""What the forward trace recorder adds to a forward of 24 encoder layers (303 MB of weights).

The peer of the MD5 of parameters is what a script does that wants it: hashlib in a forward hook.
Times are those of the processor, one thread, so that a busy machine spoils them less.
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Claim

if TYPE_CHECKING:
    import torch

Side = Callable[[], AbstractContextManager[object]]


def encoder(smoke: bool) -> torch.nn.Module:
    import torch

    width, layers = (64, 2) if smoke else (512, 24)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = torch.nn.TransformerEncoderLayer(width, 8, batch_first=True)
        return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).train()


@contextlib.contextmanager
def hashlib_hooks(model: torch.nn.Module) -> Iterator[None]:
    seen: dict[str, str] = {}

    def hook_of(name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            for local, tensor in module.named_parameters(recurse=False):
                data = tensor.detach().cpu().contiguous().numpy().tobytes()
                seen[f"{name}.{local}"] = hashlib.md5(data).hexdigest()

        return hook

    handles = [module.register_forward_hook(hook_of(n)) for n, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def processor_ms(forward: Callable[[], object]) -> float:
    began = time.process_time_ns()
    forward()
    return (time.process_time_ns() - began) / 1e6


def medians(sides: dict[str, Side], forward: Callable[[], object], rounds: int) -> dict[str, float]:
    """Median ms of a forward under each side, in turns. Putting hooks on is not timed."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            with side():
                times[name].append(processor_ms(forward))
    return {name: statistics.median(found) for name, found in times.items()}


def forward_claims(smoke: bool) -> list[Claim]:
    import torch

    from my_utils.module_hook import ForwardTraceRecorder

    model = encoder(smoke)
    x = torch.randn(4, 128, 64 if smoke else 512)
    quiet: dict[str, Any] = {"record_inputs": False, "record_outputs": False, "hash": "none"}
    sides: dict[str, Side] = {
        "plain": contextlib.nullcontext,
        "hashlib": lambda: hashlib_hooks(model),
        "md5": lambda: ForwardTraceRecorder(model, record_param_md5=True, **quiet),
        "hash": lambda: ForwardTraceRecorder(model, hash="tensor"),
        "param_hash": lambda: ForwardTraceRecorder(model, record_param_hash=True, **quiet),
    }
    with torch.no_grad():
        model(x)
        found = medians(sides, lambda: model(x), 1 if smoke else 9)
    plain = found["plain"]
    return [
        Claim(
            "md5 of parameters, ms added to a forward",
            found["md5"] - plain,
            "hashlib in the hooks",
            found["hashlib"] - plain,
            "ms",
            0.2,
        ),
        Claim("forward, inputs and outputs hashed", found["hash"], "plain", plain, "ms", 1.06),
        Claim("forward, parameters hashed", found["param_hash"], "plain", plain, "ms", 1.07),
    ]


def small_claim(smoke: bool) -> Claim:
    """Modules so small that what the hooks do themselves is most of it."""
    import torch

    from my_utils.module_hook import ForwardTraceRecorder

    forwards = 2 if smoke else 100
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(8)))
    x = torch.randn(4, 32)

    def run() -> None:
        for _ in range(forwards):
            model(x)

    sides: dict[str, Side] = {
        "plain": contextlib.nullcontext,
        "recorded": lambda: ForwardTraceRecorder(model),
    }
    with torch.no_grad():
        run()
        found = medians(sides, run, 1 if smoke else 31)
    plain, recorded = (found[name] * 1e3 / forwards for name in ("plain", "recorded"))
    return Claim("forward of eight small Linear, recorded", recorded, "plain", plain, "us", 2.1)


def off_claim(smoke: bool) -> Claim:
    """A recorder that is installed and paused, on modules that do nothing."""
    import torch

    from my_utils.module_hook import ForwardTraceRecorder

    modules = 20 if smoke else 500
    model = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(modules))).train()
    x = torch.ones(1)
    model(x)
    recorder = ForwardTraceRecorder(model).install()
    recorder.pause()
    off, plain = [], []
    for _ in range(2 if smoke else 31):
        recorder.pause()
        off.append(processor_ms(lambda: model(x)))
        recorder.remove()
        plain.append(processor_ms(lambda: model(x)))
        recorder.install()
    recorder.pause()
    recorder.remove()
    added_us = (statistics.median(off) - statistics.median(plain)) * 1e3 / modules
    return Claim("recorder paused, us added to a module", added_us, "allowed", 1.5, "us", 1.0)


def run(smoke: bool = False) -> list[Claim]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*forward_claims(smoke), small_claim(smoke), off_claim(smoke)]
    finally:
        torch.set_num_threads(before)

"""The option `--export` of `my_utils why` and `my_utils report`: sends a verdict and its figures to
one run of Weights & Biases, TensorBoard or MLflow, the one that the user names, or to a receiver of
OpenTelemetry's protocol.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ...core.command_line import fail
from ...core.extras import require
from ...core.ranges import checked
from ...core.ranks import host_name
from .result import Verdict
from .utilisation import utilisation

PREFIX = "my_utils"


class ExportError(RuntimeError):
    """The target did not take what was sent; the message has its reason."""


@dataclass(frozen=True)
class Summary:
    """figures: by name, such as "step_ms". markdown: the verdict. step: the last judged one."""

    status: str
    figures: Mapping[str, float]
    markdown: str
    step: int


def add_export(chosen: argparse.ArgumentParser) -> None:
    """Adds the option, which may be given several times."""
    chosen.add_argument(
        "--export",
        type=checked(parse_target),
        action="append",
        default=[],
        metavar="KIND=RUN",
        help="send the verdict and its figures to a run: wandb=PROJECT/ID, tensorboard=DIR, "
        "mlflow=ID, otlp=URL",
    )


def export_verdict(
    command: str,
    verdict: Verdict,
    targets: Sequence[tuple[str, str]],
    more: Mapping[str, float] = MappingProxyType({}),
) -> bool:
    """Sends it, and more figures, to each; False, with the reason on standard error, where one did
    not take it."""
    summary = summarise(verdict)
    summary = replace(summary, figures={**summary.figures, **more})
    fine = True
    for kind, run in targets:
        try:
            export_summary(kind, run, summary)
        except (ExportError, ImportError) as error:
            fail(command, error)
            fine = False
    return fine


def summarise(verdict: Verdict) -> Summary:
    """The figures: step_ms, untimed_share, judged_ranks, judged_steps, findings (how many cost
    time), flops_a_second and mfu where they are known, and of each finding `<kind>/share` and
    `<kind>/saves_ms`, a step; blanks are `_`."""
    figures = {
        "step_ms": verdict.step_ns * 1e-6,
        "untimed_share": verdict.untimed_share,
        "judged_ranks": float(verdict.judged_ranks),
        "judged_steps": float(verdict.judged_steps),
        "findings": float(len(verdict.costly)),
    }
    flops, mfu = verdict.model_flops, utilisation(verdict.model_flops, verdict.step_ns)
    if flops is not None and verdict.step_ns > 0:
        figures["flops_a_second"] = flops.a_step / verdict.step_ns * 1e9
    if mfu is not None:
        figures["mfu"] = mfu
    for one in reversed(verdict.costly):  # of two of a kind the most costly one is kept
        kind = one.kind.replace(" ", "_")
        figures[f"{kind}/share"] = one.share
        figures[f"{kind}/saves_ms"] = one.saves_ns_a_step * 1e-6
    return Summary(verdict.status, figures, verdict.markdown(), verdict.last_step or 0)


def parse_target(text: str) -> tuple[str, str]:
    """The kind and the run of "KIND=RUN"; ValueError says what is allowed.

    >>> parse_target("tensorboard=runs/one")
    ('tensorboard', 'runs/one')
    """
    kind, _, run = text.partition("=")
    if kind not in TARGETS:
        kinds = ", ".join(TARGETS)
        raise ValueError(f"must be {kinds} and the run, as in wandb=RUN, not {text!r}")
    if not run:
        raise ValueError(f"does not name a run: {kind}=RUN, where RUN is {_RUNS[kind]}")
    return kind, run


def export_summary(kind: str, run: str, summary: Summary) -> None:
    """Sends it, and returns when it is there. ImportError without the package; ExportError where
    the target refuses it."""
    send = TARGETS[kind]
    try:
        send(run, summary)
    except ImportError:
        raise
    except Exception as error:  # of a network, of a file, or of the package itself
        raise ExportError(f"{kind} run {run}: {str(error) or type(error).__name__}") from error


def _to_wandb(run: str, summary: Summary) -> None:
    wandb = require("wandb", "--export wandb")
    *owner, run_id = run.split("/")
    if len(owner) > 2 or not run_id:
        raise ValueError(f"a run is {_RUNS['wandb']}")
    joined = wandb.init(
        entity=owner[0] if len(owner) == 2 else None,
        project=owner[-1] if owner else None,
        id=run_id,
        resume="allow",
        settings=wandb.Settings(silent=True),
    )
    try:
        named = {f"{PREFIX}/{name}": value for name, value in summary.figures.items()}
        joined.summary.update({
            **named, f"{PREFIX}/status": summary.status, f"{PREFIX}/verdict": summary.markdown,
        })  # fmt: skip
    finally:
        joined.finish()


def _to_tensorboard(run: str, summary: Summary) -> None:
    """Into a separate file beside those of the run."""
    require("tensorboard", "--export tensorboard")
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.summary.writer.record_writer import RecordWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    values = [
        summary_pb2.Summary.Value(tag=f"{PREFIX}/{name}", simple_value=value)
        for name, value in summary.figures.items()
    ]
    values.append(
        summary_pb2.Summary.Value(
            tag=f"{PREFIX}/verdict",
            metadata=create_summary_metadata(display_name="verdict", description=""),
            tensor=make_tensor_proto([summary.markdown.encode()], shape=(1,)),
        )
    )
    os.makedirs(run, exist_ok=True)
    now = time.time()
    name = f"events.out.tfevents.{int(now):010d}.{host_name()}.{os.getpid()}.verdict"
    with open(os.path.join(run, name), "ab") as file:
        records = RecordWriter(file)
        for fields in (
            {"file_version": "brain.Event:2"},
            {"step": summary.step, "summary": summary_pb2.Summary(value=values)},
        ):
            records.write(event_pb2.Event(wall_time=now, **fields).SerializeToString())
        records.flush()


def _to_mlflow(run: str, summary: Summary) -> None:
    """To the server or folder that MLFLOW_TRACKING_URI names, as for every client of MLflow."""
    mlflow = require("mlflow", "--export mlflow")
    client: Any = mlflow.MlflowClient()
    client.get_run(run)
    for name, value in summary.figures.items():
        client.log_metric(run, f"{PREFIX}/{name}", value, step=summary.step)
    client.set_tag(run, f"{PREFIX}.status", summary.status)
    client.log_text(run, summary.markdown, f"{PREFIX}/verdict.md")


def _to_otlp(run: str, summary: Summary) -> None:
    """A gauge for each figure, with the status as its attribute."""
    from ...record.exporters.gauges import GaugeSender

    named = {f"{PREFIX}.{name.replace('/', '.')}": value for name, value in summary.figures.items()}
    sender = GaugeSender(run, dict.fromkeys(named, ("", "")), "--export otlp")
    try:
        for name, value in named.items():
            sender.set(name, value, status=summary.status)
        sender.send()
    finally:
        sender.close()


TARGETS: dict[str, Callable[[str, Summary], None]] = {
    "wandb": _to_wandb,
    "tensorboard": _to_tensorboard,
    "mlflow": _to_mlflow,
    "otlp": _to_otlp,
}
_RUNS = {
    "wandb": "its id, with project/ or entity/project/ before it",
    "tensorboard": "its folder",
    "mlflow": "its id",
    "otlp": "the address of a receiver, such as http://collector:4318/v1/metrics",
}

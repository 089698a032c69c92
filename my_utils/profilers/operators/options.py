"""What the comparison tools are asked for.

>>> sorted(OpOptions(white_list=["addmm", "torch.ops.aten.mm.out"]).white_list)
['aten.addmm', 'aten.mm.out']
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ...core.arguments import check_path, check_str, check_switch, check_tolerance
from ...core.options import Options, an_int, one_of, option, or_none
from ...core.ranks import check_ranks
from ...tensors.recordings.metadata import HashKind

NAMESPACES = frozenset(("aten", "prims"))


def check_names(name: str, names: Any) -> frozenset[str]:
    """The names in all the forms that a user may give them, shortened to "aten.addmm" or
    "aten.addmm.default". TypeError and ValueError name the argument."""
    if names is None:
        return frozenset()
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{name} must be a list of operators or of their names, not {names!r:.100}")
    return frozenset(_short(name, item) for item in names)


def _short(name: str, item: Any) -> str:
    if isinstance(item, torch._ops.OpOverload):
        return f"{item.namespace}.{item._opname}.{item._overloadname}"
    if isinstance(item, torch._ops.OpOverloadPacket):
        return str(item)
    if not isinstance(item, str) or not item:
        raise TypeError(f"each of {name} must be an operator or its name, not {item!r:.100}")
    short = item.removeprefix("torch.ops.").replace("::", ".")
    first, _, rest = short.partition(".")
    # "addmm" and "addmm.default" are aten's; so is what is called like a name of aten.
    bare = not rest or (first != "aten" and hasattr(torch.ops.aten, first))
    short = f"aten.{short}" if bare else short
    if short.partition(".")[0] in NAMESPACES:  # others may be registered later
        _check_exists(name, short)
    return short


def _check_exists(name: str, short: str) -> None:
    namespace, operator, *overload = short.split(".")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    if packet is None:
        known = {full.partition(".")[0] for full in torch._C._dispatch_get_all_op_names()}
        near = difflib.get_close_matches(f"{namespace}::{operator}", known, n=1)
        meant = f"; is torch.ops.{near[0].replace('::', '.')} meant?" if near else ""
        raise ValueError(f"{name}: torch has no operator torch.ops.{namespace}.{operator}{meant}")
    if overload and overload != [""] and overload[0] not in packet.overloads():
        raise ValueError(
            f"{name}: torch.ops.{namespace}.{operator} has no overload {overload[0]!r}, but "
            f"{', '.join(packet.overloads())}"
        )


def _check_namespaces(name: str, given: Any) -> frozenset[str]:
    if isinstance(given, str) or not all(isinstance(item, str) for item in given):
        raise TypeError(f"{name} must be a list of str, not {given!r:.100}")
    return frozenset(given)


@dataclass
class OpOptions(Options):
    """The arguments of `CompareWithCPU`, `NanInfTracker` and `OpRecorder`, whose docstrings say
    what they mean; those of all three first."""

    enabled: bool = option(True, check_switch)
    target_list: frozenset[str] | None = option(None, or_none(check_names))
    white_list: frozenset[str] = option(None, check_names)
    verbose: bool = option(False, check_switch)
    enable_ranks: tuple[int, ...] | None = option(None, check_ranks)
    should_log_to_file: bool = option(False, check_switch)
    output_dir: Path = option("", check_path)
    start_step: int | None = option(None, an_int(or_none=True))
    end_step: int | None = option(None, an_int(or_none=True))
    every: int = option(1, an_int(1))

    target_op: frozenset[str] | None = option(None, or_none(check_names))
    dump_error_data: bool = option(False, check_switch)
    stacks: bool = option(False, check_switch)

    namespaces: frozenset[str] = option((), _check_namespaces)
    atol: float | None = option(None, check_tolerance)
    rtol: float | None = option(None, check_tolerance)
    check_stride: bool | None = option(None, or_none(check_switch))
    max_elements: int | None = option(None, an_int(1, or_none=True))
    reference: Any = option("cpu")  # checked by `Reference`

    sync: Literal["op", "step"] = option("op", one_of("op", "step"))

    hash: HashKind = option("tensor", one_of("none", "md5", "tensor"))
    stats: bool = option(False, check_switch)
    record_inputs: bool = option(True, check_switch)
    max_events: int = option(1_000_000, an_int(1))
    name: str = option("op_trace", check_str)

    def __post_init__(self) -> None:
        if self.target_list is not None and self.target_op is not None:
            raise ValueError("target_op is another name of target_list: give one of them")
        super().__post_init__()
        first, end = self.start_step, self.end_step
        if end is not None and end <= (first or 0):
            raise ValueError(
                f"end_step must be above {first or 0}, not {end}: no step would be left"
            )
        if self.sync == "step" and self.dump_error_data:
            raise ValueError("sync must be 'op' with dump_error_data: the inputs are freed later")

    @property
    def targets(self) -> tuple[str, frozenset[str] | None]:
        """The name of the argument that has the operators to test, and these; None: all."""
        if self.target_op is not None:
            return "target_op", self.target_op
        return "target_list", self.target_list

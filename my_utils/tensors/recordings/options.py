"""What a forward trace recorder is asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from ...core.arguments import check_bool, check_classes, check_str_or_none
from ...core.options import Options, an_int, one_of, option
from .metadata import HashKind
from .sample import SampleMode, Sampler

ParamsAt = Literal["auto", "call", "end"]
CompiledMode = Literal["eager", "op"]


def _pattern(name: str, text: Any) -> re.Pattern[str] | None:
    pattern = check_str_or_none(name, text)
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{name} is not a regular expression: {error}") from None


def _classes(name: str, given: Any) -> tuple[type | str, ...]:
    return () if given is None else check_classes(name, given)


@dataclass
class TraceOptions(Options):
    """The arguments of `ForwardTraceRecorder`, whose docstring says what they mean."""

    record_inputs: bool = option(True, check_bool)
    record_outputs: bool = option(True, check_bool)
    include_name_regex: re.Pattern[str] | None = option(None, _pattern)
    exclude_name_regex: re.Pattern[str] | None = option(None, _pattern)
    include_types: tuple[type | str, ...] = option(None, _classes)
    exclude_types: tuple[type | str, ...] = option(None, _classes)
    sample_mode: SampleMode = option("none", one_of("none", "head", "rand"))
    sample_max_elems: int | None = option(1024, an_int(1, or_none=True))
    record_param_dtypes: bool = option(False, check_bool)
    record_buffer_dtypes: bool = option(False, check_bool)
    record_param_md5: bool = option(False, check_bool)
    record_buffer_md5: bool = option(False, check_bool)
    record_param_hash: bool = option(False, check_bool)
    record_buffer_hash: bool = option(False, check_bool)
    hash: HashKind = option("tensor", one_of("none", "md5", "tensor"))
    stats: bool = option(False, check_bool)
    record_grads: bool = option(False, check_bool)
    params_at: ParamsAt = option("auto", one_of("auto", "call", "end"))
    compiled: CompiledMode = option("eager", one_of("eager", "op"))
    max_pending_bytes: int = option(256 << 20, an_int(0))
    seed: int = option(0, an_int())

    def __post_init__(self) -> None:
        super().__post_init__()
        self.param_kind = _kind("param", self.record_param_md5, self.record_param_hash)
        self.buffer_kind = _kind("buffer", self.record_buffer_md5, self.record_buffer_hash)

    @property
    def params_at_call(self) -> bool:
        """Whether parameters are hashed in the pre-hook of their module."""
        by_default = self.param_kind == "tensor"
        return by_default if self.params_at == "auto" else self.params_at == "call"

    def sampler(self) -> Sampler | None:
        """A new one; None where no values are kept."""
        if self.sample_mode == "none":
            return None
        return Sampler(self.sample_mode, self.sample_max_elems, self.seed)

    def settings(self) -> dict[str, Any]:
        """The arguments as plain values, for the file."""
        return {one.name: _as_plain(getattr(self, one.name)) for one in fields(self)}


def _kind(what: str, md5: bool, tensor: bool) -> HashKind:
    if md5 and tensor:
        raise ValueError(f"choose one of record_{what}_md5 and record_{what}_hash")
    return "md5" if md5 else "tensor" if tensor else "none"


def _as_plain(value: Any) -> Any:
    if isinstance(value, re.Pattern):
        return value.pattern
    return [str(kind) for kind in value] if isinstance(value, tuple) else value

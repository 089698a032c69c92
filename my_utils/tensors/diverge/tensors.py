"""Checks whether two records of a tensor agree, and how much they differ if not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.lazy_modules import lazy_module
from ..recordings.recording import TraceTensorMeta
from .result import Figures, TensorCheck
from .verdict import Verdict

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_module("torch")


# What both dtypes can resolve, for tensors that were recorded in two dtypes: (rtol, atol) of
# torch.testing.assert_close for the coarser one, and 2 to the power of -mantissa bits for 8-bit
# floats, which it does not know.
_TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float16": (1e-3, 1e-5),
    "float8_e4m3fn": (0.125, 1e-2),
    "float8_e4m3fnuz": (0.125, 1e-2),
    "float8_e5m2": (0.25, 1e-2),
    "float8_e5m2fnuz": (0.25, 1e-2),
}
_COARSENESS = {name: rtol for name, (rtol, _) in _TOLERANCES.items()}
_COUNTS = ("count", "nans", "pos_infs", "neg_infs")
_VALUES = ("min", "max", "mean", "std", "abs_max")
_NORMS = ("l1", "l2")


@dataclass(frozen=True, slots=True)
class Rules:
    """How two recordings are compared.

    rtol, atol: None for bit for bit; else values a, b agree when |a - b| <= atol + rtol * |b|.
    samples_match: samples of equally large tensors were taken at the same places.
    shapes_may_differ: the runs split their batches or tensors over different numbers of ranks.
    kinds: of "inputs", "outputs", "buffers" and "grads" those that both recorded.
    """

    rtol: float | None = None
    atol: float | None = None
    samples_match: bool = True
    shapes_may_differ: bool = False
    kinds: frozenset[str] = frozenset()

    def tolerance(self, first: TraceTensorMeta, second: TraceTensorMeta) -> tuple[float, float]:
        """(rtol, atol) for a pair: the given ones; those of the coarser dtype for two dtypes, and
        for batches of another size, which libraries sum up in another order."""
        rtol, atol = 0.0, 0.0
        if first.dtype != second.dtype or self.shapes_may_differ:
            coarser = max(first.dtype, second.dtype, key=lambda name: _COARSENESS.get(name, 0.0))
            rtol, atol = _TOLERANCES.get(coarser, (0.0, 0.0))
        return (
            rtol if self.rtol is None else self.rtol,
            atol if self.atol is None else self.atol,
        )


def check_tensors(
    path: str, first: TraceTensorMeta | None, second: TraceTensorMeta | None, rules: Rules
) -> TensorCheck:
    """Compares what two recordings noted of the tensor at `path`; None if one has none."""
    if first is None or second is None:
        side = "A" if second is None else "B"
        return TensorCheck(path, Verdict.DIFFERENT, f"only in {side}", first, second)
    apart = _parts_of_others(first, second)
    if apart:
        return TensorCheck(path, Verdict.UNKNOWN, apart, first, second)
    verdict, why = _by_hash(first, second)
    figures = None
    if not (verdict is not None and verdict.agrees):
        figures = _figures(first, second, rules)
    if verdict is None or verdict is Verdict.DIFFERENT:
        verdict, why = _by_values(first, second, rules, figures, verdict, why)
    return TensorCheck(path, verdict, why, first, second, figures)


def _parts_of_others(first: TraceTensorMeta, second: TraceTensorMeta) -> str:
    """Why two records are not of the same elements: of shards and partial sums a rank has only its
    own ones. The digest, sample and statistics of a shard say nothing about the whole."""
    if first.placements == second.placements:
        return ""
    if first.shape == second.shape and not _is_partial(first) and not _is_partial(second):
        return ""  # one rank has all of it
    described = (f"{meta.placements or 'the whole'} in {side}" for meta, side in
                 ((first, "A"), (second, "B")))  # fmt: skip
    return f"parts of tensors that are placed in other ways: {', '.join(described)}"


def _is_partial(meta: TraceTensorMeta) -> bool:
    return meta.placements is not None and "Partial" in meta.placements


def _by_hash(first: TraceTensorMeta, second: TraceTensorMeta) -> tuple[Verdict | None, str]:
    """What the digests say: SAME, DIFFERENT, or nothing."""
    if first.changed or second.changed:
        return Verdict.UNKNOWN, "written to while the call ran"
    if first.hash is None or second.hash is None or first.hash_kind != second.hash_kind:
        return None, _no_digest(first, second)
    if first.dtype != second.dtype:
        return None, f"{first.dtype} in A, {second.dtype} in B"
    if first.hash != second.hash:
        return Verdict.DIFFERENT, "other bits"
    if first.shape == second.shape or _is_unknown(first, second):
        return Verdict.SAME, ""
    if math.prod(first.shape) == math.prod(second.shape):
        return Verdict.SAME, f"reshaped from {first.shape} to {second.shape}"
    return None, ""


def _is_unknown(first: TraceTensorMeta, second: TraceTensorMeta) -> bool:
    """Whether a shape is missing: one was recorded inside a compiled graph."""
    return "unknown" in (first.layout, second.layout)


def _no_digest(first: TraceTensorMeta, second: TraceTensorMeta) -> str:
    for meta in (first, second):
        if meta.note:
            return meta.note
    if first.hash is not None and second.hash is not None:
        return f"digests of two kinds, {first.hash_kind} and {second.hash_kind}"
    return "no digest was recorded"


def _by_values(
    first: TraceTensorMeta,
    second: TraceTensorMeta,
    rules: Rules,
    figures: Figures | None,
    by_hash: Verdict | None,
    why: str,
) -> tuple[Verdict, str]:
    """The verdict of samples and statistics, where the digests do not agree."""
    sizes = math.prod(first.shape), math.prod(second.shape)
    if sizes[0] != sizes[1] and not _is_unknown(first, second):
        text = f"shape {first.shape} in A, {second.shape} in B"
        return (Verdict.UNKNOWN if rules.shapes_may_differ else Verdict.DIFFERENT), text
    rtol, atol = rules.tolerance(first, second)
    if by_hash is Verdict.DIFFERENT and rtol == atol == 0:
        return by_hash, why
    close = _is_close(first, second, rules, rtol, atol)
    if close is None:
        return by_hash or Verdict.UNKNOWN, why
    within = f"within rtol {rtol:g}, atol {atol:g}" if rtol or atol else "no figure differs"
    return (Verdict.CLOSE, within) if close else (Verdict.DIFFERENT, why or "other values")


def _is_close(
    first: TraceTensorMeta, second: TraceTensorMeta, rules: Rules, rtol: float, atol: float
) -> bool | None:
    """By samples and statistics, None where neither was recorded of both."""
    answers = []
    samples = _samples(first, second, rules)
    if samples is not None:
        from .. import compare

        found = compare(*samples, rtol=rtol, atol=atol, equal_nan=True)
        answers.append(found.mismatches == 0)
    if first.stats is not None and second.stats is not None:
        answers.append(_stats_are_close(first.stats, second.stats, rtol, atol))
    return all(answers) if answers else None


def _stats_are_close(
    first: dict[str, float | int], second: dict[str, float | int], rtol: float, atol: float
) -> bool:
    if any(first.get(name) != second.get(name) for name in _COUNTS):
        return False
    scale = max(_finite(second.get("abs_max")), _finite(first.get("abs_max")))
    bound = atol + rtol * scale
    for name in (*_VALUES, *_NORMS):
        a, b = first.get(name), second.get(name)
        if a is None or b is None or a == b or (a != a and b != b):
            continue
        allowed = bound
        if name in _NORMS:  # of all elements together
            allowed = rtol * abs(b) + atol * float(second.get("count", 0))
        if not abs(a - b) <= allowed:
            return False
    return True


def _finite(value: float | int | None) -> float:
    return float(value) if value is not None and math.isfinite(value) else 0.0


def _samples(
    first: TraceTensorMeta, second: TraceTensorMeta, rules: Rules
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The samples, where they are of the same elements."""
    if not rules.samples_match or first.sample is None or second.sample is None:
        return None
    if first.sample.shape != second.sample.shape or first.sample.numel() == 0:
        return None
    return first.sample, second.sample


def _figures(first: TraceTensorMeta, second: TraceTensorMeta, rules: Rules) -> Figures | None:
    samples = _samples(first, second, rules)
    if samples is not None:
        return _figures_of_samples(*samples, _nans(first.stats, second.stats))
    if first.stats is not None and second.stats is not None:
        return _figures_of_stats(first.stats, second.stats)
    return None


def _figures_of_samples(
    first: torch.Tensor, second: torch.Tensor, nans: tuple[int, int] | None
) -> Figures:
    from .. import compare

    found = compare(first, second, rtol=0.0, atol=0.0, equal_nan=True)
    if nans is None and first.is_floating_point():
        nans = _other_nans(first, second)
    apart = nans is not None  # NaN from a number is not a distance, and not 0
    return Figures(
        source="sample",
        elements=found.elements,
        max_abs=math.nan if apart else found.max_abs,
        max_rel=math.nan if apart else found.max_rel,
        rel_l2=math.nan if apart else _relative(found.sqnr_db),
        cosine=found.cosine,
        nans=nans,
    )


def _relative(sqnr_db: float) -> float | None:
    return None if math.isnan(sqnr_db) else float(10 ** (-sqnr_db / 20))


def _other_nans(first: torch.Tensor, second: torch.Tensor) -> tuple[int, int] | None:
    """NaNs and infinities in two samples, where those differ."""
    counts = [int((~torch.isfinite(side.double())).sum()) for side in (first, second)]
    return (counts[0], counts[1]) if counts[0] != counts[1] else None


def _figures_of_stats(first: dict[str, float | int], second: dict[str, float | int]) -> Figures:
    l2_a, l2_b = _finite(first.get("l2")), _finite(second.get("l2"))
    nans = _nans(first, second)
    rel_l2 = abs(l2_a - l2_b) / l2_b if l2_b else None
    return Figures(
        source="stats",
        elements=int(second.get("count", 0)),
        rel_l2=math.nan if nans is not None else rel_l2,
        nans=nans,
    )


def _nans(
    first: dict[str, float | int] | None, second: dict[str, float | int] | None
) -> tuple[int, int] | None:
    """How many elements are not finite in each, where that differs."""
    if first is None or second is None:
        return None
    counts = [sum(int(side.get(name, 0)) for name in _COUNTS[1:]) for side in (first, second)]
    return (counts[0], counts[1]) if counts[0] != counts[1] else None


# --- of several ---


def differs(verdict: Verdict | None) -> bool:
    return verdict is Verdict.DIFFERENT


def only_different(checks: Iterable[TensorCheck]) -> list[TensorCheck]:
    return [check for check in checks if differs(check.verdict)]


def listed(checks: Sequence[TensorCheck]) -> str:
    shown = [f"{check.path or 'the tensor'} ({check.why})" for check in checks[:4]]
    return ", ".join(shown) + (f" and {len(checks) - 4} more" if len(checks) > 4 else "")

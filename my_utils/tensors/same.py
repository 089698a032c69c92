"""assert_same: two values agree as torch.testing.assert_close says it, or the text says how not."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from .._core import TensorDiff, compare, stats
from ..core.units import count_text
from .leaves import is_empty_container, leaves
from .tensor_kinds import named_parts, resolve
from .ulp import ulps_between

_SHOWN = 5  # values that differ; others are counted
_NAMES = ("actual", "expected")

Index = tuple[int, ...]


def assert_same(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
    check_device: bool = True,
) -> None:
    """Raises AssertionError unless both have the same structure, and close values in it.

    actual, expected: tensors, numpy arrays, numbers, or mappings, lists, tuples and dataclasses of
        them. Other values must be equal. Of sparse tensors the indices and values are compared, as
        coalesced, of nested ones the parts, and of quantized ones the values that they stand for.
    rtol, atol: elements agree if |actual - expected| <= atol + rtol * |expected|. The defaults are
        those of `torch.testing.assert_close` for the dtypes.
    equal_nan: whether a NaN agrees with a NaN.
    check_dtype, check_device: whether tensors of other dtypes or devices differ.

    One pass over both, in C, without a copy. The text has, for each tensor that differs, the first
    element, the largest difference, how many steps of the dtype (ulp) that is, and where NaNs and
    infinities disagree.

    Raises TypeError and ValueError for wrong arguments. Thread-safe.

    >>> import numpy as np
    >>> expected = {"loss": np.float32([1, 2, 3])}
    >>> assert_same({"loss": expected["loss"].copy()}, expected)
    >>> assert_same({"loss": np.float32([1, 2.5, 3])}, expected)
    Traceback (most recent call last):
    AssertionError: ['loss']: 1 of 3 elements differ by more than 1e-05 + 1.3e-06 * |expected|
      float32 (3,)
      first at (1,): 2.5, expected 2.0: 2,097,152 ulp
    """
    __tracebackhide__ = True
    found = dict(leaves(actual)), dict(leaves(expected))
    texts = [*_unpaired(*found)]
    tolerance = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}
    for path, value in found[0].items():
        if path in found[1]:
            pair = value, found[1][path]
            try:
                text = _difference(*pair, tolerance, check_dtype, check_device)
            except TypeError as error:
                raise TypeError(_named(str(error), path)) from None
            if text:
                texts.append(f"{path}: {text}" if path else text)
    if texts:
        more = f"\n{len(texts) - _SHOWN} more values differ" if len(texts) > _SHOWN else ""
        raise AssertionError("\n".join(texts[:_SHOWN]) + more)


def _unpaired(actual: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    for name, one, other in (("actual", actual, expected), ("expected", expected, actual)):
        missing = [_name(path, value) for path, value in one.items() if path not in other]
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            yield f"only in {name}: {', '.join(missing[:_SHOWN])}{more}"


def _name(path: str, value: Any) -> str:
    empty = " (empty)" if is_empty_container(value) else ""
    return (path or "the value itself") + empty


def _named(text: str, path: str) -> str:
    """What `compare` says of its arguments a and b, with their names here."""
    argument, _, rest = text.partition(" ")
    name = dict(zip("ab", _NAMES, strict=True)).get(argument)
    return f"{name}{path} {rest}" if name else text


def _difference(
    actual: Any, expected: Any, tolerance: dict[str, Any], check_dtype: bool, check_device: bool
) -> str:
    """Empty where both agree."""
    pair = actual, expected
    arrays = _as_arrays(*pair)
    if arrays is not None:
        pair = arrays
    elif all(is_empty_container(one) for one in pair):
        kinds = [isinstance(one, Mapping) for one in pair]
        return "" if kinds[0] == kinds[1] else f"{actual!r}, expected {expected!r}"
    elif not any(_is_tensor(one) for one in pair):
        equal = actual is expected or actual == expected
        return "" if equal else f"{actual!r:.200}, expected {expected!r:.200}"
    elif not all(_is_tensor(one) for one in pair):
        return f"{_kind(actual)}, expected {_kind(expected)}"
    else:
        figures = (_layout, True), (_shape, True), (_dtype, check_dtype), (_device, check_device)
        for of, checked in figures:
            if checked and of(actual) != of(expected):
                return f"{of.__name__[1:]} {of(actual)}, expected {of(expected)}"
        if parts := _parts(actual):
            texts = [
                f"{name}: {text}"
                for (name, one), (_, other) in zip(parts, _parts(expected), strict=True)
                if (text := _difference(one, other, tolerance, check_dtype, check_device))
            ]
            return "\n  ".join(texts[:_SHOWN])
        pair = _dequantized(actual), _dequantized(expected)
    found = compare(*pair, max_mismatches=1, **tolerance)
    return "\n  ".join(difference_lines(found, *pair)) if found.mismatches else ""


def _as_arrays(actual: Any, expected: Any) -> tuple[Any, Any] | None:
    """Two numbers; None for others, and for numbers of no dtype, such as integers above 64 bits."""
    if not (isinstance(actual, numbers.Number) and isinstance(expected, numbers.Number)):
        return None
    import numpy

    pair = numpy.asarray(actual), numpy.asarray(expected)
    return None if any(one.dtype == object for one in pair) else pair


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and (hasattr(value, "is_nested") or hasattr(value, "shape"))


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.100}" if not _is_tensor(value) else "a tensor"


def _parts(tensor: Any) -> list[tuple[str, Any]]:
    """Of a tensor of torch's whose values are in others."""
    return named_parts(tensor) if hasattr(tensor, "is_nested") else []


def _dequantized(tensor: Any) -> Any:
    return tensor.dequantize() if getattr(tensor, "is_quantized", False) else tensor


def _layout(tensor: Any) -> str:
    layout = str(getattr(tensor, "layout", "strided")).removeprefix("torch.")
    return f"nested {layout}" if getattr(tensor, "is_nested", False) else layout


def _shape(tensor: Any) -> Any:
    """Of a nested tensor those of its parts."""
    if getattr(tensor, "is_nested", False):
        return [tuple(part.shape) for part in tensor.unbind()]
    return tuple(tensor.shape)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _device(tensor: Any) -> str:
    return str(getattr(tensor, "device", "cpu"))


# --- the text ---


def difference_lines(
    found: TensorDiff, actual: Any, expected: Any, words: str = "expected"
) -> Iterator[str]:
    """How two tensors of one shape differ.

    found: what `compare` says of them, with the first mismatch. words: between the two values.
    """
    allowed = f"{found.atol:g} + {found.rtol:g} * |{_NAMES[1]}|"
    by = f" by more than {allowed}" if found.atol or found.rtol else ""
    yield f"{found.mismatches:,} of {found.elements:,} elements differ{by}"
    yield f"{' and '.join(dict.fromkeys(found.dtypes))} {found.shape}"
    dtype = found.dtypes[0] if found.dtypes[0] == found.dtypes[1] else ""
    if found.first:
        index, *values = found.first[0]
        yield f"first at {index}: {_pair_text(values[0], values[1], dtype, words)}"
    largest = found.max_abs_index
    if largest is not None and found.max_abs and (not found.first or largest != found.first[0][0]):
        values = [_element(tensor, largest) for tensor in (actual, expected)]
        text = _pair_text(values[0], values[1], dtype, words)
        yield f"largest difference {found.max_abs:.3g} at {largest}: {text}"
    if found.nan_disagreements:
        yield f"NaN in one of them: {_not_finite(found.nan_disagreements, actual, expected, 'nan')}"
    if found.inf_disagreements:
        yield f"other infinities: {_not_finite(found.inf_disagreements, actual, expected, 'inf')}"


def _pair_text(a: Any, b: Any, dtype: str, words: str) -> str:
    steps = ulps_between(a, b, dtype)
    return f"{a!r}, {words} {b!r}" + (f": {steps:,} ulp" if steps else "")


def _element(tensor: Any, index: Index) -> Any:
    if hasattr(tensor, "detach"):
        tensor = resolve(tensor, "tensor")
    return tensor[index].item()


def _not_finite(places: int, actual: Any, expected: Any, kind: str) -> str:
    """Where the first ones are; of a tensor that has none, that."""
    import numpy

    texts = []
    for name, tensor in zip(_NAMES, (actual, expected), strict=True):
        seen = stats(tensor)
        count, first = (
            (seen.nans, seen.first_nan)
            if kind == "nan"
            else (seen.pos_infs + seen.neg_infs, seen.first_inf)
        )
        at = f", first at {_plain(numpy.unravel_index(first, _shape(tensor)))}" if count else ""
        texts.append(f"{count:,} in {name}{at}")
    return f"{count_text(places, 'place')}; {'; '.join(texts)}"


def _plain(index: Any) -> Index:
    """
    >>> import numpy
    >>> _plain(numpy.unravel_index(5, (2, 3)))
    (1, 2)
    """
    return tuple(int(each) for each in index)

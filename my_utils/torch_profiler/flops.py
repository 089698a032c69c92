"""Floating-point operations of recorded operators, from the shapes of their inputs.

Counted are additions, subtractions, multiplications, divisions and square roots, one each; a fused
multiply-add is two. Not counted are comparisons, other functions (exp, tanh, erf …), copies, and
what is of lower order, such as the bias of a product or the one division of a mean. n is the
number of elements of the input.

| operators | operations |
|---|---|
| mm, bmm, addmm … of m×k and k×n | 2·m·k·n a matrix [1] |
| convolution | 2 · samples · positions · elements of the weight [2] |
| convolution_backward | as much for each of the gradients of input and weight [3] |
| attention, s queries of d and t keys | 2·s·t·(d + dv) a head: scores, weighted values [4] |
| attention, backward | 2·s·t·(3·d + 2·dv) a head [5] |
| batch and group norm | 6n: mean 1, variance 3, scale and shift 2; not training 2n |
| layer norm | 6n, and n each for weight and bias |
| RMS norm | 3n: squares, their sum, the scale; n for the weight |
| batch and group norm, backward | Σdy and Σdy·x 3n; dx, a·dy + b·x + c, 4n; not training n |
| layer norm, backward | x̂ 2n, dy·weight n, two sums 3n, dx 4n; weight 2n, bias n |
| RMS norm, backward | x̂ n, dy·weight n, one sum 2n, dx 3n; weight 2n |
| add, sub, mul, div, sqrt, rsqrt | one an element of the result; square, pow(x, 2) too |
| addcmul, addcdiv | 2 an element, 3 with a factor; lerp 3 |
| sum, mean | n |

1. Golub and Van Loan, Matrix Computations, 1.1.
2. Positions of the output, or of the input where it is transposed. A weight has the channels of one
   group only, so groups are in it. Padding is not taken off.
3. The three sums run over the same triples of input, weight and output.
4. A mask, a causal one too, is not taken off: kernels differ in what they leave out.
5. The scores again, then the gradients of values, weights, queries and keys: Dao et al.,
   FlashAttention, algorithm 4.

The norms are counted as these definitions are written; kernels may do a little more or less.
Integers are not counted. Operators that take lists of tensors (`_foreach_*`, fused optimizers) and
recurrent layers fused by cuDNN or oneDNN record no shapes to count from, and kernels that
`torch.compile` generates are no operators: they count nothing.

>>> MATRIX["aten::mm"]([[3, 4], [4, 5]], [None, None])
120
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

__all__ = [
    "ATTENTION",
    "CONVOLUTION",
    "ELEMENTWISE",
    "FORMULAS",
    "MATRIX",
    "NORMALISATION",
    "integer_events",
    "self_flops",
]

Shape = Sequence[int]
# Of the shapes of an operator's inputs ([] for what is no tensor), and the values of those inputs
# that are no tensors (None for what is one).
Formula = Callable[[Sequence[Shape], Sequence[Any]], int]

# What a model calls. The work of their parts is shown at them.
_SHOWN_AT = frozenset(
    f"aten::{name}"
    for name in (
        *(f"conv{n}d" for n in (1, 2, 3)),
        *(f"conv_transpose{n}d" for n in (1, 2, 3)),
        *(f"{kind}_norm" for kind in ("batch", "group", "instance", "layer", "rms")),
        "scaled_dot_product_attention",
    )
)


def self_flops(
    events: Iterable[Any],
    formulas: Mapping[str, Formula] | None = None,
    ignored: frozenset[int] = frozenset(),
) -> Counter[str]:
    """FLOPs by operator name, each piece of work once.

    events: of `torch.profiler.profile.events()`, recorded with shapes.
    formulas: by operator name; FORMULAS by default.
    ignored: ids of events that count nothing, nor what they call.

    An operator with a formula counts all that it calls, and these count nothing. One without counts
    nothing where it calls such ones: linear is shown as addmm. But convolutions, norms and
    attention are shown at the operator that a model calls, conv2d and not convolution.
    """
    known = FORMULAS if formulas is None else formulas
    totals: Counter[str] = Counter()
    # No recursion: with stacks recorded the trees are as deep as the program.
    todo = [(event, "") for event in events if event.cpu_parent is None]
    while todo:
        event, shown = todo.pop()
        if event.id in ignored:
            continue
        name = event.name
        if not shown and name in _SHOWN_AT:
            shown = name
        flops = _of(known.get(name), event)
        if flops is None:
            todo.extend((child, shown) for child in event.cpu_children)
        else:
            totals[shown or name] += flops
    return totals


def _of(formula: Formula | None, event: Any) -> int | None:
    if formula is None or not event.input_shapes:
        return None
    try:
        return formula(event.input_shapes, event.concrete_inputs or ())
    except (IndexError, TypeError, ValueError):
        return None  # inputs of a kind that was not recorded, as nested or sparse tensors


_INTEGERS = frozenset(
    ("bool", "int", "long", "long int", "short", "short int", "signed char", "unsigned char")
)


def integer_events(profiler: Any) -> frozenset[int]:
    """The ids of the elementwise operators whose tensors are all of integers."""
    results = getattr(profiler.profiler, "kineto_results", None)
    if results is None:
        return frozenset()
    found = (event for event in results.events() if event.name() in ELEMENTWISE)
    return frozenset(event.correlation_id() for event in found if _of_integers(event.dtypes()))


def _of_integers(dtypes: Sequence[str]) -> bool:
    tensors = [dtype for dtype in dtypes if dtype not in ("", "Scalar", "ScalarList")]
    return bool(tensors) and all(dtype in _INTEGERS for dtype in tensors)


# --- products ---


def _product(first: int) -> Formula:
    """The product of the inputs `first` and the one after: matrices, batches of them, vectors."""

    def flops(shapes: Sequence[Shape], _: Sequence[Any]) -> int:
        left, right = shapes[first], shapes[first + 1]
        return 2 * prod(left) * (right[-1] if len(right) > 1 else 1)

    return flops


MATRIX: dict[str, Formula] = {
    **dict.fromkeys(
        ("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot", "aten::_scaled_mm"),
        _product(0),
    ),
    **{
        f"aten::{name}{suffix}": _product(1)
        for name in ("addmm", "addmv", "addbmm", "baddbmm")
        for suffix in ("", "_")
    },
    "aten::_addmm_activation": _product(1),
}


# --- convolutions ---


def _positions(shape: Shape, weight: Shape, values: Sequence[Any]) -> int:
    """The positions of the output of a convolution."""
    count = len(weight) - 2
    stride, padding, dilation = (_wide(value, count) for value in values[3:6])
    return prod(
        (shape[i - count] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(count)
    )


def _wide(value: Sequence[int], count: int) -> Sequence[int]:
    return value if len(value) == count else [value[0]] * count


def _convolution(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    shape, weight = shapes[0], shapes[1]
    positions = prod(shape[2:]) if values[6] else _positions(shape, weight, values)
    return 2 * shape[0] * positions * prod(weight)


def _convolution_backward(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    gradient, shape, weight = shapes[:3]
    transposed, wanted = values[7], values[10]
    positions = prod((shape if transposed else gradient)[2:])
    return 2 * shape[0] * positions * prod(weight) * sum(map(bool, wanted[:2]))


CONVOLUTION: dict[str, Formula] = {
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::convolution_backward": _convolution_backward,
}


# --- attention ---


def _attention(shapes: Sequence[Shape], _: Sequence[Any]) -> int:
    query, key, value = shapes[:3]  # [batch, heads, length, features]; keys may have fewer heads
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(shapes: Sequence[Shape], _: Sequence[Any]) -> int:
    query, key, value = shapes[1:4]  # after the gradient
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


_ATTENTIONS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
ATTENTION: dict[str, Formula] = {
    **{f"aten::{name}": _attention for name in _ATTENTIONS},
    **{f"aten::{name}_backward": _attention_backward for name in _ATTENTIONS},
}


# --- norms ---


def _batch_norm(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    return (6 if values[5] else 2) * prod(shapes[0])


def _training_norm(shapes: Sequence[Shape], _: Sequence[Any]) -> int:
    return 6 * prod(shapes[0])


def _batch_norm_backward(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    train, wanted = values[7], values[9]
    sums = 3 if train or any(wanted[1:]) else 0
    gradient = (4 if train else 1) if wanted[0] else 0
    return (sums + gradient) * prod(shapes[0])


def _channel_norm_backward(shapes: Sequence[Shape], _: Sequence[Any]) -> int:
    return 7 * prod(shapes[0])


def _group_norm_backward(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    return (3 + 4 * bool(values[9][0])) * prod(shapes[0])


def _layer_norm(shapes: Sequence[Shape], _: Sequence[Any]) -> int:
    return (6 + bool(shapes[2]) + bool(shapes[3])) * prod(shapes[0])


def _layer_norm_backward(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    for_input, for_weight, for_bias = map(bool, values[7])
    normalised = 2 if for_input or for_weight else 0
    gradient = 7 + bool(shapes[5]) if for_input else 0
    return (normalised + gradient + 2 * for_weight + for_bias) * prod(shapes[0])


def _rms_norm(shapes: Sequence[Shape], _: Sequence[Any]) -> int:
    return (3 + bool(shapes[2])) * prod(shapes[0])


def _rms_norm_backward(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    for_input, for_weight = map(bool, values[5])
    gradient = 5 + bool(shapes[4]) if for_input else 0
    return (1 + gradient + 2 * for_weight) * prod(shapes[0])


NORMALISATION: dict[str, Formula] = {
    **dict.fromkeys(
        (
            "aten::native_batch_norm",
            "aten::cudnn_batch_norm",
            "aten::miopen_batch_norm",
            "aten::_native_batch_norm_legit",
        ),
        _batch_norm,
    ),
    "aten::_batch_norm_with_update": _training_norm,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::batch_norm_backward": _batch_norm_backward,
    "aten::cudnn_batch_norm_backward": _channel_norm_backward,
    "aten::miopen_batch_norm_backward": _channel_norm_backward,
    "aten::native_group_norm": _training_norm,
    "aten::native_group_norm_backward": _group_norm_backward,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_fused_rms_norm": _rms_norm,
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
}


# --- element by element ---


def _each(operations: int, tensors: int) -> Formula:
    """For each element of what the first `tensors` inputs broadcast to."""

    def flops(shapes: Sequence[Shape], _: Sequence[Any]) -> int:
        return operations * _broadcast(shapes[:tensors])

    return flops


def _broadcast(shapes: Sequence[Shape]) -> int:
    """The elements of what the shapes broadcast to."""
    sizes = [1] * max(map(len, shapes))
    for shape in shapes:
        for i, size in enumerate(reversed(shape)):
            sizes[i] = size if sizes[i] == 1 else sizes[i]
    return prod(sizes)


def _with_factor(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    """addcmul and addcdiv: a + factor · b · c."""
    return (2 if values[3] in (None, 1) else 3) * _broadcast(shapes[:3])


def _power(shapes: Sequence[Shape], values: Sequence[Any]) -> int:
    """Whole powers, as products: x³ is two."""
    exponent = values[1]
    known = exponent in (2, 3) and not shapes[1]
    return (int(exponent) - 1 if known else 0) * prod(shapes[0])


ELEMENTWISE: dict[str, Formula] = {
    f"aten::{name}{suffix}": formula
    for names, formula in (
        (("add", "sub", "mul", "div"), _each(1, 2)),
        (("sqrt", "rsqrt", "square"), _each(1, 1)),
        (("addcmul", "addcdiv"), _with_factor),
        (("lerp",), _each(3, 2)),
        (("pow",), _power),
    )
    for name in names
    for suffix in ("", "_")
}
ELEMENTWISE |= dict.fromkeys(("aten::sum", "aten::mean"), _each(1, 1))
ELEMENTWISE["aten::rsub"] = _each(1, 2)

FORMULAS: dict[str, Formula] = {
    **MATRIX,
    **CONVOLUTION,
    **ATTENTION,
    **NORMALISATION,
    **ELEMENTWISE,
}

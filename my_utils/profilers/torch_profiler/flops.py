"""Floating-point operations of operators, from the shapes of their inputs.

It is the registry of `torch.utils.flop_counter`, with the formulas that a user registered there,
and ours for what it lacks: other products and attentions, norms, sums, and what is done element by
element. `count_flops` applies it to the events of a profiler, and `custom_mapping` passes ours to
torch's FlopCounterMode.

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
| MultiheadAttention in evaluation | its four projections and the attention, without biases |
| TransformerEncoderLayer in evaluation | that, both norms, both additions, both products |
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
3. The three sums run over the same triples of input, weight and output. This formula is ours: the
   one of the registry takes the weight of each group for one of all channels.
4. A mask, a causal one too, is not taken off: kernels differ in what they leave out.
5. The scores again, then the gradients of values, weights, queries and keys: Dao et al.,
   FlashAttention, algorithm 4.

The norms are counted as these definitions are written; kernels may do a little more or less.
Integers are not counted. Operators that take lists of tensors (`_foreach_*`, fused optimizers) and
recurrent layers fused by cuDNN or oneDNN record no shapes to count from, and kernels that
`torch.compile` generates are not operators: they count nothing.

>>> formulas()["aten::mm"]([[3, 4], [4, 5]])
120
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

# Of an operator's arguments, in the order of its schema: shapes instead of tensors, [] or None in
# place of a tensor that is not given, and the values of the others.
Formula = Callable[[Sequence[Any]], int]

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


def formulas() -> dict[str, Formula]:
    """All formulas, by the operator's name."""
    from torch._ops import OpOverloadPacket
    from torch.utils.flop_counter import flop_registry

    known = {
        packet._qualified_op_name: _of_torch(packet, formula)
        for packet, formula in flop_registry.items()
        if isinstance(packet, OpOverloadPacket)
    }
    return known | OURS


def custom_mapping() -> dict[Any, Callable[..., int]]:
    """Our formulas as torch's FlopCounterMode takes them; of operators that this torch has."""
    from torch import ops

    found = {}
    for name, formula in OURS.items():
        packet = getattr(ops.aten, name.removeprefix("aten::"), None)
        if packet is not None:
            found[packet] = _for_torch(formula)
    return found


def _for_torch(formula: Formula) -> Callable[..., int]:
    def flops(*args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return formula((*args, *kwargs.values()))

    return flops


def _of_torch(packet: Any, formula: Callable[..., int]) -> Formula:
    """A formula of the registry, which takes no keyword arguments of the operator."""
    name = packet._qualified_op_name
    overload = getattr(packet, packet.overloads()[0])
    count = sum(not argument.kwarg_only for argument in overload._schema.arguments)

    def flops(args: Sequence[Any]) -> int:
        result = _convolved(args) if name in _CONVOLUTIONS else None
        return formula(*args[:count], out_val=result)

    return flops


class Flops(NamedTuple):
    """What a profiler saw, by operator name."""

    counted: Counter[str]
    # Calls of operators whose work is not counted for want of a formula. Of an operator that calls
    # others, these are named. Views and what only makes, moves or compares values are left out.
    calls_uncounted: Counter[str]


def count_flops(profiler: Any, known: Mapping[str, Formula] | None = None) -> Flops:
    """The FLOPs of a `torch.profiler.profile` that recorded shapes, each piece of work once.

    known: the formulas by operator name; all by default.

    An operator with a formula counts all that it calls, and these count nothing. One without counts
    nothing if it calls such ones: linear is shown as addmm. But convolutions, norms and
    attention are shown at the operator that a model calls, conv2d and not convolution.
    """
    known = formulas() if known is None else known
    found = Flops(Counter(), Counter())
    on_integers = _integer_events(profiler)
    # No recursion: with stacks recorded the trees are as deep as the program.
    todo = [(event, "") for event in profiler.events() if event.cpu_parent is None]
    while todo:
        event, shown = todo.pop()
        name = event.name
        if event.id in on_integers:
            continue
        if not shown and name in _SHOWN_AT:
            shown = name
        flops = _of(known.get(name), event)
        if flops is not None:
            found.counted[shown or name] += flops
            continue
        todo.extend((child, shown) for child in event.cpu_children)
        calls_others = any("::" in child.name for child in event.cpu_children)
        if not calls_others and calculates(name):
            found.calls_uncounted[name] += 1
    return found


_OPERATOR = re.compile(r"(?!autograd::|torch::)\w+::[\w.]+")

# What such operators are called: they make, move, exchange or compare values and calculate none.
_MOVES = re.compile(
    r"(?:c10d|_c10d_functional\w*|fsdp)::\w+|aten::_*(?:"
    r"(?:arange|assert|bernoulli|cat|chunk|clone|constant_pad|copy|detach|embedding|empty|eye|fill|"
    r"flip|full|gather|has|index|is|item|lift|local_scalar|masked|narrow|new|nonzero|normal|ones?|"
    r"pin_memory|randn?|randint|randperm|record_stream|repeat|resize|roll|scatter|select|set|slice|"
    r"sort|split|stack|to|topk|tril|triu|unfold|uniform|unique|unsafe|where|zeros?)(?:_\w*)?|"
    r"im2col|pack_padded_sequence|pad_packed_sequence|(?:reflection|replication)_pad\dd|"
    r"sparse_\w+_tensor_\w+|"
    r"(?:all|amax|amin|aminmax|any|argmax|argmin|argsort|eq|equal|ge|gt|isfinite|isinf|isnan|le|lt|"
    r"max|min|ne|logical_\w+|bitwise_\w+)_?)"
)


def calculates(name: str) -> bool:
    """Whether it is an operator, and not a view or one that only moves or compares values."""
    is_operator = _OPERATOR.fullmatch(name) is not None
    return is_operator and _MOVES.fullmatch(name) is None and not _is_view(name)


@functools.cache
def _is_view(name: str) -> bool:
    """Whether the operator gives back its input's memory under another shape, by its schema."""
    from torch import ops

    space, _, short = name.partition("::")
    packet = getattr(getattr(ops, space, None), short.partition(".")[0], None)
    if packet is None or not packet.overloads():
        return False
    results = getattr(packet, packet.overloads()[0])._schema.returns
    return any(each.alias_info is not None and not each.alias_info.is_write for each in results)


def _of(formula: Formula | None, event: Any) -> int | None:
    if formula is None or not event.input_shapes:
        return None
    values = event.concrete_inputs or [None] * len(event.input_shapes)
    args = [
        shape if value is None else value
        for shape, value in zip(event.input_shapes, values, strict=False)
    ]
    try:
        return formula(args)
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError):
        return None  # inputs of a kind that was not recorded, as nested or sparse tensors


_INTEGERS = frozenset(
    ("bool", "int", "long", "long int", "short", "short int", "signed char", "unsigned char")
)
_NO_TENSORS = ("", "Scalar", "ScalarList")


def _integer_events(profiler: Any) -> frozenset[int]:
    """The ids of the elementwise operators whose tensors are all of integers."""
    results = getattr(profiler.profiler, "kineto_results", None)
    if results is None:
        return frozenset()
    found = set()
    for event in results.events():
        if event.name() in ELEMENTWISE:
            tensors = [dtype for dtype in event.dtypes() if dtype not in _NO_TENSORS]
            if tensors and all(dtype in _INTEGERS for dtype in tensors):
                found.add(event.correlation_id())
    return frozenset(found)


def counts_integers_only(packet: Any, args: Sequence[Any]) -> bool:
    """Whether it is an elementwise operator whose tensors are all of integers."""
    if packet._qualified_op_name not in ELEMENTWISE:
        return False
    dtypes = [arg.dtype for arg in args if hasattr(arg, "dtype")]
    return not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)


# --- products ---


def _elements(shape: Sequence[int]) -> int:
    return prod(shape)


def _product(first: int) -> Formula:
    """The product of argument `first` and the one after: matrices, batches of them, vectors."""

    def flops(args: Sequence[Any]) -> int:
        left, right = args[first], args[first + 1]
        return 2 * _elements(left) * (right[-1] if len(right) > 1 else 1)

    return flops


def _grouped_product(args: Sequence[Any]) -> int:
    """One product for each group, as of the experts of a mixture: rows, columns or what is summed
    over are divided among the groups where a side has no dimension for these."""
    left, right = args[:2]
    rows = left[-2:] if len(right) == 2 else left
    return 2 * _elements(rows) * int(right[-1])


_PRODUCTS: dict[str, Formula] = {
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm"), _grouped_product),
    **dict.fromkeys(("aten::mv", "aten::dot", "aten::vdot"), _product(0)),
    **{
        f"aten::{name}{suffix}": _product(1) for name in ("addmv", "addbmm") for suffix in ("", "_")
    },
    **dict.fromkeys(("aten::addmm_", "aten::baddbmm_", "aten::_addmm_activation"), _product(1)),
}


# --- convolutions ---


# With arguments in this order the registry needs the shape of the result, which no event has.
_CONVOLUTIONS = ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")


def _convolved(args: Sequence[Any]) -> list[int]:
    """The shape of the result of a convolution; of a transposed one nobody asks for it."""
    shape, weight, _, *windows, transposed = args[:7]
    if transposed:
        return []
    count = len(weight) - 2
    stride, padding, dilation = (
        value if len(value) == count else [value[0]] * count for value in windows
    )
    positions = [
        (shape[i - count] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(count)
    ]
    return [shape[0], weight[0], *positions]


def _convolution_backward(args: Sequence[Any]) -> int:
    shapes: Sequence[Sequence[int]] = args[:3]
    gradient, shape, weight = shapes
    transposed, wanted = args[7], args[10]
    positions = _elements((shape if transposed else gradient)[2:])
    return 2 * shape[0] * positions * _elements(weight) * sum(map(bool, wanted[:2]))


# --- attention ---


def _attention(args: Sequence[Any]) -> int:
    shapes: Sequence[Sequence[int]] = args[:3]
    query, key, value = shapes  # [batch, heads, length, features]; keys may have fewer heads
    return 2 * _elements(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(args: Sequence[Any]) -> int:
    shapes: Sequence[Sequence[int]] = args[1:4]  # after the gradient
    query, key, value = shapes
    return 2 * _elements(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


# torch has formulas of the first three, which in 2.11 refuse keys of fewer heads.
_ATTENTIONS = (
    "cudnn_attention",
    "efficient_attention",
    "flash_attention",
    "flash_attention_for_cpu",
    "fused_attention_overrideable",
)
_ATTENTION: dict[str, Formula] = {
    **{f"aten::_scaled_dot_product_{name}": _attention for name in _ATTENTIONS},
    **{f"aten::_scaled_dot_product_{name}_backward": _attention_backward for name in _ATTENTIONS},
}


def _attention_layer(args: Sequence[Any]) -> int:
    """Projections of queries, keys and values with one weight, the attention, and one of it."""
    query, key, embed = args[0], args[1], args[3]
    rows = _elements(query[:-1])
    projections: int = 2 * embed * (2 * rows + 2 * _elements(key[:-1])) * embed
    attention: int = 4 * rows * key[-2] * embed
    return projections + attention


def _encoder_layer(args: Sequence[Any]) -> int:
    """The attention, two additions, two layer norms, and the two products of the feed-forward."""
    given, embed, hidden = args[0], args[1], args[14][0]
    rest: int = 2 * _elements(given) * (1 + 8 + 2 * hidden)
    return _attention_layer((given, given, given, embed)) + rest


# Whole layers of torch.nn in evaluation.
_LAYERS: dict[str, Formula] = {
    "aten::_native_multi_head_attention": _attention_layer,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
}


# --- norms ---


def _per_element(operations: Callable[[Sequence[Any]], int]) -> Formula:
    """For each element of the first argument."""

    def flops(args: Sequence[Any]) -> int:
        return operations(args) * _elements(args[0])

    return flops


def _batch_norm_backward(args: Sequence[Any]) -> int:
    train, wanted = args[7], args[9]
    sums = 3 if train or any(wanted[1:]) else 0
    gradient = (4 if train else 1) if wanted[0] else 0
    return sums + gradient


def _layer_norm_backward(args: Sequence[Any]) -> int:
    for_input, for_weight, for_bias = map(bool, args[7])
    normalised = 2 if for_input or for_weight else 0
    gradient = 7 + bool(args[5]) if for_input else 0
    return normalised + gradient + 2 * for_weight + for_bias


def _rms_norm_backward(args: Sequence[Any]) -> int:
    for_input, for_weight = map(bool, args[5])
    gradient = 5 + bool(args[4]) if for_input else 0
    return 1 + gradient + 2 * for_weight


_BATCH_NORMS = (
    "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit",
)  # fmt: skip
_NORMS: tuple[tuple[tuple[str, ...], Callable[[Sequence[Any]], int]], ...] = (
    (_BATCH_NORMS, lambda args: 6 if args[5] else 2),
    (("_batch_norm_with_update", "native_group_norm"), lambda args: 6),
    (("native_batch_norm_backward", "batch_norm_backward"), _batch_norm_backward),
    (("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), lambda args: 7),
    (("native_group_norm_backward",), lambda args: 3 + 4 * bool(args[9][0])),
    (("native_layer_norm",), lambda args: 6 + bool(args[2]) + bool(args[3])),
    (("native_layer_norm_backward",), _layer_norm_backward),
    (("_fused_rms_norm",), lambda args: 3 + bool(args[2])),
    (("_fused_rms_norm_backward",), _rms_norm_backward),
)
NORMALISATION: dict[str, Formula] = {
    f"aten::{name}": _per_element(operations) for names, operations in _NORMS for name in names
}


# --- element by element ---


def _each(operations: int, tensors: int) -> Formula:
    """For each element of what the first `tensors` arguments broadcast to."""

    def flops(args: Sequence[Any]) -> int:
        return operations * _broadcast(args[:tensors])

    return flops


def _broadcast(args: Sequence[Any]) -> int:
    """The elements of what shapes and numbers broadcast to."""
    shapes = [arg if isinstance(arg, Sequence) else () for arg in args]
    sizes = [1] * max(map(len, shapes))
    for shape in shapes:
        for i, size in enumerate(reversed(shape)):
            sizes[i] = size if sizes[i] == 1 else sizes[i]
    return _elements(sizes)


def _with_factor(args: Sequence[Any]) -> int:
    """addcmul and addcdiv: a + factor · b · c."""
    factor = args[3] if len(args) > 3 else 1
    return (2 if factor == 1 else 3) * _broadcast(args[:3])


def _power(args: Sequence[Any]) -> int:
    """Whole powers, as products: x³ is two."""
    base, exponent = args[:2]
    return (int(exponent) - 1 if exponent in (2, 3) else 0) * _broadcast([base])


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

# By the operator's name.
OURS: dict[str, Formula] = {
    **_PRODUCTS,
    "aten::convolution_backward": _convolution_backward,
    **_ATTENTION,
    **_LAYERS,
    **NORMALISATION,
    **ELEMENTWISE,
}

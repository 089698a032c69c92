"""Layouts as data: which boxes of a checkpoint's tensors a tensor of an engine or a trainer holds.

A layout is a table of (glob, rule). A rule takes the name and the shape of the tensor at hand and
gives cuts: each is a box of it, and the box of a named tensor of the checkpoint that it is. The
first glob that matches counts; a tensor that none matches is itself.

The rules follow the loading code of these projects: vLLM and sglang `QKVParallelLinear`,
`MergedColumnParallelLinear`, `VocabParallelEmbedding` and `FusedMoE`; Megatron `SelfAttention` and
`MLP`; transformers `conversion_mapping`; PEFT `BaseTunerLayer`.

>>> layout = vllm_layout({"num_attention_heads": 4, "num_key_value_heads": 1}, 1, tp_size=2)
>>> for cut in layout.cuts("l.qkv_proj.weight", (32, 8))[1]:  # 2 heads of q, 1 of k, 1 of v
...     print(cut.name, cut.shape, cut.at, cut.begin, cut.size)
l.q_proj.weight (32, 8) (16, 0) (0, 0) (16, 8)
l.k_proj.weight (8, 8) (0, 0) (16, 0) (8, 8)
l.v_proj.weight (8, 8) (0, 0) (24, 0) (8, 8)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import cached_property, reduce
from operator import add, sub
from typing import Any, NamedTuple

from .boxes import Box

Shape = tuple[int, ...]


class Cut(NamedTuple):
    """name, shape: of the tensor of the checkpoint. at: the first index of the box in it. begin,
    size: the same box in the tensor at hand, which may have more dimensions before. is_transposed:
    the tensor at hand has the last two dimensions in the other order."""

    name: str
    shape: Shape
    at: Shape
    begin: Shape
    size: Shape
    is_transposed: bool = False

    def ordered(self, numbers: Shape) -> Shape:
        """One number a dimension of the checkpoint's tensor, from those of the tensor at hand
        without dimensions before; and the other way round."""
        return (*numbers[:-2], numbers[-1], numbers[-2]) if self.is_transposed else numbers


Rule = Callable[[str, Shape], Iterator[Cut]]


class Layout:
    """name: for messages. rules: globs of names, and what such a tensor holds.

    A job all of whose ranks use a layout has one set of names, so that equal boxes are replicas.
    """

    def __init__(self, name: str, rules: list[tuple[str, Rule]]) -> None:
        self.name = name
        self.rules = rules

    def __repr__(self) -> str:
        return f"Layout({self.name!r}, {len(self.rules)} rules)"

    @cached_property
    def _compiled(self) -> list[tuple[re.Pattern[str], str, Rule]]:
        return [(re.compile(translate(glob)), glob, rule) for glob, rule in self.rules]

    def cuts(self, name: str, shape: Shape) -> tuple[str, list[Cut]]:
        """The glob of the rule, "" if none matches, and the cuts. ValueError if the shape does not
        fit the rule."""
        for pattern, glob, rule in self._compiled:
            if pattern.match(name):
                try:
                    return glob, list(rule(name, shape))
                except (IndexError, ZeroDivisionError, ValueError) as error:
                    raise ValueError(
                        f"{name} of shape {list(shape)} does not fit the rule {glob} of the layout "
                        f"{self.name}: {error}"
                    ) from None
        return "", [whole(name, shape)]


def renamed(layout: Layout, name: str, shape: Shape) -> str:
    """The name of a tensor that stays whole; that of another one is as it was."""
    cuts = layout.cuts(name, shape)[1]
    return cuts[0].name if len(cuts) == 1 and cuts[0].shape == shape else name


def combined(layouts: Sequence[Layout]) -> Layout | None:
    """One after the other: each cuts and names what the one before it has made of a tensor, as if
    that were a checkpoint of its own.

    >>> both = combined([transposed_layout(["a"]), names_layout([("*", "x.*")])])
    >>> both.cuts("a", (2, 3))[1][0].name, both.cuts("a", (2, 3))[1][0].shape
    ('x.a', (3, 2))
    """
    return reduce(_in_turn, layouts) if layouts else None


def _in_turn(first: Layout, second: Layout) -> Layout:
    def rule(name: str, shape: Shape) -> Iterator[Cut]:
        for outer in first.cuts(name, shape)[1]:
            for inner in second.cuts(outer.name, outer.shape)[1]:
                found = _through(outer, inner)
                if found is not None:
                    yield found

    return Layout(f"{first.name}, {second.name}", [("*", rule)])


def _through(outer: Cut, inner: Cut) -> Cut | None:
    """The box at hand that both cuts have; None if they have none. inner: of the tensor that
    `outer` names."""
    more = len(outer.begin) - len(outer.at)
    box, other = Box(outer.at, outer.ordered(outer.size[more:])), Box(inner.begin, inner.size)
    both = box.overlap(other)
    if both is None:
        if box.numel and other.numel:
            return None
        both = Box(box.at, box.size if not box.numel else other.size)  # an empty tensor
    moved = outer.ordered(tuple(map(sub, both.at, outer.at)))
    begin = (*outer.begin[:more], *map(add, outer.begin[more:], moved))
    size = (*outer.size[:more], *outer.ordered(both.size))
    of_inner = len(inner.begin) - len(inner.at)
    moved = inner.ordered(tuple(map(sub, both.at, inner.begin))[of_inner:])
    is_transposed = outer.is_transposed != inner.is_transposed
    if outer.is_transposed and len(inner.at) < 2:
        raise ValueError(f"{inner.name} has one dimension, and is transposed")
    return Cut(
        inner.name, inner.shape, tuple(map(add, inner.at, moved)), begin, size, is_transposed
    )


# --- cuts ---


def whole(name: str, shape: Shape) -> Cut:
    zeros = (0,) * len(shape)
    return Cut(name, shape, zeros, zeros, shape)


def _rows(name: str, shape: Shape, begin: int, count: int, at: int, total: int) -> Cut:
    """Rows `begin` to before `begin + count` are those from `at` on, of `total` rows."""
    rest, zeros = shape[1:], (0,) * (len(shape) - 1)
    if begin + count > shape[0] or at + count > total:
        raise ValueError(f"there are no rows {begin} to {begin + count - 1}")
    return Cut(name, (total, *rest), (at, *zeros), (begin, *zeros), (count, *rest))


def _shard(name: str, shape: Shape, dim: int, number: int, parts: int) -> Cut:
    """All of the tensor is one of equal parts along `dim`."""
    zeros = (0,) * len(shape)
    size = shape[dim]
    whole_shape = (*shape[:dim], size * parts, *shape[dim + 1 :])
    return Cut(name, whole_shape, (*zeros[:dim], size * number, *zeros[dim + 1 :]), zeros, shape)


def _of_index(cut: Cut, *index: int) -> Cut:
    """The same box in a tensor that has all experts or layers one after the other."""
    return cut._replace(begin=(*index, *cut.begin), size=(*(1 for _ in index), *cut.size))


def _divided(rows: int, parts: int) -> int:
    if rows % parts:
        raise ValueError(f"{rows} cannot be divided by {parts}")
    return rows // parts


def _sharded(dim: int, number: int, parts: int) -> Rule:
    def rule(name: str, shape: Shape) -> Iterator[Cut]:
        yield whole(name, shape) if len(shape) <= dim else _shard(name, shape, dim, number, parts)

    return rule


def _vocabulary(config: Any, number: int, parts: int) -> Rule:
    """Rows of a vocabulary that is padded at its end; padding is left out."""

    def rule(name: str, shape: Shape) -> Iterator[Cut]:
        total = _get(config, "vocab_size") or shape[0] * parts
        at = number * shape[0]
        count = max(0, min(shape[0], total - at))
        yield _rows(name, shape, 0, count, min(at, total - count), total)

    return rule


def _renamed(old: str, new: str) -> Rule:
    def rule(name: str, shape: Shape) -> Iterator[Cut]:
        yield whole(name.replace(old, new), shape)

    return rule


def _halves(old: str, new: tuple[str, str], number: int, parts: int) -> Rule:
    """Rows of a shard of one tensor, then those of another one: gate and up."""

    def rule(name: str, shape: Shape) -> Iterator[Cut]:
        half = _divided(shape[0], 2)
        for place, part in enumerate(new):
            yield _rows(
                name.replace(old, part), shape, place * half, half, number * half, parts * half
            )

    return rule


def _get(config: Any, *names: str) -> Any:
    """The first of the values that a config, or its part for text, has; None if it has none."""
    is_mapping = isinstance(config, Mapping)
    get: Callable[[str], Any] = (
        config.get if is_mapping else lambda name: getattr(config, name, None)
    )
    for name in names:
        if get(name) is not None:
            return get(name)
    inner = get("text_config")
    return None if inner is None else _get(inner, *names)


def _heads(config: Any) -> tuple[int, int]:
    heads = _get(config, "num_attention_heads")
    if not isinstance(heads, int) or heads < 1:
        raise ValueError("config must have num_attention_heads")
    return heads, _get(config, "num_key_value_heads", "num_query_groups") or heads


def _expert_names(config: Any) -> tuple[str, str, str]:
    """Of gate, up and down, as checkpoints of the model call them."""
    is_mixtral = _get(config, "model_type") in ("mixtral", "minimax", "minimax_m2", "phimoe")
    return ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")


def _check_shard(rank_name: str, rank: int, size_name: str, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"{rank_name} must be from 0 to before {size_name} {size}, not {rank}")


# --- engines ---


def vllm_layout(
    config: Any, tp_rank: int = 0, tp_size: int = 1, *, ep_rank: int = 0, ep_size: int = 1
) -> Layout:
    """The parameters of a vLLM or sglang model with the names and shapes of its checkpoint.

    Take the passport when the weights are loaded, before quantization methods repack them.

    config: of transformers, or a mapping, with num_attention_heads, num_key_value_heads,
    vocab_size and, for experts, num_experts. tp_rank, tp_size: of tensor parallelism. ep_rank,
    ep_size: of expert parallelism; with it a rank has whole experts.
    """
    _check_shard("tp_rank", tp_rank, "tp_size", tp_size)
    _check_shard("ep_rank", ep_rank, "ep_size", ep_size)
    heads, kv_heads = _heads(config)
    local_heads, local_kv = heads // tp_size, max(kv_heads // tp_size, 1)
    copies = max(tp_size // kv_heads, 1)  # ranks that have the same head of k and v

    def qkv(name: str, shape: Shape) -> Iterator[Cut]:
        head = _divided(shape[0], local_heads + 2 * local_kv)
        q, kv = local_heads * head, local_kv * head
        at = tp_rank // copies * kv
        yield _rows(name.replace("qkv_proj", "q_proj"), shape, 0, q, tp_rank * q, heads * head)
        for place, part in enumerate(("k_proj", "v_proj")):
            new = name.replace("qkv_proj", part)
            yield _rows(new, shape, q + place * kv, kv, at, kv_heads * head)

    expert_tp = (0, 1) if ep_size > 1 else (tp_rank, tp_size)
    column, row = _sharded(0, tp_rank, tp_size), _sharded(1, tp_rank, tp_size)
    vocabulary = _vocabulary(config, tp_rank, tp_size)
    experts = _experts(config, ("w13_weight", "w2_weight"), *expert_tp, ep_rank, ep_size)
    return Layout(
        "vllm",
        [
            ("*qkv_proj.weight", qkv),
            ("*qkv_proj.bias", qkv),
            (
                "*gate_up_proj.*",
                _halves("gate_up_proj", ("gate_proj", "up_proj"), tp_rank, tp_size),
            ),
            *experts,
            ("*embed_tokens.weight", vocabulary),
            ("*lm_head.weight", vocabulary),
            *((f"*.{name}.weight", row) for name in ("o_proj", "down_proj", "out_proj", "fc2")),
            *((f"*.{name}.*", column) for name in ("q_proj", "k_proj", "v_proj", "up_proj", "fc1")),
        ],
    )


def _experts(
    config: Any,
    packed: tuple[str, str],
    tp_rank: int,
    tp_size: int,
    ep_rank: int = 0,
    ep_size: int = 1,
) -> list[tuple[str, Rule]]:
    """Rules for all experts in one tensor: gate and up (experts, 2·I, H), down (experts, H, I)."""
    *gate_up, down = _expert_names(config)

    def first_of(count: int) -> int:
        total = _get(config, "num_experts", "num_local_experts", "n_routed_experts") or count
        base, more = divmod(total, ep_size)
        return ep_rank * base + min(ep_rank, more)

    def gate_and_up(name: str, shape: Shape) -> Iterator[Cut]:
        split = _halves(packed[0], (gate_up[0], gate_up[1]), tp_rank, tp_size)
        for expert in range(shape[0]):
            prefix = name.removesuffix(packed[0]) + f"{first_of(shape[0]) + expert}."
            for cut in split(f"{prefix}{packed[0]}.weight", shape[1:]):
                yield _of_index(cut, expert)

    def down_rows(name: str, shape: Shape) -> Iterator[Cut]:
        for expert in range(shape[0]):
            prefix = name.removesuffix(packed[1]) + f"{first_of(shape[0]) + expert}."
            yield _of_index(
                _shard(f"{prefix}{down}.weight", shape[1:], 1, tp_rank, tp_size), expert
            )

    return [(f"*experts.{packed[0]}", gate_and_up), (f"*experts.{packed[1]}", down_rows)]


# --- trainers ---


def megatron_layout(
    config: Any,
    tp_rank: int = 0,
    tp_size: int = 1,
    *,
    ep_rank: int = 0,
    ep_size: int = 1,
    expert_tp: tuple[int, int] | None = None,
    first_layer: int = 0,
) -> Layout:
    """The parameters of Megatron's GPTModel with the names and shapes of Llama's and Qwen's
    checkpoints of transformers: grouped qkv, gated linear_fc1, a padded vocabulary, experts.

    Also those of its torch_dist checkpoints, which have all layers in one tensor, and all experts
    in one; they are whole, so that they need the config alone.

    config: as for `vllm_layout`; Megatron's num_query_groups counts for num_key_value_heads.
    expert_tp: rank and size of the experts' tensor parallelism, by default those of all.
    first_layer: the number of the pipeline stage's first layer in the whole model.
    """
    _check_shard("tp_rank", tp_rank, "tp_size", tp_size)
    _check_shard("ep_rank", ep_rank, "ep_size", ep_size)
    heads, groups = _heads(config)
    mine, each = _divided(groups, tp_size), heads // groups

    def qkv(name: str, shape: Shape) -> Iterator[Cut]:
        """By group: its heads of q, one of k, one of v."""
        head = _divided(shape[0], mine * (each + 2))
        for group in range(mine):
            number = tp_rank * mine + group
            for part, at, count in (("q", 0, each), ("k", each, 1), ("v", each + 1, 1)):
                new, begin = name.replace("qkv", part), (group * (each + 2) + at) * head
                rows = count * head
                yield _rows(new, shape, begin, rows, number * rows, groups * rows)

    cuts: dict[str, Rule] = {
        "whole": _sharded(0, 0, 1),
        "columns": _sharded(1, tp_rank, tp_size),
        "gate_up": _halves("gate_up", ("gate", "up"), tp_rank, tp_size),
        "qkv": qkv,
    }

    def of_layer(name: str, shape: Shape) -> Iterator[Cut]:
        layer, inner = name.removeprefix("decoder.layers.").split(".", 1)
        new, how = _MEGATRON[inner]
        return cuts[how](f"model.layers.{int(layer) + first_layer}.{new}", shape)

    def of_layers(name: str, shape: Shape) -> Iterator[Cut]:
        new, how = _MEGATRON[name.removeprefix("decoder.layers.")]
        for layer in range(shape[0]):
            for cut in cuts[how](f"model.layers.{layer}.{new}", shape[1:]):
                yield _of_index(cut, layer)

    def expert_cuts(layer: int, expert: int, kind: str, shape: Shape) -> Iterator[Cut]:
        new = f"model.layers.{layer}.mlp.experts.{expert}."
        shard = expert_tp or (tp_rank, tp_size)
        if kind == "fc2":
            return _sharded(1, *shard)(f"{new}down_proj.weight", shape)
        return _halves("gate_up", ("gate", "up"), *shard)(f"{new}gate_up_proj.weight", shape)

    def of_expert(name: str, shape: Shape) -> Iterator[Cut]:
        found = _MEGATRON_EXPERT.fullmatch(name)
        if found is None:
            raise ValueError("its name has no number of an expert")
        layer, local, kind, grouped = found.groups()
        total = _get(config, "num_experts", "num_local_experts", "num_moe_experts") or 0
        number = int(local or grouped) + ep_rank * total // ep_size
        return expert_cuts(int(layer) + first_layer, number, kind, shape)

    def of_experts(name: str, shape: Shape) -> Iterator[Cut]:
        kind = name.removesuffix(".weight")[-3:]
        for layer, expert in itertools.product(range(shape[0]), range(shape[1])):
            for cut in expert_cuts(layer, expert, kind, shape[2:]):
                yield _of_index(cut, layer, expert)

    def vocabulary(new: str) -> Rule:
        rule = _vocabulary(config, tp_rank, tp_size)
        return lambda name, shape: rule(new, shape)

    return Layout(
        "megatron",
        [
            ("decoder.layers.mlp.experts.experts.linear_fc[12].weight", of_experts),
            ("decoder.layers.*.mlp.experts.*", of_expert),
            *((f"decoder.layers.{inner}", of_layers) for inner in _MEGATRON),
            *((f"decoder.layers.*.{inner}", of_layer) for inner in _MEGATRON),
            ("embedding.word_embeddings.weight", vocabulary("model.embed_tokens.weight")),
            ("output_layer.weight", vocabulary("lm_head.weight")),
            ("decoder.final_layernorm.*", _renamed("decoder.final_layernorm", "model.norm")),
        ],
    )


# By a tensor of Megatron's layer: its name in a checkpoint, and how it is cut.
_MEGATRON = {
    "self_attention.linear_qkv.weight": ("self_attn.qkv_proj.weight", "qkv"),
    "self_attention.linear_qkv.bias": ("self_attn.qkv_proj.bias", "qkv"),
    "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight", "whole"),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight", "columns"),
    "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight", "whole"),
    "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight", "whole"),
    "input_layernorm.weight": ("input_layernorm.weight", "whole"),
    "mlp.linear_fc1.weight": ("mlp.gate_up_proj.weight", "gate_up"),
    "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight", "whole"),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight", "columns"),
    "mlp.router.weight": ("mlp.gate.weight", "whole"),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight", "whole"),
}
_MEGATRON_EXPERT = re.compile(
    r"decoder\.layers\.(\d+)\.mlp\.experts\.(?:local_experts\.(\d+)\.)?linear_(fc1|fc2)\.weight(\d*)"
)


def packed_experts_layout(config: Any = None) -> Layout:
    """Models of transformers 5, which hold all experts of a layer in one tensor, with the names of
    their checkpoints. config: of the model; None for names like Qwen's and DeepSeek's."""
    rules = _experts(config or {}, ("gate_up_proj", "down_proj"), 0, 1)
    if _expert_names(config or {})[0] == "w1":
        inner = Layout("", rules)

        def renamed(name: str, shape: Shape) -> Iterator[Cut]:
            return iter(inner.cuts(name.replace(".mlp.", ".block_sparse_moe."), shape)[1])

        rules = [("*.mlp.*", renamed)]
    return Layout("packed-experts", rules)


def peft_layout() -> Layout:
    """A model of PEFT with the names of its base model. Adapters are left out, and so are copies of
    modules that are trained beside it (`modules_to_save`). Take the passport after
    `merge_adapter()` to compare merged weights."""

    def base(name: str, shape: Shape) -> Iterator[Cut]:
        for wrapped in (".base_layer.", ".original_module.", ".token_adapter."):
            name = name.replace(wrapped, ".")
        yield whole(name.removeprefix("base_model.model."), shape)

    def nothing(name: str, shape: Shape) -> Iterator[Cut]:
        return iter(())

    adapters = [f"*.{prefix}_*" for prefix in _ADAPTERS]
    globs = (*adapters, "*.prompt_encoder.*", "*.modules_to_save.*")
    return Layout("peft", [*((glob, nothing) for glob in globs), ("*", base)])


# How the names of adapters' tensors begin, by PEFT 0.21.
_ADAPTERS = (
    "lora", "ia3", "vera", "adamss", "beft", "boft", "c3a", "deft", "delora", "fourierft", "frod",
    "glora", "gralora", "hada", "hira", "hra", "lily", "ln_tuning", "lokr", "miss", "oft", "osf",
    "peanut", "poly", "psoft", "pvera", "randlora", "road", "shadow", "shira", "supertuning",
    "tinylora", "trainable_tokens", "unilora", "vblora", "waveft",
)  # fmt: skip


def transposed_layout(globs: Sequence[str]) -> Layout:
    """Tensors of these names have their last two dimensions in the other order, as experts of older
    checkpoints have.

    >>> transposed_layout(["*.experts.*"]).cuts("l.experts.down_proj", (4, 24, 32))[1][0].shape
    (4, 32, 24)
    """

    def rule(name: str, shape: Shape) -> Iterator[Cut]:
        if len(shape) < 2:
            raise ValueError("it has no two dimensions")
        cut = whole(name, shape)
        yield cut._replace(shape=(*shape[:-2], shape[-1], shape[-2]), is_transposed=True)

    return Layout("transposed", [(glob, rule) for glob in globs])


def names_layout(pairs: list[tuple[str, str]]) -> Layout:
    """Other names by globs: what `*` stands for on the left is put where `*` is on the right.

    >>> names_layout([("model.*.weight", "net.*.w")]).cuts("model.a.weight", (2,))[1][0].name
    'net.a.w'
    """

    def rule(old: str, new: str) -> Rule:
        pattern = re.compile("(.*)".join(map(re.escape, old.split("*"))))

        def renamed(name: str, shape: Shape) -> Iterator[Cut]:
            found = pattern.fullmatch(name)
            texts = iter(found.groups() if found else ())
            yield whole(re.sub(r"\*", lambda _: next(texts, ""), new), shape)

        return renamed

    return Layout("names", [(old, rule(old, new)) for old, new in pairs])

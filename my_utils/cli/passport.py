"""Writes the passport of a checkpoint: `my_utils passport CHECKPOINT [-o FILE]`.

Exit status: 0, read; 2, wrong arguments, or it cannot be read; 130, interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec

from ..core.bounded_read import describe, read_whole
from ..core.checked_json import decode_object
from ..core.command_line import CommandParser, add_output, add_quiet, fail, parser, run_cli
from ..core.outputs import open_output
from ..core.printable import printable
from ..core.progress import Progress
from ..core.ranges import checked, ranks_text
from ..core.units import bytes_text
from ..tensors.passport.boxes import place_text
from ..tensors.passport.checkpoints import read_checkpoint, read_weights
from ..tensors.passport.compare import ComparedData
from ..tensors.passport.file import encoded
from ..tensors.passport.history import HistoryData
from ..tensors.passport.layouts import (
    Layout,
    combined,
    megatron_layout,
    names_layout,
    packed_experts_layout,
    peft_layout,
    transposed_layout,
)
from ..tensors.passport.take import torch_dtype
from ..tensors.passport.weights import Weights, merged
from ..tensors.wrapper_names import plain_name

EXIT_UNREADABLE = 2
_Data = TypeVar("_Data", ComparedData, HistoryData)
_NAMED = {"packed-experts": packed_experts_layout, "peft": peft_layout}
_OF_CONFIG: dict[str, Callable[[Any], Layout]] = {
    "megatron": megatron_layout,
    "packed-experts": packed_experts_layout,
}
_CONFIG_BYTES_MAX = 1 << 20


def command_parser() -> CommandParser:
    chosen = parser(
        "passport",
        "Writes the passport of a checkpoint: the sums of its tensors, from which equality is "
        "decided whatever the layout.",
        [
            "my_utils passport model.safetensors -o model.json",
            "my_utils passport checkpoint --dtype bfloat16 -o model.json",
            "my_utils passport pp --explain 'model.layers.0.*'",
        ],
        statuses="0  read\n2  wrong arguments, or it cannot be read",
    )
    chosen.add_argument("checkpoint", metavar="CHECKPOINT", help=CHECKPOINT_HELP)
    add_output(chosen, "write the passport of the checkpoint to FILE; - is standard output",
               suffixes=(".json",))  # fmt: skip
    add_reading(chosen)
    chosen.add_argument(
        "--explain",
        metavar="NAME",
        help="show the parts of the tensors of this name or glob, and where they come from",
    )
    add_quiet(chosen)
    return chosen


CHECKPOINT_HELP = (
    "a safetensors file, folder or index, a .pt or .bin file, a folder of "
    "torch.distributed.checkpoint, or passports: a file, folder or glob"
)


def add_reading(chosen: argparse.ArgumentParser) -> None:
    """The options of all that reads checkpoints."""
    chosen.add_argument(
        "--dtype",
        metavar="D",
        help="cast floating-point tensors of checkpoints to this type, such as bfloat16",
    )
    chosen.add_argument(
        "--map",
        dest="layouts",
        action="append",
        default=[],
        type=checked(_layout),
        metavar="RULES",
        help="OLD=NEW renames tensors, with * in both; packed-experts and peft are layouts of "
        "transformers 5 and PEFT; megatron:CONFIG that of Megatron's torch_dist checkpoints, with "
        "the config.json of the model; transposed:GLOB exchanges the last two dimensions; "
        "repeatable",
    )


def _layout(text: str) -> Layout:
    old, equals, new = text.partition("=")
    kind, colon, value = text.partition(":")
    if text in _NAMED:
        return _NAMED[text]()
    if colon and kind == "transposed":
        return transposed_layout([value])
    if colon and kind in _OF_CONFIG:
        return _OF_CONFIG[kind](_config(value))
    if not (old and equals):
        known = ", ".join((*_NAMED, *(f"{kind}:CONFIG" for kind in _OF_CONFIG), "transposed:GLOB"))
        raise ValueError(f"{text!r} is not OLD=NEW, nor one of {known}")
    if new.count("*") > old.count("*"):
        raise ValueError(f"{text!r} has more * on the right than on the left")
    # Wrappers add nothing to the names that a layout gets.
    return names_layout([(plain_name(old) or old, new)])


def _config(path: str) -> dict[str, Any]:
    try:
        return decode_object(read_whole(path, _CONFIG_BYTES_MAX, "a config")[0])
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {describe(error)}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_cli(lambda: _main(words))


def _main(argv: Sequence[str]) -> int:
    args = command_parser().parse_args(argv)
    try:
        dtype, layout = torch_dtype(args.dtype), combined(args.layouts)
        with Progress("passport", quiet=args.quiet, no_color=args.no_color, ticking=True):
            if args.output:
                data = read_checkpoint(args.checkpoint, dtype, layout)
                weights = merged([data], args.checkpoint)
                with open_output(args.output) as file:
                    file.write(encoded(data))
            else:
                weights = read_weights(args.checkpoint, dtype, layout)
    except (ImportError, OSError, ValueError) as error:
        return fail("passport", error, EXIT_UNREADABLE)
    if args.output != "-":
        lines = _explained(weights, args.explain) if args.explain else _summary(weights)
        print("\n".join(map(printable, lines)))
    return 0


def compare_and_print(
    command: str,
    args: argparse.Namespace,
    compare: Callable[[], _Data],
    lines_of: Callable[[_Data], list[str]],
    status_of: Callable[[_Data], int],
) -> int:
    """What the commands that compare passports do: JSON or lines, and the exit status, which is 2
    where nothing differs, and not all could be compared."""
    try:
        with Progress(command, quiet=args.quiet, no_color=args.no_color, ticking=True):
            data = compare()
    except (ImportError, OSError, ValueError) as error:
        return fail(command, error, EXIT_UNREADABLE)
    if args.json:
        print(msgspec.json.encode(data).decode())
    else:
        print("\n".join(map(printable, lines_of(data))))
    return EXIT_UNREADABLE if data.status == "not comparable" else status_of(data)


def _summary(weights: Weights) -> list[str]:
    return [f"{weights.title()}, {bytes_text(weights.nbytes)}", *weights.notes]


def _explained(weights: Weights, glob: str) -> list[str]:
    lines = []
    for name, same in weights.tensors.items():
        if not fnmatchcase(name, glob):
            continue
        for tensor in same:
            lines.append(f"{name}: {tensor.dtype} {list(tensor.shape)}")
            for box, held in sorted(tensor.held.items()):
                place = place_text(box, tensor.shape) or "all"
                sources = dict.fromkeys(tensor.sources.get(box, {}).values())
                words = "; ".join(sources) or "under this name"
                lines.append(f"  {place}: {ranks_text(held, 4)}: {words}")
    return lines or [f"no tensor has the name {glob}"]

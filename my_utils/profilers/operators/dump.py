"""Inputs and outputs of one call of an operator in files that anyone with torch can read, and the
script next to them that runs it again.

`<op>_inputs.pkl` and `<op>_outputs.pkl` (`<op>_inputs_rank0.pkl` if there are several ranks) are
what `torch.save` writes, of plain values that `torch.load(weights_only=True)` takes: a dict with

    format, version     "my_utils.op_call", 1
    op                  "aten.addmm.default"
    kind                "inputs" or "outputs"
    args, kwargs        of inputs; `result` and `written` (arguments after the call) of outputs
    devices             of the tensors, in their order: files are read to the CPU

Strides, views and memory that tensors share are kept. What no such file can hold is written as a
pair of a mark and a text, ("torch.layout", "torch.strided"), or a mark and a generator's state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.plain_files import PlainFileError, load_plain, save_plain
from .inputs import copied, map_tensors, resolved, tensors_in
from .original_call import is_pickle, load_original_inputs
from .policy import OpPlan
from .reference import Reference

FORMAT = "my_utils.op_call"
VERSION = 1

_WORDS: dict[type[Any], tuple[str, Callable[[str], Any]]] = {
    torch.layout: ("torch.layout", lambda text: getattr(torch, text)),
    torch.memory_format: ("torch.memory_format", lambda text: getattr(torch, text)),
    torch.dtype: ("torch.dtype", lambda text: getattr(torch, text)),
    torch.device: ("torch.device", torch.device),
}
_GENERATOR = "torch.Generator"
_PLAIN = (bool, int, float, complex, str)


class OpCall:
    """args and kwargs of a call, and its operator's name."""

    def __init__(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op, self.args, self.kwargs = op, args, kwargs


def _encoded(value: Any) -> Any:
    """Lists, tuples, dicts, numbers, text, None and tensors; the rest as pairs."""
    if isinstance(value, Tensor):
        return _plain(value)
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(_encoded(item) for item in value)
    if isinstance(value, dict):
        return {str(key): _encoded(item) for key, item in value.items()}
    if isinstance(value, torch.Generator):
        return (_GENERATOR, str(value.device), value.get_state())
    for kind, (word, _) in _WORDS.items():
        if isinstance(value, kind):
            return (word, str(value).removeprefix("torch."))
    return (f"{type(value).__module__}.{type(value).__qualname__}", repr(value)[:200])


def _plain(tensor: Tensor) -> Tensor:
    tensor = resolved(tensor.detach())
    return tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)


def _decoded(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 3 and value[0] == _GENERATOR:
        generator = torch.Generator(device=value[1])
        generator.set_state(value[2])
        return generator
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        for word, make in _WORDS.values():
            if value[0] == word:
                return make(str(value[1]))
    if isinstance(value, list | tuple):
        return type(value)(_decoded(item) for item in value)
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return value


# --- writing ---


def dump_call(
    folder: Path,
    names: tuple[str, str],
    op: str,
    inputs: tuple[Any, Any],
    outputs: tuple[Any, Any],
) -> list[Path]:
    """Writes the two files; returns their paths. names: those of the inputs and of the outputs,
    without an ending. OSError if they cannot be written."""
    args, kwargs = inputs
    result, written = outputs
    return [
        _write(folder / f"{names[0]}.pkl", op, "inputs", {"args": tuple(args), "kwargs": kwargs}),
        _write(folder / f"{names[1]}.pkl", op, "outputs", {"result": result, "written": written}),
    ]


def _write(path: Path, op: str, kind: str, parts: dict[str, Any]) -> Path:
    # A view of a large tensor would bring all of it; copies hold what the views span.
    encoded = copied({name: _encoded(part) for name, part in parts.items()})
    devices = [str(tensor.device) for tensor in tensors_in(encoded)]
    head = {"format": FORMAT, "version": VERSION, "op": op, "kind": kind, "devices": devices}
    return save_plain({**head, **encoded}, path)


# --- reading ---


def load_inputs(path: str | Path) -> OpCall:
    """The call in a file, its tensors on the devices that they were on where those are there, else
    on the CPU. Nothing in the file is executed.

    PlainFileError (a ValueError) if it is another file, OSError if there is none.
    """
    if is_pickle(path):
        return OpCall("", *load_original_inputs(path))
    payload = load_plain(path, FORMAT, VERSION, "operator's call")
    if payload.get("kind") != "inputs" or not isinstance(payload.get("kwargs"), dict):
        raise PlainFileError(f"{path}: holds no inputs of an operator")
    args, kwargs = _decoded((payload["args"], payload["kwargs"]))
    args, kwargs = _to_devices((tuple(args), kwargs), payload.get("devices") or [])
    return OpCall(str(payload.get("op", "")), args, kwargs)


def _to_devices(value: Any, devices: list[Any]) -> Any:
    wanted = {str(device) for device in devices} - {"cpu"}
    if len(wanted) != 1:
        return value
    try:
        device = torch.device(wanted.pop())
        on_cpu = {
            id(tensor)
            for tensor, name in zip(tensors_in(value), devices, strict=False)
            if name == "cpu"
        }
        moved = copied(value, device)
        if not on_cpu:
            return moved
        places = iter(tensors_in(moved))
        return map_tensors(value, lambda tensor: _one_of(tensor, next(places), on_cpu))
    except (RuntimeError, AssertionError):  # no such device here
        return value


def _one_of(tensor: Tensor, moved: Tensor, on_cpu: set[int]) -> Tensor:
    return tensor if id(tensor) in on_cpu else moved


# --- the script that runs it again ---

_SCRIPT = '''"""Runs {name} again on the inputs next to this file, and prints what {tool} finds.

Exits with status 0 if nothing is found, else with 1.
"""

import sys
from pathlib import Path

import torch
{imports}
FOLDER = Path(__file__).resolve().parent
{before}
if __name__ == "__main__":
    try:
        op = torch.ops.{op}
    except AttributeError:
        sys.exit("import here what registers the operator torch.ops.{op}")
    correct, args, kwargs, out = {call}
    print("nothing found" if correct else "found again")
    sys.exit(0 if correct else 1)
'''


class Again(NamedTuple):
    """How a call is run again. function: of `my_utils.compare_tool`; arguments: those behind the
    operator, as text; imports, before: lines of the script."""

    tool: str
    function: str
    arguments: str = ""
    imports: str = ""
    before: str = ""


def script(plan: OpPlan, inputs: Path, again: Again) -> str:
    """The text; `inputs` is in the folder where it is written to."""
    call = f"{again.function}(\n        FOLDER / {inputs.name!r}, op{again.arguments}\n    )"
    imports = f"\nfrom my_utils.compare_tool import {again.function}\n{again.imports}"
    return _SCRIPT.format(
        name=plan.name, tool=again.tool, op=plan.overload, call=call, imports=imports,
        before=again.before,
    )  # fmt: skip


def comparison_again(
    plan: OpPlan, atol: float | None, rtol: float | None, reference: Reference
) -> Again:
    imports, before, text = _reference(reference)
    arguments = f", atol={atol!r}, rtol={rtol!r}, reference={text}"
    namespace = plan.overload.partition(".")[0]
    if namespace not in ("aten", "prims"):
        arguments += f", namespaces=[{namespace!r}]"
    return Again("CompareWithCPU", "compare_for_single_op", arguments, imports, before)


def _reference(reference: Reference) -> tuple[str, str, str]:
    """Lines that import it, lines of remark, and how it is called."""
    function = reference.function
    if function is None:
        return "", "", repr(reference.name)
    module = getattr(function, "__module__", "__main__")
    name = getattr(function, "__qualname__", "<")
    root = _find_root(module)
    if module == "__main__" or not name.isidentifier() or root is None:
        remark = (
            f"# The reference was the function {name} of {module}, which cannot be imported here.\n"
            "# float64 is used instead.\n"
        )
        return "", remark, repr("float64")
    lines = f"\nsys.path.insert(0, {root!r})\nfrom {module} import {name}  # noqa: E402\n"
    return lines, "", name


def _find_root(module: str) -> str | None:
    """The folder from which the module is imported."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    depth = module.count(".") + (Path(file).name == "__init__.py")
    return str(Path(file).resolve().parents[depth])

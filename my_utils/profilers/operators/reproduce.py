"""Writes the script next to a dump that runs the operator again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from .policy import OpPlan
from .reference import Reference

_TEXT = '''"""Runs {name} again on the inputs next to this file, and prints what {tool} finds.

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
    return _TEXT.format(
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


def search_again() -> Again:
    return Again("NanInfTracker", "nan_inf_track_for_single_op")


def _reference(reference: Reference) -> tuple[str, str, str]:
    """Lines that import it, lines of remark, and how it is called."""
    function = reference.function
    if function is None:
        return "", "", repr(reference.name)
    module = getattr(function, "__module__", "__main__")
    name = getattr(function, "__qualname__", "<")
    root = _root_of(module)
    if module == "__main__" or not name.isidentifier() or root is None:
        remark = (
            f"# The reference was the function {name} of {module}, which cannot be imported here.\n"
            "# float64 is used instead.\n"
        )
        return "", remark, repr("float64")
    lines = f"\nsys.path.insert(0, {root!r})\nfrom {module} import {name}  # noqa: E402\n"
    return lines, "", name


def _root_of(module: str) -> str | None:
    """The folder from which the module is imported."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    depth = module.count(".") + (Path(file).name == "__init__.py")
    return str(Path(file).resolve().parents[depth])

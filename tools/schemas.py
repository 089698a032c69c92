"""The JSON Schema of what each command prints with `--json`: `python -m tools.schemas`.

Writes `docs/schema/NAME.json` from the types in the code. What the docstring of a type says as
`name: text` describes that key; the rest of the docstring describes the object.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_type_hints

import msgspec

from my_utils.analysis.diff.result import DifferenceData, IntervalData
from my_utils.analysis.gpu_trace.difference import TraceDifferenceData
from my_utils.analysis.live.alerts.alert import AlertData
from my_utils.analysis.live.result import HangData, LastCallData, SnapshotData
from my_utils.analysis.live.stacks import LiveData
from my_utils.analysis.process_stacks.command import ProfileData
from my_utils.analysis.report.data import ReportData, SumsData
from my_utils.analysis.verdict.result import VerdictData
from my_utils.analysis.why.hang import WhyData
from my_utils.cli.diff import DiffData
from my_utils.cli.env import EnvironmentData
from my_utils.profilers.capture.on_demand.control_file import Request
from my_utils.profilers.capture.on_demand.result import Response
from my_utils.profilers.ncu.analysis import ComparedKernelsData, KernelsData
from my_utils.tensors.diverge.result import ReportData as DivergeData
from my_utils.tensors.passport.compare import ComparedData
from my_utils.tensors.passport.file import GroupData, PartData, PassportData, TensorData
from my_utils.tensors.passport.history import HistoryData
from my_utils.trace.csv2trace import SummaryData
from my_utils.trace.timeline import Span

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schema"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
VERSION = 1
RULE = "Later versions only add keys, so that keys which are not here are allowed."

# A named tuple that is printed as an object.
SpanData = msgspec.defstruct(
    "Span", list(get_type_hints(Span).items()), namespace={"__doc__": Span.__doc__}
)

# A request as the control file has it, see `Request.as_data`.
RequestData = msgspec.defstruct(
    "RequestData",
    [
        (name, {"ranks": str | None, "options": list[str]}.get(name, kind))
        for name, kind in get_type_hints(Request).items()
        if name not in ("every", "times")
    ]
    + [(name, int | msgspec.UnsetType, msgspec.UNSET) for name in ("every", "times")],
    namespace={"__doc__": inspect.cleandoc(Request.__doc__ or "").rpartition("\n\n")[0]},
)
CaptureData = msgspec.defstruct(
    "CaptureData",
    [
        ("version", Literal[1]),
        ("request", RequestData),
        ("answers", dict[int, Response] | msgspec.UnsetType, msgspec.UNSET),
    ],
    namespace={
        "__doc__": "What was requested.\n\nanswers: only with --wait: the responses by rank."
    },
)

# By file: the command, and the type of what it prints.
OUTPUTS: dict[str, tuple[str, Any]] = {
    "why": ("my_utils why --json", WhyData),
    "report": ("my_utils report --json", ReportData),
    "diff": ("my_utils diff A B --json", DiffData),
    "diff-traces": ("my_utils diff TRACE TRACE --json", TraceDifferenceData),
    "live": ("my_utils live --json, each line", LiveData),
    "live-alert": ("my_utils run --alert and my_utils live --alert, each message", AlertData),
    "trace": ("my_utils trace --json", SummaryData),
    "timeline": ("my_utils timeline --json", GenericAlias(list, SpanData)),
    "diverge": ("my_utils diverge A B --json", DivergeData),
    "passport": ("my_utils passport CHECKPOINT -o FILE.json", PassportData),
    "passport-diff": ("my_utils passport diff A B --json", ComparedData),
    "passport-history": ("my_utils passport history DIR --json", HistoryData),
    "env": ("my_utils env --json", EnvironmentData),
    "capture": ("my_utils capture --json", CaptureData),
    "capture-stacks": ("my_utils capture --stacks SECONDS --json", ProfileData),
    "ncu": ("my_utils ncu A --json", KernelsData),
    "ncu-compare": ("my_utils ncu A B --json", ComparedKernelsData),
}

# Types that leave out keys with the value that is their default.
SPARSE = {kind.__name__ for kind in (GroupData, PartData, TensorData)}

# By the name of a type that adds keys to another one: that one, whose docstring describes its keys.
# Python 3.11 does not keep the bases of a TypedDict.
BASES: dict[str, Any] = {
    "WhyData": VerdictData,
    "HungData": HangData,
    "LiveData": SnapshotData,
    "CallData": LastCallData,
    "DiffData": DifferenceData,
    "StageDifferenceData": IntervalData,
    "HostData": SumsData,
    "GroupData": SumsData,
}


def schema_of(name: str) -> dict[str, Any]:
    command, kind = OUTPUTS[name]
    made = msgspec.json.schema(kind)
    for title, definition in made["$defs"].items():
        _complete(title, definition)
    return {
        "$schema": DIALECT,
        "$id": f"urn:my_utils:{name}:{VERSION}",
        "title": command,
        "description": RULE,
        **made,
    }


def _complete(title: str, definition: dict[str, Any]) -> None:
    """Describes the keys. Only classes have defaults, and all keys of most classes are printed."""
    properties = definition.get("properties", {})
    defaults = [value.pop("default") for value in properties.values() if "default" in value]
    if defaults and title not in SPARSE:
        definition["required"] = list(properties)
    if title in BASES:
        _without_keys(BASES[title].__doc__, properties)
    if "description" in definition:
        definition["description"] = _without_keys(definition["description"], properties)


def _without_keys(docstring: str, properties: dict[str, Any]) -> str:
    """Moves what the docstring says of a key, as `name: text`, to the key; returns the rest."""
    beginning = re.compile(rf"(?:^|(?<=\. ))({'|'.join(properties)}): ")
    rest = []
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        text, *described = beginning.split(" ".join(paragraph.split()))
        rest.append(text.strip())
        for key, words in zip(described[::2], described[1::2], strict=True):
            properties[key]["description"] = words.strip()
    return " ".join(filter(None, rest))


def text_of(name: str) -> str:
    return json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in OUTPUTS:
        (FOLDER / f"{name}.json").write_text(text_of(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

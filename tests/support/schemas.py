"""The JSON that commands print, checked by its schema."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import jsonschema

from ..conftest import ROOT


def schema(name: str) -> dict[str, Any]:
    text = (ROOT / "docs" / "schema" / f"{name}.json").read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text)
    return read


def loads_strictly(text: str) -> Any:
    """JSON without NaN and Infinity, which Python reads and most others do not."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def loads_checked(name: str, text: str) -> Any:
    """The JSON that a command printed; `name` is that of its schema, which must accept it.

    A schema allows keys of later versions; here each key must be in it.
    """
    data, strict = loads_strictly(text), schema(name)
    for definition in strict["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    jsonschema.validate(data, strict)
    if name == "why" and "ledger" in data:
        rows = [row["ns"] for row in data["ledger"]["rows"]]
        assert [sum(ns) for ns in zip(*rows, strict=True)] == data["ledger"]["wall_ns"]
    return data

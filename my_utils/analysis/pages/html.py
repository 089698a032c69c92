"""Writes a page as one HTML file that needs neither a network nor a server.

Names from a run are escaped wherever they are; scripts and styles other than the page's own do not
run, by its Content-Security-Policy.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from ...core.printable import printable
from ...core.units import percent_text
from .tables import Table, times

# What HTML must not hold: control characters but tabs and \n, and what is not a character.
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def rendered(
    package: str, template: str, *, title: str, data: dict[str, Any], tables: Sequence[Table],
    **values: Any,
) -> str:  # fmt: skip
    """The whole file.

    package, template: of the Jinja template that extends `layout.html.j2`. data: for the script;
    plain, without NaN. tables: below the content; one without rows is left out. values: of the
    template's own variables.
    """
    import jinja2

    loaders = [jinja2.PackageLoader(*place.rsplit(".", 1)) for place in (package, __package__)]
    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.ChoiceLoader(loaders), undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )  # fmt: skip
    css, script = _resource("page.css"), _resource("page.js")
    page = environment.get_template(template).render(
        title=title,
        css=css,
        script=script,
        policy=_policy(css, script),
        data=_json_in_html(data),
        tables=tables,
        times=times,
        percent=percent_text,
        **values,
    )
    return _NO_TEXT.sub(lambda found: printable(found[0]), page)


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _policy(css: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash_text(script)}'; style-src '{_hash_text(css)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash_text(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _json_in_html(value: Any) -> str:
    """JSON that ends no element and opens none, whatever the names in it are."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text

"""Files that name a journal in another directory: on a disk of the node, or in its memory."""

from __future__ import annotations

import os

from ..bounded_read import describe
from ..trusted_open import open_without_waiting

POINTER_BYTES_MAX = 8192


def follow_pointer(pointer: str) -> tuple[str | None, str]:
    """The path of the journal that a `.journal-ref` names, and "" or what is wrong with the file.

    None and "" where the file is gone. The journal must be named as the pointer is: a log directory
    that others can write to leads nowhere else. It may be that there is no such journal here.
    """
    try:
        with open(pointer, "rb", opener=open_without_waiting) as file:
            path = os.fsdecode(file.readline(POINTER_BYTES_MAX).rstrip(b"\n"))
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, describe(error)
    if not path.startswith("/") or f"{os.path.basename(path)}-ref" != os.path.basename(pointer):
        return None, "names a journal with another name"
    return path, ""

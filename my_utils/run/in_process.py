"""Runs a script in this process, as Python itself would have run it: what a launcher's rank needs,
which is started as `python -m my_utils.run train.py`.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import ModuleType, TracebackType
from typing import Any

_OWN_FRAMES = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    "<frozen runpy>",
    runpy.__file__,
)


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Runs like `python path arguments`: a file of source or bytecode, a folder or a zip file."""
    sys.argv = [path, *arguments]
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _set_first_path(path, always=True)
        _fresh_main()
        _run(lambda: runpy._run_module_as_main("__main__", alter_argv=False))  # type: ignore[attr-defined]
        return
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    main = _fresh_main()
    code = _code(path, main)
    _run(lambda: exec(code, main.__dict__))


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Runs like `python -m name arguments`."""
    sys.argv = ["-m", *arguments]
    _set_first_path(os.getcwd())
    _fresh_main()
    sys.argv[0] = name
    _run(lambda: runpy._run_module_as_main(name))  # type: ignore[attr-defined]


def _set_first_path(folder: str, *, always: bool = False) -> None:
    """`python -m` has put the working directory there, or nothing, depending on Python's
    options."""
    if always and sys.flags.safe_path:
        sys.path.insert(0, os.path.abspath(folder))
    elif always or not sys.flags.safe_path:
        sys.path[0] = os.path.abspath(folder)


def _fresh_main() -> ModuleType:
    """What `__main__` is before the first line of a program."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins)
    if sys.version_info < (3, 14):
        main.__dict__.update(__annotations__={})
    sys.modules["__main__"] = main
    return main


def _code(path: str, main: ModuleType) -> Any:
    """Errors are said as Python says them; they end this process by SystemExit."""
    path = os.path.join(os.getcwd(), path)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    main.__dict__.update(__file__=path)
    if sys.version_info < (3, 15):
        main.__dict__.update(__cached__=None)
    if path.endswith(".pyc"):
        bytecode = SourcelessFileLoader("__main__", path)
        main.__loader__ = bytecode
        return bytecode.get_code("__main__")
    main.__loader__ = SourceFileLoader("__main__", path)
    with _own_frames_hidden():
        return compile(source, path, "exec", dont_inherit=True)


def _run(program: Callable[[], object]) -> None:
    with _own_frames_hidden():
        program()


class _own_frames_hidden:
    """Leaves the frames of this package out of the traceback of an exception that ends the script,
    which passes through: Python ends as it does for any script."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, SystemExit):
            return
        hook = sys.excepthook

        def show(
            kind: type[BaseException], error: BaseException, shown: TracebackType | None
        ) -> None:
            while shown is not None and shown.tb_frame.f_code.co_filename.startswith(_OWN_FRAMES):
                shown = shown.tb_next
            hook(kind, error.with_traceback(shown), shown)

        sys.excepthook = show

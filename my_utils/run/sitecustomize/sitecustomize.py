"""Starts recording in the Python processes of a command that `my_utils run` has started.

Its folder is first on PYTHONPATH, so that `site` imports this file in each of them. It waits until
torch has been executed, hands the process to `my_utils.run.attach`, and gives its own place to the
`sitecustomize` that the process would have had without it.

It imports nothing that a bare interpreter has not loaded, and is written so that every Python from
2.7 on reads it: a command may start any of them.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable  # noqa: F401
    from typing import Any  # noqa: F401

_OFF = ("0", "false", "no", "off", "")

# What the parent has passed on: the script may clear its environment.
_at_start = {name: os.environ[name] for name in os.environ if name.startswith("MY_UTILS_RUN")}


class TorchWatch(object):
    """A finder that calls `ready` once torch has been executed, by whichever loader.

    It finds nothing itself: it asks the other finders, and sets `exec_module` on the loader that
    one of them made, which is the loader's own again when torch is there. A spec that is found and
    never executed changes nothing, and neither does an import that fails.
    """

    def __init__(self, ready):
        # type: (Callable[[], None]) -> None
        self._ready = ready
        self._inside = set()  # type: set[int]

    def find_spec(self, name, path=None, target=None):
        # type: (str, Any, Any) -> Any
        if name != "torch":
            return None
        import _thread  # built in

        thread = _thread.get_ident()
        if thread in self._inside:  # another finder of this kind asks all finders, too
            return None
        self._inside.add(thread)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._inside.discard(thread)
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader)
        return spec

    def _ask_others(self, name, path, target):
        # type: (str, Any, Any) -> Any
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _call_after(self, loader):
        # type: (Any) -> None
        execute = getattr(loader, "exec_module", None)
        if execute is None or "exec_module" in getattr(loader, "__dict__", ()):
            return

        def exec_module(module):
            # type: (Any) -> None
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._ready()

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):  # nothing can be set on it: nothing is recorded
            pass


def watch():
    # type: () -> None
    """Hands the process over when torch is there; at once if it is."""
    if sys.version_info < (3, 11):
        return
    if "torch" in sys.modules:
        attach()
    else:
        sys.meta_path.insert(0, TorchWatch(attach))


def attach():
    # type: () -> None
    """Calls `my_utils.run.attach.torch_is_ready`. Never raises: the import of torch continues."""
    report("torch")
    try:
        _import_package()
        from my_utils.run.attach import torch_is_ready

        torch_is_ready(_at_start)
    except Exception as error:  # an interpreter that the package was not built for, for instance
        report("failed %s: %s" % (sys.executable, " ".join(str(error).split())))


def _import_package():
    # type: () -> None
    """Imports my_utils where that is this package, also from where the parent has it.

    Raises ImportError if the name leads elsewhere: a script may have its own `my_utils`,
    which must not be imported before the script does it.
    """
    if "my_utils" not in sys.modules:
        folder = _at_start.get("MY_UTILS_RUN_PACKAGE", "")
        origin = _origin("my_utils")
        if origin is None and folder:
            sys.path.append(folder)
            try:
                import my_utils  # noqa: F401
            finally:
                sys.path.remove(folder)
        elif origin is None or not _is_this_package(origin):
            report("other %s" % origin)
            raise ImportError(origin)
    elif not _is_this_package(getattr(sys.modules["my_utils"], "__file__", None) or ""):
        report("other %s" % sys.modules["my_utils"])
        raise ImportError("my_utils")


def _origin(name):
    # type: (str) -> str | None
    """The file from which `import name` would load; None if there is none."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(name, None, None)
        if spec is not None:
            return spec.origin or ""
    return None


def _is_this_package(origin):
    # type: (str) -> bool
    here = os.path.join(os.path.dirname(origin), "run", "sitecustomize", "sitecustomize.py")
    return os.path.exists(here)


def report(what):
    # type: (str) -> None
    """Adds a line for the parent; without a parent it does nothing."""
    try:
        file = os.open(_at_start["MY_UTILS_RUN_REPORT"], os.O_WRONLY | os.O_APPEND)
    except (KeyError, OSError):
        return
    try:
        os.write(file, ("%s\n" % what).encode("utf-8", "replace"))
    except OSError:
        pass
    finally:
        os.close(file)


if __name__ == "sitecustomize":
    _this = sys.modules.pop("sitecustomize")  # Python 2 clears a module that nobody holds
    _folder = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != _folder]
    if os.environ.get("MY_UTILS_RUN", "1").strip().lower() not in _OFF:
        report("python")
        watch()
    # The user's own; where there is none, site takes the ImportError as it would without this file.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401

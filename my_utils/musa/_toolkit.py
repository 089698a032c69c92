"""Finds the MUSA toolkit and muDNN, and the call of mcc. Nothing is searched at import."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

DEFAULT_HOME = Path("/usr/local/musa")
# Below the package; torch_musa/utils/musa_extension.py has the same.
TORCH_MUSA_HEADERS = (
    "share/generated_cuda_compatible/aten/src",
    "share/generated_cuda_compatible/include",
    "share/generated_cuda_compatible/include/torch/csrc/api/include",
    "share/torch_musa_codegen",
)
ARCH_FLAGS = ("--offload-arch", "--cuda-gpu-arch", "-arch")


def musa_home() -> Path | None:
    """MUSA_HOME or MUSA_PATH, else the folder of the mcc on PATH, else /usr/local/musa."""
    for name in ("MUSA_HOME", "MUSA_PATH"):
        if os.environ.get(name):
            return Path(os.environ[name])
    mcc = shutil.which("mcc")
    if mcc is not None:
        return Path(mcc).parent.parent
    return DEFAULT_HOME if DEFAULT_HOME.is_dir() else None


def mudnn_home() -> Path | None:
    """MUDNN_HOME or MUDNN_PATH; None where muDNN is in the toolkit."""
    home = os.environ.get("MUDNN_HOME") or os.environ.get("MUDNN_PATH")
    return Path(home) if home else None


def mcc_path() -> str:
    """The compiler of the toolkit; OSError if there is none."""
    home = musa_home()
    if home is not None and os.access(home / "bin/mcc", os.X_OK):
        return str(home / "bin/mcc")
    found = shutil.which("mcc")
    if found is None:
        raise OSError(
            "mcc was not found: install the MUSA toolkit, and set MUSA_HOME or MUSA_PATH to its "
            f"folder (now {home or 'not set'}), or put mcc on PATH"
        )
    return found


def arch_flags(given: Sequence[str]) -> list[str]:
    """One flag for each of TORCH_MUSA_ARCH_LIST, such as "21;22" or "2.1 mp_22".

    Flags of the user's that name an architecture win. ValueError if it is not an architecture.
    """
    if any(flag.startswith(ARCH_FLAGS) for flag in given):
        return []
    flags = []
    for arch in re.split(r"[;,\s]+", os.environ.get("TORCH_MUSA_ARCH_LIST", "").strip()):
        match = re.fullmatch(r"(?:mp_)?(\d)\.?(\d)", arch)
        if match is not None:
            flags.append(f"--offload-arch=mp_{match[1]}{match[2]}")
        elif arch:
            raise ValueError(
                f"TORCH_MUSA_ARCH_LIST: {arch!r} is not an architecture; allowed are 21, 2.1, mp_21"
            )
    return list(dict.fromkeys(flags))


def folders(kind: str) -> list[str]:
    """The folders of headers ("include") or libraries ("lib") of MUSA and muDNN."""
    homes = [musa_home(), mudnn_home()]
    found = [home / name for home in homes if home is not None for name in _names(kind)]
    return [str(folder) for folder in found if folder.is_dir()]


def torch_musa_folders(kind: str) -> list[str]:
    """The folders of headers ("include") or libraries ("lib") of torch_musa.

    Its headers are torch's, ported: they go before those of torch.
    """
    package = _torch_musa()
    if package is None:
        return []
    if kind == "lib":
        found = [package / "lib"]
    else:
        # The last holds torch_musa/csrc/...
        found = [*(package / folder for folder in TORCH_MUSA_HEADERS), package.parent]
    return [str(folder) for folder in found if folder.is_dir()]


def libraries() -> list[str]:
    """What an extension links beside torch: the runtime, and torch_musa if it is installed."""
    package = _torch_musa()
    names = ("musa_kernels", "musa_python")
    there = [name for name in names if package and (package / f"lib/lib{name}.so").exists()]
    return ["musart", *there]


def _names(kind: str) -> tuple[str, ...]:
    return ("include",) if kind == "include" else ("lib", "lib64")


def _torch_musa() -> Path | None:
    spec = importlib.util.find_spec("torch_musa")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent

"""A torch_musa that is none: it registers as the real one does, and computes on the CPU.

It sets itself as the attribute `torch.musa`, so that `import torch.musa` fails, which is what
`torch._register_device_module` would hide. Its modules lie where those of torch_musa 2.7.1 lie.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "__init__.py": """
import sys
import torch
import torch.distributed as dist

torch.__setattr__("musa", sys.modules[__name__])
from .core.device import current_device, device_count, is_available, set_device
from .core.stream import Event, Stream
from .core import amp, mccl, memory
from .core.memory import empty_cache, memory_allocated
from .core.random import manual_seed
from .core._lazy_init import musart
from .core import mudnn
from .musa_graph import *

_initialized = False
torch.backends.__setattr__("mudnn", sys.modules["torch_musa.core.mudnn"])
setattr(torch.version, "musa", "4.0")
torch.Tensor.musa = lambda self, *args, **kwargs: self.clone()
torch.Tensor.is_musa = property(lambda self: True)
torch.nn.Module.musa = lambda self, device=None: self._apply(lambda t: t.musa(device))


def is_mccl_available():
    return True


def _gloo(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


dist.Backend.register_backend("mccl", _gloo, devices=["cpu"])
dist.is_mccl_available = dist.distributed_c10d.is_mccl_available = is_mccl_available
""",
    "core/__init__.py": "",
    "core/_lazy_init.py": "def musart(): pass\n",
    "core/device.py": """
def is_available(): return True
def device_count(): return 1
def current_device(): return 0
def set_device(device): pass
""",
    "core/stream.py": "class Stream: pass\nclass Event: pass\n",
    "core/memory.py": "def memory_allocated(device=None): return 7\ndef empty_cache(): pass\n",
    "core/random.py": "def manual_seed(seed): pass\n",
    "core/mccl.py": "def version(): return (2, 11, 4)\n",
    "core/mudnn.py": """
import sys
from torch.backends import PropModule

def version(): return 2700

class MudnnModule(PropModule):
    pass

sys.modules[__name__] = MudnnModule(sys.modules[__name__], __name__)
""",
    "core/amp/__init__.py": """
from .autocast_mode import autocast
from .grad_scaler import GradScaler
""",
    "core/amp/common.py": "",
    "core/amp/autocast_mode.py": """
import contextlib

class autocast(contextlib.nullcontext):
    def __init__(self, enabled=True): super().__init__()
""",
    "core/amp/grad_scaler.py": "class GradScaler:\n    def __init__(self, enabled=True): pass\n",
    "musa_graph/__init__.py": "from .graphs import MUSAGraph, graph\n",
    "musa_graph/graphs.py": "class MUSAGraph: pass\nclass graph: pass\n",
    "utils/__init__.py": "",
    "utils/musa_extension.py": """
import torch_musa

MUSA_HOME = "/usr/local/musa"

class BuildExtension: pass

def MUSAExtension(name, sources, *args, **kwargs):
    assert set(kwargs.get("extra_compile_args", {})) <= {"cxx", "mcc", "mcc_dlink"}, kwargs
    return name

def load(name, sources, extra_cflags=None, extra_musa_cflags=None): return name
""",
}


def write_torch_musa(folder: Path) -> None:
    """Writes the package `torch_musa` into a folder, which stands on sys.path of its users."""
    for name, text in FILES.items():
        path = folder / "torch_musa" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

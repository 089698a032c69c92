"""The states of all random generators of a process, as plain values.

They go into a file of `common.plain_files`. Such a file holds no arrays and no generators, so
these become dicts with the key `__kind__`.

>>> import random
>>> states = capture()
>>> first = random.random()
>>> restore(states)
[]
>>> random.random() == first
True
"""

from __future__ import annotations

import random
import sys
from typing import Any

from ...core.extras import needs_torch
from ...core.plain_copy import plain_copy

KIND = "__kind__"


def capture() -> dict[str, Any]:
    """The states of Python, of numpy where it is loaded, of torch on the CPU and on accelerators
    that are in use."""
    with needs_torch("ControlRandom"):
        import torch

    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = encoded(numpy.random.get_state(legacy=False), "numpy")
    for kind, module in _accelerators():
        states[kind] = module.get_rng_state_all()
    return states


def restore(states: dict[str, Any]) -> list[str]:
    """Puts the states back; says which could not be."""
    with needs_torch("ControlRandom"):
        import torch

    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(decoded(states["numpy"]))
    modules = dict(_accelerators())
    troubles = []
    for kind in states.keys() - {"python", "torch", "numpy"}:
        saved, here = states[kind], modules.get(kind)
        count = 0 if here is None else min(len(saved), here.device_count())
        for device in range(count):
            modules[kind].set_rng_state(saved[device], device)
        if count < len(saved):
            troubles.append(f"{len(saved) - count} of {len(saved)} {kind} devices")
    return troubles


def _accelerators() -> list[tuple[str, Any]]:
    """The kind of device and torch's module for it, where it has generators and is in use."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return []
    module = torch.get_device_module(accelerator)
    in_use = getattr(module, "is_initialized", bool)()
    return [(accelerator.type, module)] if in_use and hasattr(module, "get_rng_state_all") else []


# --- values that a plain file does not know ---


def encoded(value: Any, name: str) -> Any:
    """The value as `plain_copy` makes it, with arrays and generators marked."""
    return plain_copy(_marked(value, name), name)


def _marked(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _marked(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_marked(item, f"{name}[{i}]") for i, item in enumerate(value))
    if isinstance(value, random.Random):
        return {KIND: "random.Random", "state": value.getstate()}
    return _marked_of_packages(value, name)


def _marked_of_packages(value: Any, name: str) -> Any:
    import torch

    if isinstance(value, torch.Generator):
        return {KIND: "torch.Generator", "device": str(value.device), "state": value.get_state()}
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return value
    if isinstance(value, numpy.ndarray):
        if value.dtype.hasobject or value.dtype.names is not None:
            raise TypeError(f"{name} is an array of {value.dtype}, which cannot be saved")
        array = numpy.ascontiguousarray(value)
        raw = torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8) if array.size else 0
        return {KIND: "ndarray", "dtype": array.dtype.str, "shape": value.shape, "bytes": raw}
    if isinstance(value, numpy.random.Generator):
        return {KIND: "numpy.Generator", "state": _marked(value.bit_generator.state, name)}
    return value


def decoded(value: Any) -> Any:
    """What `encoded` was given; tensors are on the CPU, generators are new ones."""
    if isinstance(value, list | tuple):
        return type(value)(map(decoded, value))
    if not isinstance(value, dict):
        return value
    make = _MAKERS.get(value.get(KIND, ""))
    if make is not None:
        return make(value)
    return {key: decoded(item) for key, item in value.items()}


def _python_generator(value: dict[str, Any]) -> random.Random:
    generator = random.Random()
    version, words, gauss = value["state"]
    generator.setstate((version, tuple(words), gauss))
    return generator


def _torch_generator(value: dict[str, Any]) -> Any:
    import torch

    generator = torch.Generator(value["device"])
    generator.set_state(value["state"])
    return generator


def _numpy_generator(value: dict[str, Any]) -> Any:
    import numpy

    state = decoded(value["state"])
    kinds = {kind.__name__: kind for kind in numpy.random.BitGenerator.__subclasses__()}
    bits = kinds[state["bit_generator"]]()
    bits.state = state
    return numpy.random.Generator(bits)


def _array(value: dict[str, Any]) -> Any:
    import numpy

    dtype = numpy.dtype(value["dtype"])
    raw = b"" if isinstance(value["bytes"], int) else value["bytes"].numpy().tobytes()
    return numpy.frombuffer(raw, dtype).reshape(value["shape"]).copy()


_MAKERS = {
    "random.Random": _python_generator,
    "torch.Generator": _torch_generator,
    "numpy.Generator": _numpy_generator,
    "ndarray": _array,
}

"""Inputs and outputs of one call of an operator in files that anyone can read.

`<op>_inputs.pkl` and `<op>_outputs.pkl` (`<op>_inputs_rank0.pkl` if there are several ranks) are
what `torch.save` writes, of plain values that `torch.load(weights_only=True)` takes: a dict with

    format, version     "my_utils.op_call", 1
    op                  "aten.addmm.default"
    kind                "inputs" or "outputs"
    args, kwargs        of inputs; `result` and `written` (arguments after the call) of outputs
    devices             of the tensors, in their order: files are read to the CPU

Strides, views and memory that tensors share are kept. What no such file can hold stands as a pair
of a mark and a text, ("torch.layout", "torch.strided"), or a mark and a generator's state. Beside
each lies the same as `.safetensors`: tensors by their place ("args.0", "kwargs.weight"), the rest
as JSON in the header under "call"; there, each tensor has memory of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common.extras import needs_torch
from ..common.files import on_whole_path
from ..common.plain_files import PlainFileError, load_plain, save_plain
from ..common.trusted_open import open_without_waiting
from .inputs import copied, map_tensors, resolved, tensors_in

FORMAT = "my_utils.op_call"
VERSION = 1

_WORDS: dict[type[Any], tuple[str, Callable[[str], Any]]] = {
    torch.layout: ("torch.layout", lambda text: getattr(torch, text)),
    torch.memory_format: ("torch.memory_format", lambda text: getattr(torch, text)),
    torch.dtype: ("torch.dtype", lambda text: getattr(torch, text)),
    torch.device: ("torch.device", torch.device),
}
_GENERATOR = "torch.Generator"
_PLAIN = (bool, int, float, complex, str)


class OpCall:
    """args and kwargs of a call, and its operator's name."""

    def __init__(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op, self.args, self.kwargs = op, args, kwargs


def _encoded(value: Any) -> Any:
    """Lists, tuples, dicts, numbers, text, None and tensors; the rest as pairs."""
    if isinstance(value, Tensor):
        return _plain(value)
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(_encoded(item) for item in value)
    if isinstance(value, dict):
        return {str(key): _encoded(item) for key, item in value.items()}
    if isinstance(value, torch.Generator):
        return (_GENERATOR, str(value.device), value.get_state())
    for kind, (word, _) in _WORDS.items():
        if isinstance(value, kind):
            return (word, str(value).removeprefix("torch."))
    return (f"{type(value).__module__}.{type(value).__qualname__}", repr(value)[:200])


def _plain(tensor: Tensor) -> Tensor:
    tensor = resolved(tensor.detach())
    return tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)


def _decoded(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 3 and value[0] == _GENERATOR:
        generator = torch.Generator(device=value[1])
        generator.set_state(value[2])
        return generator
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        for word, make in _WORDS.values():
            if value[0] == word:
                return make(str(value[1]))
    if isinstance(value, list | tuple):
        return type(value)(_decoded(item) for item in value)
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return value


# --- writing ---


def dump_call(
    folder: Path,
    names: tuple[str, str],
    op: str,
    inputs: tuple[Any, Any],
    outputs: tuple[Any, Any],
) -> list[Path]:
    """Writes the four files; returns their paths. names: those of the inputs and of the outputs,
    without an ending. OSError if they cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    args, kwargs = inputs
    result, written = outputs
    return [
        *_write(folder / names[0], op, "inputs", {"args": tuple(args), "kwargs": kwargs}),
        *_write(folder / names[1], op, "outputs", {"result": result, "written": written}),
    ]


def _write(path: Path, op: str, kind: str, parts: dict[str, Any]) -> list[Path]:
    # A view of a large tensor would bring all of it; copies hold what the views span.
    encoded = copied({name: _encoded(part) for name, part in parts.items()})
    devices = [str(tensor.device) for tensor in tensors_in(encoded)]
    head = {"format": FORMAT, "version": VERSION, "op": op, "kind": kind, "devices": devices}
    pickled = Path(f"{path}.pkl")
    save_plain({**head, **encoded}, pickled)
    return [pickled, _write_safetensors(Path(f"{path}.safetensors"), {**head, **encoded})]


def _write_safetensors(path: Path, payload: dict[str, Any]) -> Path:
    with needs_torch("a dump of an operator"):
        from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    call = json.dumps(_as_json(payload, "", tensors))
    with on_whole_path(path) as temporary:
        save_file(tensors, temporary, metadata={"call": call})
    return path


def _as_json(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Tensors leave for `tensors`, bytes of them for dtypes that safetensors does not have."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if value.is_quantized:
            return _quantized_as_json(value, dtype, place, tensors)
        plain = value.to_dense() if value.layout is not torch.strided else value
        data = plain.resolve_conj().resolve_neg().cpu().contiguous().clone()
        if value.is_complex():
            data = torch.view_as_real(data)
        tensors[place] = data
        return {"tensor": place, "dtype": dtype, "stride": list(plain.stride())}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, tuple):
        return {"tuple": [_as_json(v, _join(place, k), tensors) for k, v in enumerate(value)]}
    if isinstance(value, list):
        return [_as_json(v, _join(place, k), tensors) for k, v in enumerate(value)]
    if isinstance(value, dict):
        return {"dict": {k: _as_json(v, _join(place, k), tensors) for k, v in value.items()}}
    return value


def _quantized_as_json(
    value: Tensor, dtype: str, place: str, tensors: dict[str, Tensor]
) -> dict[str, Any]:
    tensors[place] = value.int_repr().cpu().contiguous().clone()
    found: dict[str, Any] = {"tensor": place, "dtype": dtype, "stride": list(value.stride())}
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return found | {"scale": value.q_scale(), "zero_point": value.q_zero_point()}
    tensors[f"{place}.scales"] = value.q_per_channel_scales().cpu().clone()
    tensors[f"{place}.zero_points"] = value.q_per_channel_zero_points().cpu().clone()
    return found | {"axis": value.q_per_channel_axis()}


def _join(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


# --- reading ---


def load_inputs(path: str | Path) -> OpCall:
    """The call in a file of either form, its tensors on the devices that they were on where those
    are there, else on the CPU. Nothing in the file is executed.

    PlainFileError (a ValueError) if it is another file, OSError if there is none.
    """
    file = Path(path)
    payload = _read_safetensors(file) if file.suffix == ".safetensors" else _read_pickle(file)
    if payload.get("kind") != "inputs" or not isinstance(payload.get("kwargs"), dict):
        raise PlainFileError(f"{file}: holds no inputs of an operator")
    args, kwargs = _decoded((payload["args"], payload["kwargs"]))
    args, kwargs = _to_devices((tuple(args), kwargs), payload.get("devices") or [])
    return OpCall(str(payload.get("op", "")), args, kwargs)


def _read_pickle(file: Path) -> dict[str, Any]:
    return load_plain(file, FORMAT, VERSION, "operator's call")


def _to_devices(value: Any, devices: list[Any]) -> Any:
    wanted = {str(device) for device in devices} - {"cpu"}
    if len(wanted) != 1:
        return value
    try:
        device = torch.device(wanted.pop())
        on_cpu = {
            id(tensor)
            for tensor, name in zip(tensors_in(value), devices, strict=False)
            if name == "cpu"
        }
        moved = copied(value, device)
        if not on_cpu:
            return moved
        places = iter(tensors_in(moved))
        return map_tensors(value, lambda tensor: _one_of(tensor, next(places), on_cpu))
    except (RuntimeError, AssertionError):  # no such device here
        return value


def _one_of(tensor: Tensor, moved: Tensor, on_cpu: set[int]) -> Tensor:
    return tensor if id(tensor) in on_cpu else moved


def _read_safetensors(file: Path) -> dict[str, Any]:
    with needs_torch("a dump of an operator"):
        from safetensors import SafetensorError, safe_open

    with open(file, "rb", opener=open_without_waiting):
        pass  # what the system has to say about it comes first
    try:
        with safe_open(file, framework="pt") as opened:
            call = json.loads((opened.metadata() or {})["call"])
            payload = _from_json(call, opened.get_tensor)
    except (
        SafetensorError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise PlainFileError(f"{file}: is damaged or no operator's call ({error})") from None
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise PlainFileError(f"{file}: is not an operator's call: it has no format {FORMAT!r}")
    return payload


def _from_json(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    if isinstance(value, list):
        return [_from_json(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_from_json(item, tensor) for item in value["tuple"])
    if "complex" in value:
        return complex(*value["complex"])
    if "dict" in value:
        return {key: _from_json(item, tensor) for key, item in value["dict"].items()}
    data = tensor(value["tensor"])
    if "scale" in value:
        return torch._make_per_tensor_quantized_tensor(data, value["scale"], value["zero_point"])
    if "axis" in value:
        scales, zeros = (tensor(f"{value['tensor']}.{n}") for n in ("scales", "zero_points"))
        return torch._make_per_channel_quantized_tensor(data, scales, zeros, value["axis"])
    if value["dtype"].startswith("complex"):
        data = torch.view_as_complex(data)
    return _with_stride(data, tuple(value["stride"]))


def _with_stride(data: Tensor, stride: tuple[int, ...]) -> Tensor:
    if data.layout is not torch.strided or data.stride() == stride or data.numel() == 0:
        return data
    if len(stride) != data.dim() or any(step < 0 for step in stride):
        return data
    if 0 in stride:
        return data  # one place for several elements: the values are what matters
    placed = torch.empty_strided(data.shape, stride, dtype=data.dtype)
    return placed.copy_(data)

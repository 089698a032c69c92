"""Images of PIL: a separate file, or the pixels if the file format lacks the mode."""

from __future__ import annotations

import io
import sys
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING, Any

from .blobs import blob_name
from .form import DumpError

if TYPE_CHECKING:
    from .loader import Decoder, Reader
    from .tree import Tree, Writer


IMAGE_MODES = {
    "png": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"},
    "tiff": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK"},
    "bmp": {"1", "L", "P", "RGB"},
    "webp": {"RGB", "RGBA"},
    "jpeg": {"L", "RGB", "CMYK"},
}
# Beyond it PIL takes an image for an attack.
IMAGE_PIXELS_MAX = 89_000_000


def write_image(tree: Tree, obj: Any, path: str) -> None:
    if tree.seen(obj, path):
        return
    kind = tree.config.image_format
    width, height = obj.size
    mode = obj.mode
    notes = f'"mode": "{mode}", "size": [{width}, {height}]'
    fits = mode in IMAGE_MODES[kind] and 0 < width * height <= IMAGE_PIXELS_MAX
    palette_mode = obj.palette.mode if obj.palette is not None else "RGB"
    if fits and palette_mode == "RGB" and "transparency" not in obj.info:
        name = tree.file("image", kind)
        image = obj.copy() if tree.blobs.copy else obj
        tree.files[name] = lambda: _image_bytes(image, kind)
        tree.out.append(f'{{"$image": "{name}", {notes}}}')
        return
    if obj.palette is not None and mode in ("P", "PA"):
        palette = bytes(obj.getpalette(obj.palette.mode) or b"").hex()
        notes += f', "palette": ["{obj.palette.mode}", "{palette}"]'
    tree.out.append(f'{{"$image": null, {notes}, "transparency": ')
    tree.node(obj.info.get("transparency"), path + "/transparency")
    data = obj.tobytes()
    name = tree.blobs.add_bytes(blob_name(path), data)
    tree.blob_node(f', "pixels": {quote(name)}, "bytes": {len(data)}')


def _image_bytes(image: Any, kind: str) -> bytes:
    data = io.BytesIO()
    options = {"lossless": True, "exact": True} if kind == "webp" else {}
    image.save(data, format=kind.upper(), **options)
    return data.getvalue()


def read_image(decoder: Decoder, node: dict[str, Any], body: Any) -> Any:
    mode = decoder.text(node["mode"])
    size = decoder.shape(node["size"])
    if len(size) != 2:
        raise decoder.wrong("$image: has no width and height")
    try:
        from PIL import Image
    except ImportError:
        return decoder.stand_in("PIL.Image:Image", None, "PIL is not installed")
    if body is None:
        return _raw_image(decoder, node, mode, size, Image)
    name = decoder.file_name(body, "image")
    kind = name.rpartition(".")[2]
    if kind not in IMAGE_MODES or mode not in IMAGE_MODES[kind]:
        raise decoder.wrong(f"$image: {name} cannot be of mode {mode[:20]!r}")
    data = decoder.folder.read(name, decoder.max_file_bytes, verify=decoder.verify)
    return _image_from(data, kind, mode, size, decoder.folder.file(name), Image)


def _image_from(
    data: bytes, kind: str, mode: str, size: tuple[int, ...], path: str, pil: Any
) -> Any:
    """Decoded by the one decoder that it was written for."""
    try:
        with pil.open(io.BytesIO(data), formats=[kind.upper()]) as image:
            if image.size != size or image.mode != mode:
                raise DumpError(path, f"is {image.mode} {image.size}, not {mode} {size}")
            if size[0] * size[1] > IMAGE_PIXELS_MAX:
                raise DumpError(path, f"has {size[0]} x {size[1]} pixels, too many for a file")
            return image.copy()
    except DumpError:
        raise
    except Exception as error:  # decoders raise whatever they come upon
        raise DumpError(path, f"cannot be decoded: {error}") from error


def _raw_image(decoder: Decoder, node: dict[str, Any], mode: str, size: Any, pil: Any) -> Any:
    data = decoder.blob(node["pixels"], "U8", (node["bytes"],))
    image = pil.frombytes(mode, size, data.tobytes())
    if "palette" in node:
        palette_mode, colours = node["palette"]
        image.putpalette(bytes.fromhex(colours), palette_mode)
    transparency = decoder.node(node["transparency"])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


def writer_of(cls: type) -> Writer | None:
    pil = sys.modules.get("PIL.Image")
    return write_image if pil is not None and issubclass(cls, pil.Image) else None


READERS: dict[str, Reader] = {"$image": read_image}

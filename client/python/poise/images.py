# SPDX-License-Identifier: Apache-2.0
"""How large an image is, without decoding it.

Samples are best exchanged as encoded bytes, so their cost must be known before anything decodes them: the size stands
in the first bytes of every format. Read here: PNG, JPEG, GIF, WebP, BMP; what is none of these is left to PIL, if it is
installed.
"""

from __future__ import annotations

import io
import os
import struct
from typing import Any

from .errors import InvalidInput

__all__ = ["encoded_size", "size_of"]

# JPEG's frame headers; C4, C8 and CC in this range are tables.
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length


def _jpeg(data: memoryview) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # a filling byte
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _SOF:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None


def _webp(data: memoryview) -> tuple[int, int] | None:
    kind = bytes(data[12:16])
    if kind == b"VP8X" and len(data) >= 30:
        return (int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1)
    if kind == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and len(data) >= 30:
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def encoded_size(data: Any) -> tuple[int, int]:
    """(width, height) in pixels of an encoded image (any bytes-like object)."""
    view = memoryview(data).cast("B")
    head = bytes(view[:16])
    size = None
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(view) >= 24:
        size = struct.unpack_from(">II", view, 16)
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg(view)
    elif head[:6] in (b"GIF87a", b"GIF89a") and len(view) >= 10:
        size = struct.unpack_from("<HH", view, 6)
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        size = _webp(view)
    elif head.startswith(b"BM") and len(view) >= 26:
        width, height = struct.unpack_from("<ii", view, 18)
        size = (width, abs(height))
    return size if size is not None else _by_pil(view, head)  # type: ignore[return-value]


def _by_pil(view: memoryview, head: bytes) -> tuple[int, int]:
    try:
        from PIL import Image
    except ImportError:
        raise InvalidInput(
            f"an image of {len(view)} bytes that begin with {head[:8]!r} is no PNG, JPEG, GIF, WebP or BMP that is "
            "known here: install Pillow, or give balance() a `lengths` function"
        ) from None
    with Image.open(io.BytesIO(view)) as image:
        return image.size


def size_of(image: Any) -> tuple[int, int]:
    """(width, height) in pixels of an image in any of the shapes that datasets give it.

    Known: a PIL image; encoded bytes; a path; a dict with "bytes" or "path"; a tensor or array (C, H, W) or (H, W, C)
    with 1, 3 or 4 channels, or (H, W); a pair (width, height).
    """
    if isinstance(image, (bytes, bytearray, memoryview)):
        return encoded_size(image)
    if isinstance(image, (str, os.PathLike)):
        with open(image, "rb") as file:
            return encoded_size(file.read(1 << 20))  # a JPEG's header may stand behind large metadata
    if isinstance(image, dict):
        inner = image.get("bytes") if image.get("bytes") is not None else image.get("path")
        if inner is not None:
            return size_of(inner)
    shape = getattr(image, "shape", None)
    if shape is not None and len(shape) == 2:
        return int(shape[1]), int(shape[0])
    if shape is not None and len(shape) == 3:
        first = shape[0] in (1, 3, 4)
        height, width = shape[1:] if first else shape[:2]
        return int(width), int(height)
    size = getattr(image, "size", image)
    if isinstance(size, (tuple, list)) and len(size) == 2:
        return int(size[0]), int(size[1])
    raise InvalidInput(f"the size of a {type(image).__name__} is not known here: give balance() a `lengths` function")

# SPDX-License-Identifier: Apache-2.0
"""How long a sample is in each phase of the model, before the model sees it.

`balance(lengths=)` takes a function of a sample, or the name of one of the rules below. A rule repeats what a model's
processor does with an image's size, in integers, and so knows the patches and tokens of a sample that is still encoded:

    qwen2-vl, qwen2.5-vl   sides rounded to multiples of 28, area between min_pixels and max_pixels; patches of 14 x 14
    pixels,
                           4 of them a token
    internvl               tiles of 448 x 448 pixels in the grid that is nearest to the image's shape, and a thumbnail
    tokens                 length of `input_ids` alone

A sample is a mapping. Text: `input_ids`; else `text`, `prompt` or `messages`, at a token for 4 bytes (an estimate: give
`text=` to count better). Images: `images` or `image`, see poise.images.size_of; videos: `videos` or `video`, lists or
stacks of frames. A sample that the processor has been at already has `image_grid_thw` (`video_grid_thw`) or
`pixel_values`: its own numbers are taken, and its `input_ids` hold the image's tokens already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import InvalidInput
from .images import size_of

__all__ = ["Measure", "Qwen2VL", "InternVL", "Tokens", "LossTokens", "smart_resize", "rule_of"]

BYTES_A_TOKEN = 4  # of English text under the byte-pair vocabularies in use; for estimates only


@dataclass(frozen=True)
class Measure:
    """What a `lengths` function may return, where lengths alone do not say it all.

    Attributes:
        length: tokens (patches, tiles) by phase: a number, a tuple in the order of the cost's phases, or a dict by
            name.
        attention: by phase, the sum of squared full-attention segments (per frame, per packed document); None: length
            squared.
        loss_tokens: tokens with a label; None: 1, which makes the weights those of a mean over samples.
        preset: phases that the cost does not have are left out instead of being an error.
    """

    length: Any
    attention: Any = None
    loss_tokens: int | None = None
    preset: bool = False


def _numbers(value: Any) -> list[Any]:
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _count(value: Any) -> int:
    """Elements of a sequence of ids: of a tensor or array of any shape, or a list."""
    if hasattr(value, "numel"):
        return value.numel()
    size = getattr(value, "size", None)
    return int(size) if isinstance(size, int) else len(value)


def _several(sample: Mapping[str, Any], many: str, one: str) -> list[Any]:
    value = sample.get(many)
    if value is None:
        value = sample.get(one)
        return [] if value is None else [value]
    return list(value) if isinstance(value, (list, tuple)) or hasattr(value, "shape") else [value]


def _check(sample: Any, rule: str) -> Mapping[str, Any]:
    if not isinstance(sample, Mapping):
        raise InvalidInput(
            f"the rule {rule!r} reads samples that are mappings, and this one is a {type(sample).__name__}: give "
            "balance() a `lengths` function of the sample"
        )
    return sample


def _estimated(text: Any) -> int:
    """Tokens of a string, or of all strings in a nested list or mapping (chat messages)."""
    if isinstance(text, str):
        return -(-len(text.encode()) // BYTES_A_TOKEN)
    if isinstance(text, Mapping):
        text = list(text.values())
    return sum(_estimated(part) for part in text) if isinstance(text, (list, tuple)) else 0


def text_tokens(sample: Mapping[str, Any], count: Callable[[Any], int] | None = None) -> int:
    """Tokens of a sample's text. `count` is a function of the sample that knows better."""
    if count is not None:
        return count(sample)
    if sample.get("input_ids") is not None:
        return _count(sample["input_ids"])
    for key in ("text", "prompt", "messages", "conversations"):
        if sample.get(key) is not None:
            return _estimated(sample[key])
    return 0


# ------------------------------------------------------------------------------------------------------------- Qwen2-VL


def smart_resize(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(width, height) that the processor of Qwen2-VL resizes an image to: multiples of `factor`, rounded half to even;
    if the area leaves [min_pixels, max_pixels], both sides are scaled and rounded towards it."""
    if min(width, height) < 1 or max(width, height) > 200 * min(width, height):
        raise InvalidInput(
            f"an image of {width} x {height} pixels: the processor refuses a side that is 200 times the other"
        )
    w, h = (max(factor, round(side / factor) * factor) for side in (width, height))
    if w * h > max_pixels:
        scale = math.sqrt(width * height / max_pixels)
        w, h = (max(factor, math.floor(side / scale / factor) * factor) for side in (width, height))
    elif w * h < min_pixels:
        scale = math.sqrt(min_pixels / (width * height))
        w, h = (math.ceil(side * scale / factor) * factor for side in (width, height))
    return w, h


@dataclass(frozen=True)
class Qwen2VL:
    """The rule of Qwen2-VL and Qwen2.5-VL: phases `vision` (patches) and `llm` (tokens).

    Attributes:
        min_pixels, max_pixels: of an image after resizing, as in the processor's configuration.
        video_min_pixels, video_max_pixels: of a frame.
        patch, merge, frames: pixels of a patch's side; patches of a token's side; frames that make one.
        text: function of a sample -> its text tokens, without the images'.
    """

    min_pixels: int = 56 * 56
    max_pixels: int = 1280 * 28 * 28
    video_min_pixels: int = 128 * 28 * 28
    video_max_pixels: int = 768 * 28 * 28
    patch: int = 14
    merge: int = 2
    frames: int = 2
    text: Callable[[Any], int] | None = None
    markers: int = 2  # tokens before and behind each image

    def grid(self, image: Any) -> tuple[int, int, int]:
        """(t, h, w) in patches of an image."""
        return (1, *self._resized(size_of(image), self.min_pixels, self.max_pixels))

    def video_grid(self, video: Any) -> tuple[int, int, int]:
        """(t, h, w) in patches of a video: a list of frames, or a stack (T, C, H, W) or (T, H, W, C)."""
        n = len(video)
        if n == 0:
            raise InvalidInput("a video has no frames")
        return (-(-n // self.frames), *self._resized(size_of(video[0]), self.video_min_pixels, self.video_max_pixels))

    def _resized(self, size: tuple[int, int], low: int, high: int) -> tuple[int, int]:
        width, height = smart_resize(*size, self.patch * self.merge, low, high)
        return height // self.patch, width // self.patch

    def _grids(self, sample: Mapping[str, Any]) -> tuple[list[Any], bool]:
        """Grids of all images and videos, and whether the processor has been here (its text has the images' tokens)."""
        grids, processed = [], False
        for given, many, one, rule in (
            ("image_grid_thw", "images", "image", self.grid),
            ("video_grid_thw", "videos", "video", self.video_grid),
        ):
            if sample.get(given) is not None:
                processed = True
                rows = _numbers(sample[given])
                grids += (
                    [rows]
                    if rows and not isinstance(rows[0], (list, tuple)) and not hasattr(rows[0], "tolist")
                    else [_numbers(row) for row in rows]
                )
            else:
                grids += [rule(item) for item in _several(sample, many, one)]
        return grids, processed

    def __call__(self, sample: Any) -> Measure:
        sample = _check(sample, "qwen2-vl")
        grids, processed = self._grids(sample)
        patches = sum(t * h * w for t, h, w in grids)
        tokens = text_tokens(sample, self.text)
        if not processed or self.text is not None:
            tokens += patches // self.merge**2 + self.markers * len(grids)
        attention = {"vision": sum(t * (h * w) ** 2 for t, h, w in grids), "llm": tokens**2}
        return Measure({"vision": patches, "llm": tokens}, attention, preset=True)


# ------------------------------------------------------------------------------------------------------------- InternVL


@dataclass(frozen=True)
class InternVL:
    """The rule of InternVL 1.5 to 3: phases `vision` (tiles) and `llm` (tokens).

    Attributes:
        min_tiles, max_tiles: of an image, without the thumbnail.
        side: pixels of a tile's side.
        tokens: of a tile.
        thumbnail: an image of several tiles has a small one of the whole beside them.
        text: function of a sample -> its text tokens, without the images'.
    """

    min_tiles: int = 1
    max_tiles: int = 12
    side: int = 448
    tokens: int = 256
    thumbnail: bool = True
    text: Callable[[Any], int] | None = None
    markers: int = 2

    def tiles(self, image: Any) -> int:
        """Tiles of an image, its thumbnail among them."""
        width, height = size_of(image)
        if min(width, height) < 1:
            raise InvalidInput(f"an image of {width} x {height} pixels")
        aspect, area = width / height, width * height
        best, near = (1, 1), math.inf
        for columns, rows in self._shapes():
            far = abs(aspect - columns / rows)
            # Of shapes that fit alike, a larger one where the image fills more than half of it.
            if far < near or (far == near and area > 0.5 * self.side**2 * columns * rows):
                best, near = (columns, rows), far
        n = best[0] * best[1]
        return n + 1 if self.thumbnail and n > 1 else n

    def _shapes(self) -> list[tuple[int, int]]:
        span = range(1, self.max_tiles + 1)
        shapes = {(c, r) for c in span for r in span if self.min_tiles <= c * r <= self.max_tiles}
        return sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape))

    def __call__(self, sample: Any) -> Measure:
        sample = _check(sample, "internvl")
        values = sample.get("pixel_values")
        processed = values is not None and len(getattr(values, "shape", ())) == 4  # (tiles, 3, side, side)
        images = _several(sample, "images", "image")
        tiles = int(values.shape[0]) if processed else sum(self.tiles(image) for image in images)
        tokens = text_tokens(sample, self.text)
        if not processed or self.text is not None:
            tokens += tiles * self.tokens + self.markers * len(images)
        return Measure({"vision": tiles, "llm": tokens}, {"vision": tiles, "llm": tokens**2}, preset=True)


@dataclass(frozen=True)
class Tokens:
    """Length of one key of the sample: phase `llm`, or `length` where the cost has that one."""

    key: str = "input_ids"

    def __call__(self, sample: Any) -> Measure:
        sample = _check(sample, "tokens")
        if sample.get(self.key) is None:
            raise InvalidInput(
                f"the sample has no {self.key!r} (it has {', '.join(map(str, sample)) or 'nothing'}): give balance() a "
                "`lengths` function of the sample"
            )
        n = _count(sample[self.key])
        return Measure({"llm": n}, {"llm": n**2}, preset=True)


@dataclass(frozen=True)
class LossTokens:
    """Tokens of a sample with a label: those of `key` that are not `ignore`. shift: the first one has none to predict
    it from, as in causal language models."""

    key: str = "labels"
    ignore: int = -100
    shift: bool = True

    def __call__(self, sample: Any) -> int:
        labels = _check(sample, "loss_tokens")[self.key]
        if hasattr(labels, "shape"):
            labels = labels[..., 1:] if self.shift else labels
            return int((labels != self.ignore).sum())
        return sum(label != self.ignore for label in list(labels)[1 if self.shift else 0 :])


_RULES: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "qwen2-vl": Qwen2VL,
    "qwen2.5-vl": Qwen2VL,
    "internvl": InternVL,
    "tokens": Tokens,
}


def rule_of(lengths: Any) -> Callable[[Any], Any]:
    """The function that a `lengths` argument stands for."""
    if callable(lengths):
        return lengths
    if isinstance(lengths, str) and lengths in _RULES:
        return _RULES[lengths]()
    raise InvalidInput(f"lengths is {lengths!r}: give a function of a sample, or one of {', '.join(_RULES)}")

# SPDX-License-Identifier: Apache-2.0
"""Which images, videos and audios of a collated batch belong to which sample, and what they cost.

Collators concatenate the media of all samples and keep no record of whose they are. The model finds out from the token
ids
that mark them, and so does this: each image puts t * h * w / merge^2 marks into its sample's text. Where the text has
no such marks, the caller says how many media each sample has. What does not add up is an error that names sample and
field, since a wrong guess would train one sample's text on the image of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .errors import InvalidInput

IMAGE, VIDEO, AUDIO = "image", "video", "audio"
FAMILIES = (IMAGE, VIDEO, AUDIO)

# Names that collators of the Qwen2-VL and Qwen2.5-Omni families give what is concatenated over samples.
FAMILY_OF = {
    "pixel_values": IMAGE,
    "image_grid_thw": IMAGE,
    "pixel_values_videos": VIDEO,
    "video_grid_thw": VIDEO,
    "second_per_grid_ts": VIDEO,
    "video_second_per_grid": VIDEO,
    "input_features": AUDIO,
    "feature_attention_mask": AUDIO,
    "audio_feature_lengths": AUDIO,
}
GRID_OF = {IMAGE: "image_grid_thw", VIDEO: "video_grid_thw"}
PATCHES = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}

# What says how many media each sample has: a number for all, the batch's key that holds it, or a function of the batch.
PerSample = int | str | Callable[[Mapping[str, Any]], Any] | None


@dataclass
class Media:
    """The media of one family in one batch.

    Attributes:
        counts: [samples] media of each sample.
        units: [media] patches of an image or video, positions of an audio.
        attention: [media] sum of squared full-attention segments: the frames of an image or video, the windows of an
            audio.
    """

    counts: list[int]
    units: list[int]
    attention: list[int]

    def by_sample(self, numbers: list[int]) -> list[int]:
        """Sums a number a medium to a number a sample."""
        sums, at = [], 0
        for count in self.counts:
            sums.append(sum(numbers[at : at + count]))
            at += count
        return sums


def wrong(field: str, text: str, sample: int | None = None) -> InvalidInput:
    """The error of a batch: names its sample, if one is to blame, and its field."""
    where = "" if sample is None else f"sample {sample}: "
    return InvalidInput(f"{where}{field}: {text}", sample=sample, field=field)


def of_grid(
    family: str, batch: Mapping[str, Any], ids: torch.Tensor, token_id: int, merge: int, per_sample: PerSample
) -> Media:
    """The images (videos) of a batch from its grid [n, 3] of frames, rows and columns of patches."""
    name = GRID_OF[family]
    grid = batch[name]
    if not isinstance(grid, torch.Tensor) or grid.dim() != 2 or grid.shape[1] != 3 or grid.dtype.is_floating_point:
        raise wrong(name, f"is {describe(grid)}: integers of shape (n, 3) are wanted, t, h and w of each {family}")
    rows = grid.tolist()
    for i, row in enumerate(rows):
        if min(row) < 1 or row[1] % merge or row[2] % merge:
            raise wrong(
                name,
                f"{family} {i} of the batch has t, h, w = {row}: h and w must be multiples of the spatial merge "
                f"size {merge}",
                _owner(i, per_sample, batch, family, ids.shape[0], len(rows)),
            )
    units = [t * h * w for t, h, w in rows]
    patches = next((key for key, of in PATCHES.items() if of == name), "")
    if isinstance(batch.get(patches), torch.Tensor) and batch[patches].shape[:1] != (sum(units),):
        raise wrong(patches, f"has {list(batch[patches].shape)[:1]} rows of patches, {name} says {sum(units)}")
    if per_sample is None:
        counts = _by_marks(family, name, ids, token_id, [unit // merge**2 for unit in units])
    else:
        counts = _by_word(family, name, per_sample, batch, ids.shape[0], len(rows))
    return Media(counts, units, [t * (h * w) ** 2 for t, h, w in rows])


def of_audio(batch: Mapping[str, Any], ids: torch.Tensor, token_id: int, window: int, per_sample: PerSample) -> Media:
    """The audios of a batch from their lengths in mel frames. Two frames make a position; the decoder gets one token
    for two positions, as Qwen2.5-Omni counts them."""
    name, frames = _audio_frames(batch)
    positions = [(n - 1) // 2 + 1 if n > 0 else 0 for n in frames]
    if per_sample is None:
        tokens = [max(0, (n - 2) // 2 + 1) for n in positions]
        counts = _by_marks(AUDIO, name, ids, token_id, tokens)
    else:
        counts = _by_word(AUDIO, name, per_sample, batch, ids.shape[0], len(frames))
    return Media(counts, positions, [_windows(n, window) for n in positions])


def _windows(n: int, window: int) -> int:
    if window <= 0 or n <= window:
        return n * n
    return n // window * window**2 + (n % window) ** 2


def _audio_frames(batch: Mapping[str, Any]) -> tuple[str, list[int]]:
    lengths = batch.get("audio_feature_lengths")
    if isinstance(lengths, torch.Tensor):
        return "audio_feature_lengths", [int(n) for n in lengths.reshape(-1).tolist()]
    mask = batch.get("feature_attention_mask")
    if isinstance(mask, torch.Tensor):
        return "feature_attention_mask", (mask != 0).sum(-1).reshape(-1).tolist()
    features = batch["input_features"]
    return "input_features", [features.shape[-1]] * features.shape[0]


def _by_marks(family: str, name: str, ids: torch.Tensor, token_id: int, tokens: list[int]) -> list[int]:
    marks = (ids == token_id).sum(1).tolist()
    if tokens and not any(marks):
        raise wrong(
            name,
            f"{len(tokens)} {family}s, but token {token_id}, which marks them, is nowhere in the text: pass "
            f"{family}_token_id=, or {family}s_per_sample= (a number, a key of the batch or a function of it)",
        )
    counts, at = [], 0
    for i, wanted in enumerate(marks):
        first = at
        while wanted > 0 and at < len(tokens):
            wanted -= tokens[at]
            at += 1
        if wanted:
            raise wrong(
                name,
                f"{marks[i]} tokens {token_id} mark {family}s in the text, the {family}s from {first} on have "
                f"{tokens[first : first + 4]}{' ...' if len(tokens) > first + 4 else ''}: they do not add up (was the "
                f"text cut?); {family}s_per_sample= says how many each sample has",
                i,
            )
        counts.append(at - first)
    if at != len(tokens):
        raise wrong(
            name,
            f"{len(tokens)} {family}s, of which the text's tokens {token_id} account for {at}: "
            f"{family}s_per_sample= says how many each sample has",
        )
    return counts


def _by_word(
    family: str, name: str, said: PerSample, batch: Mapping[str, Any], n_samples: int, n_media: int
) -> list[int]:
    if callable(said):
        counts = said(batch)
    elif isinstance(said, str):
        if said not in batch:
            raise wrong(name, f"{family}s_per_sample= names the key {said}, which the batch has not")
        counts = batch[said]
    else:
        counts = [said] * n_samples
    if isinstance(counts, torch.Tensor):
        counts = counts.reshape(-1).tolist()
    counts = [int(count) for count in counts]
    if len(counts) != n_samples or sum(counts) != n_media or min(counts, default=0) < 0:
        raise wrong(name, f"has {n_media} {family}s, {family}s_per_sample= says {counts} for {n_samples} samples")
    return counts


def _owner(
    medium: int, said: PerSample, batch: Mapping[str, Any], family: str, n_samples: int, n_media: int
) -> int | None:
    """Whose a medium is, if the caller's counts say it."""
    if said is None:
        return None
    for i, count in enumerate(_by_word(family, GRID_OF[family], said, batch, n_samples, n_media)):
        if medium < count:
            return i
        medium -= count
    return None


def describe(value: Any) -> str:
    """A value in a few words for an error."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.40}" if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"

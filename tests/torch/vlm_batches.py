# SPDX-License-Identifier: Apache-2.0
"""Samples of a vision-language model and their batches as the collators of the Qwen2-VL family make them, for tests.

Every sample is random but known again by its `name`; a batch is made from samples alone, so that whatever the balancer
yields can be compared with what a loader would have made of those samples.
"""

from __future__ import annotations

import random

import torch

IMAGE, VIDEO, AUDIO, START, PAD = 151655, 151656, 151646, 151652, 151643
PIXELS = 12  # columns of pixel_values; the real ones have 1,176

MODEL = {
    "image_encoder": {
        "vision_encoder": {
            "num_layers": 4,
            "hidden_size": 64,
            "ffn_hidden_size": 128,
            "num_attention_heads": 4,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "freeze": False,
        },
        "vision_projector": {"input_size": 64, "hidden_size": 128, "freeze": False},
        "tp": 1,
        "pp": 1,
        "cp": 1,
    },
    "text_decoder": {
        "num_layers": 4,
        "hidden_size": 128,
        "ffn_hidden_size": 256,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    },
}


def seeded(text: str) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(random.Random(text).getrandbits(63))
    return generator


def grid(rng: random.Random, most: int = 6, frames: int = 1) -> list[int]:
    return [frames, 2 * rng.randint(1, most), 2 * rng.randint(1, most)]


def sample(name: str, images: int = 1, videos: int = 0, words: int = 20, most: int = 6) -> dict:
    """One sample before collate: tokens with marks for its media, labels on its last words."""
    rng = random.Random(name)
    image_grids = [grid(rng, most) for _ in range(images)]
    video_grids = [grid(rng, most, 3) for _ in range(videos)]
    ids = []
    for mark, grids in ((IMAGE, image_grids), (VIDEO, video_grids)):
        for t, h, w in grids:
            ids += [START] + [mark] * (t * h * w // 4)
    n_words = rng.randint(1, words)
    ids += [rng.randint(10, 1000) for _ in range(n_words)]
    answer = rng.randint(0, n_words)
    labels = [-100] * (len(ids) - answer) + ids[len(ids) - answer :]
    generator = seeded(name)
    rows = [sum(t * h * w for t, h, w in grids) for grids in (image_grids, video_grids)]
    return {
        "name": name,
        "input_ids": ids,
        "labels": labels,
        "image_grids": image_grids,
        "video_grids": video_grids,
        "pixels": torch.randn(rows[0], PIXELS, generator=generator).to(torch.bfloat16),
        "video_pixels": torch.randn(rows[1], PIXELS, generator=generator).to(torch.bfloat16),
        "seconds": [rng.random() for _ in range(videos)],
        "weight": rng.random(),
    }


def padded(rows: list[list[int]], value: int, side: str) -> torch.Tensor:
    width = max((len(row) for row in rows), default=0)
    made = torch.full((len(rows), width), value, dtype=torch.int64)
    for to, row in zip(made, rows):
        to[: len(row)] = torch.tensor(row)
        if side == "left":
            to.copy_(to.roll(width - len(row)))
    return made


def collate(samples: list[dict], side: str = "right", flag: bool = True) -> dict:
    """A batch of samples. Keys of media are there only where there are media, as collators do it."""
    made = {
        "input_ids": padded([s["input_ids"] for s in samples], PAD, side),
        "attention_mask": padded([[1] * len(s["input_ids"]) for s in samples], 0, side),
        "labels": padded([s["labels"] for s in samples], -100, side),
    }
    positions = [[list(range(i, i + len(s["input_ids"]))) for i in range(3)] for s in samples]
    made["position_ids"] = torch.stack([padded([p[i] for p in positions], 1, side) for i in range(3)])
    made["rope_deltas"] = torch.tensor([[-len(s["input_ids"])] for s in samples], dtype=torch.int64).reshape(
        len(samples), 1
    )
    for pixels, grids, key, grid_key in (
        ("pixels", "image_grids", "pixel_values", "image_grid_thw"),
        ("video_pixels", "video_grids", "pixel_values_videos", "video_grid_thw"),
    ):
        rows = [row for s in samples for row in s[grids]]
        if rows:
            made[key] = torch.cat([s[pixels] for s in samples])
            made[grid_key] = torch.tensor(rows)
    if any(s["seconds"] for s in samples):
        made["second_per_grid_ts"] = [seconds for s in samples for seconds in s["seconds"]]
    made["weight"] = torch.tensor([s["weight"] for s in samples], dtype=torch.float64)
    made["name"] = [s["name"] for s in samples]
    if flag:
        made["visual"] = torch.tensor([bool(s["image_grids"]) for s in samples], dtype=torch.bool)
    return made


def bits(tensor: torch.Tensor) -> list:
    """Shape, dtype and bytes: equal if and only if two tensors are."""
    return [tuple(tensor.shape), str(tensor.dtype), bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())]


def same(a: dict, b: dict) -> list[str]:
    """The keys in which two batches differ."""
    odd = [key for key in a.keys() | b.keys() if (key in a) != (key in b)]
    for key in a.keys() & b.keys():
        left, right = a[key], b[key]
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            if bits(left) != bits(right):
                odd.append(key)
        elif left != right:
            odd.append(key)
    return sorted(odd)

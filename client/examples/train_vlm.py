# SPDX-License-Identifier: Apache-2.0
"""A small vision-language model on images of their native resolution, with DistributedDataParallel, balanced by poise.

    apt-get install gimp-help-en            # 1,969 pictures of 8 x 8 to 1,000 x 1,000 pixels
    pip install torch pillow
    poisectl run torchrun --nproc_per_node 4 train_vlm.py

The model looks at a picture and spells what it is called. Datasets return files as they are; which rank trains on which
is decided from the size in a file's header, encoded files travel, and the new owner decodes them. The same steps are
trained twice, in arrival order (mode "shadow": poise plans, and moves nothing) and balanced, and what a step took is
printed. The loss is a mean over the step's letters, so it is the same either way.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from pathlib import Path

import poise
import torch
import torch.distributed as dist
from PIL import Image
from poise.lengths import Qwen2VL
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PATCH, MERGE = 14, 2  # pixels of a patch's side, patches of a token's side
WIDTH, BLOCKS, HEADS = 128, 2, 4
LETTERS = 128  # ASCII; 0 pads and begins a text
RULE = Qwen2VL(max_pixels=256 * 28 * 28, text=lambda sample: len(sample["text"]) + 1, markers=0)


def cost() -> list[poise.Phase]:
    """What this model computes, in units of 1,024 FLOP: see poise.Phase. A block is 12 d^2 weights, 2 FLOP each, and 4
    d a pair."""
    block = 24 * WIDTH * WIDTH
    return [
        poise.Phase(
            "vision", (2 * 3 * PATCH**2 * WIDTH + BLOCKS * block) // 1024, 4 * WIDTH * BLOCKS // 1024 + 1, passes=3
        ),
        poise.Phase("llm", (BLOCKS * block + 2 * WIDTH * LETTERS) // 1024, 4 * WIDTH * BLOCKS // 1024 + 1, passes=3),
    ]


# ----------------------------------------------------------------------------------------------------------------- data


class Pictures(Dataset):
    """Files of a folder, not decoded. Every sixth sample is text alone, as training mixes have it."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.paths = sorted(
            p for p in self.folder.rglob("*") if p.suffix.lower() in (".png", ".jpg", ".jpeg") and self.usable(p)
        )
        if not self.paths:
            raise SystemExit(f"no pictures in {folder}: apt-get install gimp-help-en, or give --images FOLDER")

    @staticmethod
    def usable(path: Path) -> bool:
        try:
            RULE.grid(path)
            return True
        except (poise.PoiseError, OSError):  # no picture, or a side that is 200 times the other
            return False

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> dict:
        path = self.paths[i]
        text = str(path.relative_to(self.folder).with_suffix("")).encode("ascii", "replace").decode()
        return {"text": text, "image": None if i % 6 == 5 else path.read_bytes()}


def patches_of(data: bytes) -> tuple[torch.Tensor, int, int]:
    """[h * w, 3 * PATCH^2] pixels of an encoded image after the processor's resizing, and h, w in patches. The patches
    of one token follow each other."""
    _, h, w = RULE.grid(data)
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.convert("RGBA").convert("RGB").resize((w * PATCH, h * PATCH))
    tensor = torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8).view(h * PATCH, w * PATCH, 3)
    tiles = tensor.view(h // MERGE, MERGE, PATCH, w // MERGE, MERGE, PATCH, 3).permute(0, 3, 1, 4, 2, 5, 6)
    return tiles.reshape(h * w, -1).float().div_(255), h, w


def collate(samples: list[dict]) -> list[tuple[torch.Tensor | None, torch.Tensor]]:
    """On the rank that trains on them: decodes. Samples differ too much in size for one padded tensor, so they stay
    apart."""
    return [
        (
            None if sample["image"] is None else patches_of(sample["image"])[0],
            torch.tensor([0, *sample["text"].encode()]),
        )
        for sample in samples
    ]


# ---------------------------------------------------------------------------------------------------------------- model


def blocks() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)


class Vlm(nn.Module):
    """Encoder, merger of MERGE x MERGE patches, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * PATCH**2, WIDTH)
        self.encoder, self.decoder = blocks(), blocks()
        self.merge = nn.Linear(MERGE**2 * WIDTH, WIDTH)
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, samples: list[tuple[torch.Tensor | None, torch.Tensor]]) -> torch.Tensor:
        """[samples] summed loss of each one's letters."""
        return torch.stack([self.one(patches, text) for patches, text in samples])

    def one(self, patches: torch.Tensor | None, text: torch.Tensor) -> torch.Tensor:
        if patches is None:  # no parameter may be left out of a backward: the ranks would wait for its gradient
            patches = torch.zeros(MERGE**2, 3 * PATCH**2)
        seen = self.merge(self.encoder(self.embed(patches)[None]).view(1, -1, MERGE**2 * WIDTH))
        hidden = torch.cat([seen, self.letters(text[None, :-1])], dim=1)
        n = hidden.shape[1]
        hidden = self.decoder(hidden, mask=nn.Transformer.generate_square_subsequent_mask(n), is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden[0, seen.shape[1] :]), text[1:], reduction="sum")


# ------------------------------------------------------------------------------------------------------------- training


def train(loader: DataLoader, mode: str, arguments: argparse.Namespace) -> dict[str, float]:
    """One run from the same beginning; what its steps took, on average over the second half and all ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Vlm())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    balanced = poise.balance(
        loader,
        RULE,
        cost(),
        loss_tokens=lambda sample: len(sample["text"]),
        count="free",
        mode=mode,
        with_info=True,
        cap_length_rank=poise.NO_CAP,
        cap_length_micro_batch=poise.NO_CAP,
        cap_bytes_rank=poise.NO_CAP,
    )
    losses, seconds, waits, busiest = [], [], [], []
    begin = time.perf_counter()
    for step, (samples, info) in enumerate(balanced):
        waits.append(time.perf_counter() - begin)
        sums = model(samples)
        forward = time.perf_counter() - begin - waits[-1]
        # DistributedDataParallel averages over ranks: hence times their number.
        loss = (sums * poise.scale_for_mean(info.weights(dtype=sums.dtype), info.n_ranks)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        busiest.append(
            torch.tensor(
                [
                    forward,
                    info.totals.cost_before / info.totals.cost_mean,
                    info.totals.cost_after / info.totals.cost_mean,
                ]
            )
        )
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        if step + 1 == arguments.steps:
            break
    balanced.close()
    return summary(losses, seconds, waits, torch.stack(busiest), mode)


def summary(
    losses: list[torch.Tensor], seconds: list[float], waits: list[float], busiest: torch.Tensor, mode: str
) -> dict[str, float]:
    n = dist.get_world_size()
    loss = torch.stack(losses)
    dist.all_reduce(loss)
    everyone = [torch.zeros_like(busiest) for _ in range(n)]
    dist.all_gather(everyone, busiest)
    forward = torch.stack(everyone)[:, :, 0]  # [ranks, steps]
    later = len(seconds) // 2  # the first steps warm up
    return {
        "loss_first": float(loss[0]) / n,
        "loss": float(loss[-1]) / n,
        "step_ms": 1000 * sum(seconds[later:]) / len(seconds[later:]),
        "wait_ms": 1000 * sum(waits[later:]) / len(waits[later:]),
        "imbalance": float((forward.max(0).values / forward.mean(0))[later:].mean()),
        "predicted": float(busiest[:, 2 if mode == "on" else 1].mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--images", default="/usr/share/gimp/2.0/help/en/images", help="a folder with PNG and JPEG files, any depth"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8, help="samples of a rank and step")
    parser.add_argument("--workers", type=int, default=1, help="loader processes of a rank")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
    data = Pictures(arguments.images)
    loader = DataLoader(
        data,
        batch_size=arguments.batch_size,
        sampler=DistributedSampler(data, seed=1),
        collate_fn=collate,
        num_workers=arguments.workers,
    )
    if dist.get_rank() == 0:
        print(f"{len(data)} pictures, {dist.get_world_size()} ranks, {arguments.batch_size} samples each")
        print(
            f"{'':>12} {'imbalance':>10} {'predicted':>10} {'step':>10} {'of it wait':>10} "
            f"{'first loss':>10} {'last loss':>10}"
        )
    for name, mode in (("arrival", "shadow"), ("balanced", "on")):
        found = train(loader, mode, arguments)
        if dist.get_rank() == 0:
            print(
                f"{name:>12} {found['imbalance']:>10.3f} {found['predicted']:>10.3f} {found['step_ms']:>7.1f} ms "
                f"{found['wait_ms']:>7.2f} ms {found['loss_first']:>10.5f} {found['loss']:>10.5f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

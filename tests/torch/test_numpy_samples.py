# SPDX-License-Identifier: Apache-2.0
"""Samples with numpy arrays and PIL images: as bytes and back, measured, and through a real poised."""

from __future__ import annotations

import io
import random
import unittest

import numpy as np
import torch
from PIL import Image

import cluster
import poise
from poise.exchange import decode, encode
from poise.images import encoded_size, size_of


def there_and_back(value):
    encoded = encode(value)
    memory = bytearray(encoded.nbytes)
    encoded.write(memoryview(memory))
    return decode(memory)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height))


class Values(unittest.TestCase):
    def test_arrays_keep_type_shape_and_order(self):
        rng = np.random.default_rng(0)
        base = rng.random((30, 40))
        for array in (
            base,
            base.T,
            base[::2, ::-1],
            np.float32(1.5),
            np.zeros((0, 3), np.int8),
            rng.integers(0, 9, (5, 5, 5)).astype(np.uint16),
            np.asfortranarray(base),
            np.array(["a", "bcd"]),
            np.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]),
            np.array(7),
            rng.random(1000).astype(np.complex64),
            np.array([None, {"a": 1}], dtype=object),
            np.datetime64("2020-01-01"),
        ):
            back = there_and_back({"a": array})["a"]
            self.assertEqual((array.dtype, array.shape, type(array)), (back.dtype, back.shape, type(back)))
            self.assertTrue(np.array_equal(array, back))
        self.assertTrue(there_and_back(np.asfortranarray(base)).flags.f_contiguous)

    def test_large_arrays_are_views_of_what_was_received(self):
        encoded = encode(np.zeros(1 << 16, np.uint8))
        memory = bytearray(encoded.nbytes)
        encoded.write(memoryview(memory))
        array = decode(memory)
        array[:] = 7
        self.assertEqual(1 << 16, memory.count(7))
        self.assertLess(encode(np.zeros(1 << 16, np.uint8)).nbytes, (1 << 16) + 400)

    def test_images(self):
        for image in (
            picture(40, 30),
            picture(40, 30).convert("L"),
            picture(40, 30).convert("P"),
            picture(40, 30).convert("RGBA"),
            picture(300, 200),
        ):
            back = there_and_back([image])[0]
            self.assertEqual(
                (image.mode, image.size, image.tobytes(), image.getpalette()),
                (back.mode, back.size, back.tobytes(), back.getpalette()),
            )
        file = io.BytesIO()
        picture(64, 48).save(file, "PNG")
        opened = Image.open(io.BytesIO(file.getvalue()))  # lazy: not read yet
        self.assertEqual(picture(64, 48).tobytes(), there_and_back(opened).tobytes())

    def test_sizes_of_what_pillow_writes(self):
        for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"):  # the last one is left to Pillow
            for size in ((1, 1), (17, 300), (640, 480)):
                for keywords in (
                    ({}, {"progressive": True})
                    if kind == "JPEG"
                    else ({}, {"lossless": True})
                    if kind == "WEBP"
                    else ({},)
                ):
                    file = io.BytesIO()
                    picture(*size).save(file, kind, **keywords)
                    self.assertEqual(size, encoded_size(file.getvalue()), (kind, keywords))
        self.assertEqual((640, 480), size_of(picture(640, 480)))
        self.assertEqual((640, 480), size_of(np.zeros((480, 640, 3))))
        self.assertEqual((640, 480), size_of(torch.zeros(3, 480, 640)))


def exchanged(rank, workers):
    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, i):
            ident = 100 * rank + i
            width = 10 + 37 * ident % 200
            return {
                "images": [picture(width, 50, ident)],
                "array": np.full((width, 3), ident, np.float16),
                "text": "x" * width,
                "id": ident,
            }

    def check(samples):
        for sample in samples:
            width = 10 + 37 * sample["id"] % 200
            assert sample["images"][0].tobytes() == picture(width, 50, sample["id"]).tobytes()
            assert (
                sample["array"].dtype == np.float16
                and sample["array"].shape == (width, 3)
                and (sample["array"] == sample["id"]).all()
            )
        return [sample["id"] for sample in samples]

    loader = torch.utils.data.DataLoader(Pictures(), batch_size=4, num_workers=workers, collate_fn=check)
    return [ident for batch in poise.balance(loader, "qwen2-vl", "qwen2-vl-7b") for ident in batch]


class Loading(cluster.Case):
    def test_images_and_arrays_through_the_group(self):
        for workers in (0, 2):
            results = self.ranks(exchanged, 2, workers)
            self.assertEqual(sorted(list(range(16)) + list(range(100, 116))), sorted(results[0] + results[1]))
            self.assertNotEqual(list(range(16)), sorted(results[0]))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Lengths of samples by the rules of models' processors; sizes of encoded images. No daemon, no torch, no Pillow."""

from __future__ import annotations

import struct
import tempfile
import unittest

from poise.errors import InvalidInput
from poise.images import encoded_size, size_of
from poise.lengths import InternVL, LossTokens, Qwen2VL, Tokens, rule_of, smart_resize

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\x00\x00\x00"


def jpeg(width: int, height: int, sof: int = 0xC0) -> bytes:
    """As far as the frame header: a JFIF segment, a large EXIF segment, a table, a filling byte, the frame."""
    app0 = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + bytes(9)
    app1 = b"\xff\xe1" + struct.pack(">H", 60002) + b"\xff\xc0" * 30000
    table = b"\xff\xc4" + struct.pack(">H", 4) + b"\0\0"
    return (
        b"\xff\xd8"
        + app0
        + app1
        + table
        + b"\xff"
        + b"\xff"
        + bytes([sof])
        + struct.pack(">HBHHB", 11, 8, height, width, 1)
        + bytes(20)
    )


class Array:
    """What a tensor or numpy array shows of itself."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Images(unittest.TestCase):
    def test_sizes_stand_in_the_header(self):
        vp8 = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 320 | 0x4000, 200)
        vp8l = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 319 | 199 << 14)
        vp8x = b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0" + (319).to_bytes(3, "little") + (199).to_bytes(3, "little")
        bmp = b"BM" + bytes(16) + struct.pack("<ii", 320, -200)
        for data, size in (
            (PNG, (640, 480)),
            (jpeg(33, 44), (33, 44)),
            (jpeg(5000, 1, 0xC2), (5000, 1)),
            (b"GIF89a" + struct.pack("<HH", 3, 4), (3, 4)),
            (vp8, (320, 200)),
            (vp8l, (320, 200)),
            (vp8x, (320, 200)),
            (bmp, (320, 200)),
        ):
            self.assertEqual(size, encoded_size(data))
            self.assertEqual(size, encoded_size(memoryview(bytearray(data))))

    def test_what_is_no_image_is_an_error(self):
        for data in (
            b"",
            b"\xff\xd8",
            b"\xff\xd8\xff\xe0\xff",
            PNG[:20],
            b"hello, world" * 10,
            b"\xff\xd8" + b"\xff\xe0\x00\x02" * 100,
        ):
            with self.assertRaises((InvalidInput, OSError)):
                encoded_size(data)

    def test_the_shapes_that_datasets_give(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(PNG)
            file.flush()
            for image in (
                PNG,
                file.name,
                {"bytes": PNG, "path": None},
                {"bytes": None, "path": file.name},
                (640, 480),
                Array(3, 480, 640),
                Array(480, 640, 3),
                Array(480, 640),
            ):
                self.assertEqual((640, 480), size_of(image))
        with self.assertRaisesRegex(InvalidInput, "size of a float"):
            size_of(1.5)


class Qwen(unittest.TestCase):
    def test_smart_resize(self):
        # By hand from the rule: multiples of 28, half to even; area in [3,136, 1,003,520].
        for size, resized in (
            ((224, 224), (224, 224)),
            ((1000, 1000), (980, 980)),
            ((20, 20), (56, 56)),
            ((42, 700), (56, 700)),
            ((70, 700), (56, 700)),
            ((8000, 100), (8008, 112)),
            ((4032, 3024), (1148, 840)),
        ):
            self.assertEqual(resized, smart_resize(*size, 28, 3136, 1003520), size)
        with self.assertRaisesRegex(InvalidInput, "10 x 2001"):
            smart_resize(10, 2001, 28, 3136, 1003520)

    def test_raw_samples(self):
        rule = Qwen2VL()
        made = rule({"images": [(224, 224), PNG], "input_ids": [1] * 10})
        # 16 x 16 and 34 x 46 patches; a quarter of them are tokens, and two markers each.
        self.assertEqual({"vision": 256 + 34 * 46, "llm": 10 + 64 + 391 + 4}, made.length)
        self.assertEqual(256**2 + (34 * 46) ** 2, made.attention["vision"])
        self.assertEqual({"vision": 0, "llm": 3}, rule({"text": "hello world"}).length)
        self.assertEqual(
            {"vision": 0, "llm": 4}, rule({"messages": [{"role": "user", "content": "hello word"}]}).length
        )
        self.assertEqual(25 + 64 + 2, rule({"image": (224, 224), "text": "x" * 99}).length["llm"])
        self.assertEqual(
            64 + 2 + 7, Qwen2VL(text=lambda sample: 7)({"image": (224, 224), "input_ids": [0] * 500}).length["llm"]
        )

    def test_videos_attend_by_frame(self):
        made = Qwen2VL()({"video": [Array(3, 448, 448)] * 5, "input_ids": []})
        self.assertEqual({"vision": 0, "llm": 0}, Qwen2VL()({"video": None, "input_ids": []}).length)
        self.assertEqual(3 * 32 * 32, made.length["vision"])
        self.assertEqual(3 * 1024**2, made.attention["vision"])

    def test_processed_samples_have_their_own_numbers(self):
        made = Qwen2VL()({"image_grid_thw": [[1, 4, 6], [1, 2, 2]], "input_ids": [0] * 30})
        self.assertEqual(
            ({"vision": 28, "llm": 30}, {"vision": 24**2 + 4**2, "llm": 900}), (made.length, made.attention)
        )
        one = Qwen2VL()({"image_grid_thw": [1, 4, 6], "video_grid_thw": [[2, 2, 2]], "input_ids": [0] * 30})
        self.assertEqual((32, 24**2 + 2 * 16), (one.length["vision"], one.attention["vision"]))


class Others(unittest.TestCase):
    def test_internvl_tiles(self):
        rule = InternVL()
        for size, tiles in (
            ((448, 448), 1),
            ((100, 100), 1),
            ((896, 448), 3),
            ((1344, 896), 7),
            ((2000, 2000), 10),
            ((100, 4000), 13),
        ):
            self.assertEqual(tiles, rule.tiles(size), size)
        self.assertEqual(
            {"vision": 7, "llm": 7 * 256 + 2 + 5}, rule({"image": (1344, 896), "input_ids": [0] * 5}).length
        )
        self.assertEqual(
            {"vision": 4, "llm": 9}, rule({"pixel_values": Array(4, 3, 448, 448), "input_ids": [0] * 9}).length
        )

    def test_tokens(self):
        self.assertEqual({"llm": 3}, Tokens()({"input_ids": [1, 2, 3]}).length)
        with self.assertRaisesRegex(InvalidInput, "no 'input_ids' .it has a, b"):
            Tokens()({"a": 1, "b": 2})
        with self.assertRaisesRegex(InvalidInput, "samples that are mappings"):
            Tokens()([1, 2])

    def test_loss_tokens(self):
        self.assertEqual(2, LossTokens()({"labels": [5, -100, 7, 8]}))
        self.assertEqual(3, LossTokens(shift=False)({"labels": [5, -100, 7, 8]}))

    def test_rules_by_name(self):
        self.assertIsInstance(rule_of("qwen2.5-vl"), Qwen2VL)
        self.assertIs(len, rule_of(len))
        for wrong in ("qwen", None, 5):
            with self.assertRaisesRegex(InvalidInput, "qwen2-vl, qwen2.5-vl, internvl, tokens"):
                rule_of(wrong)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Cutting a collated batch into samples, and putting samples together again: no daemon."""

from __future__ import annotations

import unittest

import torch

import vlm_batches as vlm
from poise.collated import Collated, Layout
from poise.errors import InvalidInput
from poise.padding import bits
from poise.reassemble import assemble, check_first, finished

TOKENS = {"image": vlm.IMAGE, "video": vlm.VIDEO, "audio": vlm.AUDIO}
MIXED = [(0, 0), (1, 0), (3, 0), (0, 1), (2, 2)]  # images and videos of a sample


def collated(**keywords) -> Collated:
    return Collated(Layout(token_id=TOKENS, **keywords))


def mixed(tag: str = "a") -> list[dict]:
    return [vlm.sample(f"{tag}{i}", images, videos) for i, (images, videos) in enumerate(MIXED)]


def put_together(parts, order) -> dict:
    """The batch of samples in another order, made of the pieces."""
    frame = parts.frame
    pieces = {rule: [parts.values[i].get(rule.wire) for i in order] for rule in frame.rules.values()}
    return finished(frame, {rule.key: assemble(frame, rule, some) for rule, some in pieces.items()})


class Cutting(unittest.TestCase):
    def test_any_order_and_subset_is_what_the_collator_makes(self):
        for side in ("right", "left"):
            samples = mixed()
            made = collated(padding_side=side)
            batch = vlm.collate(samples, side)
            parts = made.cut(batch)
            check_first(batch, parts)
            for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [4], [1, 4, 3]):
                with self.subTest(side=side, order=order):
                    after = put_together(parts, order)
                    before = vlm.collate([samples[i] for i in order], side)
                    self.assertEqual([], [key for key in vlm.same(before, after) if key in before])

    def test_what_is_counted(self):
        samples = mixed()
        parts = collated().cut(vlm.collate(samples))
        self.assertEqual([len(s["input_ids"]) for s in samples], parts.units["llm"])
        self.assertEqual([len(s["input_ids"]) ** 2 for s in samples], parts.attention["llm"])
        grids = [s["image_grids"] + s["video_grids"] for s in samples]
        self.assertEqual([sum(t * h * w for t, h, w in rows) for rows in grids], parts.units["vision"])
        self.assertEqual([sum(t * (h * w) ** 2 for t, h, w in rows) for rows in grids], parts.attention["vision"])
        self.assertEqual([sum(label != -100 for label in s["labels"][1:]) for s in samples], parts.loss_tokens)
        whole = collated(shift_labels=False).cut(vlm.collate(samples))
        self.assertEqual([sum(label != -100 for label in s["labels"]) for s in samples], whole.loss_tokens)

    def test_documents_of_a_packed_sample_attend_to_themselves(self):
        batch = {
            "input_ids": torch.arange(10).reshape(2, 5) + 1,
            "attention_mask": torch.tensor([[1, 1, 2, 2, 2], [1, 1, 1, 1, 0]]),
        }
        batch["input_ids"][1, 4] = vlm.PAD
        self.assertEqual([4 + 9, 16], collated().cut(batch).attention["llm"])

    def test_text_alone_and_media_later(self):
        made = collated()
        first, later = vlm.collate([vlm.sample("t0", 0), vlm.sample("t1", 0)]), vlm.collate(mixed())
        check_first(first, made.cut(first))
        self.assertEqual([0, 0], made.cut(first).units["vision"])
        check_first(later, made.cut(later))
        self.assertIn("pixel_values", made.frame.rules)

    def test_a_stand_in_image_behind_the_mask_stays(self):
        """Collators add a small image to the first sample of a batch without one, where attention_mask is 0."""
        samples = [vlm.sample("s0", 0, words=4), vlm.sample("s1", 0, words=9)]
        batch = vlm.collate(samples)
        stand_in = [vlm.START] + [vlm.IMAGE] * 4 + [vlm.START + 1]
        n = len(samples[0]["input_ids"])
        width = max(n + len(stand_in), batch["input_ids"].shape[1])
        for key, pad in (("input_ids", vlm.PAD), ("attention_mask", 0), ("labels", -100), ("position_ids", 1)):
            batch[key] = torch.nn.functional.pad(batch[key], (0, width - batch[key].shape[-1]), value=pad)
        batch["input_ids"][0, n : n + len(stand_in)] = torch.tensor(stand_in)
        batch["image_grid_thw"] = torch.tensor([[1, 4, 4]])
        batch["pixel_values"] = torch.ones(16, 3)
        batch["mm_token_type_ids"] = (batch["input_ids"] == vlm.IMAGE).long()
        made = collated()
        parts = made.cut(batch)
        check_first(batch, parts)
        self.assertEqual([16, 0], parts.units["vision"])
        self.assertEqual(n + len(stand_in), parts.units["llm"][0])

    def test_values_keep_dtype_and_shape(self):
        n = 3
        batch = {
            "input_ids": torch.ones(n, 4, dtype=torch.int64),
            "bool": torch.tensor([True, False, True]),
            "half": torch.randn(n, 2, 1, dtype=torch.float16),
            "nothing": torch.empty(n, 0),
            "one": torch.randn(n, 1),
            "float8": torch.zeros(n, 3).to(torch.float8_e4m3fn),
            "nan": torch.full((n, 2), float("nan")),
            "tensors": [torch.ones(2, 0), torch.randn(1, 5), torch.zeros(0, 3)],
            "words": ["a", "", "ü" * 9],
            "mixed": [[1, 2.5], {"k": None}, float("inf")],
            "absent": None,
        }
        made = collated()
        parts = made.cut(batch)
        check_first(batch, parts)
        again = put_together(parts, [0, 1, 2])
        self.assertEqual(list(batch), list(again))
        self.assertIsNone(again["absent"])
        for key in ("bool", "half", "nothing", "one", "float8", "nan"):
            self.assertEqual(vlm.bits(batch[key]), vlm.bits(again[key]))
        self.assertEqual([vlm.bits(t) for t in batch["tensors"]], [vlm.bits(t) for t in again["tensors"]])

    def test_a_text_as_wide_as_a_row_of_another_key(self):
        made = collated()
        for width in (7, 4, 9):
            batch = {"input_ids": torch.ones(2, width, dtype=torch.int64), "box": torch.arange(8).reshape(2, 4)}
            parts = made.cut(batch)
            check_first(batch, parts)
            self.assertEqual("sample", parts.frame.rules["box"].kind)

    def test_counts_may_be_told(self):
        batch = {
            "input_ids": torch.ones(3, 4, dtype=torch.int64),
            "image_grid_thw": torch.tensor([[1, 2, 2]] * 3),
            "pixel_values": torch.arange(12.0)[:, None],
            "n_images": torch.tensor([0, 2, 1]),
            "sizes": ["a", "b", "c"],
        }
        for said in ("n_images", lambda b: b["n_images"], lambda b: [0, 2, 1]):
            parts = collated(per_sample={"image": said}, fields={"sizes": "image"}).cut(batch)
            self.assertEqual([0, 8, 4], [v["pixel_values"].shape[0] for v in parts.values])
            self.assertEqual([b"[]", b'["a", "b"]', b'["c"]'], [v["sizes/jsons"] for v in parts.values])
        parts = collated(per_sample={"image": 1}).cut(batch)
        self.assertEqual([4, 4, 4], [v["pixel_values"].shape[0] for v in parts.values])
        with self.assertRaisesRegex(InvalidInput, r"3 images, images_per_sample= says \[2, 2, 2\] for 3 samples"):
            collated(per_sample={"image": 2}).cut(batch)

    def test_audio_goes_with_its_text(self):
        frames = [200, 50, 120]  # tokens: 100 -> 50, 25 -> 12, 60 -> 30
        marks = [50, 12 + 30]
        ids = torch.full((2, 60), vlm.PAD)
        for row, n in zip(ids, marks):
            row[:n] = vlm.AUDIO
        batch = {
            "input_ids": ids,
            "input_features": torch.randn(3, 8, 200),
            "feature_attention_mask": torch.stack([(torch.arange(200) < n).int() for n in frames]),
        }
        parts = collated(audio_window=100).cut(batch)
        self.assertEqual([1, 2], [v["input_features"].shape[0] for v in parts.values])
        self.assertEqual([100, 25 + 60], parts.units["audio"])
        self.assertEqual([100**2, 25**2 + 60**2], parts.attention["audio"])

    def test_pairs_and_four_axes_of_a_mask(self):
        lengths = [3, 5]
        ids, mask = torch.full((2, 5), vlm.PAD), torch.zeros(2, 1, 5, 5, dtype=torch.bool)
        for i, n in enumerate(lengths):
            ids[i, :n] = 7
            mask[i, 0, :n, :n] = torch.ones(n, n).tril().bool()
        batch = {"input_ids": ids, "attention_mask": mask}
        made = collated()
        parts = made.cut(batch)
        check_first(batch, parts)
        self.assertEqual((1, 3, 3), tuple(parts.values[0]["attention_mask"].shape))


class Refusals(unittest.TestCase):
    def refused(self, batch, regex, **keywords) -> InvalidInput:
        made = collated(**keywords)
        with self.assertRaisesRegex(InvalidInput, regex) as caught:
            check_first(batch, made.cut(batch))
        return caught.exception

    def test_what_is_not_per_sample(self):
        for value in (1234, 0.5, "image", True, torch.tensor(77), torch.tensor([1, 2]), [1, 2, 3, 4]):
            with self.subTest(value=value):
                error = self.refused(
                    {"input_ids": torch.ones(3, 4, dtype=torch.int64), "total": value},
                    r"total: is .*, not one value a sample.*constants=.*recompute=",
                )
                self.assertEqual("total", error.field)

    def test_constants_and_what_is_made_again(self):
        batch = {"input_ids": torch.tensor([[1, 2], [3, vlm.PAD]]), "limit": 7, "table": torch.eye(3), "tokens": 3}
        made = collated(
            constants=["limit", "table"], recompute={"tokens": lambda b: int((b["input_ids"] != vlm.PAD).sum())}
        )
        parts = made.cut(batch)
        check_first(batch, parts)
        self.assertEqual(1, put_together(parts, [1])["tokens"])
        self.assertEqual(7, put_together(parts, [1])["limit"])
        self.assertEqual(["input_ids", "limit", "table", "tokens"], list(put_together(parts, [1])))
        with self.assertRaisesRegex(InvalidInput, "limit: is declared constant, but it has changed"):
            made.cut(batch | {"limit": 8})
        with self.assertRaisesRegex(InvalidInput, "table: is declared constant, but it has changed"):
            made.cut(batch | {"table": torch.eye(3).double()})

    def test_wrong_pad_values_are_named_with_the_right_one(self):
        batch = vlm.collate(mixed())
        self.refused(
            batch, r"input_ids: is padded with 151643.*pad_values=\{'input_ids': 151643\}", pad_values={"input_ids": 0}
        )
        self.refused(batch, r"labels: is padded with -100", pad_values={"labels": 0})
        self.refused(batch, r"position_ids: is padded with 1,", pad_values={"position_ids": 0})
        counted = dict(batch, position_ids=torch.arange(batch["input_ids"].shape[1]).repeat(len(MIXED), 1))
        self.refused(counted, r"position_ids: has more than padding.*recompute=")

    def test_the_side_and_the_width_of_padding(self):
        left = vlm.collate(mixed(), "left")
        self.refused(left, "attention_mask: the text is padded on the left: pass padding_side='left'")
        self.refused(vlm.collate(mixed()), "padded on the right", padding_side="left")
        wide = vlm.collate([vlm.sample("w0", 0, words=3)])
        for key, pad in (("input_ids", vlm.PAD), ("attention_mask", 0), ("labels", -100), ("position_ids", 1)):
            wide[key] = torch.nn.functional.pad(wide[key], (0, 37 - wide[key].shape[-1]), value=pad)
        self.refused(wide, "does not come back as it was: shape .*pad_to=37")
        made = collated(pad_to=37)
        check_first(wide, made.cut(wide))

    def test_a_multiple(self):
        batch = vlm.collate(mixed())
        width = batch["input_ids"].shape[1]
        more = -(-width // 8) * 8
        for key, pad in (("input_ids", vlm.PAD), ("attention_mask", 0), ("labels", -100), ("position_ids", 1)):
            batch[key] = torch.nn.functional.pad(batch[key], (0, more - width), value=pad)
        if more != width:
            self.refused(batch, "does not come back as it was: shape .*pad_multiple=")
        made = collated(pad_multiple=8)
        check_first(batch, made.cut(batch))

    def test_media_that_do_not_add_up(self):
        batch = vlm.collate(mixed())
        short = dict(batch, pixel_values=batch["pixel_values"][:-1])
        self.assertEqual("pixel_values", self.refused(short, r"rows of patches, image_grid_thw says").field)
        odd = dict(batch, image_grid_thw=batch["image_grid_thw"] + torch.tensor([0, 1, 0]))
        self.refused(odd, r"image_grid_thw: image 0 of the batch has t, h, w = \[1, \d+, \d+\].*merge size 2")
        cut = dict(batch, input_ids=batch["input_ids"].clone())
        cut["input_ids"][2][cut["input_ids"][2] == vlm.IMAGE] = 5
        error = self.refused(cut, "image_grid_thw: .* do not add up|account for")
        self.assertEqual("image_grid_thw", error.field)
        none = dict(batch, input_ids=torch.where(batch["input_ids"] == vlm.IMAGE, 5, batch["input_ids"]))
        self.refused(none, "token 151655, which marks them, is nowhere in the text: pass image_token_id=")

    def test_a_sample_whose_text_was_cut_is_named(self):
        samples = mixed()
        samples[2]["input_ids"].remove(vlm.IMAGE)
        samples[2]["labels"].pop(0)
        self.assertEqual(2, self.refused(vlm.collate(samples), "sample 2: image_grid_thw: .*was the text cut").sample)

    def test_keys_that_come_and_go(self):
        made = collated()
        made.cut(vlm.collate(mixed()))
        with self.assertRaisesRegex(InvalidInput, "visual: each sample must have the same keys in every step"):
            made.cut(vlm.collate(mixed("b"), flag=False))
        before = dict(made.frame.rules)
        with self.assertRaisesRegex(InvalidInput, "weight: was sample of torch.float64"):
            made.cut(vlm.collate(mixed("c")) | {"weight": torch.zeros(5)})
        self.assertEqual(before, made.frame.rules)

    def test_other_things(self):
        ids = torch.ones(2, 3, dtype=torch.int64)
        self.refused([1, 2], "the loader gave a list of 2: a dict of tensors is wanted")
        self.refused({"labels": ids}, "input_ids: is a NoneType.*batch_key=")
        self.refused({"input_ids": ids, 3: ids}, "the key 3, which poise keeps")
        self.refused({"input_ids": ids, "a/json": ids}, "the key 'a/json'")
        self.refused({"input_ids": ids, "things": [object(), 2]}, "things: is a list that cannot travel")
        self.refused(
            {"input_ids": ids, "pairs": [(1, 2), (3, 4)]}, "pairs: does not come back as it was.*tuples become lists"
        )
        self.refused({"input_ids": ids, "ragged": [torch.ones(1), torch.ones(1, 1)]}, "of one dtype and number of axes")
        self.refused(
            {"input_ids": ids, "meta": torch.ones(2, device="meta")},
            "meta: is on meta: .*balance the loader's own batches",
        )
        with self.assertRaisesRegex(InvalidInput, "padding_side is 'middle'"):
            collated(padding_side="middle")
        with self.assertRaisesRegex(InvalidInput, "fields says 'picture' for x"):
            collated(fields={"x": "picture"})


class Bits(unittest.TestCase):
    def test_zero_and_nan(self):
        self.assertFalse(torch.equal(bits(torch.tensor(0.0)), bits(torch.tensor(-0.0))))
        self.assertTrue(torch.equal(bits(torch.tensor(float("nan"))), bits(torch.tensor(float("nan")))))


if __name__ == "__main__":
    unittest.main()

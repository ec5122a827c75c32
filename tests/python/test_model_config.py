# SPDX-License-Identifier: Apache-2.0
"""Costs from a configuration file: against the library's presets, whose numbers are derived by hand, and against
formulas."""

from __future__ import annotations

import json
import os
import tempfile
import types
import unittest
from fractions import Fraction

from poise.model_config import model_cost

VISION = {
    "num_layers": 32,
    "hidden_size": 1280,
    "ffn_hidden_size": 3420,
    "gated_linear_unit": True,
    "num_attention_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_attn_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "freeze": False,
}
PROJECTOR = {"input_size": 1280, "hidden_size": 3584, "ffn_hidden_size": 5120, "freeze": False}
TEXT = {
    "num_layers": 28,
    "hidden_size": 3584,
    "ffn_hidden_size": 18944,
    "num_attention_heads": 28,
    "vocab_size": 152064,
    "group_query_attention": True,
    "num_query_groups": 4,
    "gated_linear_unit": True,
}
AUDIO = {
    "num_layers": 32,
    "hidden_size": 1280,
    "ffn_hidden_size": 5120,
    "num_attention_heads": 20,
    "num_mel_bins": 128,
    "n_window": 100,
    "freeze": False,
}


def config(vision=(), projector=(), text=(), **more):
    """The 7B model of the presets, with changes."""
    return {
        "image_encoder": {"vision_encoder": VISION | dict(vision), "vision_projector": PROJECTOR | dict(projector)},
        "text_decoder": TEXT | dict(text),
        **more,
    }


def phases(*args, **kwargs):
    return {phase.name: phase for phase in model_cost(*args, **kwargs).phases}


class Presets(unittest.TestCase):
    def test_equals_the_preset_of_qwen25_vl(self):
        found = phases(config())
        self.assertEqual((1264060, 20, 3), (found["vision"].linear, found["vision"].quadratic, found["vision"].passes))
        self.assertEqual((13809152, 196, 3), (found["llm"].linear, found["llm"].quadratic, found["llm"].passes))

    def test_equals_the_preset_of_qwen2_vl(self):
        vision = {
            "window_attn_size": None,
            "fullatt_block_indexes": None,
            "gated_linear_unit": False,
            "ffn_hidden_size": 5120,
        }
        found = phases(config(vision))["vision"]
        self.assertEqual((1253500, 160, 3), (found.linear, found.quadratic, found.passes))

    def test_equals_the_preset_of_whisper(self):
        made = model_cost({"audio_encoder": {"audio_encoder": AUDIO}, "text_decoder": TEXT})
        self.assertEqual((1240320, 160, 3), (made.phases[0].linear, made.phases[0].quadratic, made.phases[0].passes))
        self.assertEqual(100, made.audio_window)
        self.assertEqual(["audio", "llm"], made.names)


class Passes(unittest.TestCase):
    def test_frozen_is_computed_once(self):
        found = phases(config({"freeze": True}, {"freeze": True}))
        self.assertEqual((1264060, 20, 1), (found["vision"].linear, found["vision"].quadratic, found["vision"].passes))
        self.assertEqual(3, found["llm"].passes)

    def test_encoders_are_frozen_unless_said_and_projectors_are_not(self):
        image = config()["image_encoder"]
        del image["vision_encoder"]["freeze"], image["vision_projector"]["freeze"]
        found = phases({"image_encoder": image})["vision"]
        merger = 22_282_240
        self.assertEqual(1, found.passes)
        self.assertEqual(round((1_294_397_440 - merger + 3 * merger) / 1024), found.linear)
        self.assertEqual(20, found.quadratic)

    def test_a_gradient_passes_through_a_frozen_decoder(self):
        self.assertEqual(2, phases(config({"freeze": True}, {"freeze": False}, {"freeze": True}))["llm"].passes)
        self.assertEqual(1, phases(config({"freeze": True}, {"freeze": True}, {"freeze": True}))["llm"].passes)

    def test_recomputation_of_all_layers_but_not_of_the_head(self):
        found = phases(
            config(text={"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1})
        )
        layers, head = 13_050_576_896, 1_089_994_752
        self.assertEqual(round((4 * layers + 3 * head) / 1024), found["llm"].linear)
        self.assertEqual((4 * 196, 1), (found["llm"].quadratic, found["llm"].passes))

    def test_recomputation_of_the_first_layers_of_each_stage(self):
        text = {
            "recompute_granularity": "full",
            "recompute_method": "block",
            "recompute_num_layers": 4,
            "pipeline_num_layers": [[2, 12], [0, 14]],
        }
        found = phases(config(text=text))["llm"]
        again = Fraction(2 + 4 + 4, 28)
        self.assertEqual(round((float(3 + again) * 13_050_576_896 + 3 * 1_089_994_752) / 1024), found.linear)

    def test_selective_recomputation_is_of_attention(self):
        found = phases(config(text={"recompute_granularity": "selective"}))["llm"]
        self.assertEqual((3 * 13809152, 4 * 196, 1), (found.linear, found.quadratic, found.passes))

    def test_a_frozen_part_recomputes_nothing(self):
        found = phases(config({"freeze": True, "recompute_granularity": "full"}, {"freeze": True}))["vision"]
        self.assertEqual((1264060, 1), (found.linear, found.passes))

    def test_passes_may_be_told(self):
        found = phases(config({"freeze": True}, {"freeze": False}), passes={"vision": 4})["vision"]
        self.assertEqual((1264060, 4), (found.linear, found.passes))
        with self.assertRaisesRegex(ValueError, "passes= names sight"):
            model_cost(config(), passes={"sight": 1})


class Experts(unittest.TestCase):
    def test_a_token_goes_through_topk_experts(self):
        text = {
            "num_moe_experts": 128,
            "moe_router_topk": 8,
            "moe_intermediate_size": 768,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "num_layers": 3,
            "hidden_size": 2048,
            "kv_channels": 128,
            "num_attention_heads": 32,
            "ffn_hidden_size": 6144,
            "vocab_size": 1000,
        }
        found = phases({"text_decoder": TEXT | text})["llm"]
        attention = 2 * (2048 * 4096 + 2 * 2048 * 512 + 4096 * 2048)
        dense, sparse = 2 * 3 * 2048 * 6144, 2 * 3 * 2048 * 9 * 768 + 2 * 2048 * 128
        self.assertEqual(round((3 * attention + dense + 2 * sparse + 2 * 2048 * 1000) / 1024), found.linear)
        self.assertEqual(3 * 2 * 4096 // 1024, found.quadratic)


class Mlps(unittest.TestCase):
    def test_the_activation_says_what_the_file_does_not(self):
        text = {key: value for key, value in TEXT.items() if key != "gated_linear_unit"}
        gated, plain = ({"text_decoder": text | {"activation_func": name}} for name in ("silu", "gelu"))
        self.assertEqual(13809152, phases(gated)["llm"].linear)
        self.assertEqual(13809152 - round(28 * 2 * 3584 * 18944 / 1024), phases(plain)["llm"].linear)


class Files(unittest.TestCase):
    def test_a_path_a_mapping_and_an_object_are_alike(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config(), file)
            by_path = model_cost(path)
        as_object = types.SimpleNamespace(
            image_encoder=types.SimpleNamespace(
                vision_encoder=types.SimpleNamespace(**VISION), vision_projector=PROJECTOR
            ),
            text_decoder=TEXT,
        )
        self.assertEqual(by_path, model_cost(config()))
        self.assertEqual(by_path, model_cost(as_object))

    def test_token_ids(self):
        self.assertEqual((151655, 151656), _ids(config()))
        self.assertEqual((7, 151656), _ids(config(img_context_token_id=7)))
        # the example for Qwen2.5-Omni names the token of videos, since its data are videos
        self.assertEqual((151655, 151656), _ids(config(img_context_token_id=151656)))
        self.assertEqual((7, 8), _ids(config(img_context_token_id=7, video_token_id=8)))

    def test_parallel_sizes_of_the_encoder(self):
        made = config()
        made["image_encoder"] |= {"tp": 2, "pp": 1, "cp": 4}
        self.assertEqual(8, model_cost(made).encoder_ranks)

    def test_what_is_missing_is_named(self):
        text = {key: value for key, value in TEXT.items() if key != "vocab_size"}
        with self.assertRaisesRegex(ValueError, r"lacks text_decoder\.vocab_size.*cost="):
            model_cost({"text_decoder": text})
        vision = {key: value for key, value in VISION.items() if key != "spatial_merge_size"}
        with self.assertRaisesRegex(ValueError, r"spatial_merge_size.*internvl2\.5-8b"):
            model_cost({"image_encoder": {"vision_encoder": vision}})
        with self.assertRaisesRegex(ValueError, "neither image_encoder"):
            model_cost({"text_encoder": None})
        with self.assertRaisesRegex(ValueError, "multi_latent_attention"):
            model_cost(config(text={"multi_latent_attention": True}))


def _ids(source):
    made = model_cost(source)
    return made.image_token_id, made.video_token_id


if __name__ == "__main__":
    unittest.main()

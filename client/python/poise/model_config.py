# SPDX-License-Identifier: Apache-2.0
"""What a model costs, read from the configuration file of the system that poise descends from.

That file (model.json) has the parts `image_encoder` (with `vision_encoder` and `vision_projector`), `audio_encoder` and
`text_decoder`. Each becomes a phase: coefficients for length and attention in units of 1,024 FLOP, as the presets of
the library have them, but for the sizes that the file says. A multiply-add is 2 FLOP. Norms, activations, biases and
look-ups are left out: under 1 % of the rest.

Passes say how often a part is computed: 1 frozen, 3 trained (a backward costs twice the forward), 2 frozen with a
gradient that passes through to a trained part in front of it, and one more for what is recomputed. Where the parts of a
phase differ in that, their coefficients are multiplied by it and the phase has 1.

A file that lacks what a formula needs is an error that names it: a guess would balance the wrong thing. Standard
library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .errors import InvalidInput

UNIT = 1024  # FLOP in a unit of cost

# Token ids of the Qwen2-VL family, for files that do not say them.
QWEN_IMAGE_PAD = 151655
QWEN_VIDEO_PAD = 151656
QWEN_OMNI_AUDIO = 151646


@dataclass(frozen=True)
class Term:
    """FLOP of one forward pass: `linear` a unit of length, `quadratic` a unit of attention; `passes` of it in a
    step."""

    linear: Fraction
    quadratic: Fraction
    passes: Fraction


@dataclass(frozen=True)
class PhaseCost:
    """A phase as `struct poise_phase` wants it: integers in units of 1,024 FLOP."""

    name: str
    linear: int
    quadratic: int
    passes: int


@dataclass
class ModelCost:
    """What the balancer needs to know of a model."""

    phases: list[PhaseCost]
    merge_size: int = 2  # patches a side that become one token: t * h * w / merge_size**2 tokens an image
    audio_window: int = 0  # positions that attend to each other; 0: all
    image_token_id: int = QWEN_IMAGE_PAD
    video_token_id: int = QWEN_VIDEO_PAD
    audio_token_id: int = QWEN_OMNI_AUDIO
    encoder_ranks: int = 1  # tp * pp * cp of the image encoder: processes that share one image batch
    names: list[str] = field(default_factory=list)  # of the phases, in their order


def read_config(source: Any) -> dict[str, Any]:
    """The configuration as nested dicts, from a path to JSON, a mapping, or an object with attributes."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, encoding="utf-8") as file:
            source = json.load(file)
    config = _plain(source)
    if not isinstance(config, dict):
        raise InvalidInput(
            f"the model's configuration is a {type(config).__name__}: a path, a mapping or an object is wanted"
        )
    return config


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return _plain(value.to_dict())
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return {key: _plain(item) for key, item in vars(value).items() if not key.startswith("_")}
    return value


def model_cost(source: Any, passes: Mapping[str, float] | None = None) -> ModelCost:
    """Reads the configuration and derives the phases `vision`, `audio` and `llm` of the parts that it has.

    `passes` overrides what the freeze and recompute flags say, by phase (command lines can override them too).
    """
    config = read_config(source)
    image = config.get("image_encoder")
    audio = config.get("audio_encoder")
    text = config.get("text_decoder")
    phases: list[PhaseCost] = []
    made = ModelCost(phases)
    trained_before = False
    if image:
        terms, trained = _vision_terms(image)
        trained_before |= trained
        phases.append(_phase("vision", terms, passes))
        made.merge_size = int(_vision_part(image).get("spatial_merge_size", 2))
        made.encoder_ranks = _product(image.get(key, 1) for key in ("tp", "pp", "cp"))
    if audio:
        terms, trained, made.audio_window = _audio_terms(audio)
        trained_before |= trained
        phases.append(_phase("audio", terms, passes))
    if text:
        phases.append(_phase("llm", _text_terms(text, trained_before), passes))
    if not phases:
        raise InvalidInput(
            "the model's configuration has neither image_encoder, audio_encoder nor text_decoder: pass cost="
        )
    unknown = set(passes or {}) - {phase.name for phase in phases}
    if unknown:
        raise InvalidInput(
            f"passes= names {', '.join(sorted(unknown))}: the phases are {', '.join(phase.name for phase in phases)}"
        )
    made.names = [phase.name for phase in phases]
    _token_ids(config, made)
    return made


def _token_ids(config: dict[str, Any], made: ModelCost) -> None:
    """The file's img_context_token_id is the token that the model replaces: of the image, or, where the data are
    videos, of the video (the example for Qwen2.5-Omni has the video's there)."""
    thinker = config.get("thinker_config") or {}

    def find(*names: str) -> int | None:
        for where in (config, thinker):
            for name in names:
                if where.get(name) is not None:
                    return int(where[name])
        return None

    image = find("image_token_id", "image_token_index", "img_context_token_id")
    video = find("video_token_id", "video_token_index")
    audio = find("audio_token_id", "audio_token_index")
    if video is not None:
        made.video_token_id = video
    if image is not None and image != made.video_token_id:
        made.image_token_id = image
    if audio is not None:
        made.audio_token_id = audio


# ----------------------------------------------------------------------------------------------------------- arithmetic


def _product(factors: Iterable[Any]) -> int:
    result = 1
    for factor in factors:
        result *= int(factor)
    return result


def _need(part: Mapping[str, Any], where: str, *names: str) -> int:
    for name in names:
        if part.get(name) is not None:
            return int(part[name])
    raise InvalidInput(
        f"the model's configuration lacks {where}.{names[0]}, which its cost needs: add it, or pass cost="
    )


def _units(flop: Fraction) -> int:
    """Nearest number of units; at least 1 of what is not nothing."""
    if flop <= 0:
        return 0
    return max(1, int((flop / UNIT) + Fraction(1, 2)))


def _phase(name: str, terms: list[Term], passes: Mapping[str, float] | None) -> PhaseCost:
    if passes and name in passes:
        fixed = Fraction(passes[name]).limit_denominator(1000)
        if fixed <= 0:
            raise InvalidInput(f"passes= says {passes[name]} for {name}: above 0 is wanted")
        terms = [Term(term.linear, term.quadratic, fixed) for term in terms]
    common = {term.passes for term in terms if term.linear or term.quadratic}
    if len(common) == 1 and (one := common.pop()).denominator == 1:
        times, terms = int(one), [Term(term.linear, term.quadratic, Fraction(1)) for term in terms]
    else:
        times = 1
    linear = sum((term.linear * term.passes for term in terms), Fraction(0))
    quadratic = sum((term.quadratic * term.passes for term in terms), Fraction(0))
    return PhaseCost(name, _units(linear), _units(quadratic), times)


def _recomputed(part: Mapping[str, Any], n_layers: int) -> tuple[Fraction, Fraction]:
    """The share of the layers, and of the attention of the others, that a backward computes again."""
    granularity = part.get("recompute_granularity")
    if granularity == "selective":
        return Fraction(0), Fraction(1)
    if granularity != "full":
        return Fraction(0), Fraction(0)
    if part.get("recompute_method") != "block" or part.get("recompute_num_layers") is None:
        return Fraction(1), Fraction(0)  # uniform: every layer, in chunks of recompute_num_layers
    stages = [n for n in _flat(part.get("pipeline_num_layers")) if n > 0] or [n_layers]
    each = int(part["recompute_num_layers"])
    # block: the first recompute_num_layers layers of each pipeline stage
    return Fraction(min(n_layers, sum(min(each, stage) for stage in stages)), n_layers), Fraction(0)


def _flat(value: Any) -> list[int]:
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [n for item in value for n in _flat(item)]
    return [int(value)]


def _layer_terms(
    linear: Fraction, pairs: Fraction, in_linear: Fraction, passes: int, part: Mapping[str, Any], n_layers: int
) -> list[Term]:
    """`linear` a unit of length outside of attention, `pairs` a pair, `in_linear` attention that is linear
    (windows)."""
    if passes <= 1:
        return [Term(linear + in_linear, pairs, Fraction(passes))]
    layers, attention = _recomputed(part, n_layers)
    of_attention = passes + layers + (1 - layers) * attention
    return [Term(linear, Fraction(0), passes + layers), Term(in_linear, pairs, of_attention)]


def _gates(part: Mapping[str, Any]) -> int:
    """Matrices of an MLP: 3 if it is gated. Where the file does not say, the activation does."""
    return 3 if part.get("gated_linear_unit", part.get("activation_func") in ("silu", "swiglu")) else 2


def _attention_widths(part: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Width of all query heads and of all key (or value) heads together."""
    hidden = _need(part, where, "hidden_size")
    heads = _need(part, where, "num_attention_heads")
    if part.get("multi_latent_attention"):
        raise InvalidInput(
            f"the model's configuration has {where}.multi_latent_attention, for which there is no formula: pass cost="
        )
    channels = part.get("kv_channels")
    per_head = int(channels) if channels is not None else hidden // heads
    groups = heads
    if part.get("group_query_attention") and part.get("num_query_groups") is not None:
        groups = int(part["num_query_groups"])
    return heads * per_head, groups * per_head


# --------------------------------------------------------------------------------------------------------------- vision


def _vision_part(image: Mapping[str, Any]) -> Mapping[str, Any]:
    part = image.get("vision_encoder")
    if not part:
        raise InvalidInput("the model's configuration lacks image_encoder.vision_encoder: add it, or pass cost=")
    return part


def _vision_terms(image: Mapping[str, Any]) -> tuple[list[Term], bool]:
    """A vision encoder of patches, d wide, L layers, q and k the widths of its query and key heads, a patch:

      patch embedding                2 * (in_channels * temporal_patch_size * patch_size^2) * d
      L layers                       2 * (d * q + 2 * d * k + q * d + g * d * ffn)    g = 3 with a gated MLP, else 2
      window layers                  4 * q * W each, W = (window_attn_size / patch_size)^2 patches attend to each other
      full-attention layers          4 * q a pair of patches that attend to each other, each
      mergers                        2 * (m * f + f * out) / merge^2, m = input * merge^2, one and one more for each
                                     layer whose output the decoder is given too (deepstack)

    Length = patches, attention = sum over frames of squared patches a frame. Returns the terms, and if anything is
    trained.
    """
    part, where = _vision_part(image), "image_encoder.vision_encoder"
    if part.get("spatial_merge_size") is None:
        raise InvalidInput(
            f"the model's configuration lacks {where}.spatial_merge_size, so its images do not become patches "
            "of a grid: pass cost= (for tiles the preset internvl2.5-8b)"
        )
    d = _need(part, where, "hidden_size")
    n_layers = _need(part, where, "num_layers")
    ffn = _need(part, where, "ffn_hidden_size", "intermediate_size")
    patch = _need(part, where, "patch_size")
    q, k = _attention_widths(part, where)
    pixels = int(part.get("in_channels", 3)) * int(part.get("temporal_patch_size", 2)) * patch**2
    gates = _gates(part)
    window = part.get("window_attn_size")
    n_full = n_layers
    if window:
        n_full = len([i for i in part.get("fullatt_block_indexes") or [] if int(i) < n_layers])
    window_patches = (int(window) // patch) ** 2 if window else 0
    linear = Fraction(2 * pixels * d + n_layers * 2 * (d * q + 2 * d * k + q * d + gates * d * ffn))
    in_windows = Fraction((n_layers - n_full) * 4 * q * window_patches)
    pairs = Fraction(n_full * 4 * q)
    projector = image.get("vision_projector") or {}
    encoder_trained = not part.get("freeze", True)
    projector_trained = bool(projector) and not projector.get("freeze", False)
    terms = _layer_terms(linear, pairs, in_windows, 3 if encoder_trained else 1, part, n_layers)
    if projector:
        through = 3 if projector_trained else 2 if encoder_trained else 1
        terms.append(Term(_merger(part, projector, d), Fraction(0), Fraction(through)))
    return terms, encoder_trained or projector_trained


def _merger(part: Mapping[str, Any], projector: Mapping[str, Any], d: int) -> Fraction:
    merge = int(part["spatial_merge_size"])
    wide = int(projector.get("input_size") or d) * merge**2
    out = _need(projector, "image_encoder.vision_projector", "hidden_size")
    inner = int(projector.get("ffn_hidden_size") or wide)
    n_mergers = 1 + len(part.get("deepstack_visual_indexes") or [])
    return Fraction(n_mergers * 2 * (wide * inner + inner * out), merge**2)


# ---------------------------------------------------------------------------------------------------------------- audio


def _audio_terms(audio: Mapping[str, Any]) -> tuple[list[Term], bool, int]:
    """An encoder as Whisper's, d wide, L layers, a position (two mel frames):

      convolutions                   2 * (2 * 3 * mel * d + 3 * d^2)
      L layers                       2 * (4 * d^2 + 2 * d * ffn) and 4 * d a pair of positions that attend to each other
      projection to the decoder      2 * d * out for every second position

    Length = positions, attention = sum over windows of n_window positions of their squares.
    """
    part, where = audio.get("audio_encoder") or audio, "audio_encoder.audio_encoder"
    d = _need(part, where, "hidden_size", "d_model")
    n_layers = _need(part, where, "num_layers")
    ffn = _need(part, where, "ffn_hidden_size")
    mel = int(part.get("num_mel_bins", 128))
    gates = _gates(part)
    linear = Fraction(2 * (2 * 3 * mel * d + 3 * d * d) + n_layers * 2 * (4 * d * d + gates * d * ffn))
    linear += Fraction(d * int(part.get("output_dim") or 0))
    trained = not part.get("freeze", True)
    terms = _layer_terms(linear, Fraction(n_layers * 4 * d), Fraction(0), 3 if trained else 1, part, n_layers)
    return terms, trained, int(part.get("n_window") or 0)


# ----------------------------------------------------------------------------------------------------------------- text


def _text_terms(text: Mapping[str, Any], trained_before: bool) -> list[Term]:
    """A decoder, d wide, L layers, q and k the widths of its query and key heads, a token:

      L layers                       2 * (d * q + 2 * d * k + q * d) and the MLP
      MLP, dense                     2 * g * d * ffn                   g = 3 with a gated MLP, else 2
      MLP, of experts                2 * (topk * g * d * expert + g * d * shared + d * experts)
      head                           2 * d * vocabulary
      attention                      4 * q / 2 a pair, each layer: a causal decoder computes half of the pairs

    Length = tokens, those of images included; attention = sum over packed documents of squared tokens.
    """
    where = "text_decoder"
    d = _need(text, where, "hidden_size")
    n_layers = _need(text, where, "num_layers")
    q, k = _attention_widths(text, where)
    gates = _gates(text)
    linear = Fraction(n_layers * 2 * (d * q + 2 * d * k + q * d) + 2 * gates * d * _ffn_widths(text, n_layers))
    n_experts = int(text.get("num_moe_experts") or 0)
    if n_experts:
        linear += 2 * d * n_experts * _n_expert_layers(text, n_layers)
    head = Fraction(2 * d * _need(text, where, "vocab_size", "padded_vocab_size"))
    passes = 3 if not text.get("freeze", False) else 2 if trained_before else 1
    terms = _layer_terms(linear, Fraction(n_layers * 2 * q), Fraction(0), passes, text, n_layers)
    terms.append(Term(head, Fraction(0), Fraction(passes)))
    return terms


def _n_expert_layers(text: Mapping[str, Any], n_layers: int) -> int:
    """Layers with experts: all but the first first_k_dense_replace, and of these every moe_layer_freq-th (or as
    listed)."""
    first = int(text.get("first_k_dense_replace") or 0)
    freq = text.get("moe_layer_freq") or 1
    if isinstance(freq, list):
        return sum(1 for is_expert in freq[:n_layers] if is_expert)
    return len([i for i in range(first, n_layers) if i % int(freq) == 0])


def _ffn_widths(text: Mapping[str, Any], n_layers: int) -> int:
    """Sum over the layers of the MLP's inner width that one token goes through."""
    n_experts = int(text.get("num_moe_experts") or 0)
    if not n_experts:
        return n_layers * _need(text, "text_decoder", "ffn_hidden_size", "intermediate_size")
    n_sparse = _n_expert_layers(text, n_layers)
    dense = 0
    if n_sparse < n_layers:
        dense = (n_layers - n_sparse) * _need(text, "text_decoder", "ffn_hidden_size", "intermediate_size")
    expert = _need(text, "text_decoder", "moe_ffn_hidden_size", "moe_intermediate_size", "ffn_hidden_size")
    shared = text.get("moe_shared_expert_intermediate_size")
    shared = int(shared) if shared is not None else int(text.get("n_shared_experts") or 0) * expert
    topk = _need(text, "text_decoder", "moe_router_topk")
    return dense + n_sparse * (topk * expert + shared)

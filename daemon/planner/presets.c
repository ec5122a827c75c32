/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs of well-known models, whole and by part.
 *
 * Units of 1,024 FLOP of one forward pass; a multiply-add is 2. `passes` is 3 (forward, and a backward of twice that):
 * who freezes a part or recomputes gives phases of their own. Norms, activations, biases and embeddings' look-ups are
 * left out: under 1 % of the rest. Attention is the sum of squared segments that attend to each other; a causal decoder
 * computes half of the pairs, which its coefficient takes into account. d x d below means one matrix product a token: 2
 * d^2 FLOP.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "planner.h"
#include "presets.h"

#define TRAINED 3

/*
 * Qwen2.5-VL vision (32 blocks, d = 1280, MLP 3420 gated, patch 14, window 112 px = 64 patches, full attention in
 * blocks 7, 15, 23, 31), length = patches, a patch:
 *   patch embedding 1176 x 1280                                        3,010,560
 *   32 x (qkv 1280 x 3840 + out 1280 x 1280 + 3 x 1280 x 3420)     1,259,929,600
 *   28 window blocks: scores and values, 4 x 64 x 1280 each            9,175,040
 *   merger, one of 4 patches: (5120 x 5120 + 5120 x 3584) / 4         22,282,240
 *                                                          sum     1,294,397,440 = 1,264,060 units
 *   4 full blocks: 4 x 1280 a pair of patches                             20,480 = 20 units
 */
#define QWEN25_VIT "vision", 1264060, 20, 0, TRAINED, 0

/*
 * Qwen2-VL vision: 32 blocks, all with full attention, MLP 1280 -> 5120 -> 1280:
 *   3,010,560 + 32 x (qkv 9,830,400 + out 3,276,800 + 2 x 13,107,200) + 22,282,240 = 1,283,584,000 = 1,253,500 units
 *   32 x 4 x 1280 a pair                                              = 163,840       = 160 units
 */
#define QWEN2_VIT "vision", 1253500, 160, 0, TRAINED, 0

/*
 * Qwen2.5-7B and Qwen2-7B decoder (28 layers, d = 3584, 4 key-value heads of 128, MLP 18944 gated, vocabulary 152,064),
 * length = tokens, those of images included, a token:
 *   28 x (q 25,690,112 + k, v 7,340,032 + out 25,690,112 + 3 x 135,790,592)  13,050,576,896
 *   head 3584 x 152064                                                        1,089,994,752
 *                                                                 sum        14,140,571,648 = 13,809,152 units
 *   28 x 4 x 3584 / 2 a pair                                                        200,704 = 196 units
 */
#define QWEN_7B_LLM "llm", 13809152, 196, 0, TRAINED, 0

/*
 * InternViT-300M, length = tiles of 448 px (1,025 positions that attend to each other, 24 layers, d = 1024, MLP 4096),
 * a tile:
 *   patch embedding 1,024 x 588 x 1024                                    1,233,125,376
 *   1,025 x 24 x (qkv 6,291,456 + out 2,097,152 + 2 x 8,388,608)        619,079,270,400
 *   attention 24 x 4 x 1024 x 1,025^2                                   103,280,640,000
 *   projector, 256 tokens x (4096 x 4096 + 4096 x 4096)                  17,179,869,184
 *                                                             sum       740,772,904,960 = 723,411,040 units
 */
#define INTERN_VIT "vision", 723411040, 0, 0, TRAINED, 0

/*
 * InternLM2.5-7B decoder (32 layers, d = 4096, 8 key-value heads of 128, MLP 14336 gated, vocabulary 92,553), a token:
 *   32 x (q 33,554,432 + k, v 16,777,216 + out 33,554,432 + 3 x 117,440,512)  13,958,643,712
 *   head 4096 x 92553                                                            758,194,176
 *                                                                  sum        14,716,837,888 = 14,371,912 units
 *   32 x 4 x 4096 / 2 a pair                                                         262,144 = 256 units
 */
#define INTERNLM_7B "llm", 14371912, 256, 0, TRAINED, 0

/*
 * Whisper-large-v3 encoder (32 layers, d = 1280, MLP 5120, 128 mel bins), length = positions (50 a second, two mel
 * frames each), attention = sum over windows of 30 s of their squared positions, a position:
 *   convolutions 2 x (3 x 128 x 1280) + 3 x 1280 x 1280                     11,796,480
 *   32 x (4 x 1280 x 1280 + 2 x 1280 x 5120)                             1,258,291,200
 *                                                              sum       1,270,087,680 = 1,240,320 units
 *   32 x 4 x 1280 a pair                                                       163,840 = 160 units
 */
#define WHISPER "audio", 1240320, 160, 0, TRAINED, 0

/* The same with Qwen2-Audio's projector, 1280 x 4096 a token of two positions: + 5,242,880 = 5,120 units. */
#define QWEN2_AUDIO_ENCODER "audio", 1245440, 160, 0, TRAINED, 0

/*
 * Qwen-7B decoder as in Qwen2-Audio (32 layers, d = 4096, 32 heads, MLP 11008 gated, vocabulary 156,032), a token:
 *   32 x (4 x 33,554,432 + 3 x 90,177,536)   12,952,010,752
 *   head 4096 x 156032                        1,278,214,144
 *                                   sum      14,230,224,896 = 13,896,704 units
 *   32 x 4 x 4096 / 2 a pair                        262,144 = 256 units
 */
#define QWEN_7B_AUDIO_LLM "llm", 13896704, 256, 0, TRAINED, 0

static const struct preset {
    const char *name, *text;
    uint32_t n_phases;
    struct poise_phase phase[2];
} presets[] = {
    {"qwen2.5-vl-7b", "Qwen2.5-VL-7B: vision (patches) and llm (tokens)", 2, {{QWEN25_VIT}, {QWEN_7B_LLM}}},
    {"qwen2.5-vl-vit", "the vision part of Qwen2.5-VL alone (patches)", 1, {{QWEN25_VIT}}},
    {"qwen2-vl-7b", "Qwen2-VL-7B: vision (patches) and llm (tokens)", 2, {{QWEN2_VIT}, {QWEN_7B_LLM}}},
    {"qwen2-vl-vit", "the vision part of Qwen2-VL alone (patches)", 1, {{QWEN2_VIT}}},
    {"qwen2.5-7b", "a 7B decoder alone: Qwen2.5-7B, Qwen2-7B (tokens)", 1, {{QWEN_7B_LLM}}},
    {"internvl2.5-8b", "InternVL2.5-8B: vision (tiles of 448 px) and llm (tokens)", 2, {{INTERN_VIT}, {INTERNLM_7B}}},
    {"internvit-300m", "the vision part of InternVL alone (tiles)", 1, {{INTERN_VIT}}},
    {"internlm2.5-7b", "the decoder of InternVL2.5-8B alone (tokens)", 1, {{INTERNLM_7B}}},
    {"qwen2-audio-7b",
     "Qwen2-Audio-7B: audio (positions, 50 a second) and llm (tokens)",
     2,
     {{QWEN2_AUDIO_ENCODER}, {QWEN_7B_AUDIO_LLM}}},
    {"whisper-large-v3", "the encoder of Whisper-large-v3 alone (positions, 50 a second)", 1, {{WHISPER}}},
    {DECODER_PREFIX "layers=28,hidden=3584,heads=28,kv_heads=4,intermediate=18944,vocab=152064",
     "any decoder from its configuration (tokens); also head_dim, gated, passes",
     1,
     {{QWEN_7B_LLM}}},
    {"length", "a sample costs its length", 1, {{"length", 1, 0, 0, 1, 0}}},
    {"length_squared", "a sample costs the square of its length", 1, {{"length", 0, 1, 0, 1, 0}}},
};
#define N_PRESETS (sizeof presets / sizeof *presets)

const char *poise_preset_name(uint32_t i)
{
    return i < N_PRESETS ? presets[i].name : NULL;
}

const char *poise_preset_text(uint32_t i)
{
    return i < N_PRESETS ? presets[i].text : NULL;
}

static int unknown(const char *name, struct poise_err *err)
{
    char list[400];
    size_t n = 0;

    for (uint32_t i = 0; i < N_PRESETS && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", presets[i].name);
    return err_set(err, -EINVAL, "no preset is called %.60s: there are %s", name ? name : "(null)", list);
}

int poise_preset(const char *name, struct poise_phase *phases, size_t phase_size, uint32_t *ret_n_phases,
                 struct poise_err *err)
{
    const struct preset *preset = NULL;
    struct preset made = {.n_phases = 1};
    int rc;

    for (uint32_t i = 0; i < N_PRESETS; i++)
        if (name && !strcmp(name, presets[i].name))
            preset = &presets[i];
    if (!preset && name && !strncmp(name, DECODER_PREFIX, strlen(DECODER_PREFIX))) {
        if ((rc = decoder_preset(name, &made.phase[0], err)) < 0)
            return rc;
        preset = &made;
    }
    if (!preset)
        return unknown(name, err);
    /* A program of an older header has smaller elements: it must not lose members that are set. */
    for (uint32_t p = 0; p < preset->n_phases; p++) {
        const char *from = (const char *)&preset->phase[p];
        for (size_t b = phase_size; b < sizeof *phases; b++)
            if (from[b])
                return err_set(err, -E2BIG, "preset %s needs a struct poise_phase of %zu bytes, the caller's has %zu",
                               name, sizeof *phases, phase_size);
    }
    for (uint32_t p = 0; p < preset->n_phases; p++) {
        char *to = (char *)phases + p * phase_size;
        size_t n = phase_size < sizeof *phases ? phase_size : sizeof *phases;
        memcpy(to, &preset->phase[p], n);
        memset(to + n, 0, phase_size - n);
    }
    *ret_n_phases = preset->n_phases;
    return 0;
}

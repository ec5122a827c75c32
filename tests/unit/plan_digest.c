/* SPDX-License-Identifier: Apache-2.0 */
/* Requests come from a generator of its own, so that no change of a test changes them. */
#include "plan_digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/planner.h"

#define RANKS 16
#define SAMPLES (RANKS * 32)
#define REQUESTS 60

struct columns {
    uint32_t n_samples[RANKS], micro_batch[SAMPLES], node[RANKS], speed[RANKS], rank[SAMPLES], row[SAMPLES];
    uint64_t length[2 * SAMPLES], bytes[SAMPLES];
    uint8_t reason[SAMPLES];
    struct poise_phase phases[POISE_MAX_PHASES];
};

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t mix(uint64_t digest, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < n; i++) /* FNV-1a */
        digest = (digest ^ p[i]) * 0x100000001b3u;
    return digest;
}

static uint64_t mix32(uint64_t digest, const uint32_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        unsigned char bytes[4] = {(unsigned char)x[i], (unsigned char)(x[i] >> 8), (unsigned char)(x[i] >> 16),
                                  (unsigned char)(x[i] >> 24)};
        digest = mix(digest, bytes, 4);
    }
    return digest;
}

static void request(struct columns *c, struct poise_plan_request *req, uint64_t *state)
{
    static const char *const presets[] = {"qwen2.5-vl-7b", "length", "length_squared"};
    uint32_t n = 0, n_phases = 0, per_rank = 1 + (uint32_t)(next(state) % 32);

    if (poise_preset(presets[next(state) % 3], c->phases, sizeof *c->phases, &n_phases, NULL) < 0)
        abort();
    for (uint32_t r = 0; r < RANKS; r++) {
        n += c->n_samples[r] = per_rank;
        c->node[r] = r / 4;
        c->speed[r] = 800000 + (uint32_t)(next(state) % 400000);
    }
    for (uint32_t s = 0; s < n; s++) {
        uint64_t shape = next(state) % 6;
        c->length[s] = shape == 0 ? 0 : shape == 1 ? 5000 + next(state) % 2000 : 1 + next(state) % 2000;
        if (n_phases == 2)
            c->length[n + s] = 20 + c->length[s] / 4 + next(state) % 300;
        c->bytes[s] = 64 + c->length[s] * 2352 + next(state) % 4096;
    }
    *req = (struct poise_plan_request){.size = sizeof *req,
                                       .n_ranks = RANKS,
                                       .n_phases = n_phases,
                                       .n_samples = c->n_samples,
                                       .length = c->length,
                                       .bytes = c->bytes,
                                       .phases = c->phases,
                                       .phase_size = sizeof *c->phases,
                                       .objective = (uint32_t)(next(state) % 3),
                                       .count = (uint32_t)(next(state) % 3),
                                       .stages = 1 + (uint32_t)(next(state) % 4)};
    uint64_t cut = next(state) % 4;
    req->micro_batch_size = cut == 0 ? 0 : (uint32_t)cut;
    if (next(state) % 3 == 0)
        req->node = c->node;
    if (next(state) % 4 == 0)
        req->speed_ppm = c->speed;
    if (req->objective != POISE_OBJECTIVE_PIPELINE && n_phases == 2 && next(state) % 4 == 0)
        c->phases[0].flags |= POISE_PHASE_BARRIER;
}

static uint64_t digest_of(const char *algorithm)
{
    struct columns *c = calloc(1, sizeof *c);
    uint64_t digest = 0xcbf29ce484222325u, state = 20240607;
    struct poise_plan_request req;

    for (uint32_t i = 0; c && i < REQUESTS; i++) {
        struct poise_plan plan = {
            .size = sizeof plan, .rank = c->rank, .micro_batch = c->micro_batch, .row = c->row, .reason = c->reason};
        uint32_t n = 0;
        request(c, &req, &state);
        for (uint32_t r = 0; r < RANKS; r++)
            n += c->n_samples[r];
        req.algorithm = algorithm;
        int32_t rc = plan_make(&req, &plan, NULL);
        digest = mix32(digest, (uint32_t *)&rc, 1);
        if (rc < 0)
            continue;
        digest = mix32(digest, plan.rank, n);
        digest = mix32(digest, plan.micro_batch, n);
        digest = mix32(digest, plan.row, n);
        digest = mix(digest, plan.reason, n);
        digest = mix(digest, plan.plan_id, sizeof plan.plan_id);
    }
    free(c);
    return digest;
}

uint64_t plan_digest(int verbose)
{
    uint64_t digest = 0;

    for (uint32_t i = 0; poise_algorithm_name(i); i++) {
        uint64_t one = digest_of(poise_algorithm_name(i));
        if (verbose)
            printf("%016llx %s\n", (unsigned long long)one, poise_algorithm_name(i));
        digest = digest * 31 + one;
    }
    return digest;
}

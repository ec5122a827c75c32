/* SPDX-License-Identifier: Apache-2.0 */
/* Outages are shorter than what ends an epoch, with a rest between two, so every run must deliver every step. */
#include "tests/sim/outages.h"

/* Two outages between which every message happens to be lost are one of above 10 s, which rightly ends an epoch. */
#define MAX_DOWN_MS 2500u
#define REST_MS 7000u

/* Who has left cannot say so again: if its node and all coordinators die with the word, the others can but miss it. So from
 * then on daemons only come back. */
static bool someone_left(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->n_processes; i++)
        if (sim->processes[i].left)
            return true;
    return false;
}

static bool may_go_down(struct sim *sim, const struct outage *outage, uint64_t once_in)
{
    return !outage->until_ms && sim->now_ms >= outage->rest_ms && !someone_left(sim) && sim_random(sim, once_in) == 0;
}

void outage_coordinator(struct sim *sim, uint32_t i, struct outage *outage)
{
    if (outage->until_ms && sim->now_ms >= outage->until_ms) {
        if (outage->stall)
            sim->coordinators[i].stalled = false;
        else
            sim_start_coordinator(sim, i);
        outage->until_ms = 0;
        outage->rest_ms = sim->now_ms + REST_MS;
    } else if (may_go_down(sim, outage, 30)) {
        outage->until_ms = sim->now_ms + sim_random(sim, MAX_DOWN_MS);
        outage->stall = sim_random(sim, 3) == 0;
        if (outage->stall)
            sim->coordinators[i].stalled = true;
        else
            sim_kill_coordinator(sim, i);
    }
}

void outage_node(struct sim *sim, uint32_t i, struct outage *outage)
{
    if (outage->until_ms && sim->now_ms >= outage->until_ms) {
        sim_start_node(sim, i);
        outage->until_ms = 0;
        outage->rest_ms = sim->now_ms + REST_MS;
    } else if (may_go_down(sim, outage, 50)) {
        outage->until_ms = sim->now_ms + sim_random(sim, MAX_DOWN_MS);
        sim_kill_node(sim, i);
    }
}

void outage_end_coordinator(struct sim *sim, uint32_t i, struct outage *outage)
{
    if (outage->until_ms) {
        outage->until_ms = sim->now_ms;
        outage_coordinator(sim, i, outage);
    }
}

void outage_end_node(struct sim *sim, uint32_t i, struct outage *outage)
{
    if (outage->until_ms) {
        outage->until_ms = sim->now_ms;
        outage_node(sim, i, outage);
    }
}

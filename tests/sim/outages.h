/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons of a simulated cluster that die or stand still for a while, at random, and come back. */
#ifndef TESTS_SIM_OUTAGES_H
#define TESTS_SIM_OUTAGES_H

#include "tests/sim/cluster.h"

struct outage {
    uint64_t until_ms; /* 0: up */
    uint64_t rest_ms;
    bool stall;
};

/* Maybe takes the daemon down or brings it back: once every 100 ms of virtual time. */
void outage_coordinator(struct sim *sim, uint32_t i, struct outage *outage);
void outage_node(struct sim *sim, uint32_t i, struct outage *outage);

/* Brings it back at once. */
void outage_end_coordinator(struct sim *sim, uint32_t i, struct outage *outage);
void outage_end_node(struct sim *sim, uint32_t i, struct outage *outage);

#endif

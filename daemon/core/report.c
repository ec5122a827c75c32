/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the coordinator tells of its groups: plain structs, filled from its state and nothing else.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/group.h"
#include "daemon/core/mem.h"

static const char *state_text(const struct group *group)
{
    switch (group->state) {
    case GROUP_LEAVING: /* to a reader of status the run is over; error says who left first */
    case GROUP_ENDED:
        return "ended";
    default:
        return group_state_name(group->state);
    }
}

void group_report_epoch(const struct epoch *epoch, uint64_t now_ms, struct group_report *to)
{
    const struct epoch_slot *slot = epoch_find(epoch, epoch_oldest_open(epoch));

    memset(to, 0, sizeof *to);
    to->epoch = epoch->id;
    to->n_ranks = epoch->n_ranks;
    to->n_replicas = epoch->n_replicas;
    to->n_nodes = epoch->n_nodes;
    to->n_joined = epoch->n_members;
    to->first_step = epoch->first_step;
    to->decided = epoch->decided;
    to->planned = epoch->planned;
    to->errors = epoch->errors;
    to->samples = epoch->samples;
    to->samples_moved = epoch->samples_moved;
    to->bytes = epoch->bytes;
    to->bytes_moved = epoch->bytes_moved;
    to->bytes_between_nodes = epoch->bytes_between_nodes;
    to->payload = !epoch_moves_payload(epoch)                              ? NULL
                  : epoch->options.payload == OPTIONS_PAYLOAD_PLAIN ? "plain"
                                                                    : "curve";
    to->samples_dropped = epoch->samples_dropped;
    to->last = epoch->last;
    snprintf(to->algorithm, sizeof to->algorithm, "%s", epoch->options.algorithm);
    to->n_waiting = epoch_missing(epoch, to->waiting, 16);
    to->waiting_ms = slot ? now_ms - slot->since_ms : 0;
    to->n_stale = epoch->stale;
    to->n_far = epoch->n_far;
    to->n_conflicts = epoch->conflicts;
    if (epoch->leaving)
        snprintf(to->error, sizeof to->error, "%s", epoch->leave.error.text);
}

static void fill_set(const struct membership *set, struct group_report *to)
{
    to->epoch = set->claim;
    to->n_ranks = set->n_ranks;
    to->n_replicas = set->n_replicas;
    to->n_nodes = set->n_nodes;
    to->n_joined = set->n_here;
    to->first_step = set->reference ? set->reference->join.first_step : 0;
    for (uint32_t rank = 0; rank < set->n_ranks; rank++)
        for (uint32_t k = 0; k < set->n_replicas; k++)
            if (!set->members[(size_t)rank * set->n_replicas + k]) {
                if (to->n_waiting < 16)
                    to->waiting[to->n_waiting] = rank;
                to->n_waiting++;
                break;
            }
}

static void fill(const struct group *group, uint64_t now_ms, struct group_report *to)
{
    if (group->epoch) {
        group_report_epoch(group->epoch, now_ms, to);
    } else if (group->forming.members) {
        fill_set(&group->forming, to);
        to->waiting_ms = now_ms - group->forming.since_ms;
    } else if (group->claims.members) {
        fill_set(&group->claims, to);
        to->waiting_ms = now_ms - group->claims.since_ms;
    } else if (group->past_attempt && group->past.members) {
        fill_set(&group->past, to);
        to->n_waiting = 0;
    } else {
        *to = group->final;
        to->n_waiting = 0;
        to->waiting_ms = 0;
    }
    memcpy(to->job, group->job, sizeof to->job);
    memcpy(to->group, group->name, sizeof to->group);
    to->uid = group->uid;
    to->state = state_text(group);
    if (group->state == GROUP_ABORTED)
        snprintf(to->error, sizeof to->error, "%s", group->over.text);
}

int coordinator_report(const struct coordinator *coordinator, uint64_t now_ms, struct group_report **ret_reports,
                       uint32_t *ret_n_reports)
{
    uint32_t n = coordinator_n_groups(coordinator);
    struct group_report *reports = core_alloc(n, sizeof *reports);

    if (!reports)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        fill(coordinator_group(coordinator, i), now_ms, &reports[i]);
    *ret_reports = reports;
    *ret_n_reports = n;
    return 0;
}

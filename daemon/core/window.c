/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which steps a coordinator takes metadata of. A rank submits step s only when s - W is decided, so whoever speaks of s says
 * that all ranks have submitted s - W. A coordinator therefore takes a step below
 *
 *     max(decided here, the least number of steps that any member is known to have submitted) + W
 *
 * and refuses what is beyond: else one node with a wrong number would push the good steps out of the ring, or fill it. What a
 * member has submitted is known from its own node only, by its metadata (also what is refused) and by heartbeats; so one bad
 * node can raise its own members' numbers, never the least of all.
 *
 * A coordinator that was restarted has decided nothing and knows of nobody: what it refuses it remembers, asks all nodes
 * for (answers are proof too), and asks for again once the window has come that far. The lowest step that a rank still
 * needs is always one that its peers either have in their ledgers (they keep W steps behind their own decisions) or have yet to
 * submit, so the question is answered by all who can, and the rest say it themselves when they submit.
 */
#include <string.h>

#include "daemon/core/epoch.h"
#include "daemon/core/rules.h"

/* What is remembered of refused steps: no honest member is further than that from another. */
#define FAR_STEPS (2u * WIRE_WINDOW)

static uint64_t least_reached(const struct epoch *epoch)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < epoch->n_members; i++)
        if (epoch->reached[i] < least)
            least = epoch->reached[i];
    return least;
}

enum epoch_place epoch_place(const struct epoch *epoch, uint64_t step)
{
    uint64_t at = step - epoch->first_step, slots = RULE_HOLDS(RULE_SLOTS) ? EPOCH_SLOTS : WIRE_WINDOW;

    if (step < epoch->first_step || at + slots < epoch->highest)
        return EPOCH_PAST;
    if (epoch->leaving && (int64_t)(step - epoch->leave.step) > (RULE_HOLDS(RULE_LEAVE) ? 0 : -1))
        return EPOCH_PAST; /* it never gets an outcome */
    if (!RULE_HOLDS(RULE_WINDOW) || at < epoch->decided + WIRE_WINDOW) /* nearly always, so the rest is rarely looked at */
        return EPOCH_HERE;
    return at < least_reached(epoch) + WIRE_WINDOW ? EPOCH_HERE : EPOCH_FAR;
}

static void raise(struct epoch *epoch, uint32_t member, uint64_t n)
{
    if (n > epoch->reached[member])
        epoch->reached[member] = n;
}

void epoch_reached_meta(struct epoch *epoch, const struct member_node *node, uint32_t member, uint64_t step)
{
    if (node && node == &epoch->set.nodes[epoch->set.members[member]->node] && step >= epoch->first_step)
        raise(epoch, member, step - epoch->first_step + 1);
}

/* The oldest open step is one that a process there has submitted, so all have submitted what is W before; or all there have
 * it, if none is missing. */
void epoch_reached_beat(struct epoch *epoch, const struct member_node *node, const struct wire_heartbeat_epoch *beat)
{
    uint32_t index = (uint32_t)(node - epoch->set.nodes);
    uint64_t n = beat->oldest_open - epoch->first_step + 1;

    if (beat->oldest_open < epoch->first_step)
        return;
    if (beat->n_missing)
        n = n > WIRE_WINDOW ? n - WIRE_WINDOW : 0;
    for (uint32_t i = epoch->node_first[index]; i < epoch->node_first[index + 1]; i++)
        for (uint32_t k = 0; k < epoch->n_replicas; k++) {
            uint32_t member = epoch->node_ranks[i] * epoch->n_replicas + k;

            if (epoch->set.members[member]->node == index)
                raise(epoch, member, n);
        }
}

void epoch_far(struct epoch *epoch, uint64_t step)
{
    struct epoch_far *far = &epoch->far;

    if (!far->n || step < far->low) {
        uint64_t end = far->n ? far->low + far->n : step + 1;

        far->n = end - step < FAR_STEPS ? (uint32_t)(end - step) : FAR_STEPS;
        far->low = step;
    } else if (step - far->low < FAR_STEPS && step - far->low >= far->n) {
        far->n = (uint32_t)(step - far->low) + 1;
    }
    far->news = true;
}

/* All nodes, since nobody knows who has it. */
static void ask_all(struct epoch *epoch, uint64_t step, struct core_out *out)
{
    struct wire_message *msg = out_message(out, WIRE_NEED);

    msg->ask.epoch = epoch->id;
    msg->ask.step = step;
    epoch_send_all(epoch, out, msg);
}

bool epoch_ask_far(struct epoch *epoch, uint64_t now_ms, struct core_out *out)
{
    struct epoch_far *far = &epoch->far;

    while (far->n && epoch_place(epoch, far->low) == EPOCH_PAST) {
        far->low++;
        far->n--;
    }
    if (!far->n)
        return false;
    if (epoch_place(epoch, far->low) == EPOCH_HERE) {
        epoch_need(epoch, far->low, now_ms, out);
        far->low++;
        return --far->n > 0;
    }
    if (RULE_HOLDS(RULE_NEED) && far->news && now_ms >= far->asked_ms + EPOCH_NEED_MS) {
        far->news = false; /* who still waits for it says so again */
        far->asked_ms = now_ms;
        ask_all(epoch, far->low, out);
    }
    return false;
}

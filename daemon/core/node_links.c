/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinators of the jobs here. Jobs that name the same endpoint share one link, links are never renumbered, and an
 * attempt to open ends where no coordinator of its job can be reached.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/node_state.h"
#include "daemon/planner/err.h"

static uint32_t add_link(struct node *node, const char *endpoint, size_t n)
{
    struct node_link *grown;

    for (uint32_t i = 0; i < node->n_links; i++)
        if (strlen(node->links[i].endpoint) == n && memcmp(node->links[i].endpoint, endpoint, n) == 0)
            return i;
    if (node->n_links == node->cap_links) {
        grown = core_grow(node->links, node->cap_links * 2 + 4, sizeof *grown);
        if (!grown)
            return POISE_NONE;
        node->links = grown;
        node->cap_links = node->cap_links * 2 + 4;
    }
    node->links[node->n_links].endpoint = core_alloc(n + 1, 1);
    if (!node->links[node->n_links].endpoint)
        return POISE_NONE;
    memcpy(node->links[node->n_links].endpoint, endpoint, n);
    node->links[node->n_links].heard_ms = node->now_ms;
    node->links[node->n_links].down_ms = 0;
    node->links[node->n_links].secure = n == 0 || strncmp(endpoint, "ipc://", 6) == 0; /* else NODE_LINK_UP says so */
    node->links[node->n_links].why[0] = 0;
    return node->n_links++;
}

/* Endpoints, separated by commas; nothing at all is the coordinator of this process. */
int node_add_links(struct node *node, struct job *job, const char *list)
{
    const char *at = list ? list : "";

    do {
        size_t n = strcspn(at, ",");
        uint32_t link = POISE_NONE;

        if (n || !*list || job->n_links == 0)
            link = add_link(node, at, n);
        if (link == POISE_NONE && (n || job->n_links == 0))
            return -ENOMEM;
        if (link != POISE_NONE && job_link(job, link) == POISE_NONE && job->n_links < NODE_MAX_LINKS)
            job->links[job->n_links++] = link;
        at += n;
    } while (*at++ == ',');
    job->n_listed = job->n_links;
    return 0;
}

/* A coordinator of a further node, of this one too. Without memory, or with too many: in the next turn. */
static bool ask(struct node *node, struct local_epoch *epoch, const struct wire_listen *listen)
{
    const char *endpoint = listen->node == epoch->number ? "" : listen->endpoint;
    struct job *job = epoch->job;
    uint32_t n_before = node->n_links, link = n_before < NODE_LINKS ? add_link(node, endpoint, strlen(endpoint)) : POISE_NONE;

    if (link == POISE_NONE || job_link(job, link) != POISE_NONE || job->n_links == NODE_MAX_LINKS)
        return false;
    if (link == n_before)
        node->links[link].heard_ms = 0; /* it was never heard: the deadline goes by those that were */
    job->links[job->n_links++] = link;
    out_log(&node->out, LOG_LEVEL_WARNING, "node: group %s: its coordinators are silent, node %u at %.150s is asked",
            epoch->label, listen->node, listen->endpoint);
    node_send_members(node, job, link);
    return true;
}

/*
 * No coordinator is heard: those of further nodes are asked, in the order of ranks, so that all nodes come to the same ones
 * without a word between them.
 */
void node_ask_further(struct node *node, struct local_epoch *epoch)
{
    uint32_t n = 0;

    if (epoch->next_listen == epoch->n_listens || node->now_ms < epoch->further_ms + node->config.silence_ms)
        return;
    for (uint32_t i = 0; i < epoch->job->n_links; i++)
        if (node->now_ms < node->links[epoch->job->links[i]].heard_ms + node->config.silence_ms)
            return;
    epoch->further_ms = node->now_ms;
    while (n < NODE_ASKED && epoch->next_listen < epoch->n_listens)
        n += ask(node, epoch, &epoch->listens[epoch->next_listen++]);
}

uint32_t node_count_endpoints(const char *list)
{
    uint32_t n = 1;

    for (const char *at = list ? list : ""; *at; at++)
        n += *at == ',';
    return n;
}

/* Proof of nothing in an epoch: there silence is measured by what is heard. */
void node_link_down(const struct node *node, struct node_link *link, const char *why)
{
    if (!link->down_ms)
        link->down_ms = node->now_ms + 1; /* 0 says that it is not */
    snprintf(link->why, sizeof link->why, "%s", why ? why : "");
}

/* An attempt to open that waits for coordinators of which none can be connected to: they are named, long before the
 * process's own deadline, which would only know that nothing came. */
void node_check_links(struct node *node, struct job *job)
{
    struct wire_abort abort = {.rank = POISE_NONE, .replica = POISE_NONE};
    uint64_t since = 0;
    char list[360] = "";

    for (uint32_t i = 0; i < job->n_links; i++) {
        const struct node_link *link = &node->links[job->links[i]];

        if (!link->down_ms)
            return;
        since = link->down_ms > since ? link->down_ms : since;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s %s (%s)", i ? "," : "", link->endpoint,
                 link->why[0] ? link->why : "nobody answers");
    }
    if (node->now_ms < since + node->config.node_timeout_ms)
        return;
    memcpy(abort.job, job->job, sizeof abort.job);
    memcpy(abort.group, job->group, sizeof abort.group);
    err_set(&abort.error, -ETIMEDOUT, "no coordinator of %s/%s can be reached for %llu ms:%s", job->job, job->group,
            (unsigned long long)node->config.node_timeout_ms, list);
    for (uint32_t i = 0; i < node->n_sessions; i++) {
        struct session *session = node->sessions[i];

        if (session->job == job && session->state == SESSION_JOINING && wire_id_none(session->join->join.epoch) &&
            node->now_ms >= session->joined_ms + node->config.node_timeout_ms)
            session_abort(node, session, &abort);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training process as its library behaves: joins, submits ahead within its window, keeps its ledger, asks again for what
 * does not come, and leaves when its peers have what it took part in. A few rules can be broken by configuration, to show
 * that the simulation would notice.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/planner.h"
#include "proto/schema.h"
#include "tests/sim/cluster.h"

#define PULL_MS 2000u

static void fill_join(struct sim *sim, const struct sim_process *p, struct wire_message *msg)
{
    struct wire_join *join = &msg->join;
    static char all[] = "c0,c1,c2", two[] = "c0,c1", one[] = "c0", second[] = "c1";
    bool odd = sim->config.one_coordinator && p->node % 2;

    memset(msg, 0, sizeof *msg);
    msg->type = WIRE_JOIN;
    strcpy(join->job, "qwen");
    strcpy(join->group, "dp");
    join->rank = p->rank;
    join->n_ranks = sim->config.n_ranks;
    join->replica = p->replica;
    join->n_replicas = sim->config.n_replicas;
    join->incarnation = p->incarnation;
    join->epoch = p->epoch;
    join->first_step = sim->config.first_step;
    join->wire_version = WIRE_VERSION;
    join->planner_version = PLANNER_VERSION;
    join->pid = 1000 + p->rank * 10 + p->replica;
    snprintf(join->host, sizeof join->host, "host%u", p->node);
    join->coordinators = sim->config.n_coordinators == 3 ? all : sim->config.n_coordinators == 2 ? two : one;
    if (sim->config.one_coordinator)
        join->coordinators = odd ? second : one;
    join->n_options = sim->n_options;
    join->options = sim->config.differ_rank == p->rank + 1 ? sim->other_options : sim->options;
}

static void send_join(struct sim *sim, struct sim_process *p)
{
    struct node_event event = {.kind = NODE_SESSION, .session = 0, .uid = 1000, .pid = 1000 + p->rank * 10 + p->replica};
    struct wire_message msg;

    p->session = event.session = sim_new_session(sim, p);
    p->connected = true;
    sim_node_event(sim, p->node, &event);
    fill_join(sim, p, &msg);
    sim_to_node(sim, p, &msg);
}

void trainer_open(struct sim *sim, struct sim_process *p)
{
    ledger_free(p->ledger);
    p->ledger = NULL;
    if (ledger_new(sim->config.first_step, WIRE_WINDOW, &p->ledger) < 0)
        abort();
    p->alive = true;
    p->running = p->left = p->over = p->ended = p->leaving = false;
    p->epoch = p->told = p->told_own = (struct wire_id){0, 0};
    p->n_consumed = 0;
    p->n_roster = p->n_aborts = 0;
    p->error.code = 0;
    p->incarnation.opened_ns = sim->now_ms * 1000000 + p->rank;
    p->incarnation.random = sim_random(sim, UINT64_MAX);
    send_join(sim, p);
}

/* -------------------------------------------------------------------------------------------------------------- metadata */

#define MAX_FIELDS 2

/* Odd ranks have a padded text, every third rank a grid too, from step 3 on; rank 0 declares nothing before step 2. */
static uint32_t fill_table(const struct sim *sim, const struct sim_process *p, uint64_t step, struct wire_field *fields)
{
    uint64_t at = step - sim->config.first_step;
    uint32_t n = 0;

    if (p->rank == 0 && at < 2)
        return 0;
    memset(fields, 0, MAX_FIELDS * sizeof *fields);
    if (p->rank % 3 == 0 && at >= 3) {
        strcpy(fields[n].name, "grid");
        fields[n].dtype = POISE_I32;
        fields[n].n_dims = 1;
        fields[n++].shape[0] = 3;
    }
    strcpy(fields[n].name, "text");
    fields[n].dtype = POISE_I32;
    fields[n].assembly = POISE_PADDED;
    fields[n].n_dims = 1;
    fields[n].shape[0] = -1;
    strcpy(fields[n].axis_name[0], "tokens");
    fields[n++].pad_multiple = 1;
    return n;
}

struct columns_of {
    struct wire_field fields[MAX_FIELDS];
    struct wire_table table;
    uint64_t bytes[512], loss[512], length[512], tags[512];
    uint32_t extent[512];
};

static void fill_meta(struct sim *sim, const struct sim_process *p, uint64_t step, struct columns_of *c,
                      struct wire_message *msg, struct wire_meta *meta)
{
    const struct sim_config *config = &sim->config;

    memset(msg, 0, sizeof *msg);
    memset(meta, 0, sizeof *meta);
    msg->type = WIRE_META;
    msg->meta.n_metas = 1;
    msg->meta.metas = meta;
    meta->epoch = p->epoch;
    meta->step = step;
    meta->rank = p->rank;
    meta->replica = p->replica;
    meta->incarnation = p->incarnation;
    meta->mode = p->mode;
    meta->speed_ppm = 1000000;
    meta->n_phases = 1;
    if (p->rank < 8 && config->end_step[p->rank] && step >= config->end_step[p->rank])
        meta->kind = WIRE_META_END;
    else if (config->bad_step && step == config->bad_step && p->rank == config->bad_rank) {
        meta->kind = WIRE_META_BAD;
        meta->error.code = -EINVAL;
        meta->error.sample = 3;
        strcpy(meta->error.text, "the loader raised: no such file");
    }
    meta->n_samples = oracle_n_samples(config, p->rank, step);
    c->table.n_fields = fill_table(sim, p, step, c->fields);
    c->table.fields = c->fields;
    meta->table_hash = schema_hash(&c->table);
    meta->n_extents = c->table.n_fields > 0;
    meta->has_columns = p->replica == 0 && meta->kind == WIRE_META_SAMPLES;
    for (uint32_t i = 0; i < meta->n_samples; i++) {
        c->length[i] = oracle_length(config, p->rank, step, i);
        c->bytes[i] = c->length[i] * 4;
        c->loss[i] = c->length[i];
        c->tags[i] = (uint64_t)p->rank << 32 | i;
        c->extent[i] = (uint32_t)c->length[i];
    }
    meta->bytes = c->bytes;
    meta->loss_tokens = c->loss;
    meta->length = c->length;
    meta->extent = c->extent;
    meta->digest = wire_meta_digest(meta, c->tags);
}

static struct columns_of columns; /* one at a time; too large for the stack */

const struct wire_message *trainer_meta(struct sim *sim, const struct sim_process *p, uint64_t step)
{
    static struct wire_message msg;
    static struct wire_meta meta;

    fill_meta(sim, p, step, &columns, &msg, &meta);
    return &msg;
}

static void submit(struct sim *sim, struct sim_process *p)
{
    struct wire_message msg, *copy;
    struct wire_meta meta;
    struct poise_err err;

    fill_meta(sim, p, ledger_next_submit(p->ledger), &columns, &msg, &meta);
    if (!wire_id_is(meta.table_hash, p->told_own))
        meta.table = &columns.table;
    p->told_own = meta.table_hash;
    if (wire_copy(&msg, &copy) < 0)
        abort();
    if (ledger_submit(p->ledger, copy, &err) < 0) {
        sim_fail(sim, "rank %u: %s", p->rank, err.text);
        wire_free(copy);
        return;
    }
    sim_to_node(sim, p, copy);
}

static void on_need(struct sim *sim, struct sim_process *p, const struct wire_message *ask)
{
    const struct wire_message *kept = ledger_meta(p->ledger, ask->ask.step);
    uint64_t decided = ledger_next_decide(p->ledger);
    struct wire_message msg;
    struct wire_meta meta;

    if (sim->config.forget_early && decided >= ask->ask.step + WIRE_WINDOW) /* right: once step + W is decided itself */
        kept = NULL;
    if (sim->config.answer_undecided && ask->ask.step < decided)
        kept = NULL;
    if (!kept)
        return;
    msg = *kept;
    meta = kept->meta.metas[0];
    msg.meta.metas = &meta;
    if (ask->ask.want_table) {
        columns.table.n_fields = fill_table(sim, p, ask->ask.step, columns.fields);
        columns.table.fields = columns.fields;
        meta.table = &columns.table;
    }
    if (sim->config.rewrite && meta.n_samples && meta.has_columns) {
        memcpy(columns.length, meta.length, meta.n_samples * sizeof *columns.length);
        columns.length[0] += 977;
        meta.length = columns.length;
    }
    sim_to_node(sim, p, &msg);
}

/* -------------------------------------------------------------------------------------------------------------- outcomes */

static void pull(struct sim *sim, struct sim_process *p, uint64_t step, bool want_table)
{
    struct wire_message msg = {.type = WIRE_PULL};

    msg.ask.epoch = p->epoch;
    msg.ask.step = step;
    msg.ask.want_table = want_table;
    sim_to_node(sim, p, &msg);
}

static void on_outcome(struct sim *sim, struct sim_process *p, const struct wire_message *msg)
{
    const struct wire_outcome *outcome = &msg->outcome;
    bool lacks = !wire_id_none(outcome->table_hash) && !outcome->table && !wire_id_is(outcome->table_hash, p->told);
    struct wire_message *copy;
    struct poise_err err;
    int r;

    if (outcome->table) {
        p->told = outcome->table_hash;
        p->n_tables++;
    }
    if (wire_copy(msg, &copy) < 0)
        abort();
    r = ledger_decide(p->ledger, copy, &err);
    if (r < 0)
        wire_free(copy);
    if (r == -EAGAIN)
        pull(sim, p, ledger_next_decide(p->ledger), false);
    else if (r < 0 && r != -EALREADY)
        sim_fail(sim, "rank %u replica %u: %s", p->rank, p->replica, err.text);
    if (r < 0)
        return;
    if (lacks)
        pull(sim, p, outcome->step, true); /* an engine would wait for it before assembling */
    p->progress_ms = sim->now_ms;
    p->n_bad += outcome->kind == WIRE_OUTCOME_ERROR;
    p->ended |= outcome->kind == WIRE_OUTCOME_END;
    oracle_outcome(sim, p, msg);
}

void trainer_message(struct sim *sim, struct sim_process *p, const struct wire_message *msg)
{
    switch (msg->type) {
    case WIRE_ROSTER:
        p->n_roster++;
        if (!p->running && !p->over) {
            p->running = true;
            p->epoch = msg->roster.epoch;
            p->load_ready_ms = p->compute_ready_ms = p->progress_ms = sim->now_ms;
        }
        break;
    case WIRE_OUTCOME:
        on_outcome(sim, p, msg);
        break;
    case WIRE_NEED:
        on_need(sim, p, msg);
        break;
    case WIRE_FORMING:
        p->forming = msg->forming;
        break;
    case WIRE_MODE:
        p->mode = msg->mode.mode;
        break;
    case WIRE_ABORT:
    case WIRE_REFUSED:
        p->n_aborts++;
        if (msg->type == WIRE_ABORT && msg->abort.left) {
            p->leaving = true;
            p->leave_step = msg->abort.step;
        } else {
            p->over = true;
        }
        p->error = msg->type == WIRE_ABORT ? msg->abort.error : msg->refused.error;
        p->error_ms = sim->now_ms;
        break;
    default:
        sim_fail(sim, "rank %u gets a %s", p->rank, wire_type_name(msg->type));
    }
    trainer_pump(sim, p);
}

void trainer_reconnect(struct sim *sim, struct sim_process *p)
{
    send_join(sim, p);
    if (!p->running || p->over)
        return;
    for (uint64_t step = ledger_next_decide(p->ledger); step < ledger_next_submit(p->ledger); step++) {
        sim_to_node(sim, p, ledger_meta(p->ledger, step));
        pull(sim, p, step, false);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ life */

static uint64_t last_wanted(const struct sim *sim, const struct sim_process *p)
{
    uint64_t n = sim->config.n_steps;

    if (sim->config.leave_after && p->rank == sim->config.leave_rank && sim->config.leave_after < n)
        n = sim->config.leave_after;
    if (p->leaving && p->leave_step + 1 - sim->config.first_step < n)
        n = p->leave_step + 1 - sim->config.first_step;
    return n;
}

/* Receivers are done: every living process has decided all steps that this one took part in. */
static bool served(const struct sim *sim, const struct sim_process *p)
{
    for (uint32_t i = 0; i < sim->n_processes; i++) {
        const struct sim_process *other = &sim->processes[i];

        if (other->alive && !other->left && !other->over && !other->ended &&
            ledger_next_decide(other->ledger) < sim->config.first_step + p->n_consumed)
            return false;
    }
    return true;
}

static void leave(struct sim *sim, struct sim_process *p)
{
    struct wire_message msg = {.type = WIRE_LEAVE};

    msg.leave.epoch = p->epoch;
    msg.leave.submitted = ledger_next_submit(p->ledger) - sim->config.first_step;
    msg.leave.ended = p->ended;
    p->left = true;
    sim_to_node(sim, p, &msg);
    sim_end_session(sim, p);
}

static void consume(struct sim *sim, struct sim_process *p)
{
    uint64_t decided = ledger_next_decide(p->ledger) - sim->config.first_step;

    if (p->n_consumed >= decided || sim->now_ms < p->compute_ready_ms)
        return;
    p->n_consumed++;
    p->progress_ms = sim->now_ms;
    p->compute_ready_ms = sim->now_ms + sim_random(sim, sim->config.compute_ms + 1);
}

static bool may_submit(const struct sim *sim, const struct sim_process *p)
{
    uint64_t next = ledger_next_submit(p->ledger) - sim->config.first_step;

    return p->connected && !p->ended && ledger_may_submit(p->ledger) && next < last_wanted(sim, p) &&
           next < p->n_consumed + (sim->config.depth ? sim->config.depth : 4);
}

static void pull_again(struct sim *sim, struct sim_process *p)
{
    if (sim->now_ms < p->progress_ms + PULL_MS || sim->now_ms < p->pull_ms + PULL_MS || !p->connected)
        return;
    p->pull_ms = sim->now_ms;
    for (uint64_t step = ledger_next_decide(p->ledger); step < ledger_next_submit(p->ledger); step++)
        pull(sim, p, step, false);
}

void trainer_pump(struct sim *sim, struct sim_process *p)
{
    uint64_t next;

    if (!p->alive || !p->running || p->left || p->over)
        return;
    consume(sim, p);
    if (may_submit(sim, p) && sim->now_ms >= p->load_ready_ms) {
        submit(sim, p);
        p->load_ready_ms = sim->now_ms + sim_random(sim, sim->config.load_ms + 1);
    }
    if (sim->config.leave_hasty && p->rank == sim->config.leave_rank &&
        ledger_next_submit(p->ledger) - sim->config.first_step >= sim->config.leave_after) {
        leave(sim, p);
        return;
    }
    if ((p->ended || p->n_consumed >= last_wanted(sim, p)) && served(sim, p) && p->connected) {
        leave(sim, p);
        return;
    }
    pull_again(sim, p);
    next = sim->now_ms + 500;
    if (may_submit(sim, p) && p->load_ready_ms < next)
        next = p->load_ready_ms > sim->now_ms ? p->load_ready_ms : sim->now_ms + 1;
    if (p->n_consumed + sim->config.first_step < ledger_next_decide(p->ledger) && p->compute_ready_ms < next)
        next = p->compute_ready_ms > sim->now_ms ? p->compute_ready_ms : sim->now_ms + 1;
    sim_wake(sim, p, next);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock and the network. One heap of events by (time, number of creation); equal seeds give equal runs.
 */
#include "tests/sim/cluster.h"

#include <assert.h>
#include <criterion/criterion.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/poison.h"

enum kind { TO_NODE_FROM_PROCESS, TO_NODE_FROM_COORDINATOR, TO_PROCESS, TO_COORDINATOR, NODE_TICKS, COORDINATOR_TICKS, SESSION_ENDS, WAKE };

struct sim_event {
    uint64_t at_ms, seq;
    enum kind kind;
    uint32_t to, generation; /* which one, and which life of it */
    uint64_t session, link;
    uint8_t *bytes;
    size_t n_bytes;
};

uint64_t sim_random(struct sim *sim, uint64_t below)
{
    sim->random ^= sim->random << 13;
    sim->random ^= sim->random >> 7;
    sim->random ^= sim->random << 17;
    return below ? sim->random * 0x2545f4914f6cdd1du % below : 0;
}

void sim_fail(struct sim *sim, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    if (sim->n_failures++ == 0)
        vsnprintf(sim->failure, sizeof sim->failure, format, ap);
    va_end(ap);
    if (!sim->quiet && sim->n_failures == 1)
        cr_assert_fail("seed %lu, %lu ms: %s", (unsigned long)sim->config.seed, (unsigned long)sim->now_ms, sim->failure);
}

/* ----------------------------------------------------------------------------------------------------------------- heap */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->seq < b->seq;
}

static void push(struct sim *sim, struct sim_event event)
{
    struct sim_event *e = malloc(sizeof *e);
    uint32_t i = sim->n_heap++;

    if (sim->n_heap > sim->cap_heap) {
        sim->cap_heap = sim->cap_heap * 2 + 64;
        sim->heap = realloc(sim->heap, sim->cap_heap * sizeof *sim->heap);
    }
    *e = event;
    e->seq = sim->seq++;
    while (i > 0 && before(e, sim->heap[(i - 1) / 2])) {
        sim->heap[i] = sim->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sim->heap[i] = e;
}

static struct sim_event *pop(struct sim *sim)
{
    struct sim_event *top = sim->heap[0], *last = sim->heap[--sim->n_heap];
    uint32_t i = 0;

    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child >= sim->n_heap)
            break;
        if (child + 1 < sim->n_heap && before(sim->heap[child + 1], sim->heap[child]))
            child++;
        if (!before(sim->heap[child], last))
            break;
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    sim->heap[i] = last;
    return top;
}

/* ------------------------------------------------------------------------------------------------------------- messages */

static void encode(const struct wire_message *msg, struct sim_event *event)
{
    struct poise_err err;

    if (wire_encode(msg, &event->bytes, &event->n_bytes, &err) < 0)
        cr_assert_fail("%s cannot be encoded: %s", wire_type_name(msg->type), err.text);
}

/* Over the lossy part. */
static void post(struct sim *sim, struct sim_event event, const struct wire_message *msg)
{
    bool doubled = sim_random(sim, 1000000) < sim->config.double_ppm;
    uint64_t node = event.kind == TO_COORDINATOR ? event.link >> 16 : event.to;
    uint64_t coordinator = event.kind == TO_COORDINATOR ? event.to : event.link;

    if (node < 64 && sim->cut[coordinator] >> node & 1)
        return;

    for (int i = 0; i < 1 + doubled; i++) {
        if (sim_random(sim, 1000000) < sim->config.loss_ppm)
            continue;
        event.at_ms = sim->now_ms + sim_random(sim, sim->config.delay_ms + 1);
        encode(msg, &event);
        push(sim, event);
    }
}

static uint64_t node_link_number(const struct sim *sim, uint32_t node)
{
    return (uint64_t)node << 16 | sim->nodes[node].generation;
}

static void log_lines(struct sim *sim, const char *who, uint32_t i, const struct core_update *up)
{
    for (uint32_t k = 0; k < up->n_logs; k++) {
        char line[400];
        int n;

        if (sim->trace)
            printf("%8lu %s%u: %s\n", (unsigned long)sim->now_ms, who, i, up->logs[k].text);
        if (up->logs[k].level > 6 || sim->n_log > 1u << 20)
            continue;
        n = snprintf(line, sizeof line, "%s%u: %s\n", who, i, up->logs[k].text);
        sim->log = realloc(sim->log, sim->n_log + (size_t)n + 1);
        memcpy(sim->log + sim->n_log, line, (size_t)n + 1);
        sim->n_log += (size_t)n;
    }
}

static void trace(const struct sim *sim, const char *what, uint32_t from, uint64_t to, const struct wire_message *msg)
{
    if (sim->trace)
        printf("%8lu %s %u > %lu %s\n", (unsigned long)sim->now_ms, what, from, (unsigned long)to,
               wire_type_name(msg->type));
}

static void tick_at(struct sim *sim, enum kind kind, uint32_t i, uint32_t generation, uint64_t next_ms, uint64_t *tick_ms)
{
    if (next_ms == UINT64_MAX)
        return;
    if (next_ms <= sim->now_ms)
        next_ms = sim->now_ms + 1;
    if (*tick_ms > sim->now_ms && *tick_ms <= next_ms)
        return; /* comes earlier: it asks again then */
    *tick_ms = next_ms;
    push(sim, (struct sim_event){.at_ms = next_ms, .kind = kind, .to = i, .generation = generation});
}

static void apply_coordinator(struct sim *sim, uint32_t i, const struct core_update *up)
{
    struct sim_coordinator *c = &sim->coordinators[i];

    log_lines(sim, "coordinator ", i, up);
    for (uint32_t k = 0; k < up->n_sends; k++) {
        uint32_t node = (uint32_t)(up->sends[k].to >> 16);

        trace(sim, "coordinator", i, node, up->sends[k].msg);
        if (up->sends[k].msg->type == WIRE_OUTCOME)
            oracle_pure(sim, up->sends[k].msg);
        cr_assert_lt(node, sim->config.n_nodes);
        if (up->sends[k].to == node_link_number(sim, node))
            post(sim, (struct sim_event){.kind = TO_NODE_FROM_COORDINATOR, .to = node, .generation = sim->nodes[node].generation,
                                         .link = i}, up->sends[k].msg);
    }
    for (uint32_t k = 0; k < up->n_publishes; k++)
        for (uint32_t node = 0; node < sim->config.n_nodes; node++)
            if (sim->nodes[node].node)
                post(sim, (struct sim_event){.kind = TO_NODE_FROM_COORDINATOR, .to = node,
                                             .generation = sim->nodes[node].generation, .link = i}, up->publishes[k]);
    tick_at(sim, COORDINATOR_TICKS, i, c->generation, up->next_ms, &c->tick_ms);
}

static jmp_buf death;
static uint64_t fatal_step;

static void kill_plan(struct wire_id epoch, uint64_t step)
{
    (void)epoch;
    if (fatal_step && step == fatal_step)
        longjmp(death, 1);
}

static void coordinator_event(struct sim *sim, uint32_t i, struct coordinator_event *event)
{
    struct core_update up;
    struct poise_err err;

    if (!sim->coordinators[i].coordinator)
        return;
    event->now_ms = sim->now_ms;
    if (setjmp(death)) { /* of planning: what is half made is as good as lost */
        sim->coordinators[i].n_deaths++;
        sim_kill_coordinator(sim, i);
        if (!sim->keeps_down)
            sim_start_coordinator(sim, i);
        return;
    }
    fatal_step = sim->fatal_step;
    if (coordinator_step(sim->coordinators[i].coordinator, event, &up, &err) < 0)
        cr_assert_fail("coordinator: %s", err.text);
    apply_coordinator(sim, i, &up);
}

void sim_inject(struct sim *sim, uint32_t coordinator, uint32_t node, const struct wire_message *msg)
{
    struct coordinator_event event = {.kind = COORDINATOR_FROM_NODE, .link = node_link_number(sim, node), .msg = msg};

    coordinator_event(sim, coordinator, &event);
}

/* Which coordinator a node means: "" is its own. */
static uint32_t coordinator_at(const struct sim *sim, uint32_t node, const char *endpoint)
{
    return *endpoint ? (uint32_t)(endpoint[1] - '0') : sim->config.n_coordinators + node;
}

static void apply_node(struct sim *sim, uint32_t i, const struct core_update *up)
{
    struct sim_node *node = &sim->nodes[i];

    log_lines(sim, "node ", i, up);
    for (uint32_t k = 0; k < up->n_sends; k++) {
        const struct core_send *send = &up->sends[k];

        trace(sim, send->up ? "node up" : "node down", i, send->to, send->msg);
        if (send->up) {
            uint32_t to = coordinator_at(sim, i, node_link_endpoint(node->node, send->to));

            if (to < SIM_COORDINATORS && sim->coordinators[to].coordinator)
                post(sim, (struct sim_event){.kind = TO_COORDINATOR, .to = to, .generation = sim->coordinators[to].generation,
                                             .link = node_link_number(sim, i)}, send->msg);
        } else {
            struct sim_event event = {.at_ms = sim->now_ms, .kind = TO_PROCESS, .session = send->to, .to = i};

            encode(send->msg, &event);
            push(sim, event);
        }
    }
    tick_at(sim, NODE_TICKS, i, node->generation, up->next_ms, &node->tick_ms);
}

void sim_node_event(struct sim *sim, uint32_t i, const struct node_event *event)
{
    struct node_event now = *event;
    struct core_update up;
    struct poise_err err;

    if (!sim->nodes[i].node)
        return;
    now.now_ms = sim->now_ms;
    if (node_step(sim->nodes[i].node, &now, &up, &err) < 0)
        cr_assert_fail("node: %s", err.text);
    apply_node(sim, i, &up);
}

void sim_to_node(struct sim *sim, struct sim_process *p, const struct wire_message *msg)
{
    struct sim_event event = {.at_ms = sim->now_ms, .kind = TO_NODE_FROM_PROCESS, .to = p->node,
                              .generation = sim->nodes[p->node].generation, .session = p->session};

    encode(msg, &event);
    push(sim, event);
}

void sim_end_session(struct sim *sim, struct sim_process *p)
{
    push(sim, (struct sim_event){.at_ms = sim->now_ms, .kind = SESSION_ENDS, .to = p->node,
                                 .generation = sim->nodes[p->node].generation, .session = p->session});
}

void sim_wake(struct sim *sim, struct sim_process *p, uint64_t at_ms)
{
    if (p->wake_ms > sim->now_ms && p->wake_ms <= at_ms)
        return;
    p->wake_ms = at_ms;
    push(sim, (struct sim_event){.at_ms = at_ms, .kind = WAKE, .to = (uint32_t)(p - sim->processes)});
}

/* --------------------------------------------------------------------------------------------------------------- turning */

uint64_t sim_new_session(struct sim *sim, const struct sim_process *process)
{
    uint64_t session = ++sim->next_session;

    if (session >= sim->cap_sessions) {
        sim->cap_sessions = sim->cap_sessions * 2 + 64;
        sim->of_session = realloc(sim->of_session, sim->cap_sessions * sizeof *sim->of_session);
    }
    sim->of_session[session] = (uint32_t)(process - sim->processes);
    return session;
}

static struct sim_process *process_of(struct sim *sim, uint32_t node, uint64_t session)
{
    struct sim_process *p = &sim->processes[sim->of_session[session]];

    return p->alive && p->node == node && p->session == session ? p : NULL;
}

static bool stalls(struct sim *sim, struct sim_event *event, bool stalled)
{
    if (!stalled)
        return false;
    event->at_ms = sim->now_ms + 20; /* it waits in a buffer */
    push(sim, *event);
    event->bytes = NULL;
    return true;
}

static void turn_node(struct sim *sim, struct sim_event *event, const struct wire_message *msg)
{
    struct sim_node *node = &sim->nodes[event->to];
    struct node_event to = {.session = event->session, .link = event->link, .msg = msg};

    if (node->generation != event->generation || stalls(sim, event, node->stalled))
        return;
    to.kind = event->kind == NODE_TICKS             ? NODE_TICK
              : event->kind == SESSION_ENDS         ? NODE_SESSION_END
              : event->kind == TO_NODE_FROM_PROCESS ? NODE_FROM_PROCESS
                                                    : NODE_FROM_COORDINATOR;
    if (to.kind == NODE_FROM_COORDINATOR) { /* the node's own number of the coordinator's endpoint */
        const char *endpoint;

        for (to.link = 0; node->node && (endpoint = node_link_endpoint(node->node, to.link)); to.link++)
            if (coordinator_at(sim, event->to, endpoint) == event->link % 10)
                break;
        if (!node->node || !node_link_endpoint(node->node, to.link))
            return;
    }
    sim_node_event(sim, event->to, &to);
}

static void turn(struct sim *sim, struct sim_event *event)
{
    struct wire_message *msg = NULL;
    struct sim_process *process;
    struct poise_err err;

    if (event->bytes && wire_decode(event->bytes, event->n_bytes, 0, &msg, &err) < 0)
        cr_assert_fail("a message cannot be decoded: %s", err.text);
    switch (event->kind) {
    case TO_NODE_FROM_PROCESS:
    case TO_NODE_FROM_COORDINATOR:
    case NODE_TICKS:
    case SESSION_ENDS:
        turn_node(sim, event, msg);
        break;
    case TO_COORDINATOR:
    case COORDINATOR_TICKS: {
        struct sim_coordinator *c = &sim->coordinators[event->to];
        struct coordinator_event to = {.kind = msg ? COORDINATOR_FROM_NODE : COORDINATOR_TICK, .link = event->link, .msg = msg};

        if (c->generation == event->generation && !stalls(sim, event, c->stalled))
            coordinator_event(sim, event->to, &to);
        break;
    }
    case TO_PROCESS:
        process = process_of(sim, event->to, event->session);
        if (process && process->connected)
            trainer_message(sim, process, msg);
        break;
    case WAKE:
        process = &sim->processes[event->to];
        if (process->alive && !process->ledger)
            trainer_open(sim, process);
        else
            trainer_pump(sim, process);
        break;
    }
    wire_free(msg);
}

bool sim_finished(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->n_processes; i++)
        if (sim->processes[i].alive && !sim->processes[i].left && !sim->processes[i].over)
            return false;
    return true;
}

void sim_lose(struct sim *sim, uint32_t node)
{
    for (uint32_t i = 0; i < sim->n_heap; i++)
        if (sim->heap[i]->kind == TO_NODE_FROM_COORDINATOR && sim->heap[i]->to == node)
            sim->heap[i]->generation = UINT32_MAX; /* of no life of it */
}

bool sim_all_running(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->n_processes; i++)
        if (!sim->processes[i].running)
            return false;
    return true;
}

bool sim_all_over(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->n_processes; i++)
        if (sim->processes[i].alive && !sim->processes[i].over && !sim->processes[i].left)
            return false;
    return true;
}

bool sim_run(struct sim *sim, uint64_t limit_ms, bool (*until)(const struct sim *))
{
    uint64_t end = sim->now_ms + limit_ms;

    while (!until(sim)) {
        struct sim_event *event;

        if (sim->n_heap == 0 || sim->heap[0]->at_ms > end || (sim->quiet && sim->n_failures)) {
            sim->now_ms = end;
            return false;
        }
        event = pop(sim);
        sim->now_ms = event->at_ms;
        sim->n_events++;
        turn(sim, event);
        free(event->bytes);
        free(event);
    }
    return true;
}

static uint64_t wanted_step;

static bool at_step(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->n_processes; i++)
        if (sim->processes[i].n_consumed >= wanted_step)
            return true;
    return false;
}

bool sim_run_to_step(struct sim *sim, uint64_t n_steps, uint64_t limit_ms)
{
    wanted_step = n_steps;
    return sim_run(sim, limit_ms, at_step);
}

/* ------------------------------------------------------------------------------------------------------ starts and ends */

void sim_start_coordinator(struct sim *sim, uint32_t i)
{
    struct coordinator_config config = {.instance = {7, ++sim->next_instance},
                                        .beacon_ms = 250,
                                        .node_timeout_ms = 10000,
                                        .warn_ms = 60000,
                                        .forget_ms = 30000,
                                        .mark = &sim->coordinators[i].mark};
    struct coordinator_mark found = sim->coordinators[i].mark;
    struct coordinator_event poisoned = {.kind = COORDINATOR_POISONED, .epoch = found.epoch, .step = found.step,
                                         .who = "of node c (simulated)"};

    cr_assert_eq(coordinator_new(&config, &sim->coordinators[i].coordinator), 0);
    sim->coordinators[i].tick_ms = 0;
    core_before_plan = kill_plan;
    if (found.check && found.check == coordinator_mark_check(&found))
        coordinator_event(sim, i, &poisoned);
}

void sim_kill_coordinator(struct sim *sim, uint32_t i)
{
    coordinator_free(sim->coordinators[i].coordinator);
    sim->coordinators[i].coordinator = NULL;
    sim->coordinators[i].generation++;
}

static void new_node(struct sim *sim, uint32_t i)
{
    struct node_config config = {.instance = {9, ++sim->next_instance},
                                 .heartbeat_ms = 1000,
                                 .pull_delay_ms = 20,
                                 .silence_ms = 2000,
                                 .node_timeout_ms = 10000,
                                 .mode = sim->config.mode};

    snprintf(config.name, sizeof config.name, "node%u", i);
    if (sim->config.nodes_listen && sim->config.n_coordinators + i < SIM_COORDINATORS)
        snprintf(config.listen, sizeof config.listen, "c%u", sim->config.n_coordinators + i);
    cr_assert_eq(node_new(&config, &sim->nodes[i].node), 0);
    sim->nodes[i].tick_ms = 0;
}

void sim_start_node(struct sim *sim, uint32_t i)
{
    new_node(sim, i);
    for (uint32_t k = 0; k < sim->n_processes; k++) {
        struct sim_process *process = &sim->processes[k];

        if (process->node == i && process->alive && !process->connected && !process->left && process->ledger)
            trainer_reconnect(sim, process);
    }
}

void sim_kill_node(struct sim *sim, uint32_t i)
{
    node_free(sim->nodes[i].node);
    sim->nodes[i].node = NULL;
    for (uint32_t k = 0; k < SIM_COORDINATORS; k++) {
        struct coordinator_event event = {.kind = COORDINATOR_LINK_DOWN, .link = node_link_number(sim, i)};

        coordinator_event(sim, k, &event);
    }
    sim->nodes[i].generation++;
    for (uint32_t k = 0; k < sim->n_processes; k++)
        if (sim->processes[k].node == i)
            sim->processes[k].connected = false;
}

static struct sim_process *process_at(struct sim *sim, uint32_t rank, uint32_t replica)
{
    return &sim->processes[rank * sim->config.n_replicas + replica];
}

void sim_kill_process(struct sim *sim, uint32_t rank, uint32_t replica)
{
    struct sim_process *process = process_at(sim, rank, replica);
    struct node_event event = {.kind = NODE_SESSION_END, .session = process->session};

    process->alive = false;
    if (process->connected)
        sim_node_event(sim, process->node, &event);
    process->connected = false;
}

void sim_reopen_process(struct sim *sim, uint32_t rank, uint32_t replica)
{
    trainer_open(sim, process_at(sim, rank, replica));
}

bool sim_logged(const struct sim *sim, const char *text)
{
    return sim->log && strstr(sim->log, text);
}

static void make_options(struct sim *sim)
{
    struct options options = {.n_phases = 1,
                              .algorithm = "greedy",
                              .tolerance_ppm = 10000,
                              .micro_batch_size = 2,
                              .stages = 1,
                              .end = sim->config.end,
                              .audit = sim->config.audit};
    struct poise_err err;

    strcpy(options.phases[0].name, "llm");
    options.phases[0].linear = 1;
    options.phases[0].passes = 1;
    if (options_write(&options, &sim->options, &sim->n_options, &err) < 0)
        cr_assert_fail("%s", err.text);
    options.micro_batch_size = 4;
    if (options_write(&options, &sim->other_options, &sim->n_options, &err) < 0)
        cr_assert_fail("%s", err.text);
}

static void make_processes(struct sim *sim)
{
    const struct sim_config *config = &sim->config;

    sim->n_processes = config->n_ranks * config->n_replicas;
    sim->processes = calloc(sim->n_processes, sizeof *sim->processes);
    for (uint32_t i = 0; i < sim->n_processes; i++) {
        struct sim_process *process = &sim->processes[i];
        uint32_t block = config->spread ? i % config->n_replicas * config->n_ranks + i / config->n_replicas : i;

        process->rank = i / config->n_replicas;
        process->replica = i % config->n_replicas;
        process->node = (uint32_t)((uint64_t)block * config->n_nodes / sim->n_processes);
        process->mode = config->mode;
        process->alive = config->missing_rank != process->rank + 1;
        if (process->alive)
            sim_wake(sim, process, 1 + sim_random(sim, 50));
    }
}

void sim_start(struct sim *sim, const struct sim_config *config)
{
    memset(sim, 0, sizeof *sim);
    sim->config = *config;
    sim->random = config->seed * 2 + 1;
    sim->nodes = calloc(config->n_nodes, sizeof *sim->nodes);
    sim->n_step_slots = (uint32_t)config->n_steps + 32;
    sim->steps = calloc(sim->n_step_slots, sizeof *sim->steps);
    cr_assert(config->max_samples < 512 && config->n_coordinators <= SIM_COORDINATORS);
    make_options(sim);
    for (uint32_t i = 0; i < (config->nodes_listen ? SIM_COORDINATORS : config->n_coordinators); i++)
        sim_start_coordinator(sim, i);
    for (uint32_t i = 0; i < config->n_nodes; i++)
        new_node(sim, i);
    make_processes(sim);
}

void sim_forget_steps(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->n_step_slots; i++) {
        for (uint32_t rank = 0; sim->steps[i].slices && rank < sim->config.n_ranks; rank++)
            wire_free(sim->steps[i].slices[rank]);
        free(sim->steps[i].slices);
    }
    memset(sim->steps, 0, sim->n_step_slots * sizeof *sim->steps);
    sim->n_checked = sim->n_samples = 0;
}

void sim_stop(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->config.n_nodes; i++)
        node_free(sim->nodes[i].node);
    for (uint32_t i = 0; i < SIM_COORDINATORS; i++)
        coordinator_free(sim->coordinators[i].coordinator);
    for (uint32_t i = 0; i < sim->n_processes; i++)
        ledger_free(sim->processes[i].ledger);
    sim_forget_steps(sim);
    while (sim->n_heap) {
        struct sim_event *event = pop(sim);

        free(event->bytes);
        free(event);
    }
    options_free(sim->options, sim->n_options);
    options_free(sim->other_options, sim->n_options);
    free(sim->heap);
    free(sim->nodes);
    free(sim->steps);
    free(sim->processes);
    free(sim->of_session);
    free(sim->log);
}

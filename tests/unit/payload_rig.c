/* SPDX-License-Identifier: Apache-2.0 */
#include "payload_rig.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "samples.h"

#define WAIT_MS 20000

static struct wire_field fields[RIG_FIELDS];

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void note(void *context, uint64_t step, uint32_t severity, const char *text)
{
    struct rig *rig = context;
    (void)step, (void)severity;
    snprintf(rig->note, sizeof rig->note, "%s", text);
}

/* ----------------------------------------------------------------------------------------------------------- server */

static int step_of(void *context, uint64_t step, struct payload_step *ret_step)
{
    struct rig *rig = context;
    if (rig->step_code < 0)
        return rig->step_code;
    if (step != RIG_STEP)
        return step > RIG_STEP ? -EAGAIN : -ESTALE;
    *ret_step = rig->step;
    return 0;
}

static int sample_of(void *context, uint64_t step, uint32_t index, struct directory_sample *ret_sample,
                     struct value *values, struct poise_err *err)
{
    struct rig *rig = context;
    (void)step, (void)err;
    *ret_sample = rig->samples[index];
    memcpy(values, rig->sent + (size_t)index * RIG_FIELDS, RIG_FIELDS * sizeof *values);
    return 0;
}

static void on_done(void *context, uint64_t step, uint32_t rank)
{
    struct rig *rig = context;
    rig->done_step = step;
    rig->done_rank = rank;
    rig->n_done++;
}

static void on_landed(void *context)
{
    struct rig *rig = context;
    atomic_fetch_add(&rig->n_landed, 1);
}

static const struct payload_server_calls calls = {step_of, sample_of, on_done, on_landed};

static void serve(struct rig *rig, const char *endpoint, uint64_t rate)
{
    size_t n = sizeof rig->endpoint;
    rig->zmq = zmq_ctx_new();
    rig->server_group.zmq = rig->zmq;
    if (rig->server_group.key)
        cr_assert_eq(payload_zap_new(rig->zmq, rig->server_group.key, &rig->zap, &rig->err), 0, "%s", rig->err.text);
    cr_assert_eq(payload_socket_new(rig->zmq, true, rig->server_group.key, &rig->router), 0);
    for (int rc = -1, i = 0; rc < 0; i++) { /* the kernel may still have the old one */
        rc = zmq_bind(rig->router, endpoint);
        cr_assert(rc == 0 || (errno == EADDRINUSE && i < 2000), "%s: %s", endpoint, zmq_strerror(errno));
        if (rc < 0)
            poll(NULL, 0, 10);
    }
    cr_assert_eq(zmq_getsockopt(rig->router, ZMQ_LAST_ENDPOINT, rig->endpoint, &n), 0);
    cr_assert_eq(payload_server_new(&rig->server_group, rig->router, rate, &calls, rig, &rig->server, &rig->err), 0);
}

void rig_cut(struct rig *rig)
{
    payload_zap_free(rig->zap);
    zmq_close(rig->router);
    zmq_ctx_term(rig->zmq);
    payload_server_free(rig->server);
    rig->zap = NULL;
    rig->router = rig->zmq = NULL;
    rig->server = NULL;
}

void rig_serve_again(struct rig *rig)
{
    char endpoint[WIRE_ADDRESS_BYTES];
    memcpy(endpoint, rig->endpoint, sizeof endpoint);
    serve(rig, endpoint, 0);
}

void rig_limit(struct rig *rig, uint64_t max_bytes_per_s)
{
    char endpoint[WIRE_ADDRESS_BYTES];
    memcpy(endpoint, rig->endpoint, sizeof endpoint);
    rig_cut(rig);
    serve(rig, endpoint, max_bytes_per_s);
}

/* ---------------------------------------------------------------------------------------------------------- samples */

static void make_samples(struct rig *rig, uint64_t max_rows, uint64_t *seed)
{
    for (uint32_t i = 0; i < rig->n_samples; i++) {
        struct value *values = rig->sent + (size_t)i * RIG_FIELDS;
        uint64_t total = 0;
        values[0] = (struct value){.present = samples_below(seed, 8) != 0, .n_dims = 2,
                                   .shape = {(int64_t)samples_below(seed, max_rows + 1), 16}};
        values[1] = (struct value){.present = samples_below(seed, 4) != 0, .n_dims = 1,
                                   .shape = {(int64_t)samples_below(seed, 40)}};
        for (uint32_t f = 0; f < RIG_FIELDS; f++) {
            uint64_t n = 0;
            if (!values[f].present || value_bytes(&values[f], fields[f].dtype, &n) < 0)
                continue;
            unsigned char *data = malloc(n + 8);
            for (uint64_t b = 0; b < n; b += 8) {
                uint64_t bits = samples_random(seed);
                memcpy(data + b, &bits, 8);
            }
            values[f].data = data;
            total += n;
        }
        rig->samples[i] = (struct directory_sample){.tag = 1000 + i, .bytes = total, .hash = i, .loss_tokens = i};
        rig->out_rank[i] = i % 2 ? 1 : 2;
    }
    rig->step.n_out = rig->n_samples;
    rig->step.out_rank = rig->out_rank;
}

static void arrived(void *context, uint32_t at, uint64_t n_bytes)
{
    struct rig *rig = context;
    rig->arrived[at] += n_bytes;
}

/* Rank 1's odd samples, backwards. */
static void plan(struct rig *rig)
{
    uint32_t n = 0;
    for (uint32_t i = rig->n_samples; i-- > 0;) {
        if (rig->out_rank[i] != 1)
            continue;
        rig->at[n] = n;
        rig->in_index[n] = i;
        rig->in_bytes[n++] = rig->samples[i].bytes;
    }
    rig->slice = (struct wire_slice){.rank = 1, .n_in = n, .in_rank = rig->in_rank, .in_index = rig->in_index,
                                     .in_bytes = rig->in_bytes};
    rig->source = (struct source){.rank = 0, .n = n, .at = rig->at};
    rig->pull = (struct transport_step){.step = RIG_STEP, .plan_id = rig->step.plan_id, .slice = &rig->slice,
                                        .merged = &rig->merged, .samples = rig->got, .values = rig->values,
                                        .arrived = arrived, .context = rig};
}

static struct payload_group group(struct rig *rig, uint32_t rank, struct payload_member *members)
{
    return (struct payload_group){.epoch = {7, 8}, .rank = rank, .n_ranks = 3,
                                  .incarnation = members[rank].incarnation, .members = members, .note = note,
                                  .context = rig};
}

void rig_begin(struct rig *rig, uint32_t n, uint64_t max_rows, bool curve, uint64_t *seed)
{
    struct payload_member *members = calloc(3, sizeof *members);
    uint8_t secret[WIRE_KEY_BYTES];

    memset(rig, 0, sizeof *rig);
    fields[0] = samples_field("rows", POISE_F32, POISE_CONCAT, 0, 2, SHAPE(-1, 16));
    fields[1] = samples_field("text", POISE_BYTES, POISE_OPAQUE, 0, 1, SHAPE(-1));
    rig->merged = (struct merged){.hash = {5, 6}, .table = {.n_fields = RIG_FIELDS, .fields = fields}};
    rig->n_samples = n;
    rig->step = (struct payload_step){.plan_id = {3, 4}, .table_hash = {5, 6}, .table = &rig->merged.table,
                                      .flying = &rig->flying};
    make_samples(rig, max_rows, seed);
    plan(rig);
    for (uint32_t r = 0; r < 3; r++)
        members[r].incarnation = (struct wire_incarnation){.opened_ns = 100 + r, .random = 17 * r};
    rig->server_group = group(rig, 0, members);
    rig->client_group = group(rig, 1, members);
    if (curve) {
        cr_assert_eq(payload_key_make(secret, &rig->err), 0, "%s", rig->err.text);
        cr_assert_eq(payload_key_load(secret, &rig->server_key, &rig->err), 0);
        rig->client_key = rig->server_key;
        rig->server_group.key = &rig->server_key;
        rig->client_group.key = &rig->client_key;
    }
    serve(rig, "tcp://127.0.0.1:*", 0);
    memcpy(members[0].address, rig->endpoint, sizeof members[0].address);
    rig->client_group.zmq = zmq_ctx_new();
    cr_assert_eq(payload_client_new(&rig->client_group, &rig->client, &rig->err), 0);
}

void rig_end(struct rig *rig)
{
    payload_client_close(rig->client, &rig->source);
    payload_client_free(rig->client);
    zmq_ctx_term(rig->client_group.zmq);
    if (rig->server)
        rig_cut(rig);
    cr_assert_eq(rig->flying, 0, "all that was under way has landed");
    for (uint32_t i = 0; i < RIG_SAMPLES * RIG_FIELDS; i++)
        free((void *)(uintptr_t)rig->sent[i].data);
    free(rig->server_group.members);
    free(rig->slot);
}

/* ------------------------------------------------------------------------------------------------------------ turns */

void rig_turn_server(struct rig *rig)
{
    if (rig->zap)
        payload_zap_turn(rig->zap, &rig->refused_keys, NULL);
    payload_server_turn(rig->server, rig->now_ns ? rig->now_ns : now_ms() * 1000000);
}

void rig_turn(struct rig *rig)
{
    bool any = payload_client_turn(rig->client, now_ms());
    if (rig->server && rig->zap)
        any |= payload_zap_turn(rig->zap, &rig->refused_keys, NULL) > 0;
    if (rig->server)
        any |= payload_server_turn(rig->server, rig->now_ns ? rig->now_ns : now_ms() * 1000000);
    if (!any)
        poll(NULL, 0, 1);
}

int rig_entries(struct rig *rig)
{
    int rc = -EAGAIN;
    for (uint64_t until = now_ms() + WAIT_MS; rc == -EAGAIN; rig_turn(rig)) {
        cr_assert_lt(now_ms(), until, "no entries");
        rc = payload_client_entries(rig->client, &rig->pull, &rig->source, &rig->err);
    }
    return rc;
}

int rig_fetch(struct rig *rig)
{
    int rc = -EAGAIN;
    for (uint64_t until = now_ms() + WAIT_MS; rc == -EAGAIN; rig_turn(rig)) {
        cr_assert_lt(now_ms(), until, "no payload");
        rc = payload_client_fetch(rig->client, &rig->pull, &rig->source, &rig->err);
    }
    return rc;
}

/* Each value in a place of its own: what a micro-batch does with them is test_scatter.c's. */
void rig_place(struct rig *rig)
{
    uint64_t at = 0, n;
    for (uint32_t i = 0; i < rig->source.n; i++)
        at += rig->got[i].bytes + 128;
    rig->slot = malloc(at + 1);
    memset(rig->slot, 0xee, at + 1);
    at = 0;
    for (uint32_t i = 0; i < rig->source.n * RIG_FIELDS; i++) {
        struct value *value = &rig->values[i];
        struct poise_tensor *to = &rig->tensors[i];
        if (!value->present)
            continue;
        *to = (struct poise_tensor){.dtype = fields[i % RIG_FIELDS].dtype, .n_dims = value->n_dims};
        value_bytes(value, to->dtype, &n);
        memcpy(to->shape, value->shape, sizeof to->shape);
        to->stride[value->n_dims - 1] = poise_dtype_bytes(to->dtype);
        if (value->n_dims == 2)
            to->stride[0] = 16 * to->stride[1];
        to->bytes = n;
        to->data = rig->slot + at;
        at += n;
    }
    rig->pull.tensors = rig->tensors;
}

void rig_check(struct rig *rig)
{
    for (uint32_t i = 0; i < rig->source.n; i++) {
        uint32_t index = rig->in_index[i];
        cr_assert_eq(rig->got[i].tag, 1000 + index);
        cr_assert_eq(rig->got[i].hash, index);
        cr_assert_eq(rig->arrived[i], rig->samples[index].bytes, "sample %u: %llu bytes came", index,
                     (unsigned long long)rig->arrived[i]);
        for (uint32_t f = 0; f < RIG_FIELDS; f++) {
            const struct value *sent = &rig->sent[index * RIG_FIELDS + f], *got = &rig->values[i * RIG_FIELDS + f];
            cr_assert_eq(sent->present, got->present);
            if (sent->present)
                cr_assert_eq(memcmp(sent->data, rig->tensors[i * RIG_FIELDS + f].data,
                                    rig->tensors[i * RIG_FIELDS + f].bytes), 0, "sample %u field %u", index, f);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- strangers */

void *rig_stranger(struct rig *rig)
{
    void *socket;
    cr_assert_eq(payload_socket_new(rig->client_group.zmq, false, rig->client_group.key, &socket), 0);
    cr_assert_eq(zmq_connect(socket, rig->endpoint), 0);
    return socket;
}

struct payload_message rig_hello(const struct rig *rig)
{
    return (struct payload_message){.type = PAYLOAD_HELLO, .epoch = rig->client_group.epoch, .rank = 1,
                                    .incarnation = rig->client_group.incarnation};
}

uint32_t rig_ask(struct rig *rig, void *socket, const struct payload_message *msg, struct payload_message *ret_msg)
{
    zmq_msg_t frame;
    cr_assert_eq(payload_send(socket, NULL, 0, msg), 0);
    for (uint64_t until = now_ms() + WAIT_MS;;) {
        cr_assert_lt(now_ms(), until, "no answer to %s", payload_type_name(msg->type));
        rig_turn_server(rig);
        if (payload_receive(socket, &frame) > 0)
            break;
        poll(NULL, 0, 1);
    }
    cr_assert_eq(payload_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), ret_msg, &rig->err), 0, "%s",
                 rig->err.text);
    ret_msg->items = NULL;
    payload_drain(socket, &frame);
    zmq_msg_close(&frame);
    return ret_msg->type;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The update under construction. Memory is reserved before the event changes anything and kept for the next event. An estimate
 * that was too small is mended on the spot; only together with a lack of memory it would cost a message.
 */
#include "daemon/core/out.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"

void out_free(struct core_out *out)
{
    for (uint32_t i = 0; i < out->n_pool; i++)
        core_free(out->pool[i]);
    core_free(out->pool);
    core_free(out->up.sends);
    core_free(out->up.closes);
    core_free(out->up.publishes);
    core_free(out->up.logs);
    memset(out, 0, sizeof *out);
}

static int reserve(void **array, uint32_t *cap, uint32_t n, size_t size)
{
    void *grown;

    if (n <= *cap)
        return 0;
    n += n / 4; /* a group grows by one member at a time; do not copy each time */
    grown = core_grow(*array, n, size);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *cap = n;
    return 0;
}

static int reserve_pool(struct core_out *out, uint32_t n)
{
    struct wire_message **grown;

    if (n <= out->n_pool)
        return 0;
    grown = core_grow(out->pool, n, sizeof *grown);
    if (!grown)
        return -ENOMEM;
    out->pool = grown;
    while (out->n_pool < n) {
        out->pool[out->n_pool] = core_alloc(1, sizeof **out->pool);
        if (!out->pool[out->n_pool])
            return -ENOMEM;
        out->n_pool++;
    }
    return 0;
}

int out_prepare(struct core_out *out, uint32_t n_messages, uint32_t n_sends, uint32_t n_closes, uint32_t n_publishes)
{
    out_clear(out);
    if (!out->up.logs)
        out->up.logs = core_alloc(OUT_MAX_LOGS, sizeof *out->up.logs);
    if (!out->up.logs || reserve_pool(out, n_messages) < 0)
        return -ENOMEM;
    if (reserve((void **)&out->up.sends, &out->cap_sends, n_sends, sizeof *out->up.sends) < 0 ||
        reserve((void **)&out->up.closes, &out->cap_closes, n_closes, sizeof *out->up.closes) < 0 ||
        reserve((void **)&out->up.publishes, &out->cap_publishes, n_publishes, sizeof *out->up.publishes) < 0)
        return -ENOMEM;
    return 0;
}

void out_clear(struct core_out *out)
{
    out->up.n_sends = out->up.n_closes = out->up.n_publishes = out->up.n_logs = 0;
    out->up.next_ms = UINT64_MAX;
    out->used = 0;
}

struct wire_message *out_message(struct core_out *out, enum wire_type type)
{
    struct wire_message *msg;

    if (out->used == out->n_pool && reserve_pool(out, out->n_pool + 64) < 0)
        assert(!"the room of an update was estimated too small, and there is no memory for more");
    msg = out->pool[out->used++];
    memset(msg, 0, sizeof *msg);
    msg->type = type;
    return msg;
}

void out_send(struct core_out *out, uint64_t to, bool up, const struct wire_message *msg)
{
    if (out->up.n_sends == out->cap_sends &&
        reserve((void **)&out->up.sends, &out->cap_sends, out->cap_sends + 64, sizeof *out->up.sends) < 0)
        return; /* as good as lost on the way */
    out->up.sends[out->up.n_sends++] = (struct core_send){.to = to, .up = up, .msg = msg};
}

void out_close(struct core_out *out, uint64_t session)
{
    assert(out->up.n_closes < out->cap_closes);
    out->up.closes[out->up.n_closes++] = session;
}

void out_publish(struct core_out *out, const struct wire_message *msg)
{
    assert(out->up.n_publishes < out->cap_publishes);
    out->up.publishes[out->up.n_publishes++] = msg;
}

void out_log(struct core_out *out, int level, const char *format, ...)
{
    struct core_log *log;
    va_list ap;

    if (out->up.n_logs == OUT_MAX_LOGS)
        return;
    log = &out->up.logs[out->up.n_logs++];
    log->level = level;
    va_start(ap, format);
    vsnprintf(log->text, sizeof log->text, format, ap);
    va_end(ap);
}

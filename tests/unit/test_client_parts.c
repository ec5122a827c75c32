/* SPDX-License-Identifier: Apache-2.0 */
/* The small parts of the client: sized structs, notices, wake-ups, delivered tables. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/delivered.h"
#include "client/forks.h"
#include "client/notice.h"
#include "client/sized.h"
#include "samples.h"

/* ---------------------------------------------------------------------------------------------------- sized structs */

Test(sized, what_an_older_header_lacks_is_zero)
{
    uint32_t from[2] = {1, 2}, to[4] = {9, 9, 9, 9};
    struct poise_err err;

    cr_assert_eq(sized_in(to, sizeof to, from, sizeof from, sizeof from, "struct x", &err), 0);
    cr_assert_eq(to[1], 2);
    cr_assert_eq(to[2], 0);
    cr_assert_eq(to[3], 0);
    cr_assert_eq(sized_in(to, sizeof to, from, 4, sizeof from, "struct x", &err), -EINVAL);
    cr_assert_eq(sized_in(to, sizeof to, from, 1 << 20, sizeof from, "struct x", NULL), -EINVAL);
}

Test(sized, unknown_members_of_an_array_are_found)
{
    uint32_t from[2][3] = {{1, 2, 0}, {3, 4, 0}};
    struct poise_err err;

    cr_assert_eq(sized_check(from, 2, 8, 12, 8, "struct x", &err), 0);
    from[1][2] = 1;
    cr_assert_eq(sized_check(from, 2, 8, 12, 8, "struct x", &err), -E2BIG);
    cr_assert(strstr(err.text, "byte 8"), "%s", err.text);
}

Test(sized, out_fills_what_the_caller_has)
{
    uint32_t from[2] = {1, 2}, to[4] = {9, 9, 9, 9};

    sized_out(to, 4, from, sizeof from);
    cr_assert_eq(to[0], 1);
    cr_assert_eq(to[1], 9);
    sized_out(to, 12, from, sizeof from);
    cr_assert_eq(to[2], 0);
    cr_assert_eq(to[3], 9);
}

/* ---------------------------------------------------------------------------------------------------------- notices */

static void add(struct notices *notices, uint64_t step, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void add(struct notices *notices, uint64_t step, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    notice_add(notices, step, POISE_WARNING, format, args);
    va_end(args);
}

Test(notice, the_newest_stay_and_the_lost_are_counted)
{
    static struct notices notices;
    struct poise_note note;

    cr_assert_eq(notice_take(&notices, &note), 0);
    for (uint64_t i = 0; i < NOTICE_MAX + 3; i++)
        add(&notices, i, "step %d", (int)i);
    cr_assert_eq(notice_take(&notices, &note), 1);
    cr_assert_eq(note.step, 3);
    cr_assert_eq(note.dropped, 3);
    cr_assert_str_eq(note.text, "step 3");
    for (uint32_t i = 1; i < NOTICE_MAX; i++)
        cr_assert_eq(notice_take(&notices, &note), 1);
    cr_assert_eq(note.step, NOTICE_MAX + 2);
    cr_assert_eq(note.dropped, 0);
    cr_assert_eq(notice_take(&notices, &note), 0);
}

/* --------------------------------------------------------------------------------------------------------- wake-ups */

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

Test(wake, rings_until_closed_and_lives_until_the_last_reference)
{
    struct wake *wake;
    int fds = samples_n_fds();

    cr_assert_eq(wake_new(&wake, NULL), 0);
    cr_assert(!is_readable(wake_fd(wake)));
    wake_ring(wake);
    wake_signal(wake);
    cr_assert(is_readable(wake_fd(wake)));
    wake_drain(wake);
    cr_assert(!is_readable(wake_fd(wake)));
    wake_ref(wake);
    wake_close(wake);
    cr_assert_eq(samples_n_fds(), fds);
    wake_unref(wake);
    wake_ring(wake); /* into nothing */
    wake_unref(wake);
    wake_unref(NULL);
}

/* ------------------------------------------------------------------------------------------------- delivered tables */

static uint32_t in_rank[3] = {0, 1, 1}, in_index[3] = {4, 0, 2}, count[2] = {1, 2};
static uint64_t in_bytes[3] = {1, 2, 3};
static uint32_t out_rank[1] = {1}, out_micro_batch[1] = {0}, out_row[1] = {1}, out_place[1] = {1};
static struct wire_slice slice = {.rank = 0,
                                  .n_in = 3,
                                  .n_out = 1,
                                  .in_rank = in_rank,
                                  .in_index = in_index,
                                  .in_bytes = in_bytes,
                                  .count = count,
                                  .out_rank = out_rank,
                                  .out_micro_batch = out_micro_batch,
                                  .out_row = out_row,
                                  .out_place = out_place};

static struct delivered *delivered(struct wake *wake, struct merged *merged)
{
    struct wire_outcome outcome = {.step = 5,
                                   .n_micro_batches = 2,
                                   .plan_id = {0x0102030405060708, 0x090a0b0c0d0e0f10},
                                   .totals = {.loss_tokens = 200, .arrival_micro_batches = 4},
                                   .n_slices = 1,
                                   .slices = &slice};
    struct delivered *set;

    cr_assert_eq(delivered_new(&outcome, merged, wake, forks_generation(), &set, NULL), 0);
    return set;
}

Test(delivered, rows_weights_and_mapping)
{
    struct wire_field field = samples_field("x", POISE_U8, POISE_CONCAT, 0, 1, SHAPE(-1));
    struct wire_table table = {.n_fields = 1, .fields = &field};
    struct directory_sample sample = {
        .tag = 77, .loss_tokens = 10, .arrival_loss_tokens = 25, .arrival_micro_batch = 3};
    struct merged *merged;
    struct wake *wake;

    cr_assert_eq(wake_new(&wake, NULL), 0);
    cr_assert_eq(merged_new(&table, (struct wire_id){1, 1}, &merged, NULL), 0);
    struct delivered *set = delivered(wake, merged);
    merged_unref(merged);
    delivered_row(set, 2, &sample);
    const struct poise_batch *b = &set->held[1].batch;
    cr_assert_eq(b->step, 5);
    cr_assert_eq(b->n_micro_batches, 2);
    cr_assert_eq(b->n_samples, 2);
    cr_assert_eq(b->rows[1].origin_rank, 1);
    cr_assert_eq(b->rows[1].origin_index, 2);
    cr_assert_eq(b->rows[1].tag, 77);
    cr_assert_float_eq(b->rows[1].weight_step, 1.0 / 200, 1e-15);
    cr_assert_float_eq(b->rows[1].weight_arrival, 1.0 / (25 * 4), 1e-15);
    cr_assert_eq(b->mapping->n_in, 3);
    cr_assert_eq(b->mapping->in[2].micro_batch, 1);
    cr_assert_eq(b->mapping->in[2].row, 1);
    cr_assert_eq(b->mapping->out[0].rank, 1);
    cr_assert_eq(b->plan_id[0], 1);
    cr_assert_eq(b->plan_id[15], 0x10);
    cr_assert_eq(b->values, set->values + 1);
    set->fields[0].name = set->fields[1].name = merged->table.fields[0].name;
    cr_assert_eq(poise_batch_field(b, "x"), &set->fields[1]);
    cr_assert_null(poise_batch_field(b, "y"));
    cr_assert_null(poise_batch_field(NULL, "x"));
    delivered_unref(set);
    wake_unref(wake);
}

Test(delivered, the_last_release_rings_and_frees)
{
    struct merged *merged;
    struct wake *wake;

    cr_assert_eq(wake_new(&wake, NULL), 0);
    cr_assert_eq(merged_new(NULL, (struct wire_id){0, 0}, &merged, NULL), 0);
    struct delivered *set = delivered(wake, merged);
    delivered_ref(set, 2);
    delivered_unref(set);
    poise_release(&set->held[0].batch);
    cr_assert(!is_readable(wake_fd(wake)));
    poise_release(&set->held[1].batch);
    cr_assert(is_readable(wake_fd(wake)));
    poise_release(NULL);
    merged_unref(merged);
    wake_unref(wake);
}

/* ------------------------------------------------------------------------------------------------------------ forks */

static int child_calls;

static void in_child(struct poise *object)
{
    (void)object;
    child_calls++;
}

Test(forks, children_are_told_once_and_count_another_generation)
{
    struct poise *a = (struct poise *)&child_calls;
    uint32_t generation = forks_generation();
    int status;

    cr_assert_eq(forks_add(a, in_child, NULL), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(child_calls == 1 && forks_generation() == generation + 1 ? 0 : 1);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert_eq(child_calls, 0);
    cr_assert_eq(forks_generation(), generation);
    forks_remove(a);
    pid = fork();
    if (pid == 0)
        _exit(child_calls);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that runs out at any point is an error: no crash, no leak, and the plan stays as it was. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "plan_case.h"

/* AddressSanitizer brings an allocator of its own, which must not be replaced. */
#if !defined(__SANITIZE_ADDRESS__) && defined(__GLIBC__)
void *__libc_calloc(size_t n, size_t size);
void __libc_free(void *p);
void *calloc(size_t n, size_t size);
void free(void *p);

static __thread int counting;
static __thread int64_t countdown, blocks;

void *calloc(size_t n, size_t size)
{
    void *p;

    if (counting && countdown-- <= 0)
        return NULL;
    p = __libc_calloc(n, size);
    blocks += counting && p;
    return p;
}

void free(void *p)
{
    blocks -= counting && p;
    __libc_free(p);
}

static void run_out(struct plan_case *c)
{
    int rc = -ENOMEM;

    for (int64_t i = 0; rc == -ENOMEM; i++) {
        struct poise_plan before = c->plan;
        cr_assert_lt(i, 2000, "never succeeds");
        countdown = i;
        blocks = 0;
        counting = 1;
        rc = plan_make(&c->req, &c->plan, &c->err);
        counting = 0;
        cr_assert_eq(blocks, 0, "%lld blocks are lost when allocation %lld fails", (long long)blocks, (long long)i);
        if (rc == 0)
            break;
        cr_assert_eq(rc, -ENOMEM, "allocation %lld: %d %s", (long long)i, rc, c->err.text);
        cr_assert_eq(c->err.code, -ENOMEM);
        cr_assert(strstr(c->err.text, "memory"), "%s", c->err.text);
        cr_assert(!memcmp(&before, &c->plan, sizeof before), "output touched");
    }
    cr_assert_eq(rc, 0, "%s", c->err.text);
}

Test(plan_memory, running_out_is_an_error_wherever_it_happens)
{
    static const char *const lengths = "90,3,4,8 ; 5,6,4,9 ; 70,60,50,1 ; 1,2,3,4";

    for (uint32_t a = 0; poise_algorithm_name(a); a++)
        for (uint32_t objective = 0; objective <= POISE_OBJECTIVE_PIPELINE; objective++) {
            struct plan_case c;
            uint64_t unit[16] = {0, 7, 7, 0};
            plan_case_parse(&c, "length", lengths);
            c.req.algorithm = poise_algorithm_name(a);
            c.req.objective = objective;
            c.req.stages = 3;
            c.req.micro_batch_size = objective ? 2 : 4;
            c.req.unit = objective ? NULL : unit;
            run_out(&c);
            plan_case_free(&c);
        }
}
#else
Test(plan_memory, skipped_where_the_allocator_is_a_sanitizers) {}
#endif

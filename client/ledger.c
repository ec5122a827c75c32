/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: a ring of the steps that this rank may still be asked about. Daemons may forget everything at any time; a
 * coordinator that was restarted asks for the metadata of an old step by number, and a slow replica asks for an old outcome.
 *
 * The window rule, with W = n_window: step s may be submitted when s - W is decided, and s is forgotten once some t >= s + W
 * is decided. While t is decided here, every rank has submitted t, so every rank has decided t - W: nobody can need s any
 * more. One step less and a rank that lags by the whole window waits for ever for what nobody has.
 *
 * So steps from decided - W to decided + W - 1 are kept at most: a ring of 2 W + 1 slots.
 */
#include "client/ledger.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/planner/err.h"

struct entry {
    uint64_t step;
    struct wire_message *meta, *outcome;
};

struct ledger {
    uint64_t first_step;
    uint64_t next_submit, next_decide;
    uint32_t n_window, n_entries;
    struct entry entries[];
};

int ledger_new(uint64_t first_step, uint32_t n_window, struct ledger **ret_ledger)
{
    uint32_t n_entries = 2 * n_window + 1;
    struct ledger *ledger;

    if (n_window == 0 || n_window > 1u << 16)
        return -EINVAL;
    ledger = calloc(1, sizeof *ledger + n_entries * sizeof *ledger->entries);
    if (!ledger)
        return -ENOMEM;
    ledger->first_step = ledger->next_submit = ledger->next_decide = first_step;
    ledger->n_window = n_window;
    ledger->n_entries = n_entries;
    *ret_ledger = ledger;
    return 0;
}

static void forget(struct entry *entry)
{
    wire_free(entry->meta);
    wire_free(entry->outcome);
    entry->meta = entry->outcome = NULL;
}

void ledger_free(struct ledger *ledger)
{
    if (!ledger)
        return;
    for (uint32_t i = 0; i < ledger->n_entries; i++)
        forget(&ledger->entries[i]);
    free(ledger);
}

static struct entry *entry_of(const struct ledger *ledger, uint64_t step)
{
    return (struct entry *)&ledger->entries[(step - ledger->first_step) % ledger->n_entries];
}

uint64_t ledger_next_submit(const struct ledger *ledger)
{
    return ledger->next_submit;
}

uint64_t ledger_next_decide(const struct ledger *ledger)
{
    return ledger->next_decide;
}

bool ledger_may_submit(const struct ledger *ledger)
{
    return ledger->next_submit - ledger->next_decide < ledger->n_window;
}

int ledger_submit(struct ledger *ledger, struct wire_message *meta, struct poise_err *err)
{
    struct entry *entry;

    if (meta->type != WIRE_META || meta->meta.n_metas != 1)
        return err_set(err, -EINVAL, "a rank submits one step's metadata at a time");
    if (meta->meta.metas[0].step != ledger->next_submit)
        return err_set(err, -EINVAL, "step %llu is not the next to submit, which is %llu: steps are consecutive",
                       (unsigned long long)meta->meta.metas[0].step, (unsigned long long)ledger->next_submit);
    if (!ledger_may_submit(ledger))
        return err_set(err, -EAGAIN, "step %llu waits for the outcome of step %llu",
                       (unsigned long long)ledger->next_submit,
                       (unsigned long long)(ledger->next_submit - ledger->n_window));
    entry = entry_of(ledger, ledger->next_submit);
    forget(entry);
    entry->step = ledger->next_submit++;
    entry->meta = meta;
    return 0;
}

const struct wire_message *ledger_meta(const struct ledger *ledger, uint64_t step)
{
    const struct entry *entry;

    if (step < ledger->first_step)
        return NULL;
    entry = entry_of(ledger, step);
    return entry->meta && entry->step == step ? entry->meta : NULL;
}

const struct wire_message *ledger_outcome(const struct ledger *ledger, uint64_t step)
{
    const struct entry *entry;

    if (step < ledger->first_step)
        return NULL;
    entry = entry_of(ledger, step);
    return entry->meta && entry->step == step ? entry->outcome : NULL;
}

/* An outcome that came again must say the same; one that was forgotten cannot be compared any more. */
static int decide_again(const struct ledger *ledger, const struct wire_message *outcome, struct poise_err *err)
{
    uint64_t step = outcome->outcome.step;
    const struct wire_message *old = ledger_outcome(ledger, step);

    if (old && (old->outcome.kind != outcome->outcome.kind ||
                !wire_id_is(old->outcome.plan_id, outcome->outcome.plan_id)))
        return err_set(err, -EBADE, "step %llu has two outcomes: two coordinators disagree, which is a bug",
                       (unsigned long long)step);
    return err_set(err, -EALREADY, "step %llu is decided", (unsigned long long)step);
}

int ledger_decide(struct ledger *ledger, struct wire_message *outcome, struct poise_err *err)
{
    struct entry *entry;
    uint64_t step;

    if (outcome->type != WIRE_OUTCOME)
        return err_set(err, -EINVAL, "not an outcome");
    step = outcome->outcome.step;
    if (step < ledger->next_decide)
        return decide_again(ledger, outcome, err);
    if (step >= ledger->next_submit)
        return err_set(err, -EINVAL, "step %llu has an outcome before this rank submitted it", (unsigned long long)step);
    if (step > ledger->next_decide)
        return err_set(err, -EAGAIN, "step %llu is decided, but step %llu is not here yet", (unsigned long long)step,
                       (unsigned long long)ledger->next_decide);
    entry = entry_of(ledger, step);
    entry->outcome = outcome;
    ledger->next_decide = step + 1;
    if (step - ledger->first_step >= ledger->n_window)
        forget(entry_of(ledger, step - ledger->n_window));
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fields that this rank declared. The table only grows and its memory never moves, so that a step in flight can
 * name its own table by the number of fields that it had when it was submitted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"
#include "client/sized.h"
#include "daemon/planner/err.h"
#include "proto/schema.h"

#define FIELD_BYTES_0_1 sizeof(struct poise_field) /* of the first release; a later one keeps this number */

static const struct wire_field *find(const struct wire_table *table, const char *name)
{
    for (uint32_t i = 0; i < table->n_fields; i++) {
        if (strcmp(table->fields[i].name, name) == 0)
            return &table->fields[i];
    }
    return NULL;
}

/* One field into the table's next place. The same declaration again is no error: a loader that starts anew repeats it.
 */
static int add(struct wire_table *table, const struct poise_field *field, struct poise_err *err)
{
    struct wire_field checked;
    const struct wire_field *known;
    int rc;

    memset(&checked, 0, sizeof checked); /* its padding is compared below */
    rc = schema_field(field, &checked, err);
    if (rc < 0)
        return rc;
    known = find(table, checked.name);
    if (known && memcmp(known, &checked, sizeof checked) == 0)
        return 0;
    if (known)
        return err_set_at(err, -EINVAL, POISE_NONE, POISE_NONE, checked.name,
                          "field %s was declared before in another way: a field keeps its rule for the whole run",
                          checked.name);
    if (table->n_fields == POISE_MAX_FIELDS)
        return err_set_at(err, -EINVAL, POISE_NONE, POISE_NONE, checked.name, "field %s is one too many: at most %d",
                          checked.name, POISE_MAX_FIELDS);
    table->fields[table->n_fields++] = checked;
    return 0;
}

static int declare(struct poise *p, const struct poise_field *fields, uint32_t n_fields, size_t field_size,
                   struct poise_err *err)
{
    struct wire_table grown = p->table; /* shares the memory: what is beyond n_fields is nobody's */
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n_fields; i++) {
        struct poise_field field;
        rc = sized_in(&field, sizeof field, (const unsigned char *)fields + i * field_size, field_size, FIELD_BYTES_0_1,
                      "struct poise_field", err);
        if (rc == 0)
            rc = add(&grown, &field, err);
    }
    if (rc == 0)
        rc = schema_check(&grown, POISE_NONE, err);
    if (rc < 0)
        return rc;
    p->table.n_fields = grown.n_fields; /* not the pointer, which the engine reads without this lock */
    p->table_hash = schema_hash(&p->table);
    return 0;
}

int poise_declare(struct poise *p, const struct poise_field *fields, uint32_t n_fields, size_t field_size,
                  struct poise_err *err)
{
    int rc = handle_check(p, err);

    if (rc < 0)
        return rc;
    if (p->settings.plan_only)
        return err_set(err, -EINVAL, "a plan-only group carries no fields");
    if (n_fields && !fields)
        return err_set(err, -EINVAL, "fields is NULL with n_fields %u", n_fields);
    handle_produce(p);
    rc = declare(p, fields, n_fields, field_size, err);
    handle_produced(p);
    return rc;
}

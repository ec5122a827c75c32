/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in a request a JSON reader stopped, in the request's own words: "lengths[3][17]" helps whose loader made a NaN,
 * "column 50233" does not.
 */
#include "client/ctl/plan_request.h"

#include <stdio.h>
#include <string.h>

#define DEPTH_MOST 8 /* a request is four deep */

struct place {
    bool object;
    unsigned long index; /* in a list */
    int n_key;
    const char *key; /* in an object: the newest text before a colon */
};

/* The end of the text that begins at text[at] with a quote. */
static size_t skip_text(const char *text, size_t n, size_t at)
{
    for (at++; at < n && text[at] != '"'; at++)
        if (text[at] == '\\')
            at++;
    return at < n ? at : n - 1;
}

void plan_where(const char *text, size_t n, char *ret_where, size_t n_where)
{
    struct place places[DEPTH_MOST] = {{0}};
    size_t depth = 0, used = 0;
    bool expects_key = false;

    for (size_t i = 0; i < n && depth < DEPTH_MOST; i++) {
        struct place *top = depth ? &places[depth - 1] : NULL;
        if (text[i] == '[' || text[i] == '{') {
            expects_key = text[i] == '{';
            places[depth++] = (struct place){.object = expects_key};
        } else if (top && (text[i] == ']' || text[i] == '}')) {
            depth--;
        } else if (top && text[i] == ',') {
            top->index++;
            expects_key = top->object;
        } else if (top && text[i] == '"') {
            size_t end = skip_text(text, n, i);
            if (expects_key) {
                top->key = text + i + 1;
                top->n_key = (int)(end - i - 1) < 40 ? (int)(end - i - 1) : 40;
            }
            expects_key = false;
            i = end;
        }
    }
    ret_where[0] = 0;
    for (size_t d = 0; d < depth && used < n_where; d++) {
        if (places[d].object && places[d].key)
            used += (size_t)snprintf(ret_where + used, n_where - used, "%s%.*s", d ? "." : "", places[d].n_key,
                                     places[d].key);
        else if (!places[d].object)
            used += (size_t)snprintf(ret_where + used, n_where - used, "[%lu]", places[d].index);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The result as one JSON object. Fractions are fractions (0.01 is 1 %), a row that could not be planned has an error.
 */
#include "client/ctl/simulate.h"

#include <errno.h>
#include <jansson.h>

#include "daemon/planner/err.h"

static json_t *whole(uint64_t value)
{
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

static json_t *lengths(const struct simulate_cost *cost, const uint64_t *length)
{
    json_t *out = json_object();

    for (uint32_t p = 0; p < cost->n_phases; p++)
        json_object_set_new(out, cost->phases[p].name, whole(length[p]));
    return out;
}

static json_t *row(const struct simulate *sim, const struct simulate_result *r)
{
    const struct {
        const char *key;
        double value;
    } figures[] = {
        {"gap", r->gap},
        {"bytes_moved_fraction", r->moved},
        {"bytes_moved_floor", r->floor},
        {"bytes_between_nodes_fraction", r->between},
        {"imbalance_before", r->imbalance_before},
        {"imbalance_after", r->imbalance_after},
        {"rank_imbalance_before", r->rank_before},
        {"rank_imbalance_after", r->rank_after},
        {"predicted_speedup", r->error[0] ? 0 : simulate_speedup(r, sim->fixed)},
        {"plan_ms", r->plan_ms},
    };
    json_t *out = json_object();

    json_object_set_new(out, "algorithm", json_string(r->algorithm));
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(out, figures[i].key, r->error[0] ? json_null() : json_real(figures[i].value));
    if (r->error[0]) {
        json_object_set_new(out, "error", json_string(r->error));
        return out;
    }
    json_object_set_new(out, "largest_length_before", lengths(&sim->cost, r->length_before));
    json_object_set_new(out, "largest_length_after", lengths(&sim->cost, r->length_after));
    json_object_set_new(out, "lacking_before", json_real((double)r->lacking_before / r->n));
    json_object_set_new(out, "lacking_after", json_real((double)r->lacking_after / r->n));
    return out;
}

static json_t *data(const struct simulate *sim)
{
    json_t *out = json_object(), *left = json_array();

    for (uint32_t i = 0; i < sim->data.n_reasons; i++) {
        const struct dataset_left_out *reason = &sim->data.left_out[i];
        json_t *item = json_object(), *lines = json_array();
        for (uint32_t k = 0; k < reason->n && k < DATASET_LINES; k++)
            json_array_append_new(lines, whole(reason->line[k]));
        json_object_set_new(item, "reason", json_string(reason->reason));
        json_object_set_new(item, "count", whole(reason->n));
        json_object_set_new(item, "lines", lines);
        json_array_append_new(left, item);
    }
    json_object_set_new(out, "path", json_string(sim->path));
    json_object_set_new(out, "columns", json_string(sim->data.columns));
    json_object_set_new(out, "rows", whole(sim->data.n_read));
    json_object_set_new(out, "samples", whole(sim->samples.n));
    json_object_set_new(out, "rows_left_out", whole(sim->data.n_left_out));
    json_object_set_new(out, "left_out", left);
    return out;
}

static json_t *cost(const struct simulate_cost *c)
{
    json_t *out = json_object(), *phases = json_array();

    for (uint32_t p = 0; p < c->n_phases; p++) {
        json_t *phase = json_object();
        json_object_set_new(phase, "name", json_string(c->phases[p].name));
        json_object_set_new(phase, "unit", json_string(c->unit[p]));
        json_object_set_new(phase, "linear", whole(c->phases[p].linear));
        json_object_set_new(phase, "quadratic", whole(c->phases[p].quadratic));
        json_object_set_new(phase, "constant", whole(c->phases[p].constant));
        json_object_set_new(phase, "passes", whole(c->phases[p].passes));
        json_array_append_new(phases, phase);
    }
    json_object_set_new(out, "name", json_string(c->name));
    json_object_set_new(out, "default", json_boolean(c->by_default));
    json_object_set_new(out, "phases", phases);
    return out;
}

static json_t *limits(const struct simulate *sim)
{
    const struct simulate_limits *l = &sim->advice.limits;
    json_t *out = json_object();

    json_object_set_new(out, "bound_over_mean", json_real(l->bound));
    json_object_set_new(out, "largest_sample_over_mean_rank", json_real(l->largest_mean));
    json_object_set_new(out, "batches_with_larger_sample", whole(l->n_giant));
    json_object_set_new(out, "larger_sample_mean", json_real(l->giant_mean));
    json_object_set_new(out, "larger_sample_most", json_real(l->giant_most));
    return out;
}

static json_t *helps(const struct simulate_advice *advice)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < advice->n_helps; i++) {
        const struct simulate_help *help = &advice->help[i];
        json_t *item = json_object();
        json_object_set_new(item, "change", json_string(help->key));
        json_object_set_new(item, "title", json_string(help->title));
        json_object_set_new(item, "note", json_string(help->note));
        json_object_set_new(item, "imbalance_before", json_real(help->imbalance_before));
        json_object_set_new(item, "imbalance_after", json_real(help->imbalance_after));
        json_object_set_new(item, "step_time_ratio", json_real(help->time));
        json_object_set_new(item, "bytes_moved_fraction", help->moved < 0 ? json_null() : json_real(help->moved));
        json_array_append_new(out, item);
    }
    return out;
}

static void set_setup(json_t *out, const struct simulate *sim)
{
    const struct simulate_setup *setup = &sim->setup;

    json_object_set_new(out, "ranks", whole(setup->n_ranks));
    json_object_set_new(out, "per_rank", whole(setup->per_rank));
    json_object_set_new(out, "micro_batch", whole(setup->micro_batch));
    json_object_set_new(out, "nodes", whole(setup->n_nodes));
    json_object_set_new(out, "objective", json_string(simulate_objective_name(setup->objective)));
    json_object_set_new(out, "stages", whole(setup->stages));
    json_object_set_new(out, "count", json_string(simulate_count_name(setup->count)));
    json_object_set_new(out, "tolerance", json_real(setup->tolerance_ppm / 1e6));
    json_object_set_new(out, "max_pixels", whole(sim->rule.max_pixels));
    json_object_set_new(out, "fixed_fraction", json_real(sim->fixed));
    json_object_set_new(out, "batches", whole(setup->n_batches));
    json_object_set_new(out, "seed", whole(setup->seed));
}

int simulate_print_json(const struct simulate *sim, struct poise_err *err)
{
    const struct simulate_advice *advice = &sim->advice;
    json_t *out = json_object(), *rows = json_array(), *advised = json_object();
    int rc = -ENOMEM;

    for (uint32_t i = 0; i < sim->n_results; i++)
        json_array_append_new(rows, row(sim, &sim->result[i]));
    json_object_set_new(advised, "algorithm", advice->chosen ? json_string(advice->chosen->algorithm) : json_null());
    json_object_set_new(advised, "predicted_speedup", advice->chosen ? json_real(advice->speedup) : json_null());
    json_object_set_new(advised, "text", json_string(advice->summary));
    json_object_set_new(out, "data", data(sim));
    set_setup(out, sim);
    json_object_set_new(out, "cost", cost(&sim->cost));
    json_object_set_new(out, "rows", rows);
    json_object_set_new(out, "limits", limits(sim));
    json_object_set_new(out, "helps", helps(advice));
    if (json_object_set_new(out, "recommendation", advised) == 0)
        rc = json_dumpf(out, stdout, JSON_COMPACT) < 0 ? -EIO : 0;
    json_decref(out);
    if (rc < 0)
        return err_set(err, rc, rc == -ENOMEM ? "no memory for the answer" : "the answer cannot be written");
    putchar('\n');
    return 0;
}

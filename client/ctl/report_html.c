/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report's text: the answer first, then the pictures that show why, then every number. All that comes from the user
 * (path, names of columns) is escaped.
 */
#include "client/ctl/report.h"

#include <inttypes.h>
#include <string.h>

void report_text(FILE *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\'':
            fputs("&#39;", out);
            break;
        default:
            fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
        }
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

static void put_head(FILE *out, const struct simulate *sim)
{
    fprintf(out, "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n<meta name='viewport' "
                 "content='width=device-width,initial-scale=1'>\n<title>Balancing ");
    report_text(out, file_name(sim->path));
    fprintf(out, "</title>\n<style>%s</style>\n<main>\n<h1>What balancing would do for ", report_style);
    report_text(out, file_name(sim->path));
    fprintf(out,
            "</h1>\n<p class='lead'>%u ranks, %u samples each, %u random global batches, planned as poised plans them; "
            "cost ",
            sim->setup.n_ranks, sim->setup.per_rank, sim->setup.n_batches);
    report_text(out, sim->cost.name);
    fprintf(out, ". Times are predicted from that cost, not measured.</p>\n");
}

static void put_tile(FILE *out, const char *value, const char *text)
{
    fprintf(out, "<div class='tile'><b>%s</b><span>%s</span></div>\n", value, text);
}

static void put_verdict(FILE *out, const struct simulate *sim)
{
    const struct simulate_result *chosen = sim->advice.chosen;
    char value[64], text[160];

    fprintf(out, "<p class='say'>");
    report_text(out, sim->advice.summary);
    fprintf(out, "</p>\n");
    if (!chosen)
        return;
    fprintf(out, "<div class='tiles'>\n");
    snprintf(value, sizeof value, "%.2f&times;", sim->advice.speedup);
    snprintf(text, sizeof text, "predicted speed-up of a step, %.0f %% of a rank&rsquo;s mean compute being fixed",
             100 * sim->fixed);
    put_tile(out, value, text);
    snprintf(value, sizeof value, "%.2f &rarr; %.3f", chosen->imbalance_before, chosen->imbalance_after);
    put_tile(out, value,
             sim->setup.objective == POISE_OBJECTIVE_STEP
                 ? "the slowest rank over the mean rank, before and after"
                 : "the step over the mean rank&rsquo;s compute, before and after");
    snprintf(value, sizeof value, "%.1f %%", 100 * chosen->moved);
    snprintf(text, sizeof text, "of the bytes change rank; no plan that good can do with less than %.1f %%",
             100 * chosen->floor);
    put_tile(out, value, text);
    snprintf(value, sizeof value, chosen->plan_ms < 1 ? "%.2g ms" : "%.3g ms", chosen->plan_ms);
    put_tile(out, value, "to plan a step, on one thread of this machine");
    fprintf(out, "</div>\n");
}

static void put_pictures(FILE *out, const struct simulate *sim)
{
    if (sim->advice.chosen) {
        fprintf(out, "<h2>Ranks before and after</h2>\n<figure>\n");
        report_bars(out, sim);
        fprintf(out, "<figcaption>One typical batch. %s%s</figcaption></figure>\n",
                sim->setup.objective == POISE_OBJECTIVE_STEP
                    ? "Every rank waits for the tallest bar; all at the dashed line would be perfect."
                    : "A bar is a rank&rsquo;s whole step; that ranks also wait inside of it is not shown here, but "
                      "counted "
                      "in all figures.",
                sim->loads.n_ranks > 128 ? " Of the ranks, sorted by load, 128 are drawn." : "");
    }
    fprintf(out, "<h2>How near each algorithm comes</h2>\n<figure>\n");
    report_gaps(out, sim);
    fprintf(out, "<figcaption>One dot a batch, the bar is the mean. The lower bound is what no plan can be below under "
                 "these rules; the axis is logarithmic.</figcaption></figure>\n"
                 "<h2>What the balance costs in bytes</h2>\n<figure>\n");
    report_bytes(out, sim);
    fprintf(out,
            "<figcaption>Down and to the left is better. The green line is the least that must move to come within "
            "%.4g %% of the bound, were samples divisible.</figcaption></figure>\n",
            sim->setup.tolerance_ppm / 1e4);
}

/* A name that may break after its underscores. */
static void put_name(FILE *out, const char *name)
{
    for (; *name; name++)
        fprintf(out, *name == '_' ? "_<wbr>" : "%c", *name);
}

static void put_row(FILE *out, const struct simulate *sim, const struct simulate_result *result)
{
    const uint32_t last = sim->cost.n_phases - 1;

    fprintf(out, "<tr%s><td class='left'>", result == sim->advice.chosen ? " class='chosen'" : "");
    put_name(out, result->algorithm);
    if (result->error[0]) {
        fprintf(out, "</td><td class='left' colspan='8'><small>not for this: ");
        report_text(out, result->error);
        fprintf(out, "</small></td></tr>\n");
        return;
    }
    fprintf(out, "</td><td>%.3f &rarr; %.3f</td><td>%.3g %%</td><td>%.2f&times;</td><td>%.1f %%</td>",
            result->imbalance_before, result->imbalance_after, 100 * result->gap, simulate_speedup(result, sim->fixed),
            100 * result->moved);
    if (sim->setup.n_nodes > 1)
        fprintf(out, "<td>%.1f %%</td>", 100 * result->between);
    fprintf(out, "<td>%" PRIu64 " &rarr; %" PRIu64 "</td><td>%.1f &rarr; %.1f</td><td>%.3f</td></tr>\n",
            result->length_before[last], result->length_after[last], (double)result->lacking_before / result->n,
            (double)result->lacking_after / result->n, result->plan_ms);
}

static void put_table(FILE *out, const struct simulate *sim)
{
    fprintf(out,
            "<h2>Every number</h2>\n<div class='scroll'><table>\n<tr><th>algorithm</th><th>%s</th>"
            "<th>gap to<br>the bound</th><th>predicted<br>speed-up</th><th>bytes<br>moved</th>",
            sim->setup.objective == POISE_OBJECTIVE_STEP ? "largest/mean" : "step/mean");
    if (sim->setup.n_nodes > 1)
        fprintf(out, "<th>between<br>nodes</th>");
    fprintf(out,
            "<th>%s, largest<br>micro-batch</th><th>micro-batches<br>without a phase</th><th>planning<br>ms</th>"
            "</tr>\n",
            sim->cost.unit[sim->cost.n_phases - 1]);
    for (uint32_t i = 0; i < sim->n_results; i++)
        put_row(out, sim, &sim->result[i]);
    fprintf(out,
            "</table></div>\n<p class='note'>Means over the batches; planning time is their median, micro-batch sizes "
            "are the largest of all batches. Algorithms whose name begins with post_, and karmarkar_karp, are there "
            "for comparison.</p>\n");
}

static void put_limits(FILE *out, const struct simulate *sim)
{
    const struct simulate_limits *limits = &sim->advice.limits;

    fprintf(out,
            "<h2>What limits</h2>\n<p>The largest sample of a batch costs %.2f times a rank&rsquo;s whole share on "
            "average. ",
            limits->largest_mean);
    if (limits->n_giant)
        fprintf(out,
                "In %u of %u batches one sample alone is more than that share: %.2f times it on average, %.2f at most. "
                "No exchange of whole samples can even that out. ",
                limits->n_giant, sim->setup.n_batches, limits->giant_mean, limits->giant_most);
    fprintf(out,
            "No plan can be below %.3f times the mean under these rules. A list of sizes does not show the loader: if "
            "poisectl status says loader-bound, balancing cannot help.</p>\n",
            limits->bound);
}

static void put_helps(FILE *out, const struct simulate *sim)
{
    const struct simulate_advice *advice = &sim->advice;

    if (!advice->n_helps)
        return;
    fprintf(out,
            "<h2>What would help further</h2>\n<div class='scroll'><table>\n<tr><th>change</th><th>%s<br>after</th>"
            "<th>bytes<br>moved</th><th>step time,<br>predicted</th></tr>\n",
            sim->setup.objective == POISE_OBJECTIVE_STEP ? "largest/mean" : "step/mean");
    for (uint32_t i = 0; i < advice->n_helps; i++) {
        const struct simulate_help *help = &advice->help[i];
        fprintf(out, "<tr><td class='left'>");
        report_text(out, help->title);
        fprintf(out, "<small>");
        report_text(out, help->note);
        fprintf(out, "</small></td><td>%.3f</td><td>", help->imbalance_after);
        if (help->moved >= 0)
            fprintf(out, "%.1f %%", 100 * help->moved);
        fprintf(out, "</td><td class='%s'>%+.1f %%</td></tr>\n",
                help->time < 0.995   ? "better"
                : help->time > 1.005 ? "worse"
                                     : "",
                100 * (help->time - 1));
    }
    fprintf(out, "</table></div>\n<p class='note'>Each simulated with ");
    report_text(out, advice->chosen->algorithm);
    fprintf(out,
            " on %u batches of the same samples; step times are a sample and device, against the chosen plan "
            "without the change.</p>\n",
            advice->n_batches);
}

static void put_data(FILE *out, const struct simulate *sim)
{
    const struct dataset *data = &sim->data;
    const struct simulate_setup *setup = &sim->setup;

    fprintf(out, "<h2>What went in</h2>\n<dl>\n<dt>file</dt><dd>");
    report_text(out, sim->path);
    fprintf(out, "</dd>\n<dt>columns</dt><dd>");
    report_text(out, data->columns);
    fprintf(out, "</dd>\n<dt>samples</dt><dd>%" PRIu64 " of %" PRIu64 " rows</dd>\n", sim->samples.n, data->n_read);
    for (uint32_t i = 0; i < data->n_reasons; i++) {
        fprintf(out, "<dt>left out</dt><dd>%" PRIu64 ": ", data->left_out[i].n);
        report_text(out, data->left_out[i].reason);
        fprintf(out, " (first on line %" PRIu64 ")</dd>\n", data->left_out[i].line[0]);
    }
    for (uint32_t p = 0; p < sim->cost.n_phases; p++) {
        const struct poise_phase *phase = &sim->cost.phases[p];
        fprintf(out, "<dt>cost, ");
        report_text(out, phase->name);
        fprintf(out,
                "</dt><dd>%u &times; (%" PRIu64 " &times; %s + %" PRIu64 " &times; attention + %" PRIu64
                ") units of 1,024 FLOP</dd>\n",
                phase->passes ? phase->passes : 1, phase->linear, sim->cost.unit[p], phase->quadratic, phase->constant);
    }
    fprintf(
        out,
        "<dt>rules</dt><dd>objective %s, count %s, micro-batches of %u, tolerance %.4g %%, %u node%s, seed %" PRIu64,
        simulate_objective_name(setup->objective), simulate_count_name(setup->count), setup->micro_batch,
        setup->tolerance_ppm / 1e4, setup->n_nodes, setup->n_nodes == 1 ? "" : "s", setup->seed);
    if (setup->objective == POISE_OBJECTIVE_PIPELINE)
        fprintf(out, ", %u stages", setup->stages);
    fprintf(out, "</dd>\n</dl>\n");
}

void report_html(FILE *out, const struct simulate *sim)
{
    put_head(out, sim);
    put_verdict(out, sim);
    put_pictures(out, sim);
    put_limits(out, sim);
    put_helps(out, sim);
    put_table(out, sim);
    put_data(out, sim);
    fprintf(out, "<footer>Made by poisectl %s simulate.</footer>\n</main>\n</html>\n", poise_version());
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report's pictures. Drawn in a coordinate system of about 940 units a line of text, so that the text of all three
 * has the size of the page's small print; colours come from the style sheet, which knows light from dark.
 */
#include "client/ctl/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 940.0
#define BARS_MOST 128u   /* ranks that are drawn one by one: more would be thinner than a line */
#define DOTS_MOST 200u   /* batches drawn an algorithm */
#define GAP_LEAST 0.0001 /* 0.01 %: smaller gaps are drawn there, none would be outside a logarithmic axis */
#define CHAR_WIDTH 7.0   /* of the labels, about */

/* The advised algorithm has the page's accent (2), arrival order is grey (0), the others take what is left. */
static uint32_t colour_of(const struct simulate *sim, uint32_t at)
{
    static const uint32_t others[] = {1, 3, 4, 5, 6, 7};
    uint32_t n = 0;

    for (uint32_t i = 0; i <= at; i++) {
        const bool arrival = !strcmp(sim->result[i].algorithm, "identity");
        const bool chosen = &sim->result[i] == sim->advice.chosen;
        if (i == at && (arrival || chosen))
            return arrival ? 0 : 2;
        n += !arrival && !chosen;
    }
    return others[(n - 1) % (sizeof others / sizeof *others)];
}

/* ------------------------------------------------------------------------------------------------------- bars of ranks
 */

struct bars {
    double x, y, width, height; /* the plot area */
    double most;                /* of the axis: the load over the mean */
};

static double load(const struct simulate_loads *loads, const double *side, uint32_t rank)
{
    double sum = 0;

    for (uint32_t p = 0; p < loads->n_phases; p++)
        sum += side[(size_t)rank * loads->n_phases + p];
    return loads->mean > 0 ? sum / loads->mean : 0;
}

struct loaded {
    uint32_t rank;
    double load;
};

static int heavier(const void *a, const void *b)
{
    const struct loaded *x = a, *y = b;

    if (x->load != y->load)
        return x->load < y->load ? 1 : -1;
    return x->rank < y->rank ? -1 : 1;
}

/* Which ranks to draw: all in order, or evenly chosen ones of all sorted by load, largest first. */
static uint32_t choose_ranks(const struct simulate_loads *loads, const double *side, uint32_t ranks[BARS_MOST])
{
    struct loaded *sorted;

    if (loads->n_ranks <= BARS_MOST) {
        for (uint32_t r = 0; r < loads->n_ranks; r++)
            ranks[r] = r;
        return loads->n_ranks;
    }
    sorted = malloc(loads->n_ranks * sizeof *sorted);
    if (!sorted)
        return 0; /* an empty picture is better than no report */
    for (uint32_t r = 0; r < loads->n_ranks; r++)
        sorted[r] = (struct loaded){r, load(loads, side, r)};
    qsort(sorted, loads->n_ranks, sizeof *sorted, heavier);
    for (uint32_t i = 0; i < BARS_MOST; i++)
        ranks[i] = sorted[(uint64_t)i * (loads->n_ranks - 1) / (BARS_MOST - 1)].rank;
    free(sorted);
    return BARS_MOST;
}

static void draw_grid(FILE *out, const struct bars *bars)
{
    double tick = bars->most > 6 ? 2 : bars->most > 2.5 ? 1 : 0.5;

    for (double v = 0; v <= bars->most + 1e-9; v += tick) {
        double y = bars->y + bars->height * (1 - v / bars->most);
        fprintf(out,
                "<line class='grid' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>"
                "<text x='%.1f' y='%.1f' text-anchor='end'>%.1f</text>\n",
                bars->x, bars->x + bars->width, y, y, bars->x - 7, y + 4, v);
    }
}

static void draw_bars(FILE *out, const struct bars *bars, const struct simulate *sim, const double *side,
                      const char *title)
{
    const struct simulate_loads *loads = &sim->loads;
    uint32_t ranks[BARS_MOST], n = choose_ranks(loads, side, ranks);
    const double slot = bars->width / (n ? n : 1), gap = slot > 6 ? slot * 0.22 : slot > 3 ? 0.8 : 0;
    double highest = 0, mean_y = bars->y + bars->height * (1 - 1 / bars->most);

    draw_grid(out, bars);
    for (uint32_t i = 0; i < n; i++) {
        double bottom = bars->y + bars->height;
        for (uint32_t p = 0; p < loads->n_phases; p++) {
            double part = loads->mean > 0 ? side[(size_t)ranks[i] * loads->n_phases + p] / loads->mean : 0;
            double height = bars->height * part / bars->most;
            bottom -= height;
            fprintf(out, "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='var(--p%u)'/>",
                    bars->x + i * slot + gap / 2, bottom, slot - gap, height, p % 3);
        }
        highest = fmax(highest, load(loads, side, ranks[i]));
    }
    fprintf(out, "\n<line class='mean' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>\n", bars->x, bars->x + bars->width,
            mean_y, mean_y);
    fprintf(out,
            "<text class='strong' x='%.1f' y='%.1f'>%s</text><text x='%.1f' y='%.1f' text-anchor='end'>largest "
            "%.3f</text>\n",
            bars->x, bars->y - 12, title, bars->x + bars->width, bars->y - 12, highest);
    fprintf(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", bars->x + bars->width / 2,
            bars->y + bars->height + 20, loads->n_ranks <= BARS_MOST ? "ranks, in order" : "ranks, the fullest first");
}

static void draw_phase_legend(FILE *out, const struct simulate *sim, double y)
{
    double x = 52;

    for (uint32_t p = 0; p < sim->cost.n_phases; p++) {
        fprintf(out,
                "<rect x='%.1f' y='%.1f' width='11' height='11' rx='2' fill='var(--p%u)'/><text x='%.1f' y='%.1f'>", x,
                y - 10, p % 3, x + 17, y);
        report_text(out, sim->cost.phases[p].name);
        fprintf(out, "</text>");
        x += 34 + CHAR_WIDTH * (double)strlen(sim->cost.phases[p].name);
    }
    fprintf(out,
            "<line class='mean' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/><text x='%.1f' y='%.1f'>mean of all "
            "ranks</text>\n",
            x, x + 26, y - 4, y - 4, x + 32, y);
}

void report_bars(FILE *out, const struct simulate *sim)
{
    const double gutter = 62;
    struct bars bars = {.x = 52, .y = 62, .width = (WIDTH - 52 - gutter) / 2, .height = 210, .most = 1.2};

    for (uint32_t r = 0; r < sim->loads.n_ranks; r++)
        bars.most = fmax(bars.most,
                         fmax(load(&sim->loads, sim->loads.before, r), load(&sim->loads, sim->loads.after, r)) * 1.04);
    fprintf(out, "<svg viewBox='0 0 %.0f 306' role='img' aria-label='compute of each rank before and after'>\n", WIDTH);
    draw_phase_legend(out, sim, 20);
    fprintf(out, "<text transform='translate(13 %.1f) rotate(-90)' text-anchor='middle'>compute over the mean</text>\n",
            bars.y + bars.height / 2);
    draw_bars(out, &bars, sim, sim->loads.before, "In arrival order");
    bars.x += bars.width + gutter;
    draw_bars(out, &bars, sim, sim->loads.after, "Balanced");
    fprintf(out, "</svg>\n");
}

/* --------------------------------------------------------------------------------------------------- a logarithmic
 * axis */

struct decades {
    double least, most; /* powers of ten */
    double from, to;    /* coordinates */
};

static double place(const struct decades *axis, double value)
{
    double part = log10(fmin(fmax(value, axis->least), axis->most) / axis->least) / log10(axis->most / axis->least);

    return axis->from + (axis->to - axis->from) * part;
}

static struct decades decades_of(const struct simulate *sim, double from, double to)
{
    double most = 0.01;

    for (uint32_t i = 0; i < sim->n_results; i++)
        for (uint32_t b = 0; b < sim->result[i].n && !sim->result[i].error[0]; b++)
            if (sim->result[i].batch[b].bound > 0)
                most = fmax(most, sim->result[i].batch[b].after / sim->result[i].batch[b].bound - 1);
    return (struct decades){GAP_LEAST, pow(10, ceil(log10(most) - 1e-9)), from, to};
}

static void print_percent(FILE *out, const struct decades *axis, double value)
{
    fprintf(out, value <= axis->least * 1.001 ? "&#8804; %g %%" : "%g %%", value * 100);
}

static double gap_of(const struct simulate_batch *batch)
{
    return batch->bound > 0 ? batch->after / batch->bound - 1 : 0;
}

/* ------------------------------------------------------------------------------------------------- distribution of
 * gaps */

static uint32_t step_of(const struct simulate_result *result)
{
    return result->n > DOTS_MOST ? result->n / DOTS_MOST + 1 : 1;
}

static void draw_strip(FILE *out, const struct simulate *sim, uint32_t i, const struct decades *axis, double y)
{
    const struct simulate_result *result = &sim->result[i];
    const bool chosen = result == sim->advice.chosen;

    fprintf(out, "<text class='%s' x='%.1f' y='%.1f' text-anchor='end'>", chosen ? "strong" : "", axis->from - 16,
            y + 4);
    report_text(out, result->algorithm);
    fprintf(out, "</text>\n");
    for (uint32_t b = 0; b < result->n; b += step_of(result))
        fprintf(out, "<circle cx='%.1f' cy='%.1f' r='3' fill='var(--c%u)' fill-opacity='.38'/>",
                place(axis, gap_of(&result->batch[b])), y + (int)(b * 7 % 11) - 5.0, colour_of(sim, i));
    fprintf(out, "\n<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='var(--c%u)' stroke-width='3'/>\n",
            place(axis, result->gap), place(axis, result->gap), y - 11, y + 11, colour_of(sim, i));
    fprintf(out, "<text class='small' x='%.1f' y='%.1f'>%.3g %%</text>\n", axis->to + 12, y + 4, 100 * result->gap);
}

/* Names are as long as the reference's: the room for them follows the longest. */
static double name_width(const struct simulate *sim)
{
    size_t most = 0;

    for (uint32_t i = 0; i < sim->n_results; i++)
        if (!sim->result[i].error[0] && strlen(sim->result[i].algorithm) > most)
            most = strlen(sim->result[i].algorithm);
    return CHAR_WIDTH * (double)most + 24;
}

void report_gaps(FILE *out, const struct simulate *sim)
{
    const double row = 34, top = 14;
    const struct decades axis = decades_of(sim, name_width(sim), WIDTH - 66);
    const double tolerance = sim->setup.tolerance_ppm / 1e6;
    double y = top + row / 2;
    uint32_t n = 0;

    for (uint32_t i = 0; i < sim->n_results; i++)
        n += !sim->result[i].error[0];
    fprintf(out, "<svg viewBox='0 0 %.0f %.0f' role='img' aria-label='distribution of gaps'>\n", WIDTH,
            top + n * row + 46);
    for (double v = axis.least; v <= axis.most * 1.01; v *= 10) {
        fprintf(out,
                "<line class='grid' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/><text x='%.1f' y='%.1f' "
                "text-anchor='middle'>",
                place(&axis, v), place(&axis, v), top, top + n * row, place(&axis, v), top + n * row + 18);
        print_percent(out, &axis, v);
        fprintf(out, "</text>\n");
    }
    fprintf(out,
            "<line class='floor' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/><text class='good' x='%.1f' y='%.1f' "
            "text-anchor='middle'>tolerance</text>\n",
            place(&axis, tolerance), place(&axis, tolerance), top, top + n * row, place(&axis, tolerance), top - 3);
    for (uint32_t i = 0; i < sim->n_results; i++)
        if (!sim->result[i].error[0]) {
            draw_strip(out, sim, i, &axis, y);
            y += row;
        }
    fprintf(
        out,
        "<text x='%.1f' y='%.1f' text-anchor='middle'>gap: how far the plan is above the lower bound</text></svg>\n",
        (axis.from + axis.to) / 2, top + n * row + 40);
}

/* ------------------------------------------------------------------------------------------------ bytes moved against
 * gap */

struct label {
    uint32_t i; /* result */
    double x, y, text_y;
};

static int higher(const void *a, const void *b)
{
    const struct label *x = a, *y = b;

    return (x->y > y->y) - (x->y < y->y);
}

/* Labels keep a line's height from each other; a thin line leads to the point where that moved them. */
static void place_labels(struct label *labels, uint32_t n, double bottom)
{
    qsort(labels, n, sizeof *labels, higher);
    for (uint32_t k = 0; k < n; k++)
        labels[k].text_y = k && labels[k].y < labels[k - 1].text_y + 17 ? labels[k - 1].text_y + 17 : labels[k].y;
    for (uint32_t k = n; k-- > 0; bottom = labels[k].text_y - 17)
        labels[k].text_y = fmin(labels[k].text_y, bottom);
}

/* The advised one last: on top of equal ones. */
static void draw_means(FILE *out, const struct simulate *sim, const struct label *labels, uint32_t n)
{
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t k = 0; k < n; k++)
            if ((&sim->result[labels[k].i] == sim->advice.chosen) == (pass == 1))
                fprintf(
                    out,
                    "<circle cx='%.1f' cy='%.1f' r='6' fill='var(--c%u)' stroke='var(--card)' stroke-width='1.5'/>\n",
                    labels[k].x, labels[k].y, colour_of(sim, labels[k].i));
}

static void draw_labels(FILE *out, const struct simulate *sim, struct label *labels, uint32_t n, double right,
                        double bottom)
{
    place_labels(labels, n, bottom);
    for (uint32_t k = 0; k < n; k++)
        fprintf(out, "<line class='axis' x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f'/>", labels[k].x, labels[k].y,
                labels[k].x + (labels[k].x > right / 2 ? -11 : 11), labels[k].text_y);
    draw_means(out, sim, labels, n);
    for (uint32_t k = 0; k < n; k++) {
        const struct simulate_result *result = &sim->result[labels[k].i];
        const bool left = labels[k].x > right / 2; /* of its point: there is room for the longest name */
        fprintf(out, "<text class='halo %s' x='%.1f' y='%.1f'%s>", result == sim->advice.chosen ? "strong" : "",
                labels[k].x + (left ? -14 : 14), labels[k].text_y + 4, left ? " text-anchor='end'" : "");
        report_text(out, result->algorithm);
        fprintf(out, "</text>\n");
    }
}

static void draw_bytes_axes(FILE *out, const struct decades *axis, double left, double right)
{
    for (double v = axis->least; v <= axis->most * 1.01; v *= 10) {
        fprintf(out,
                "<line class='grid' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/><text x='%.1f' y='%.1f' "
                "text-anchor='end'>",
                left, right, place(axis, v), place(axis, v), left - 8, place(axis, v) + 4);
        print_percent(out, axis, v);
        fprintf(out, "</text>\n");
    }
    for (int percent = 0; percent <= 100; percent += 20) {
        double x = left + (right - left) * percent / 100;
        fprintf(out,
                "<line class='grid' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/><text x='%.1f' y='%.1f' "
                "text-anchor='middle'>%d %%</text>\n",
                x, x, axis->to, axis->from, x, axis->from + 19, percent);
    }
    fprintf(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>bytes that change rank, of all</text>\n",
            (left + right) / 2, axis->from + 42);
    fprintf(out,
            "<text transform='translate(13 %.1f) rotate(-90)' text-anchor='middle'>gap to the lower bound</text>\n",
            (axis->from + axis->to) / 2);
}

void report_bytes(FILE *out, const struct simulate *sim)
{
    const double left = 84, right = WIDTH - 26;
    const struct decades axis = decades_of(sim, 300, 26);
    struct label labels[SIMULATE_ALGORITHMS];
    double floor = 0;
    uint32_t n = 0;

    fprintf(out, "<svg viewBox='0 0 %.0f 348' role='img' aria-label='bytes moved against gap'>\n", WIDTH);
    draw_bytes_axes(out, &axis, left, right);
    for (uint32_t i = 0; i < sim->n_results; i++) {
        const struct simulate_result *result = &sim->result[i];
        if (result->error[0])
            continue;
        floor = result->floor;
        for (uint32_t b = 0; b < result->n; b += step_of(result))
            fprintf(out, "<circle cx='%.1f' cy='%.1f' r='2.5' fill='var(--c%u)' fill-opacity='.28'/>",
                    left + (right - left) * result->batch[b].moved, place(&axis, gap_of(&result->batch[b])),
                    colour_of(sim, i));
        labels[n++] = (struct label){i, left + (right - left) * result->moved, place(&axis, result->gap), 0};
    }
    fprintf(out,
            "\n<line class='floor' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/><text class='good' x='%.1f' y='%.1f'>least "
            "possible, %.1f %%</text>\n",
            left + (right - left) * floor, left + (right - left) * floor, axis.to, axis.from,
            left + (right - left) * floor, axis.to - 7, 100 * floor);
    draw_labels(out, sim, labels, n, right, axis.from - 2);
    fprintf(out, "</svg>\n");
}

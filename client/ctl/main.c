/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl: looks into poised, plans without it, and shows on this machine what balancing does. One table of
 * subcommands; each is a file of its own. Results go to stdout, everything else to stderr.
 */
#include "client/ctl/ctl.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "poise.h"

static const char plan_help[] =
    "Reads one JSON object from standard input and writes the rank mapping as one JSON object. No daemon is needed;\n"
    "the answer is the same one that poised gives.\n\n"
    "  echo '{\"lengths\": [[100, 4], [4, 100]], \"micro_batch_size\": 1}' | poisectl plan\n\n"
    "In:   lengths             a list a rank of the lengths of its samples; a sample with several phases is a list\n"
    "      cost                a preset, or [{\"name\", \"linear\", \"quadratic\", \"constant\", \"passes\",\n"
    "                          \"padded\", \"barrier\"}, ...], one a phase; default: the square of the length\n"
    "      algorithm, objective, count, cut, tolerance_ppm, micro_batch_size, num_microbatches, stages,\n"
    "      image_encoder_dp\n"
    "      attention, bytes, packed_bytes, units, micro_batches    as lengths, a value a sample (attention: a phase)\n"
    "      nodes, speeds, sync_sets                                a list with a number a rank\n"
    "      caps                {\"samples_rank\", \"samples_micro_batch\", \"bytes_rank\", \"length_rank\",\n"
    "                          \"length_micro_batch\"}; the last two a list with a value a phase; \"none\": no cap\n"
    "      extents, pads       padded axes a sample; [{\"axes\", \"multiple\", \"fixed\", \"unit_bytes\"}, ...]\n"
    "      null stands for the default everywhere.\n"
    "Out:  rank_table          a list a rank of [origin rank, index], in the order of delivery\n"
    "      microbatches        the same, cut into micro-batches\n"
    "      quality             cost before and after, what moves, what no plan can be below\n"
    "      plan_id             names the plan: equal requests have equal ids\n";

static const char status_help[] =
    "Asks the poised of this machine which groups it serves, at which step each rank is, how uneven the steps are\n"
    "before and after balancing, and what is waited for.\n";

static const char top_help[] =
    "Shows what the poised of this machine sees and looks again every second: steps a second, imbalance predicted and\n"
    "measured, who is waited for and why, bytes moved, memory, samples verified. q or Ctrl-C ends it.\n";

static const char doctor_help[] =
    "Checks what a job would stumble over, as the user who would start it: poised and its version, permissions,\n"
    "shared memory and its seals, limits, free memory, cores. Every line is ok, warn or fail and says what to do; the\n"
    "exit status is 0 where nothing fails.\n\n"
    "  poisectl doctor --coordinators tcp://node-0,tcp://node-1\n";

static const char mode_help[] =
    "Changes what the daemon of this machine does with a group of yours (root: of anybody), from its next step on:\n"
    "  on      balance\n"
    "  shadow  plan and report, but deliver every sample where it came from\n"
    "  off     deliver every sample where it came from\n"
    "GROUP is JOB/GROUP as poisectl status shows it, JOB (all its groups), or \"all\".\n";

static const char run_help[] =
    "Starts a private poised in a folder of its own, then COMMAND with POISE_SOCKET_DIR set to it, and ends both\n"
    "together: nothing has to be installed or configured for a first try on one machine. From a build tree\n"
    "POISE_LIBRARY and PYTHONPATH are set as well. Signals go on to COMMAND, and its exit status is this one's\n"
    "(128 + N: signal N).\n\n"
    "  poisectl run torchrun --nproc_per_node 4 train.py\n\n"
    "Exit status 125: poised did not start; 126, 127: COMMAND cannot be run, is not found.\n";

static const char keygen_help[] =
    "Makes the key that the nodes of a cluster know each other by, in a FILE of mode 0600 (as root it belongs to the user\n"
    "poise, if there is one). Copy it to every node and set keys = FILE in poised.conf there; see docs/cluster.md.\n\n"
    "  poisectl keygen /etc/poise/keys\n";

static const char demo_help[] =
    "Starts a private poised and one trainer process a rank on samples of real sizes, runs the same steps unbalanced,\n"
    "in shadow mode, with the reference's algorithm and with the default, and prints a table. Every byte that arrives\n"
    "is verified. Trainers compute by sleeping, by a cost that the planner only knows roughly: coefficients off by up\n"
    "to 20 %, noise of 5 % a rank and step, a fixed part of 25 % of the mean step. --truth exact leaves all out.\n"
    "Nothing is left behind, however it ends.\n";

static const char simulate_help[] =
    "Reads sizes of training samples from a CSV file with a header, deals them out in random global batches, plans\n"
    "each with every algorithm, and says what balancing would do: how uneven ranks are before and after, the\n"
    "predicted speed-up, the bytes that move, what limits, and what would help. No daemon is needed; the same seed gives the\n"
    "same answer.\n\n"
    "  poisectl simulate tests/data/image_text.csv --ranks 64 --per-rank 8 --report report.html\n\n"
    "Columns that are known by their names; --columns WHAT=COLUMN names others (text=question+answer is a sum):\n"
    "  length                   tokens of a sample\n"
    "  width, height            pixels of an image; both empty or 0: text alone\n"
    "  image_sizes              several images, \"640x480;1024x768\"\n"
    "  frames, width, height    a video; fps where it is not 29.97\n"
    "  tiles, tokens            vit_tiles and llm_tokens, as InternVL counts\n"
    "  seconds                  of sound\n"
    "  text, bytes              text tokens beside these; payload, unless it follows from the sizes\n\n"
    "In the place of a CSV file it reads a record (option record=FILE of a job): each recorded step is a batch, with the\n"
    "job's own options; of the options below --algorithm and --json count.\n";

static const char explain_help[] =
    "Reads a record (the option record=FILE of a training job, or POISE_RECORD), plans a step again from what every rank\n"
    "said of it, checks that the plan is the one that was delivered, and says what moved from where to where and why, and\n"
    "what limited it. Without --step: a line for each step.\n\n"
    "  poisectl explain run.record --step 1200 --rank 3\n\n"
    "Exit status 1: the plan is another one than was recorded (another version of the planner).\n";

const struct ctl_command ctl_commands[] = {
    {"plan", plan_command, "plan one step from JSON on standard input", "", plan_help},
    {"simulate", simulate_command, "what balancing would do for sizes in a CSV file", "CSV", simulate_help},
    {"explain", explain_command, "why samples of a recorded step went where they went", "FILE", explain_help},
    {"status", status_command, "what the daemon of this machine sees", "", status_help},
    {"top", top_command, "the same, live in a terminal", "", top_help},
    {"doctor", doctor_command, "check this machine before a job starts", "", doctor_help},
    {"mode", mode_command, "switch a group between on, shadow and off", "GROUP on|shadow|off", mode_help},
    {"run", run_command, "a private poised for the life of a command", "COMMAND ...", run_help},
    {"keygen", keygen_command, "make the key of a cluster's nodes", "FILE", keygen_help},
    {"demo", demo_command, "measure balancing on this machine, with real processes and sizes", "", demo_help},
    {NULL, NULL, NULL, NULL, NULL},
};

static void print_commands(FILE *out)
{
    for (const struct ctl_command *command = ctl_commands; command->name; command++)
        fprintf(out, "  %-9s %s\n", command->name, command->summary);
}

static void print_help(void)
{
    printf("poisectl: keep the data-parallel ranks of a training run evenly loaded. See and try what poise does.\n\n"
           "  poisectl COMMAND [OPTION ...]\n\n");
    print_commands(stdout);
    printf("\npoisectl COMMAND --help explains one. --json, where a command has it, prints one JSON object for\n"
           "scripts. To begin: poisectl demo\n\n"
           "Exit status: 0 done; 1 it could not be done, or the demo found a sample lost, doubled or corrupt;\n"
           "2 the command line or the input is wrong.\n");
}

static const struct ctl_command *find(const char *name)
{
    for (const struct ctl_command *command = ctl_commands; command->name; command++)
        if (!strcmp(command->name, name))
            return command;
    return NULL;
}

static int run(int argc, char **argv)
{
    const struct ctl_command *command;

    if (argc < 2) {
        fprintf(stderr, "poisectl: say what to do. There are:\n");
        print_commands(stderr);
        return CTL_BAD_INPUT;
    }
    if (!strcmp(argv[1], "--help") || (!strcmp(argv[1], "help") && argc == 2)) {
        print_help();
        return CTL_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("poisectl %s\n", poise_version());
        return CTL_OK;
    }
    if (!strcmp(argv[1], "help") && find(argv[2])) {
        char *help[] = {argv[2], "--help", NULL};
        return find(argv[2])->run(find(argv[2]), 2, help);
    }
    command = find(!strcmp(argv[1], "help") ? argv[2] : argv[1]);
    if (!command) {
        fprintf(stderr, "poisectl: there is no command \"%s\". There are:\n", argv[!strcmp(argv[1], "help") ? 2 : 1]);
        print_commands(stderr);
        return CTL_BAD_INPUT;
    }
    return command->run(command, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    int status;

    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of the last flush, not a death in between */
    status = run(argc, argv);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "poisectl: the output could not be written\n");
        return status ? status : CTL_FAILED;
    }
    return status;
}

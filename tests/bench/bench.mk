# SPDX-License-Identifier: Apache-2.0
# Benchmarks: docs/benchmarks.md. tests/bench/bench_NAME.c is a program of its own; the other .c files of the folder are its
# parts. tests/bench/run runs them.
#
# make bench [B=NAME] [QUICK=1] [MPI=0] [BENCH="arguments"] [BENCH_JSON=FILE]   every benchmark, or one. FILE becomes one JSON
#     object with a key a benchmark, whole or not at all. QUICK=1: under 20 s and without MPI, to see that it runs. MPI=1|0:
#     with Open MPI, which is installed for this only; without.

B ?= *
MPI ?= $(if $(QUICK),0,1)
BENCH_NAMES := $(patsubst tests/bench/bench_%.c,%,$(sort $(wildcard tests/bench/bench_$(B).c)))
BENCH_BINS = $(BENCH_NAMES:%=$(BUILD)/bench/%)
BENCH_MPI = $(BUILD)/bench/mpi_rank
bench_parts := $(addprefix tests/bench/,crew.c host.c poise_rank.c copy_rank.c) client/examples/payload.c \
	$(addprefix client/ctl/,csv.c private.c private_dir.c process.c sizes.c)

$(BUILD)/bench/shuffle $(BUILD)/bench/next: $(call obj,$(bench_parts))
$(BUILD)/bench/coordinator: $(call obj,$(core)) $(BUILD)/poised
$(BENCH_BINS): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/bench_%.o $(call archives,client proto planner)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS_POISE)

$(BENCH_MPI): tests/bench/mpi_rank.c $(call obj,tests/bench/crew.c client/examples/payload.c) $(call archives,client proto planner) $(BUILD)/flags
	$(call say,MPICC,$@)
	$(Q)mkdir -p $(@D) && OMPI_CC='$(CC)' mpicc -std=gnu11 -Wall -Wextra $(CFLAGS) $(ALL_CPPFLAGS) -o $@ $(filter %.c %.o %.a,$^) \
		$(LIBS_POISE)

bench: setup
	@[ '$(SETUP)' = 0 ] || [ '$(MPI)' = 0 ] || .ci/setup openmpi-bin libopenmpi-dev || \
		echo 'Open MPI could not be installed: its part will be skipped.' >&2
	@$(MAKE) --no-print-directory bench-built

bench-built: $(BENCH_BINS) $(BUILD)/poised
	$(Q)[ '$(MPI)' = 0 ] || ! command -v mpicc >/dev/null || $(MAKE) --no-print-directory $(BENCH_MPI)
	@BUILD='$(BUILD)' MPI='$(MPI)' QUICK='$(QUICK)' BENCH_JSON='$(BENCH_JSON)' tests/bench/run '$(BENCH)' $(BENCH_NAMES)

# tests/system/test_bench.sh
test-built test-system: $(BENCH_BINS)

.PHONY: bench bench-built

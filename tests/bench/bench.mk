# SPDX-License-Identifier: Apache-2.0
# Benchmarks: tests/bench/bench_NAME.c is a program of its own, linked with the archives; it prints a table.
#
# make bench [B=NAME] [BENCH="arguments"] [BENCH_JSON=FILE]   every benchmark (or one); with BENCH_JSON also one JSON object
#                                                             in FILE, which appears whole or not at all

B ?= *
BENCH_NAMES := $(patsubst tests/bench/bench_%.c,%,$(sort $(wildcard tests/bench/bench_$(B).c)))
BENCH_PARTS = $(BENCH_NAMES:%=$(BUILD)/bench/%.json)

$(BUILD)/bench/%: $(BUILD)/obj/tests/bench/bench_%.o $(call archives,client proto planner)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_POISE)

bench: setup
	@$(MAKE) --no-print-directory bench-built

# Each program writes its object to the file that its own BENCH_JSON names; together they are one, by name of benchmark.
bench-built: $(addprefix $(BUILD)/bench/,$(BENCH_NAMES))
	$(Q)for name in $(BENCH_NAMES); do \
		rm -f $(BUILD)/bench/$$name.json; \
		BENCH_JSON=$(if $(BENCH_JSON),$(BUILD)/bench/$$name.json) $(BUILD)/bench/$$name $(BENCH) || exit 1; done
	$(if $(BENCH_JSON),$(Q)jq -n '[inputs | {key: (input_filename | sub(".*/"; "") | sub("\\.json$$"; "")), value: .}] | \
		from_entries' $(BENCH_PARTS) >$(BUILD)/bench/all.json && cp $(BUILD)/bench/all.json '$(BENCH_JSON).new' && \
		mv '$(BENCH_JSON).new' '$(BENCH_JSON)')

.PHONY: bench bench-built

# SPDX-License-Identifier: Apache-2.0
# Benchmarks: tests/bench/bench_NAME.c is a program of its own, linked with the archives; it prints a table, and writes one
# JSON object to the file that BENCH_JSON in its environment names, if that is not empty.
#
# make bench [B=NAME] [BENCH="arguments"] [BENCH_JSON=FILE]   every benchmark (or one); FILE becomes one JSON object with a
#                                                             key a benchmark, whole or not at all

B ?= *
BENCH_NAMES := $(patsubst tests/bench/bench_%.c,%,$(sort $(wildcard tests/bench/bench_$(B).c)))
BENCH_BINS = $(BENCH_NAMES:%=$(BUILD)/bench/%)
BENCH_JOIN := [inputs | {key: (input_filename | sub(".*/"; "") | sub("\\.json"; "")), value: .}] | from_entries

$(BENCH_BINS): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/bench_%.o $(call archives,client proto planner)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_POISE)

bench: setup
	@$(MAKE) --no-print-directory bench-built

bench-built: $(BENCH_BINS)
	$(Q)rm -f $(BUILD)/bench/*.json
	$(Q)for name in $(BENCH_NAMES); do \
		BENCH_JSON="$(if $(BENCH_JSON),$(BUILD)/bench/$$name.json)" $(BUILD)/bench/$$name $(BENCH) || exit 1; done
	$(Q)[ -z "$(BENCH_JSON)" ] || { jq -n '$(BENCH_JOIN)' $(BENCH_BINS:%=%.json) >"$(BENCH_JSON).new" && \
		mv "$(BENCH_JSON).new" "$(BENCH_JSON)"; } || { rm -f "$(BENCH_JSON).new"; exit 1; }

.PHONY: bench bench-built

# SPDX-License-Identifier: Apache-2.0
# Fuzzing with clang's libFuzzer: tests/fuzz/fuzz_NAME.c is one entry, tests/fuzz/seeds/NAME its seeds.
#
# make fuzz [TIME=60] [F=NAME]   every entry (or one) for TIME seconds; what it learns stays in BUILD/fuzz/corpus
# make fuzz-seeds                the seeds once, under the sanitizers (the unit tests run them too, without clang)
# make fuzz-seeds-write          makes the seeds anew, after the protocol has changed

TIME ?= 60
F ?= *
FUZZ_CC ?= clang
FUZZ_FLAGS = -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_$(F).c)))
FUZZ_SOURCES := $(wildcard proto/*.c) daemon/planner/err.c
# Of libpoise, what decodes; and what makes cases for it.
FUZZ_PAYLOAD := client/payload_wire.c client/value.c tests/unit/payload_case.c
fuzz_bins = $(FUZZ_NAMES:%=$(BUILD)/fuzz/%)

$(BUILD)/fuzz/payload: $(FUZZ_PAYLOAD)
$(BUILD)/fuzz/csv: client/ctl/csv.c
$(BUILD)/fuzz/config: daemon/shell/config.c daemon/shell/endpoint.c
$(BUILD)/fuzz/directory: client/directory.c client/value.c
$(BUILD)/fuzz/plan: client/offline.c client/sized.c client/ctl/plan_request.c client/ctl/plan_columns.c client/ctl/plan_where.c $(filter-out %/err.c,$(planner))
$(BUILD)/fuzz/%: tests/fuzz/fuzz_%.c $(FUZZ_SOURCES) $(wildcard proto/*.h include/*.h) $(PB).c
	$(call say,FUZZ,$@)
	$(Q)command -v $(FUZZ_CC) >/dev/null || { echo "fuzzing needs clang: apt-get install clang" >&2; exit 1; }
	$(Q)mkdir -p $(@D) && $(FUZZ_CC) -std=gnu11 $(ALL_CPPFLAGS) $(FUZZ_FLAGS) -w -o $@ $(filter %.c,$^) \
		$(PKG_CFLAGS) $(call pc,--libs,libprotobuf-c inih jansson) -lm

fuzz: $$(fuzz_bins)
	$(Q)for name in $(FUZZ_NAMES); do \
		mkdir -p $(BUILD)/fuzz/corpus/$$name && echo "  FUZZ     $$name for $(TIME) s" && \
		$(BUILD)/fuzz/$$name -max_total_time=$(TIME) -max_len=8192 -rss_limit_mb=1024 -timeout=10 -verbosity=0 \
			$$([ -f tests/fuzz/$$name.dict ] && echo -dict=tests/fuzz/$$name.dict) -print_final_stats=1 -artifact_prefix=$(BUILD)/fuzz/$$name- $(BUILD)/fuzz/corpus/$$name \
			tests/fuzz/seeds/$$name || exit 1; done

fuzz-seeds: $$(fuzz_bins)
	$(Q)for name in $(FUZZ_NAMES); do \
		$(BUILD)/fuzz/$$name tests/fuzz/seeds/$$name/* >$(BUILD)/fuzz/$$name.log 2>&1 || \
			{ cat $(BUILD)/fuzz/$$name.log; exit 1; }; \
		echo "  ok       $$name: $$(ls tests/fuzz/seeds/$$name | wc -l) seeds"; done

$(BUILD)/fuzz/make-seeds: $(call obj,tests/fuzz/make_seeds.c tests/unit/messages.c tests/unit/record_case.c client/directory.c $(FUZZ_PAYLOAD)) $(call archives,proto planner)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_POISE)

fuzz-seeds-write: $(BUILD)/fuzz/make-seeds
	$(Q)$(foreach name,$(FUZZ_NAMES),mkdir -p tests/fuzz/seeds/$(name) &&) $< tests/fuzz/seeds

.PHONY: fuzz fuzz-seeds fuzz-seeds-write

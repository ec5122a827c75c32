# SPDX-License-Identifier: Apache-2.0
# Tests. tests/KIND/test_NAME.c is a Criterion program of its own, linked with the archives and the other .c files of its
# folder; tests/system/test_NAME.sh is a script. T=NAME runs only that one.

LIBS_TEST := $(call pc,--libs,criterion) $(LIBS_DAEMON) $(LIBS_POISE)
T ?= *
test_bins = $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/$(1)/test_$(T).c)))
helpers = $(call obj,$(filter-out $(wildcard tests/$(1)/test_*.c),$(wildcard tests/$(1)/*.c)))
TEST_SCRIPTS := $(sort $(wildcard tests/system/test_$(T).sh))

.SECONDEXPANSION:
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $$(call helpers,$$(*D)) $(call archives,shell client core proto planner)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
		$(LIBS_TEST)

# The simulated cluster runs a core whose rules it can take away one by one: daemon/core/rules.h.
$(BUILD)/lib/core_rules.a: $(patsubst %.c,$(BUILD)/obj/rules/%.o,$(core))
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) qcs $@ $^
$(BUILD)/obj/rules/%.o: %.c $(BUILD)/flags | $(PB).h
	$(call say,CC,"$< (rules)")
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) -DCORE_RULES $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/obj/tests/sim/%.o: private CPPFLAGS += -DCORE_RULES
$(BUILD)/tests/sim/%: $(BUILD)/obj/tests/sim/%.o $$(call helpers,sim) $(call archives,client core_rules proto planner)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
		$(LIBS_TEST)

# chaos-sim: simulated clusters to 4,096 ranks, 10,000 steps in all; POISE_SEED= repeats a run. Some minutes.
chaos-sim: $(BUILD)/tests/sim/test_fleet
	$(Q)POISE_FLEET=full $< --verbose=0

# The protocol's model, searched whole, and its mutants: docs/model/README.md.
model:
	@docs/model/check $(abspath $(BUILD))/model || [ $$? = 77 ]

# A poised that dies in its planner when it is told to: test_planner_death.sh.
FAULTY := $(BUILD)/tests/poised_faulty
$(FAULTY): $(call obj,daemon/main.c tests/system/faulty/plan_fault.c) $(call archives,shell core_rules proto planner)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_DAEMON) $(LIBS_POISE)
$(BUILD)/obj/tests/system/faulty/%.o: private CPPFLAGS += -DCORE_RULES
test-built test-system: $(FAULTY)

# poisectl is no archive: tests of its parts name them.
dataset := $(addprefix client/ctl/,csv.c dataset.c dataset_columns.c dataset_measure.c sizes.c)
$(BUILD)/tests/unit/test_csv: $(call obj,client/ctl/csv.c)
$(BUILD)/tests/unit/test_seeds_csv: $(call obj,client/ctl/csv.c)
$(BUILD)/tests/unit/test_seeds_plan: $(call obj,$(addprefix client/ctl/plan_,request.c columns.c where.c))
$(BUILD)/tests/unit/test_dataset: $(call obj,$(dataset))
$(BUILD)/tests/unit/test_simulate: $(call obj,$(dataset) $(addprefix client/ctl/simulate_,batch.c cost.c options.c))

test: setup
	@$(MAKE) $(JOBS) --no-print-directory test-built

test-built: all check-pure $(call test_bins,unit) $(call test_bins,sim) $(call test_bins,system)
	@BUILD=$(BUILD) tests/run $(call test_bins,unit) $(call test_bins,sim) $(call test_bins,system) $(TEST_SCRIPTS) \
		$(TEST_PYTHON)

test-unit: $$(call test_bins,unit)
	@BUILD=$(BUILD) tests/run $^
test-sim: $$(call test_bins,sim)
	@BUILD=$(BUILD) tests/run $^
test-system: all $$(call test_bins,system)
	@BUILD=$(BUILD) tests/run $(filter-out $(FAULTY),$(filter $(BUILD)/tests/%,$^)) $(TEST_SCRIPTS)

# planner and core may import nothing but pure libc: no clock, no random source, no file, no socket.
check-pure: $(call archives,planner core)
	@tests/check-pure $^

.PHONY: chaos-sim model test test-built test-unit test-sim test-system check-pure

include tests/python/python.mk
include tests/torch/torch.mk
include tests/fuzz/fuzz.mk
include tests/bench/bench.mk
include tests/thread/thread.mk
include tests/systemd/systemd.mk
include tests/static/static.mk
include tests/chaos/chaos.mk

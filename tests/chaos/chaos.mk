# SPDX-License-Identifier: Apache-2.0
# Chaos: real trainers and daemons, several hosts in network namespaces where they may be made, and random faults.
#
# make chaos [SEED=N] [MINUTES=5] [CHAOS="further arguments"]   build/chaos --help lists them; a seed repeats its faults

MINUTES ?= 5
$(BUILD)/chaos: $(call obj,$(wildcard tests/chaos/*.c) client/examples/payload.c) $(call archives,client proto planner)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(call pc,--libs,jansson) $(LIBS_POISE)

# tests/system/test_chaos.sh
test-built test-system: $(BUILD)/chaos

chaos: setup
	@[ '$(SETUP)' = 0 ] || .ci/setup iproute2 nftables
	@$(MAKE) $(JOBS) --no-print-directory all $(BUILD)/chaos
	@$(BUILD)/chaos $(if $(SEED),--seed $(SEED)) --minutes $(MINUTES) $(CHAOS)

.PHONY: chaos

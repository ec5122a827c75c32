# SPDX-License-Identifier: Apache-2.0
# ThreadSanitizer. Criterion cannot start under it, so tests/thread/thread_NAME.c are plain programs (the other .c of the
# folder are their parts), and thread_NAME.sh run the real binaries. It sees a race only within one mapping of memory: what
# two processes share is tested by thread_control.c with both ends on one.
#
# make test-thread [T=NAME]   builds with SAN=thread in a folder of its own (build/san-thread) and runs them

THREAD_BUILD = $(if $(filter thread,$(SAN)),$(BUILD),$(BUILD)/san-thread)
THREAD_BINS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/thread/thread_$(T).c)))
THREAD_SCRIPTS := $(sort $(wildcard tests/thread/thread_$(T).sh))

$(THREAD_BINS): $(BUILD)/tests/thread/%: $(BUILD)/obj/tests/thread/%.o $(call obj,tests/thread/rig.c tests/system/daemon.c \
		tests/system/load.c) $(call archives,client proto planner)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS_POISE)

test-thread: setup
	@$(MAKE) $(JOBS) --no-print-directory SAN=thread BUILD='$(THREAD_BUILD)' SETUP=0 test-thread-built

# history_size: how far back the other access of a race is remembered; the default forgets it within a step.
test-thread-built: all $(THREAD_BINS)
	@BUILD='$(BUILD)' TSAN_OPTIONS='halt_on_error=1:exitcode=66:history_size=5:second_deadlock_stack=1:suppressions=$(CURDIR)/tests/thread/suppressions' \
		tests/run $(THREAD_BINS) $(THREAD_SCRIPTS)

.PHONY: test-thread test-thread-built

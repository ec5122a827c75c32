# SPDX-License-Identifier: Apache-2.0
# `make check-static`: clang-tidy (.clang-tidy) and cppcheck (tests/static/suppressions) over all C code, warnings as errors.
# A file that was found fine is looked at again when it or a header has changed: $(BUILD)/static has a stamp for each.

TIDY ?= clang-tidy
static_sources := $(sort $(planner) $(proto) $(core) $(shell) $(client) $(ctl) daemon/main.c $(wildcard client/examples/*.c))
static_headers := $(wildcard include/*.h proto/*.h daemon/*/*.h client/*.h client/*/*.h)
# Paths of the analyzer for a function: a tenth of the default finds the same here, in a tenth of the time.
ANALYZER := -Xclang -analyzer-config -Xclang max-nodes=20000

$(BUILD)/static/%.tidy: %.c .clang-tidy $(static_headers) | $(PB).h
	$(call say,TIDY,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(TIDY) --quiet $< -- $(ALL_CPPFLAGS) -std=gnu11 $(PKG_CFLAGS) $(ANALYZER) >$@.log 2>/dev/null || \
		{ grep -v '^[0-9]* warnings' $@.log; exit 1; }
	$(Q)touch $@

# One run for all: it is fast, and sees what no file uses. Generated code is no part of it.
$(BUILD)/static/cppcheck: $(static_sources) $(static_headers) tests/static/suppressions
	$(call say,CPPCHECK,.)
	$(Q)mkdir -p $(BUILD)/static/cache && cppcheck --quiet -j2 --std=c11 --enable=warning,performance,portability \
		--inline-suppr --suppress=unmatchedSuppression --suppressions-list=tests/static/suppressions --error-exitcode=1 --cppcheck-build-dir=$(BUILD)/static/cache \
		-I. -Iinclude -D_GNU_SOURCE -DNULL='((void*)0)' --template='{file}:{line}: {severity}: {message} [{id}]' $(static_sources)
	$(Q)touch $@

check-static-built: $(static_sources:%.c=$(BUILD)/static/%.tidy) $(BUILD)/static/cppcheck

check-static:
	@[ "$(SETUP)" = 0 ] || .ci/setup clang-tidy cppcheck
	@$(MAKE) $(JOBS) --no-print-directory check-static-built

.PHONY: check-static check-static-built

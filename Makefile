# SPDX-License-Identifier: Apache-2.0
#
# make              build/poised build/poisectl build/libpoise.so build/libpoise.a build/trainer
# make demo         install what is missing, build, run `poisectl demo` (DEMO= its arguments)
# make test         install what is missing, build, run every test (T=NAME: only tests/*/test_NAME)
# make help         all targets
#
# Knobs: V=1 shows commands. SAN=address,undefined builds with sanitizers, in its own folder. WERROR=1. SETUP=0 installs
# nothing. CC, CFLAGS, CPPFLAGS, LDFLAGS, PREFIX, LIBDIR, DESTDIR as usual; a changed flag rebuilds.

CFLAGS ?= -O2 -g
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
OBJCOPY ?= objcopy
SETUP ?= 1
JOBS = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
BUILD ?= build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
comma := ,
VERSION := $(shell sed -n 's/^.define POISE_VERSION "\(.*\)"/\1/p' include/poise.h)
SOVERSION := $(firstword $(subst ., ,$(VERSION)))
ifneq ($(V),1)
Q := @
say = @printf '  %-8s %s\n' $(1) $(2)
endif

PKGS_POISE := libzmq libprotobuf-c
PKGS_DAEMON := libuv libmicrohttpd jansson inih
PC := $(shell command -v pkg-config 2>/dev/null)
pc = $(if $(PC),$(shell pkg-config $(1) $(2) 2>/dev/null))
PKG_CFLAGS := $(call pc,--cflags,$(PKGS_POISE) $(PKGS_DAEMON))

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wformat=2 -Wundef \
	$(if $(WERROR),-Werror)
ALL_CPPFLAGS = -I. -Iinclude -I$(BUILD)/gen -D_GNU_SOURCE $(CPPFLAGS)
ALL_CFLAGS = -std=gnu11 $(WARN) -fPIC -fvisibility=hidden -pthread $(SANFLAGS) $(CFLAGS) \
	$(PKG_CFLAGS)
SANFLAGS = $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
ALL_LDFLAGS = -pthread $(SANFLAGS) $(LDFLAGS)
LIBS_POISE := $(call pc,--libs,$(PKGS_POISE)) -lm
LIBS_DAEMON := $(call pc,--libs,$(PKGS_DAEMON))
# The trainer finds libpoise.so beside itself (build/) and from libexec/poise; packages set RPATH= (the linker's cache knows).
RPATH = $$ORIGIN:$$ORIGIN/$(shell realpath -m --relative-to='$(PREFIX)/libexec/poise' '$(LIBDIR)')

# ----------------------------------------------------------------------------------------------------------- sources
planner := $(wildcard daemon/planner/*.c)
proto := $(wildcard proto/*.c)
core := $(wildcard daemon/core/*.c)
shell := $(wildcard daemon/shell/*.c)
client := $(wildcard client/*.c)
ctl := $(wildcard client/ctl/*.c)
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
PB := $(BUILD)/gen/poise.pb-c
ARCHIVES := $(foreach a,planner proto core shell client,$(BUILD)/lib/$(a).a)
archives = $(foreach a,$(1),$(BUILD)/lib/$(a).a)

all: $(BUILD)/poised $(BUILD)/poisectl $(BUILD)/libpoise.so $(BUILD)/libpoise.a $(BUILD)/trainer $(BUILD)/poise.pc \
	$(BUILD)/poised.service

$(BUILD)/poised: $(call obj,daemon/main.c) $(call archives,shell core proto planner)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_DAEMON) $(LIBS_POISE)

$(BUILD)/poisectl: $(call obj,$(ctl) client/examples/demo_board.c client/examples/payload.c) $(call archives,client core proto planner)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(call pc,--libs,jansson libcurl) $(LIBS_POISE)

$(BUILD)/libpoise.so.$(VERSION): $(call obj,$(client) $(proto) $(planner)) $(PB).o client/libpoise.map
	$(call say,LD,$@)
	$(Q)grep -q '^POISE_$(basename $(VERSION)) {' client/libpoise.map || \
		{ echo "client/libpoise.map has no node for version $(VERSION) of include/poise.h" >&2; exit 1; }
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,libpoise.so.$(SOVERSION) -Wl,--version-script,client/libpoise.map \
		$(if $(SAN),,-Wl,--no-undefined) -o $@ $(filter %.o,$^) $(LIBS_POISE)

$(BUILD)/libpoise.so: $(BUILD)/libpoise.so.$(VERSION)
	$(Q)ln -sf libpoise.so.$(VERSION) $(BUILD)/libpoise.so.$(SOVERSION)
	$(Q)ln -sf libpoise.so.$(SOVERSION) $@

# One object in which all but the public names is local: a trainer's own `wire_encode` or `grid` cannot clash with ours.
$(BUILD)/libpoise.o: $(call obj,$(client) $(proto) $(planner)) $(PB).o
	$(call say,LD,$@)
	$(Q)$(CC) -r -nostdlib -o $@ $^ && $(OBJCOPY) --localize-hidden $@

$(BUILD)/libpoise.a: $(BUILD)/libpoise.o
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) qcs $@ $^

$(BUILD)/trainer: $(call obj,$(wildcard client/examples/*.c)) $(BUILD)/libpoise.so
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(BUILD) -lpoise $(if $(RPATH),-Wl$(comma)-rpath$(comma)'$(RPATH)') -lm

$(BUILD)/lib/planner.a: $(call obj,$(planner))
$(BUILD)/lib/proto.a: $(call obj,$(proto)) $(PB).o
$(BUILD)/lib/core.a: $(call obj,$(core))
$(BUILD)/lib/shell.a: $(call obj,$(shell) client/address.c client/keys.c)
$(BUILD)/lib/client.a: $(call obj,$(client))
$(ARCHIVES):
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) qcs $@ $^

$(PB).c: proto/poise.proto
	$(call say,PROTOC,$<)
	$(Q)mkdir -p $(@D) && protoc-c --proto_path=proto --c_out=$(@D) $<
$(PB).h: $(PB).c
$(PB).o: $(PB).c $(BUILD)/flags
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -w -c -o $@ $<

$(BUILD)/obj/%.o: %.c $(BUILD)/flags | $(PB).h
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# The flags of the last build, rewritten only when they change, so that a change rebuilds everything.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D) && echo '$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(RPATH) $(VERSION)' | cmp -s - $@ || \
		echo '$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(RPATH) $(VERSION)' > $@

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# ------------------------------------------------------------------------------------------------------------- tests
include tests/tests.mk

# --------------------------------------------------------------------------------------------------------- user targets
setup:
	@if [ "$(SETUP)" != 0 ]; then .ci/setup; fi

demo: setup
	@$(MAKE) $(JOBS) --no-print-directory all
	@$(BUILD)/poisectl demo $(DEMO)

include systemd/install.mk

clean:
	rm -rf build

help:
	@sed -n 's/^# \{0,1\}//;2,9p' Makefile
	@echo 'Also: test-unit test-sim test-system test-thread test-systemd check-pure check-static check-install fuzz install uninstall deb clean'

FORCE:
.PHONY: all setup demo clean help FORCE
.DELETE_ON_ERROR:
.SECONDARY:

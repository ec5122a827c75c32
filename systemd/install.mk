# SPDX-License-Identifier: Apache-2.0
# Installing. poisectl finds the demo's trainer and data from its own place (../libexec/poise, ../share/poise), so an
# installed tree may be moved as a whole; only LIBDIR may lie elsewhere (Debian: /usr/lib/x86_64-linux-gnu). A row is
# MODE|SOURCE|DESTINATION, and uninstall reads the same rows.
#
# The Python package goes to PYTHONDIR, by default where Debian's python3 looks below PREFIX. `pip install ./client/python`
# is for any other interpreter.

manpages := $(wildcard docs/man/*.[1-8])
# `man poise_open` shows poise.3: one link a public function.
functions := $(sort $(shell sed -n 's/^[a-z].*[ *]\(poise_[a-z_]*\)(.*)*/\1/p' include/poise.h))
share := $(PREFIX)/share
python3 = $(shell python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null || echo python3)
PYTHONDIR ?= $(PREFIX)/lib/$(if $(filter /usr,$(PREFIX)),python3,$(python3))/dist-packages
pythondir = $(eval pythondir := $(PYTHONDIR))$(pythondir)# asks python3 once, and only to install
package := client/python/poise
INSTALLED = \
	755|$(BUILD)/poised|$(PREFIX)/bin/poised \
	755|$(BUILD)/poisectl|$(PREFIX)/bin/poisectl \
	755|$(BUILD)/trainer|$(PREFIX)/libexec/poise/trainer \
	644|$(BUILD)/libpoise.so.$(VERSION)|$(LIBDIR)/libpoise.so.$(VERSION) \
	644|$(BUILD)/libpoise.a|$(LIBDIR)/libpoise.a \
	644|$(BUILD)/poise.pc|$(LIBDIR)/pkgconfig/poise.pc \
	644|include/poise.h|$(PREFIX)/include/poise.h \
	644|tests/data/image_text.csv|$(share)/poise/image_text.csv \
	644|client/ctl/completion/poisectl.bash|$(share)/bash-completion/completions/poisectl \
	$(foreach f,$(wildcard $(package)/*.py) $(package)/py.typed,644|$(f)|$(pythondir)/poise/$(notdir $(f))) \
	644|systemd/poised.conf|$(share)/doc/poise/poised.conf \
	644|$(BUILD)/poised.service|$(PREFIX)/lib/systemd/system/poised.service \
	644|systemd/poise.sysusers.conf|$(PREFIX)/lib/sysusers.d/poise.conf \
	644|systemd/poise.tmpfiles.conf|$(PREFIX)/lib/tmpfiles.d/poise.conf \
	$(foreach m,$(manpages),644|$(m)|$(share)/man/man$(subst .,,$(suffix $(m)))/$(notdir $(m)))
# TARGET|LINK
LINKED = \
	libpoise.so.$(VERSION)|$(LIBDIR)/libpoise.so.$(SOVERSION) \
	libpoise.so.$(SOVERSION)|$(LIBDIR)/libpoise.so \
	$(foreach f,$(functions),poise.3|$(share)/man/man3/$(f).3)

column = $(word $(1),$(subst |, ,$(2)))
define install_one
	$(Q)$(INSTALL) -D -m $(call column,1,$(1)) $(call column,2,$(1)) $(DESTDIR)$(call column,3,$(1))

endef
define link_one
	$(Q)ln -sf $(call column,1,$(1)) $(DESTDIR)$(call column,2,$(1))

endef
INSTALL ?= install

# Where things will be: rewritten only when that changes; another PREFIX costs two small files and no compilation.
$(BUILD)/paths: FORCE
	@mkdir -p $(@D) && echo '$(PREFIX) $(LIBDIR) $(VERSION)' | cmp -s - $@ || echo '$(PREFIX) $(LIBDIR) $(VERSION)' > $@

$(BUILD)/poise.pc: client/poise.pc.in $(BUILD)/paths
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|g' \
		-e 's|@VERSION@|$(VERSION)|g' $< > $@

$(BUILD)/poised.service: systemd/poised.service $(BUILD)/paths
	$(Q)sed 's|/usr/local/|$(PREFIX)/|g' $< > $@

install: all
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))
	$(foreach row,$(INSTALLED),$(call install_one,$(row)))
	$(foreach row,$(LINKED),$(call link_one,$(row)))
	@[ -n '$(DESTDIR)' ] || [ ! -w /etc/ld.so.cache ] || ldconfig

# Folders of poise go when they are empty; bin, lib and their like belong to others as well.
uninstall:
	rm -f $(foreach row,$(INSTALLED),$(DESTDIR)$(call column,3,$(row)))
	rm -f $(foreach row,$(LINKED),$(DESTDIR)$(call column,2,$(row)))
	rm -rf $(DESTDIR)$(pythondir)/poise/__pycache__
	-rmdir $(addprefix $(DESTDIR)$(PREFIX)/,libexec/poise share/poise share/doc/poise) $(DESTDIR)$(pythondir)/poise $(DESTDIR)/run/poise 2>/dev/null
	@[ -n '$(DESTDIR)' ] || [ ! -w /etc/ld.so.cache ] || ldconfig

# A C and a C++ program built against a staged install, the demo from there, uninstalling.
check-install: all
	@BUILD=$(BUILD) tests/run tests/system/test_install.sh

include systemd/deb.mk

.PHONY: install uninstall check-install

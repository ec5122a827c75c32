# SPDX-License-Identifier: Apache-2.0
# Debian packages: poise (daemon, tools), libpoise0, libpoise-dev, in $(BUILD)/deb. debhelper builds them from a copy of
# the tree, with Debian's own flags; its inputs are in systemd/debian.

DEB := $(BUILD)/deb
# This make's own variables (BUILD, SAN, PREFIX) must not reach the one that debhelper runs.
plain := env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u MAKEOVERRIDES -u BUILD -u SAN -u T -u V

deb:
	@[ "$(SETUP)" = 0 ] || .ci/setup debhelper
	@grep -q '^poise ($(VERSION)) ' systemd/debian/changelog || \
		{ echo "systemd/debian/changelog has no entry for $(VERSION) of include/poise.h" >&2; exit 1; }
	$(call say,DEB,$(DEB))
	$(Q)rm -rf $(DEB) && mkdir -p $(DEB)/poise-$(VERSION)
	$(Q)tar -c --exclude=./build --exclude=./.git --exclude=./debian . | tar -x -C $(DEB)/poise-$(VERSION)
	$(Q)cp -r systemd/debian $(DEB)/poise-$(VERSION)/debian
	$(Q)cd $(DEB)/poise-$(VERSION) && $(plain) DEB_BUILD_PROFILES=nocheck DEB_BUILD_OPTIONS="nocheck parallel=$$(nproc)" \
		dpkg-buildpackage -b -us -uc >../log 2>&1 || { tail -n 40 ../log >&2; exit 1; }
	$(Q)rm -rf $(DEB)/poise-$(VERSION) && ls $(DEB)/*.deb

.PHONY: deb

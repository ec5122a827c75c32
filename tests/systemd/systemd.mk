# SPDX-License-Identifier: Apache-2.0
# `make test-systemd`: the installed unit under a real systemd in a container (root, systemd-container; else skipped).
# Cleans up after itself, also when it is interrupted.

test-systemd: all
	@BUILD=$(BUILD) tests/run tests/systemd/test_systemd.sh

.PHONY: test-systemd

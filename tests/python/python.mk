# SPDX-License-Identifier: Apache-2.0
# The Python package. tests/python/test_NAME.py is a program (unittest, standard library only) that finds the library of
# BUILD through tests/python/rig.py; real poised, real processes.
#
# make test-python [T=NAME]
# make bench-python         what Python adds to a step

TEST_PYTHON := $(sort $(wildcard tests/python/test_$(T).py))

test-python: all
	@BUILD=$(BUILD) tests/run $(TEST_PYTHON)

bench-python: all
	@BUILD=$(BUILD) tests/python/bench_step.py

.PHONY: test-python bench-python

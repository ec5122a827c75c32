# SPDX-License-Identifier: Apache-2.0
# make test-torch       tests/torch/test_NAME.py with real poised and PyTorch, in virtual environments made here (T=NAME: one)
#
# make bench-torch      what balance() costs a trainer (ARGS= of tests/torch/bench_wait.py); on an idle machine
#
# TORCH_VENV= an environment that has torch 2.13.0 already. PIP= arguments of pip, such as the index of CPU builds: a plain
# torch can be a CUDA build of several GB, which is refused. tests/torch/test_numpy_NAME.py run with numpy and Pillow as well.

TORCH_VENV ?= $(BUILD)/venv-torch
NUMPY_VENV = $(BUILD)/venv-numpy
TORCH_SCRIPTS = $(sort $(wildcard tests/torch/test_$(T).py))
torch_ok = $(1)/bin/python -c 'import sys, torch; sys.exit(torch.__version__.split("+")[0] != "2.13.0" or bool(torch.version.cuda))' 2>/dev/null
site = $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

test-torch: setup
	@$(MAKE) $(JOBS) --no-print-directory all
	@$(MAKE) --no-print-directory test-torch-built

test-torch-built: $(BUILD)/venv.stamp
	@mkdir -p $(BUILD)/tests/torch
	@for t in $(TORCH_SCRIPTS); do \
		case $$t in */test_numpy_*) venv=$(abspath $(NUMPY_VENV)) ;; *) venv=$(abspath $(TORCH_VENV)) ;; esac; \
		printf '#!/bin/sh\nexec env POISE_LIBRARY=%s PYTHONPATH=%s PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 PATH=%s/bin:$$PATH python %s\n' \
			"$(abspath $(BUILD))/libpoise.so" "$(CURDIR)/client/python:$(CURDIR)/tests/torch" "$$venv" "$(CURDIR)/$$t" \
			>$(BUILD)/tests/torch/$$(basename $$t .py) && chmod +x $(BUILD)/tests/torch/$$(basename $$t .py) || exit 1; done
	@BUILD=$(BUILD) tests/run $(patsubst tests/%.py,$(BUILD)/tests/%,$(TORCH_SCRIPTS))

bench-torch: setup
	@$(MAKE) $(JOBS) --no-print-directory all $(BUILD)/venv.stamp
	@env BUILD=$(abspath $(BUILD)) POISE_LIBRARY=$(abspath $(BUILD))/libpoise.so PYTHONPATH=client/python:tests/torch \
		$(TORCH_VENV)/bin/python -W ignore tests/torch/bench_wait.py $(ARGS)

$(BUILD)/venv.stamp: tests/torch/requirements.txt tests/torch/requirements-numpy.txt
	@mkdir -p $(BUILD)
	@python3 -c 'import ensurepip, venv' 2>/dev/null || .ci/setup python3-venv
	@$(call torch_ok,$(TORCH_VENV)) || { python3 -m venv --clear $(TORCH_VENV) && \
		$(TORCH_VENV)/bin/python -m pip install -qq $(PIP) -r tests/torch/requirements.txt && $(call torch_ok,$(TORCH_VENV)) || { \
		echo "no CPU build of torch 2.13.0 in $(TORCH_VENV): give PIP='--index-url ...' or TORCH_VENV=" >&2; exit 1; }; }
	@python3 -m venv --clear $(NUMPY_VENV) && echo $(call site,$(TORCH_VENV)) >$(call site,$(NUMPY_VENV))/torch.pth && \
		$(NUMPY_VENV)/bin/python -m pip install -qq $(PIP) -r tests/torch/requirements-numpy.txt && touch $@

.PHONY: test-torch test-torch-built bench-torch

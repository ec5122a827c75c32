#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BatchSampler beside torch's own samplers: the tests of tests/python/test_sampler.py, where torch is there to compare with."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import rig  # noqa: E402
import torch.utils.data  # noqa: E402, F401

if __name__ == "__main__":
    rig.run_file(str(Path(__file__).parents[1] / "python" / "test_sampler.py"))

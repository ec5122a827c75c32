# SPDX-License-Identifier: Apache-2.0
"""The examples, as a newcomer starts them: poisectl run torchrun ... The pictures are made here; Debian's are for
people."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from PIL import Image

import cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "client" / "examples"


def run(n: int, script: str, *arguments: str) -> str:
    command = [
        str(cluster.BUILD / "poisectl"),
        "run",
        "--",
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        str(n),
        "--master_port",
        str(cluster.free_port()),
        str(EXAMPLES / script),
        *arguments,
    ]
    env = {name: value for name, value in os.environ.items() if name != "POISE_SOCKET_DIR"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=cluster.DEADLINE, env=env)
    if done.returncode:
        raise AssertionError(f"{script} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Examples(unittest.TestCase):
    def test_the_short_one(self):
        losses = re.findall(r"loss ([\d.]+)", run(2, "train.py"))
        self.assertEqual(2, len(losses))
        self.assertLess(max(map(float, losses)), 0.1)

    def test_vision_and_language(self):
        rng = random.Random(5)
        with tempfile.TemporaryDirectory() as folder:
            for i in range(40):
                width, height = rng.randint(20, 500), rng.randint(20, 400)
                colour = tuple(rng.randrange(256) for _ in range(3))
                kind = "jpg" if i % 2 else "png"
                Image.new("RGB", (width, height), colour).save(f"{folder}/picture-{i % 7}-{i}.{kind}")
            Path(folder, "broken.png").write_bytes(b"no picture")
            out = run(4, "train_vlm.py", "--images", folder, "--steps", "4", "--batch-size", "2", "--workers", "1")
        self.assertIn("40 pictures, 4 ranks", out)
        rows = {
            line.split()[0]: line.split()
            for line in out.splitlines()
            if line.split()[:1] in (["arrival"], ["balanced"])
        }
        arrival, balanced = rows["arrival"], rows["balanced"]
        self.assertEqual(arrival[-2:], balanced[-2:])  # the losses, to the fifth digit
        self.assertLess(float(balanced[-1]), float(balanced[-2]))
        self.assertLess(float(balanced[2]), float(arrival[2]))  # predicted imbalance


if __name__ == "__main__":
    unittest.main()

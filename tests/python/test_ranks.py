#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which data-parallel rank a process is: from arguments, from the environment, and what is no answer. Process groups
and meshes of the real torch.distributed are in tests/torch/test_views.py."""

import os
import sys
import types
import unittest
from unittest import mock

import rig
import poise
from poise import ranks


def place(*arguments, env=None, **named):
    with mock.patch.dict(os.environ, env or {}):
        return tuple(ranks.find(*arguments, **named))[:4]


class Ranks(unittest.TestCase):
    def refuses(self, text, *arguments, **named):
        with self.assertRaisesRegex(poise.InvalidInput, text):
            place(*arguments, **named)

    def test_arguments(self):
        self.assertEqual(place(2, 4), (2, 4, 0, 1))
        self.assertEqual(place(2, 4, 1, 2), (2, 4, 1, 2))
        self.assertEqual(place(2, 4, env={"RANK": "0", "WORLD_SIZE": "1"}), (2, 4, 0, 1))
        self.refuses("give both", 2)
        self.refuses("numbered from 0", 4, 4)
        self.refuses("numbered from 0", 0, 4, 2, 2)
        self.refuses("give both", 0, 4, None, 2)

    def test_environment(self):
        self.assertEqual(place(env={"RANK": "3", "WORLD_SIZE": "8"}), (3, 8, 0, 1))
        self.refuses("RANK is not set")
        self.refuses("WORLD_SIZE is not set", env={"RANK": "0"})
        self.refuses("must be a number", env={"RANK": "x", "WORLD_SIZE": "2"})

    def test_model_parallelism_without_a_group(self):
        world = {"RANK": "3", "WORLD_SIZE": "8"}
        self.refuses("model_parallel_size is 2.*process_group=", env=world, model_parallel_size=2)
        self.refuses("PARALLELISM_CONFIG_TP_SIZE is 2", env=world | {"PARALLELISM_CONFIG_TP_SIZE": "2"})
        self.refuses("n_replicas is 2", None, None, 0, 2, env=world)
        self.assertEqual(place(env=world | {"PARALLELISM_CONFIG_TP_SIZE": "1"}), (3, 8, 0, 1))
        module = types.ModuleType("megatron.training.global_vars")
        module._GLOBAL_ARGS = types.SimpleNamespace(tensor_model_parallel_size=4, pipeline_model_parallel_size=1)
        with mock.patch.dict(sys.modules, {"megatron.training.global_vars": module}):
            self.refuses("tensor_model_parallel_size is 4", env=world)

    def megatron(self, rank, tp, cp, pp, world):
        """The state of a rank as Megatron numbers them (tp, cp, dp, pp); Megatron itself cannot be installed here."""
        module = types.ModuleType("megatron.core.parallel_state")
        dp = world // (tp * cp * pp)
        at = {"tensor_model_parallel": (rank % tp, tp), "context_parallel": (rank // tp % cp, cp),
              "data_parallel": (rank // (tp * cp) % dp, dp), "pipeline_model_parallel": (rank // (tp * cp * dp), pp)}
        for name, (mine, size) in at.items():
            setattr(module, f"get_{name}_rank", lambda mine=mine: mine)
            setattr(module, f"get_{name}_world_size", lambda size=size: size)
        module.model_parallel_is_initialized = lambda: True
        return module

    def test_megatron(self):
        for tp, cp, pp, world in ((1, 1, 1, 4), (2, 1, 1, 8), (2, 2, 2, 16), (1, 1, 4, 8)):
            found = []
            for rank in range(world):
                with mock.patch.dict(sys.modules, {"megatron.core.parallel_state": self.megatron(rank, tp, cp, pp,
                                                                                                 world)}):
                    found.append(place(env={"RANK": str(rank), "WORLD_SIZE": str(world)}))
            n, m = world // (tp * cp * pp), tp * cp * pp
            self.assertEqual(sorted(found), sorted((r, n, k, m) for r in range(n) for k in range(m)))

    def test_megatron_that_is_not_initialised(self):
        module = self.megatron(0, 2, 1, 1, 8)
        module.model_parallel_is_initialized = lambda: False
        with mock.patch.dict(sys.modules, {"megatron.core.parallel_state": module}):
            self.assertEqual(place(env={"RANK": "3", "WORLD_SIZE": "8"}), (3, 8, 0, 1))

    def test_groups_of_a_grid_are_told_apart(self):
        for world, n, stride in ((8, 8, 1), (8, 4, 1), (8, 4, 2), (8, 2, 4), (8, 2, 1), (16, 2, 4), (16, 4, 2)):
            groups = [[first + i * stride for i in range(n)] for first in range(world) if first // stride % n == 0]
            found = [ranks._beside(members, world) for members in groups]
            self.assertEqual(sorted(found), [(i, world // n) for i in range(world // n)], (world, n, stride))
        for members in ([0, 1, 3], [1, 2], [0, 3]):
            with self.assertRaisesRegex(poise.InvalidInput, "no regular grid"):
                ranks._beside(members, 8)


if __name__ == "__main__":
    rig.main()

# SPDX-License-Identifier: Apache-2.0
"""The drop-in inside a training loop as the older system has it: Megatron's parallel state (a stand-in for it, as
Megatron wants accelerators), a cyclic generator behind a wrapper, a JSON file, next() for each micro-batch, dicts that
the loop alters."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
import unittest

import cluster
import torch
import vlm_batches as vlm
from poise.data_balance import GBSImageDataBalance as DataBalance
from poise.options import Phase


def parallel_state(process: int, tensor: int = 1, pipeline: int = 1, n: int = 4) -> None:
    """Megatron's order of processes: tensor-parallel peers are neighbours, then data-parallel ones, then pipeline
    stages."""
    data = n // tensor // pipeline
    sizes = {
        "tensor_model_parallel": tensor,
        "data_parallel": data,
        "pipeline_model_parallel": pipeline,
        "context_parallel": 1,
    }
    ranks = {
        "tensor_model_parallel": process % tensor,
        "data_parallel": process // tensor % data,
        "pipeline_model_parallel": process // tensor // data,
        "context_parallel": 0,
    }
    module = types.ModuleType("megatron.core.parallel_state")
    module.model_parallel_is_initialized = lambda: True
    for kind, size in sizes.items():
        setattr(module, f"get_{kind}_world_size", lambda size=size: size)
        setattr(module, f"get_{kind}_rank", lambda rank=ranks[kind]: rank)
    sys.modules["megatron.core.parallel_state"] = module


class Wrapper:
    """As Megatron's iterator that can rerun a step: the loader's generator is its `iterable`."""

    def __init__(self, iterable) -> None:
        self.iterable = iterable

    def __next__(self):
        return next(self.iterable)


class Texts(torch.utils.data.Dataset):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> dict:
        return vlm.sample(f"d{self.rank}i{i}", i % 3, most=4 if self.rank else 10)


def loader_of(rank: int, workers: int = 0):
    def cyclic():
        while True:
            yield from torch.utils.data.DataLoader(
                Texts(rank),
                batch_size=4,
                num_workers=workers,
                collate_fn=vlm.collate,
                multiprocessing_context="fork" if workers else None,
            )

    return Wrapper(cyclic())


def get_batch(data_iterator) -> dict:
    """One micro-batch as the loop's forward step gets it: it moves and renames in place."""
    batch = next(data_iterator)
    for key, value in batch.items():
        if isinstance(value, torch.Tensor):
            batch[key] = value.to("cpu", torch.float32 if torch.is_floating_point(value) else None)
    batch["transfer"] = None
    return batch


def train(rank: int, tensor: int, pipeline: int, workers: int, iterations: int, chunks: int | None = None) -> list:
    """The names of the samples of each micro-batch, by iteration (and chunk)."""
    parallel_state(rank, tensor, pipeline)
    state = sys.modules["megatron.core.parallel_state"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(vlm.MODEL, file)
        loaders = [loader_of(state.get_data_parallel_rank(), workers) for _ in range(chunks or 1)]
        balancer = DataBalance(
            chunks, path, "post_global_balancing_greedy_without_pad", chunks or 1, loaders if chunks else loaders[0]
        )
    assert balancer.image_encoder_dp == state.get_data_parallel_world_size()
    found = []
    for _ in range(iterations):
        data_iterator = balancer.build_balanced_train_data_iterator(
            is_vit_last_stage=False, max_batch_capacity=2, micro_batch_size=2, num_microbatches=2, data_type="image"
        )
        each = data_iterator if chunks else [data_iterator]
        found.append([[get_batch(iterator)["name"] for _ in range(2)] for iterator in each])
    balancer.close()
    return found


class Loop(cluster.Case):
    def names(self, iterations: int) -> list:
        """Of the first two data-parallel ranks, by iteration."""
        return [sorted(f"d{r}i{(4 * step + i) % 12}" for r in range(2) for i in range(4)) for step in range(iterations)]

    def check(self, found, ranks, iterations: int, chunk: int = 0) -> None:
        for step, names in enumerate(self.names(iterations)):
            given = [name for rank in ranks for micro_batch in found[rank][step][chunk] for name in micro_batch]
            self.assertEqual(names, sorted(given))

    def test_tensor_parallel_peers_see_the_same(self):
        found = self.ranks(train, 4, 2, 1, 0, 5)
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[2], found[3])
        self.check(found, (0, 2), 5)

    def test_pipeline_stages_and_their_chunks_see_the_same(self):
        found = self.ranks(train, 4, 1, 2, 0, 4, 2)
        self.assertEqual(found[0], found[2])
        self.assertEqual(found[1], found[3])
        for chunk in range(2):
            self.check(found, (0, 1), 4, chunk)

    def test_worker_processes(self):
        found = self.ranks(train, 4, 2, 1, 2, 5)
        self.assertEqual(self.ranks(train, 4, 2, 1, 0, 5), found)


class Sizes(unittest.TestCase):
    """What is taken from Megatron's state and arguments: no group is opened."""

    def tearDown(self):
        for name in ("megatron.core.parallel_state", "megatron.training.global_vars"):
            sys.modules.pop(name, None)

    def test_a_pipeline_has_its_objective(self):
        parallel_state(0, 1, 2)
        balancer = DataBalance(None, vlm.MODEL, None, 1, iter([]))
        self.assertEqual(("pipeline", 2), (balancer._options["objective"], balancer._options["stages"]))
        self.assertEqual(
            "step", DataBalance(None, vlm.MODEL, None, 1, iter([]), objective="step")._options["objective"]
        )

    def test_an_encoder_with_sizes_of_its_own(self):
        parallel_state(0)
        module = sys.modules["megatron.training.global_vars"] = types.ModuleType("global_vars")
        image = vlm.MODEL["image_encoder"] | {"tp": 2}
        for hetero, ranks in ((False, 4), (True, 2)):
            module._GLOBAL_ARGS = types.SimpleNamespace(hetero_parallel=hetero)
            balancer = DataBalance(None, vlm.MODEL | {"image_encoder": image}, None, 1, iter([]))
            self.assertEqual(ranks, balancer.image_encoder_dp)

    def test_what_is_wrong_is_said_at_once(self):
        parallel_state(0)
        for arguments, keywords, text in (
            ((None, None, None, 1, iter([])), {}, "model_config_path is None"),
            ((None, vlm.MODEL, "reference:fast", 1, iter([])), {}, "reference:fast: post_global"),
            ((2, vlm.MODEL, None, 0, iter([])), {}, "len_model is 0"),
            ((None, vlm.MODEL, None, 1, None), {}, "train_data_iterator is None in this process"),
            ((None, None, None, 1, iter([])), {"cost": [Phase("sight", 1)]}, "phase sight of cost= is not measured"),
            ((None, {"text_decoder": {"hidden_size": 8}}, None, 1, iter([])), {}, "lacks text_decoder.num_layers"),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, text):
                DataBalance(*arguments, **keywords)
        balancer = DataBalance(None, vlm.MODEL, None, 1, iter([]))
        with self.assertRaisesRegex(ValueError, "micro_batch_size is -1"):
            balancer.build_balanced_train_data_iterator(False, 1, -1, 1)


def measured(rank: int, keywords: dict) -> tuple:
    """The widths of the micro-batches of a step, and what the planner counted."""
    batch = vlm.collate([vlm.sample(f"w{rank}{i}", 0, words=30 if rank else 4) for i in range(4)])
    with DataBalance(None, None, "identity", 1, iter([batch]), **keywords) as balancer:
        batches = balancer.build_balanced_train_data_iterator(False, 2, 2, 2)
        widths, tokens = [], 0
        for one in batches:
            widths.append(one["input_ids"].shape[1])
            tokens = batches.info.totals.loss_tokens
        return widths, tokens, list(batches.info.totals.length_micro_batch_after)


class Measures(cluster.Case):
    def test_padding_to_the_step(self):
        texts = [
            [len(vlm.sample(f"w{rank}{i}", 0, words=30 if rank else 4)["input_ids"]) for i in range(4)]
            for rank in range(2)
        ]
        own = self.ranks(measured, 2, {"cost": "length"})
        self.assertEqual([[max(t[:2]), max(t[2:])] for t in texts], [widths for widths, _, _ in own])
        whole = self.ranks(measured, 2, {"cost": "length", "pad_scope": "step"})
        self.assertEqual([[max(sum(texts, []))] * 2] * 2, [widths for widths, _, _ in whole])

    def test_lengths_and_loss_tokens_may_be_told(self):
        keywords = {"cost": [Phase("words", 1), Phase("llm", 1)], "lengths": twice, "loss_tokens": sevens}
        for _, tokens, lengths in self.ranks(measured, 2, keywords):
            self.assertEqual(2 * 4 * 7, tokens)
            self.assertEqual(1000 + 1001, lengths[0])


def twice(batch: dict) -> dict:
    return {"words": [1000, 1001, 2, 3]}


def sevens(batch: dict) -> list:
    return [7] * 4


if __name__ == "__main__":
    unittest.main()

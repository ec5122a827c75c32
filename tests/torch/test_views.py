#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors over batches: they share memory, keep it, and have the right type. And ranks as torch.distributed says
them."""

import gc
import os
import re
import socket
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import rig  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import poise  # noqa: E402
import poise.ranks  # noqa: E402

TYPES = [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
         torch.int64,
         torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
         torch.complex64,
         torch.complex128]


def open_group(daemon, job, **options):
    return poise.Group(job, rank=0, n_ranks=1, socket_dir=daemon, **{"cost": "length",
                                                                     "memory_budget": 32 << 20} | options)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def every_type(rank, daemon):
    """In and out bit for bit: 0 dimensions, no rows, strides, every type."""
    generator = torch.Generator().manual_seed(7)
    with open_group(daemon, "types") as g:
        fields, values = [], {}
        for kind in TYPES:
            raw = torch.randint(0, 2, (6 * kind.itemsize,), generator=generator, dtype=torch.uint8)
            full = raw.view(kind).view(2, 3)
            for name, value, how in (("full", full, "concat"), ("empty", full[:0], "concat"), ("scalar", full[1, 2],
                                                                                               "padded"),
                                     ("turned", full.t(), "opaque"), ("ragged", full, "padded")):
                fields.append(poise.Field(f"{name} {kind}", kind, [-1, *value.shape[1:]] if value.ndim else [], how,
                                          axis_name="n" if name == "ragged" else None))
                values[f"{name} {kind}"] = value
        g.declare(fields)
        g.submit(0, [poise.Sample(values, 1), poise.Sample({}, 1)])
        batch = g.next()
        for name, value in values.items():
            mine = batch.value(0, name).torch()
            assert mine.dtype == value.dtype and mine.shape == value.shape, (name, mine.shape)
            assert torch.equal(bits(mine), bits(value)), name
            if name.startswith("ragged"):
                whole = batch.field(name).torch()
                assert whole.shape == (2, *value.shape) and torch.equal(bits(whole[0]), bits(value)), name
                assert not bits(whole[1]).any()


def kept(rank, daemon):
    """Tensors, slices of them, and what autograd saved keep the slot; nothing else does."""
    with open_group(daemon, "kept", memory_budget=8 << 20) as g:
        g.declare([poise.Field("x", torch.float32, (-1, 4))])
        weight = torch.ones(4, requires_grad=True)
        losses, slices = [], []
        for step in range(60):
            g.submit(step, [poise.Sample({"x": torch.full((20000, 4), float(step))}, 1)])
            batch = g.next()
            x = batch["x"].torch()
            assert float(x[0, 0]) == step
            if step < 3:
                losses.append((x * weight).sum())  # saves x for backward
                slices.append(x[7:9, 1:])
            x = batch = None
            for i, part in enumerate(slices):
                assert torch.equal(part, torch.full((2, 3), float(i))), (step, i)
        torch.stack(losses).sum().backward()
        assert torch.equal(weight.grad, torch.full((4,), 20000.0 * 3))
        shared = slices[0]
    shared += 1  # writable, also after close
    assert float(shared[0, 0]) == 1.0
    del shared, slices, losses
    gc.collect()


def refused(rank, daemon):
    with open_group(daemon, "refused") as g:
        g.declare([poise.Field("x", torch.float32, (-1,))])
        for value, text in ((torch.ones(3, dtype=torch.float64), "float64.*float32"), (torch.ones(3, device="meta"),
                                                                                       "meta.*before"),
                            (torch.ones(3).to_sparse(), "layout")):
            try:
                g.submit(0, [poise.Sample({"x": value}, 1)])
                raise AssertionError("accepted")
            except poise.InvalidInput as error:
                assert re.search(text, error.text), error
                assert (error.sample, error.field) == (0, "x")
        g.submit(0, [poise.Sample({"x": torch.ones(3, requires_grad=True)}, 1)])
        assert g.next()["x"].torch().tolist() == [1.0, 1.0, 1.0]


def on_grid(rank, port, shape, names):
    """8 processes: what a mesh says, what its data-parallel process group says."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "8"}
    from torch.distributed.device_mesh import init_device_mesh
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    data = names[names.index("dp")]
    found = (tuple(poise.ranks.find(mesh=mesh,
                                    mesh_dim="dp")) if len(shape) > 1 else tuple(poise.ranks.find(mesh=mesh)),
             tuple(poise.ranks.find(mesh=mesh[data])), tuple(poise.ranks.find(process_group=mesh[data].get_group())))
    if len(shape) > 1:
        try:
            poise.ranks.find(mesh=mesh)
            raise AssertionError("a guess")
        except poise.InvalidInput as error:
            assert "mesh_dim=" in error.text
    dist.destroy_process_group()
    return found


class Views(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(rig.Daemon())

    def test_every_type(self):
        rig.ranks(1, every_type, self.daemon.dir)

    def test_views_keep_their_memory(self):
        rig.ranks(1, kept, self.daemon.dir)

    def test_what_cannot_be_exchanged(self):
        rig.ranks(1, refused, self.daemon.dir)


class Places(unittest.TestCase):
    def test_meshes_and_groups(self):
        for shape, names in (((8,), ("dp",)), ((4, 2), ("dp", "tp")), ((2, 4), ("pp", "dp")), ((2, 2, 2), ("pp", "dp",
                                                                                                           "tp"))):
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                port = one.getsockname()[1]
            found = rig.ranks(8, on_grid, port, shape, names)
            n = shape[names.index("dp")]
            for way in zip(*found):  # mesh, part of the mesh, process group
                every = sorted((r, n, k, 8 // n) for r in range(n) for k in range(8 // n))
                self.assertEqual(sorted(place[:4] for place in way), every)
            self.assertEqual([place[0] for place, _, _ in found], [place[0] for _, _, place in found])


if __name__ == "__main__":
    rig.main()

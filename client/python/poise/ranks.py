# SPDX-License-Identifier: Apache-2.0
"""Which data-parallel rank this process is, of how many, and which of the rank's replicas.

Asked in this order; the first that knows answers:
1. arguments: rank and n_ranks (replica, n_replicas);
2. `mesh=`, a DeviceMesh: position along its data-parallel dimension; the other dimensions are replicas;
3. `process_group=`, the data-parallel ProcessGroup;
4. Megatron's parallel state, if it is imported and initialised;
5. the environment: RANK and WORLD_SIZE, as torchrun sets them; else one rank alone is no group and an error.

Tensor, context and pipeline parallel peers must see the same micro-batches: they are replicas of one rank. Taking them
for ranks of their own would train on wrong data without a word; so where model parallelism shows and no group says who
is who, this is an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import InvalidInput

__all__ = ["Where", "find"]


class Where(NamedTuple):
    """A process's place."""
    rank: int
    n_ranks: int
    replica: int
    n_replicas: int
    source: str  # who said so


_SAY = "pass process_group=, mesh= or rank=, n_ranks=, replica= and n_replicas="


def find(rank: int | None = None, n_ranks: int | None = None, replica: int | None = None, n_replicas: int | None = None,
         *,
         process_group: Any = None, mesh: Any = None, mesh_dim: str | Sequence[str] | None = None,
         model_parallel_size: int | None = None) -> Where:
    """The place of this process; see the module. What is given as a number wins over what is found.

    Args:
        model_parallel_size: processes that share a data-parallel rank, where the caller knows it: more than 1 without a
            group is an error.
    """
    if (rank is None) != (n_ranks is None):
        raise InvalidInput(f"rank is {rank} and n_ranks is {n_ranks}: give both, or none")
    if (replica is None) != (n_replicas is None) and (n_replicas or 0) != 1 and replica != 0:
        raise InvalidInput(f"replica is {replica} and n_replicas is {n_replicas}: give both, or none")
    if rank is not None and n_ranks is not None:
        return _numbers(rank, n_ranks, replica, n_replicas, "arguments")
    if mesh is not None:
        found = _from_mesh(mesh, mesh_dim, n_replicas)
    elif process_group is not None:
        found = _from_group(process_group, n_replicas)
    else:
        found = _from_megatron() or _from_environment(model_parallel_size, n_replicas)
    if replica is not None or n_replicas is not None:
        found = found._replace(replica=replica or 0, n_replicas=n_replicas or 1)
    return _numbers(*found)


def _numbers(rank: int, n_ranks: int, replica: int | None, n_replicas: int | None, source: str) -> Where:
    where = Where(rank, n_ranks, replica or 0, n_replicas or 1, source)
    if not (0 <= where.rank < where.n_ranks and 0 <= where.replica < where.n_replicas):
        raise InvalidInput(f"rank {where.rank} of {where.n_ranks}, replica {where.replica} of {where.n_replicas} "
                           f"(from {source}): "
                           "both are numbered from 0")
    return where


# -------------------------------------------------------------------------------------------------------------- torch


def _from_mesh(mesh: Any, mesh_dim: str | Sequence[str] | None, n_replicas: int | None) -> Where:
    names = tuple(mesh.mesh_dim_names or ())
    if mesh_dim is None:
        if mesh.ndim != 1:
            raise InvalidInput(f"mesh has {mesh.ndim} dimensions {names}: name the data-parallel one (or ones) "
                               "with mesh_dim=")
        return _from_group(mesh.get_group(), n_replicas)._replace(source="mesh")
    wanted = (mesh_dim,) if isinstance(mesh_dim, str) else tuple(mesh_dim)
    for name in wanted:
        if name not in names:
            raise InvalidInput(f"mesh_dim {name!r} is none of the mesh's dimensions {names}")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise InvalidInput("this process is not in the mesh")
    shape = tuple(mesh.mesh.shape)
    rank, n_ranks = _position(coordinate, shape, [names.index(name) for name in wanted])
    replica, replicas = _position(coordinate, shape, [i for i, name in enumerate(names) if name not in wanted])
    return Where(rank, n_ranks, replica, replicas, "mesh")


def _position(coordinate: Sequence[int], shape: Sequence[int], dims: Sequence[int]) -> tuple[int, int]:
    at, size = 0, 1
    for dim in dims:
        at = at * shape[dim] + coordinate[dim]
        size *= shape[dim]
    return at, size


def _from_group(group: Any, n_replicas: int | None) -> Where:
    """Of a process group alone, the other groups beside it are known only where they lie as launchers number them."""
    import torch.distributed as dist
    members = sorted(dist.get_process_group_ranks(group))
    me = dist.get_rank(group)
    if me < 0:
        raise InvalidInput(f"this process (rank {dist.get_rank()}) is not in the process group {members}")
    world = dist.get_world_size()
    n = len(members)
    if n == world or n_replicas is not None:
        return Where(me, n, 0, 1, "process_group")
    replica, replicas = _beside(members, world)
    return Where(me, n, replica, replicas, "process_group")


def _beside(members: Sequence[int], world: int) -> tuple[int, int]:
    """Which of the groups of a regular grid this one is, and how many there are: members first, first + stride, ...;
    the grid repeats every n * stride ranks."""
    n = len(members)
    stride = members[1] - members[0] if n > 1 else 1
    regular = all(b - a == stride for a, b in zip(members, members[1:]))
    first = members[0]
    if n == 1:
        return first, world  # every process is the same rank
    if not regular or world % (n * stride) or first // stride % n:
        raise InvalidInput(f"process_group is {list(members)} of {world} processes, which is no regular grid: say with "
                           "replica= and n_replicas= which of the processes of its rank this one "
                           "is (0, 1 if the others read no data)")
    return first // (n * stride) * stride + first % stride, world // n


# ----------------------------------------------------------------------------------------------------------- Megatron


def _megatron_state() -> Any:
    """Megatron's module of parallel groups, if the program has imported one and initialised it."""
    for name in ("megatron.core.parallel_state", "megatron.core.mpu", "megatron.mpu", "mpu"):
        module = sys.modules.get(name)
        if module is None or not hasattr(module, "get_data_parallel_world_size"):
            continue
        for ask in ("model_parallel_is_initialized", "is_initialized"):
            if hasattr(module, ask) and getattr(module, ask)():
                return module
    return None


def _from_megatron() -> Where | None:
    """Data-parallel rank and size without context parallelism, whose peers hold parts of the same samples."""
    mpu = _megatron_state()
    if mpu is None:
        return None
    replica, n_replicas = 0, 1
    for kind in ("pipeline_model_parallel", "context_parallel", "tensor_model_parallel"):
        size = getattr(mpu, f"get_{kind}_world_size", lambda: 1)()
        if size > 1:
            replica = replica * size + getattr(mpu, f"get_{kind}_rank")()
            n_replicas *= size
    return Where(mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size(), replica, n_replicas,
                 "Megatron's parallel state")


def _megatron_asks() -> tuple[str, int] | None:
    """Model-parallel sizes of Megatron's arguments, where its groups are not made yet."""
    module = sys.modules.get("megatron.training.global_vars") or sys.modules.get("megatron.global_vars")
    args = getattr(module, "_GLOBAL_ARGS", None)
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        size = getattr(args, name, 1) or 1
        if size > 1:
            return f"Megatron's argument {name}", size
    return None


# -------------------------------------------------------------------------------------------------------- environment

# Set by launchers (Accelerate) for the processes that they start.
_PARALLEL_VARIABLES = ("PARALLELISM_CONFIG_TP_SIZE", "PARALLELISM_CONFIG_CP_SIZE", "PARALLELISM_CONFIG_SP_SIZE",
                       "TENSOR_MODEL_PARALLEL_SIZE", "PIPELINE_MODEL_PARALLEL_SIZE", "CONTEXT_PARALLEL_SIZE")


def _model_parallel(model_parallel_size: int | None) -> tuple[str, int] | None:
    if (model_parallel_size or 1) > 1:
        return "model_parallel_size", model_parallel_size or 1
    for name in _PARALLEL_VARIABLES:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 1:
            return f"environment variable {name}", int(text)
    return _megatron_asks()


def _variable(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdigit():
        raise InvalidInput(f"environment variable {name} is {text!r:.40}: it must be a number")
    return int(text)


def _from_environment(model_parallel_size: int | None, n_replicas: int | None) -> Where:
    asked = _model_parallel(model_parallel_size)
    if asked:
        raise InvalidInput(f"{asked[0]} is {asked[1]}, so ranks of the launcher are not data-parallel ranks: {_SAY}")
    if (n_replicas or 1) > 1:
        raise InvalidInput(f"n_replicas is {n_replicas}, so ranks of the launcher are not data-parallel ranks: {_SAY}")
    rank, world = _variable("RANK"), _variable("WORLD_SIZE")
    if rank is None or world is None:
        missing = "RANK" if rank is None else "WORLD_SIZE"
        raise InvalidInput(f"environment variable {missing} is not set: start with torchrun, or {_SAY}")
    return Where(rank, world, 0, 1, "RANK and WORLD_SIZE")

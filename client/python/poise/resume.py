# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of balance(): a position as a plain dict and back.

Two parts. poise's own is the number of the next step (plans are pure functions, so nothing else is needed) and is good
on any number of ranks. The loader's says where one rank's loader stands, which means nothing on another number of
ranks. A loader without state_dict() is brought back by leaving out as many batches as were consumed, which counts as a
loader's state here.
"""

from __future__ import annotations

from typing import Any

from .errors import InvalidInput
from .feed import Position

__all__ = ["load_position", "save_position"]

VERSION = 1


def save_position(position: Position, rank: int, n_ranks: int, loader_state: bool) -> dict[str, Any]:
    """The state of a rank as a dict of plain values."""
    state: dict[str, Any] = {
        "poise": VERSION,
        "step": position.step,
        "micro_batch": position.micro_batch,
        "epoch": position.epoch,
    }
    if loader_state:
        state |= {
            "rank": rank,
            "n_ranks": n_ranks,
            "batches": position.batches,
            "samples": position.samples,
            "loader": position.loader,
        }
    return state


def load_position(state: dict[str, Any], rank: int, n_ranks: int, loader_state: bool) -> Position:
    """The position that save_position() was given. Without the loader's part: the step alone, at a loader's
    beginning."""
    if not isinstance(state, dict) or state.get("poise") != VERSION:
        raise InvalidInput(f"this is no state of balance(), or of another version: {str(state)[:80]}")
    if not loader_state or "n_ranks" not in state:
        return Position(step=state["step"], epoch=state["epoch"])
    of_loader = state["loader"] is not None or state["batches"] > 0 or state["micro_batch"] > 0
    if of_loader and state["n_ranks"] not in (0, n_ranks):
        raise InvalidInput(
            f"the state holds the loader of rank {state['rank']} of {state['n_ranks']}, and this is rank {rank} of "
            f"{n_ranks}: a loader's state is good on the same number of ranks only; balance(loader_state=False) takes "
            "poise's own state from it and leaves the loader as it is"
        )
    return Position(
        state["step"], state["micro_batch"], state["epoch"], state["batches"], state["samples"], state["loader"]
    )

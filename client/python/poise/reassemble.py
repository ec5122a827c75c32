# SPDX-License-Identifier: Apache-2.0
"""Dicts of samples again: of a balanced micro-batch as the library assembled it (views, nothing is copied), and of
samples one by one (copied), to check at the start that a loader's batch survives being cut, and to cut a step anew
where the trainer asks for other micro-batches than those that the step was planned for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import media
from .batch import Batch
from .collated import CONSTANT, KEYS, SUFFIXES, Frame, Parts, Rule
from .errors import InvalidInput
from .media import wrong
from .padding import bits


def check_first(batch: Mapping[str, Any], parts: Parts) -> None:
    """Puts the pieces of a batch together again and compares bit for bit. InvalidInput names the key that does not
    come back."""
    frame = parts.frame
    for rule in frame.rules.values():
        if rule.key not in batch or batch[rule.key] is None:
            continue
        before, after = batch[rule.key], assemble(frame, rule, [values.get(rule.wire) for values in parts.values])
        if isinstance(before, torch.Tensor):
            _compare(frame, rule, before, after)
        elif rule.kind == "tensors":
            if any(a.shape != b.shape or not torch.equal(bits(a), bits(b)) for a, b in zip(before, after)):
                raise wrong(rule.key, "does not come back as it was: a tensor of the list differs")
        elif list(before) != after and repr(list(before)) != repr(after):  # NaN is not equal to itself
            raise wrong(
                rule.key,
                f"does not come back as it was: {after!r:.80} instead of {list(before)!r:.80} (tuples become "
                "lists, keys of dicts strings)",
            )


def _compare(frame: Frame, rule: Rule, before: torch.Tensor, after: torch.Tensor) -> None:
    if before.shape != after.shape:
        hint = (
            _width_hint(frame, before.shape[-1], after.shape[-1]) if rule.kind == "text" else "fields= says what it is"
        )
        raise wrong(
            rule.key,
            f"does not come back as it was: shape {tuple(after.shape)} instead of {tuple(before.shape)}: {hint}",
        )
    differs = bits(before) != bits(after)
    if bool(differs.any()):
        at = tuple(differs.nonzero()[0].tolist())[: before.dim()]
        raise wrong(
            rule.key,
            f"does not come back as it was: {after[at].item()} instead of {before[at].item()} at {list(at)}: "
            "pad_values=, fields= and batch_axis= say what it is",
            at[rule.axis] if rule.kind != "rows" else None,
        )


def _width_hint(frame: Frame, before: int, after: int) -> str:
    for multiple in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        if before == -(-after // multiple) * multiple:
            return f"the loader pads to a fixed width or to a multiple: pass pad_multiple={multiple} or pad_to={before}"
    if before > after:
        return f"the loader pads to a fixed width: pass pad_to={before}"
    return f"pad_multiple={frame.layout.pad_multiple} or pad_to={frame.layout.pad_to} is not what the loader does"


# ----------------------------------------------------------------------------------------------------- sample by sample


def assemble(frame: Frame, rule: Rule, parts: Sequence[Any]) -> Any:
    """One key of the samples `parts`, each as Collated.cut() made it (bytes of what is no tensor) or None. Copies."""
    have = [part for part in parts if part is not None]
    if rule.kind == "json":
        return [json.loads(bytes(part)) for part in have]
    if rule.kind == "jsons":
        return [item for part in have for item in json.loads(bytes(part))]
    if rule.kind == "tensors":
        return have
    if rule.kind == "rows":
        if not have:
            return torch.empty(tuple(max(extent, 0) for extent in rule.shape), dtype=rule.dtype)
        return torch.cat(list(have))
    extents = list(rule.shape)
    for axis in rule.text_axes:
        extents[axis] = frame.layout.padded(max((part.shape[axis] for part in have), default=0))
    if len(have) != len(parts):
        raise wrong(rule.key, "is not in every sample")
    whole = torch.full((len(parts), *extents), rule.pad, dtype=rule.dtype)
    right = frame.layout.padding_side == "right"
    for row, part in zip(whole, parts):
        for axis in rule.text_axes:
            row = row.narrow(axis, 0 if right else row.shape[axis] - part.shape[axis], part.shape[axis])
        row.copy_(part)
    return whole.movedim(0, rule.axis).contiguous()


def rules_of(frame: Frame, names: Sequence[str]) -> list[Rule]:
    """The rules of the group's fields, in the loader's order; what this rank's loader has not had yet comes last, by
    name."""
    own = {rule.wire: rule for rule in frame.rules.values()}
    foreign = sorted(name for name in names if name not in own and name != KEYS and not name.startswith(CONSTANT))
    return [rule for rule in own.values() if rule.wire in names] + [_foreign(frame, name) for name in foreign]


def _foreign(frame: Frame, name: str) -> Rule:
    """A medium's key that other ranks' loaders have: keys of samples are the same on all ranks (see collated.KEYS)."""
    key = next((name[: -len(suffix)] for suffix in SUFFIXES if name.endswith(suffix)), name)
    kind = name[len(key) + 1 :] or "rows"
    return Rule(key, kind, name, family=frame.layout.family(key) or media.IMAGE)


# ---------------------------------------------------------------------------------------------------------- micro-batch


def from_batch(frame: Frame, batch: Batch) -> dict[str, Any]:
    """The dict of a balanced micro-batch. Tensors are views of the batch's memory and keep it."""
    made = {}
    for rule in rules_of(frame, batch.names):
        if rule.kind in ("rows", "text", "sample"):
            made[rule.key] = batch.field(rule.wire).torch()
        elif rule.kind == "tensors":
            made[rule.key] = [batch.value(i, rule.wire).torch() for i in range(batch.n_samples)]
        else:
            texts = [batch.value(i, rule.wire).tobytes() for i in range(batch.n_samples)]
            made[rule.key] = assemble(frame, rule, [text for text in texts if text])
    return finished(frame, made)


def samples_of(frame: Frame, batch: Batch) -> list[dict[str, Any]]:
    """The samples of a micro-batch, one by one, by field. Tensors are views."""
    samples: list[dict[str, Any]] = [{} for _ in range(batch.n_samples)]
    for rule in rules_of(frame, batch.names):
        for i, values in enumerate(samples):
            view = batch.value(i, rule.wire)
            values[rule.wire] = view.tobytes() or None if rule.kind in ("json", "jsons") else view.torch()
    return samples


def from_samples(frame: Frame, samples: Sequence[Mapping[str, Any]], like: Mapping[str, Any]) -> dict[str, Any]:
    """The dict of samples as samples_of() gives them. Copies. `like` has the fields' tensors of some micro-batch of the
    step, by
    field: shape and dtype where there is no sample."""
    made = {}
    for rule in rules_of(frame, list(like)):
        parts = [values.get(rule.wire) for values in samples]
        if rule.kind == "rows" and not parts:
            made[rule.key] = like[rule.wire][:0].clone()
        else:
            made[rule.key] = assemble(frame, rule, parts)
    return finished(frame, made)


def finished(frame: Frame, made: Mapping[str, Any]) -> dict[str, Any]:
    """All keys in the loader's order: what was None, constants, and what is made of the balanced batch."""
    layout = frame.layout
    result: dict[str, Any] = {}
    for key in [*frame.order, *(key for key in made if key not in frame.order)]:
        if key in layout.recompute:
            result[key] = None  # its place; the value comes when the rest is there
        elif key in frame.constants:
            result[key] = frame.constants[key]
        elif key in made:
            is_medium = layout.family(key) is not None and (key not in frame.rules or frame.rules[key].family)
            if is_medium and len(made[key]) == 0 and (key in frame.nones or layout.absent != "rows"):
                if key in frame.nones or layout.absent == "none":
                    result[key] = None
            else:
                result[key] = made[key]
        elif key in frame.nones:
            result[key] = None
    for key, function in layout.recompute.items():
        if key not in result:
            continue
        try:
            result[key] = function(result)
        except Exception as error:
            raise InvalidInput(f"recompute= of {key} failed: {type(error).__name__}: {error}", field=key) from error
    return result

# SPDX-License-Identifier: Apache-2.0
"""Collated batches: a dict of a loader's whole local batch, cut into samples and put together again.

`Collated` knows the rules of one loader: what of each key belongs to which sample, and how a micro-batch is made of it.
It learns them from the batches as they come (a rank may see its first image late) and from keywords for what no batch
can tell.
Cutting is exact: of padded text only what equals its pad value in every key is left out, so that padding it again, on
whichever rank, gives the same bits. What is not one value a sample cannot move: it is refused, unless the caller says
that it is the same everywhere (`constants`) or how to make it of a balanced batch (`recompute`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import media
from .errors import InvalidInput
from .media import PerSample, describe, wrong
from .padding import bits, text_extents
from .samples import Field

# Keys of text, (batch, tokens): padded alike. Others of that shape are taken for text too.
TEXT_KEYS = (
    "input_ids",
    "attention_mask",
    "labels",
    "position_ids",
    "token_type_ids",
    "mm_token_type_ids",
    "loss_mask",
)
# One row a sample whatever their width is: (batch, 1) is no text of one token.
SAMPLE_KEYS = ("rope_deltas",)
# What the Qwen2-VL family pads with: <|endoftext|>, the loss's ignored label, the position of masked tokens.
PAD_VALUES = {"input_ids": 151643, "labels": -100, "position_ids": 1}

# Kinds of fields that are no tensors of their own travel under the key's name with one of these.
SUFFIXES = ("/json", "/jsons", "/tensors")
CONSTANT = "constant/"  # a field without rows whose fixed shape tells a constant's digest to the other ranks
KEYS = "keys of a sample"  # the same for the names of what each sample has


@dataclass
class Layout:
    """What no batch can tell, the same on every rank. See DataBalance for each."""

    batch_key: str = "input_ids"
    padding_side: str = "right"
    pad_values: Mapping[str, float] = field(default_factory=dict)
    pad_multiple: int = 1
    pad_to: int = 0
    pad_scope: str = "micro_batch"
    batch_axis: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    constants: Sequence[str] = ()
    recompute: Mapping[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)
    per_sample: Mapping[str, PerSample] = field(default_factory=dict)  # by family
    token_id: Mapping[str, int] = field(default_factory=dict)  # by family
    merge_size: int = 2
    audio_window: int = 0
    ignore_index: int = -100
    shift_labels: bool = True
    absent: str = "rows"
    lengths: Callable[[Mapping[str, Any]], Mapping[str, Sequence[int]]] | None = None
    loss_tokens: Callable[[Mapping[str, Any]], Sequence[int]] | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("padding_side", ("right", "left")),
            ("pad_scope", ("micro_batch", "step")),
            ("absent", ("rows", "omit", "none")),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidInput(f"{name} is {getattr(self, name)!r}: one of {', '.join(allowed)} is wanted")
        for key, role in self.fields.items():
            if role not in ("text", "sample", *media.FAMILIES):
                raise InvalidInput(
                    f"fields says {role!r} for {key}: text, sample, {', '.join(media.FAMILIES)} are known"
                )

    def family(self, key: str) -> str | None:
        """The family that a key is of, whether the batch has that family or not."""
        role = self.fields.get(key)
        return role if role in media.FAMILIES else None if role else media.FAMILY_OF.get(key)

    def padded(self, extent: int) -> int:
        """The width that text of at most `extent` tokens is padded to."""
        if self.pad_to:
            return max(self.pad_to, extent)
        return -(-extent // self.pad_multiple) * self.pad_multiple


@dataclass(frozen=True)
class Rule:
    """How one key of the batch is cut and put together.

    Attributes:
        kind: "text" (padded), "sample" (one a sample, of fixed shape), "rows" (concatenated), "json" (a list, one value
            a sample), "jsons" (a list, one value a medium), "tensors" (a list of tensors, one a sample).
        wire: the field's name in the group.
        shape: of one sample, -1 where it is ragged.
        axis: where the batch has its samples.
        text_axes: axes of the sample that are as long as its text.
    """

    key: str
    kind: str
    wire: str
    dtype: Any = None
    shape: tuple[int, ...] = ()
    axis: int = 0
    text_axes: tuple[int, ...] = ()
    pad: Any = 0
    family: str | None = None

    def declared(self, layout: Layout, rows_of: str | None) -> Field:
        """The field as the group knows it."""
        if self.kind in ("json", "jsons"):
            return Field(self.wire, "bytes", (-1,), "opaque")
        if self.kind == "tensors":
            return Field(self.wire, self.dtype, self.shape, "opaque")
        if self.kind == "rows":
            return Field(self.wire, self.dtype, self.shape, "concat", rows_of=rows_of)
        if self.kind == "sample":
            return Field(self.wire, self.dtype, self.shape, "padded", self.axis)
        names = ["text" if i in self.text_axes else None for i in range(len(self.shape))]
        scope = "fixed" if layout.pad_to else layout.pad_scope
        return Field(
            self.wire,
            self.dtype,
            self.shape,
            "padded",
            self.axis,
            names,
            layout.padding_side,
            self.pad,
            scope,
            layout.pad_multiple if layout.pad_multiple > 1 else 0,
            layout.pad_to,
        )


@dataclass(frozen=True)
class Frame:
    """What a dict is made by: the rules as of one step. The loader may be read ahead meanwhile, by another thread.

    Attributes:
        rules: by key, in the loader's order.
        order: all keys, None and constants included.
        nones: keys that are None in this step's batch.
        constants: by key.
    """

    layout: Layout
    rules: Mapping[str, Rule]
    order: Sequence[str]
    nones: frozenset[str]
    constants: Mapping[str, Any]


@dataclass
class Parts:
    """A batch in pieces.

    Attributes:
        n: samples.
        frame: what puts them together again.
        values: [n] by the field's name in the group.
        units, attention: [n] by phase: patches, positions, tokens; sums of squared full-attention segments.
        loss_tokens: [n]
    """

    n: int
    frame: Frame
    values: list[dict[str, Any]]
    units: dict[str, list[int]]
    attention: dict[str, list[int]]
    loss_tokens: list[int]


class Collated:
    """The rules of one rank's loader, and the last values of what does not travel."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.frame = Frame(
            layout, {}, (), frozenset(), {}
        )  # of the batch that was cut last; never altered, but replaced
        self._sample_keys: frozenset[str] | None = None  # keys that every sample must have
        self._digests: dict[str, str] = {}

    # ---------------------------------------------------------------------------------------------------------- cutting

    def cut(self, batch: Mapping[str, Any]) -> Parts:
        """Cuts a batch into its samples, learning new keys. InvalidInput names the key (and sample) that cannot be
        cut."""
        if not isinstance(batch, Mapping):
            raise InvalidInput(f"the loader gave {describe(batch)}: a dict of tensors is wanted")
        ids = batch.get(self.layout.batch_key)
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            raise wrong(
                self.layout.batch_key,
                f"is {describe(ids)}: (samples, tokens) is wanted, from which the batch's size is "
                "taken; batch_key= names another key",
            )
        n, width = ids.shape
        found = self._media(batch, ids)
        rules = self._learn(batch, n, width, found)
        extents = text_extents(self.layout, rules, batch, n, width)
        values: list[dict[str, Any]] = [{} for _ in range(n)]
        for rule in rules:
            self._cut_key(rule, batch[rule.key], found, extents, width, values)
        return self._measure(batch, values, found, extents, n)

    def _media(self, batch: Mapping[str, Any], ids: torch.Tensor) -> dict[str, media.Media]:
        layout = self.layout
        found = {}
        for family, name in media.GRID_OF.items():
            if batch.get(name) is not None:
                found[family] = media.of_grid(
                    family, batch, ids, layout.token_id[family], layout.merge_size, layout.per_sample.get(family)
                )
        if batch.get("input_features") is not None:
            found[media.AUDIO] = media.of_audio(
                batch, ids, layout.token_id[media.AUDIO], layout.audio_window, layout.per_sample.get(media.AUDIO)
            )
        return found

    def _learn(self, batch: Mapping[str, Any], n: int, width: int, found: Mapping[str, media.Media]) -> list[Rule]:
        """The rules of this batch's keys. The object changes only if all of them are known."""
        rules, nones, constants = [], set(), {}
        for key, value in batch.items():
            if not isinstance(key, str) or key.endswith(SUFFIXES) or key.startswith(CONSTANT) or key == KEYS:
                raise InvalidInput(f"the batch has the key {key!r}, which poise keeps for itself: rename it")
            if key in self.layout.recompute:
                continue
            if key in self.layout.constants:
                constants[key] = value
            elif value is None:
                nones.add(key)
            else:
                rules.append(self._rule(key, value, n, width, found))
        keys = frozenset(rule.key for rule in rules if rule.family is None)
        if self._sample_keys is not None and keys != self._sample_keys:
            odd = sorted(keys ^ self._sample_keys)
            raise wrong(
                odd[0],
                f"each sample must have the same keys in every step, and {', '.join(odd)} "
                f"{'is' if len(odd) == 1 else 'are'} not in all of this rank's batches",
            )
        self._check_constants(constants)
        self._sample_keys = keys
        before = self.frame
        self.frame = Frame(
            self.layout,
            {**before.rules, **{rule.key: rule for rule in rules if rule.key not in before.rules}},
            (*before.order, *(key for key in batch if key not in before.order)),
            frozenset(nones),
            {**before.constants, **constants},
        )
        return rules

    def _rule(self, key: str, value: Any, n: int, width: int, found: Mapping[str, media.Media]) -> Rule:
        known = self.frame.rules.get(key)
        made = self._make_rule(key, value, n, width, found)
        if known is None or (known.kind, known.dtype, known.shape) == (made.kind, made.dtype, made.shape):
            return known or made
        own = tuple(value.shape[: known.axis] + value.shape[known.axis + 1 :]) if made.kind == "text" else ()
        if known.kind == "sample" and (known.dtype, known.shape) == (made.dtype, own):
            return known  # the text happens to be as wide as this key's row
        raise wrong(
            key,
            f"was {known.kind} of {known.dtype} {list(known.shape)} a sample, now it is {made.kind} of "
            f"{made.dtype} {list(made.shape)}: it must stay the same (fields= says what it is)",
        )

    def _make_rule(self, key: str, value: Any, n: int, width: int, found: Mapping[str, media.Media]) -> Rule:
        family = self.layout.family(key)
        family = family if family in found else None
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                raise wrong(
                    key,
                    f"is on {value.device}: samples are exchanged in the memory of the host, so balance the loader's "
                    "own batches and move the balanced ones to the accelerator",
                )
            if family:
                return self._rows_rule(key, value, family, found[family])
            return self._tensor_rule(key, value, n, width)
        if isinstance(value, (list, tuple)):
            wanted = len(found[family].counts) and sum(found[family].counts) if family else n
            if len(value) == wanted:
                return self._list_rule(key, value, family)
        if hasattr(value, "__array_interface__"):
            raise wrong(key, "is a numpy array: make it a tensor where the batch is collated (torch.from_numpy)")
        raise self._no_sample(key, value)

    def _rows_rule(self, key: str, value: torch.Tensor, family: str, found: media.Media) -> Rule:
        rows = sum(found.units) if key in media.PATCHES else sum(found.counts)
        if value.dim() == 0 or value.shape[0] != rows:
            raise wrong(
                key, f"is {describe(value)}: {rows} rows are wanted for the batch's {family}s (fields= says what it is)"
            )
        return Rule(key, "rows", key, value.dtype, (-1, *value.shape[1:]), family=family)

    def _tensor_rule(self, key: str, value: torch.Tensor, n: int, width: int) -> Rule:
        shape = tuple(value.shape)
        axis = self.layout.batch_axis.get(key)
        if axis is None:
            # (3, batch, tokens): positions in time, height and width
            axis = 1 if key == "position_ids" and len(shape) == 3 and shape[1:] == (n, width) else 0
        if len(shape) <= axis or shape[axis] != n:
            raise self._no_sample(key, value)
        own = shape[:axis] + shape[axis + 1 :]
        role = self.layout.fields.get(key)
        is_text = (
            bool(own)
            and own[-1] == width
            and (role == "text" or role is None and key not in SAMPLE_KEYS and (key in TEXT_KEYS or own == (width,)))
        )
        if role == "text" and not is_text:
            raise wrong(key, f"is {describe(value)}: fields= says text, whose last axis is the batch's {width} tokens")
        if not is_text:
            return Rule(key, "sample", key, value.dtype, own, axis)
        axes = tuple(
            i for i in (len(own) - 2, len(own) - 1) if i >= 0 and own[i] == width and (i == len(own) - 1 or i > 0)
        )
        pad = self.layout.pad_values.get(key, PAD_VALUES.get(key, 0))
        ragged = tuple(-1 if i in axes else extent for i, extent in enumerate(own))
        return Rule(key, "text", key, value.dtype, ragged, axis, axes, pad)

    def _list_rule(self, key: str, value: Sequence[Any], family: str | None) -> Rule:
        if value and all(isinstance(item, torch.Tensor) for item in value) and not family:
            kinds = {(item.dtype, item.dim()) for item in value}
            if len(kinds) > 1 or any(item.device.type != "cpu" for item in value):
                raise wrong(key, "is a list of tensors: they must be on the CPU, of one dtype and number of axes")
            dtype, n_dims = kinds.pop()
            return Rule(key, "tensors", key + "/tensors", dtype, (-1,) * n_dims)
        try:
            json.dumps(list(value))
        except (TypeError, ValueError) as error:
            raise wrong(
                key,
                f"is a list that cannot travel ({error}): strings, numbers, lists and dicts of them, and tensors can",
            ) from None
        return Rule(key, "jsons" if family else "json", key + ("/jsons" if family else "/json"), family=family)

    def _no_sample(self, key: str, value: Any) -> InvalidInput:
        return wrong(
            key,
            f"is {describe(value)}, not one value a sample. If it is the same on every rank and in every step, say "
            f"constants=[{key!r}]; if the loader made it of its local batch (a total, a maximum), it must be made "
            f"again of the balanced one: recompute={{{key!r}: function of the batch}}; fields= and batch_axis= say "
            "what a tensor is",
        )

    # ----------------------------------------------------------------------------------------------------------- values

    def _cut_key(
        self,
        rule: Rule,
        value: Any,
        found: Mapping[str, media.Media],
        extents: Sequence[int],
        width: int,
        values: list[dict[str, Any]],
    ) -> None:
        if rule.kind == "text":
            right = self.layout.padding_side == "right"
            for i, extent in enumerate(extents):
                part = value.select(rule.axis, i)
                for axis in rule.text_axes:
                    part = part.narrow(axis, 0 if right else width - extent, extent)
                values[i][rule.wire] = part
        elif rule.kind == "sample":
            for i, to in enumerate(values):
                to[rule.wire] = value.select(rule.axis, i)
        elif rule.kind == "tensors":
            for to, part in zip(values, value):
                to[rule.wire] = part
        elif rule.kind == "json":
            for to, part in zip(values, value):
                to[rule.wire] = json.dumps(part).encode()
        else:
            self._cut_rows(rule, value, found[rule.family or ""], values)

    def _cut_rows(self, rule: Rule, value: Any, found: media.Media, values: list[dict[str, Any]]) -> None:
        counts = found.by_sample(found.units) if rule.key in media.PATCHES else found.counts
        at = 0
        for to, count in zip(values, counts):
            if rule.kind == "jsons":
                to[rule.wire] = json.dumps(list(value[at : at + count])).encode()
            else:
                to[rule.wire] = value.narrow(0, at, count)
            at += count

    def _measure(
        self,
        batch: Mapping[str, Any],
        values: list[dict[str, Any]],
        found: Mapping[str, media.Media],
        extents: list[int],
        n: int,
    ) -> Parts:
        vision = [found[family] for family in (media.IMAGE, media.VIDEO) if family in found]
        units = {"llm": extents, "vision": _added([m.by_sample(m.units) for m in vision], n)}
        attention = {
            "llm": self._text_attention(batch, extents),
            "vision": _added([m.by_sample(m.attention) for m in vision], n),
        }
        audio = found.get(media.AUDIO)
        units["audio"] = audio.by_sample(audio.units) if audio else [0] * n
        attention["audio"] = audio.by_sample(audio.attention) if audio else [0] * n
        if self.layout.lengths:
            said = {name: [int(x) for x in numbers] for name, numbers in self.layout.lengths(batch).items()}
            for name, numbers in said.items():
                if len(numbers) != n:
                    raise InvalidInput(f"lengths= says {len(numbers)} numbers of {name} for {n} samples")
                units[name], attention[name] = numbers, [x * x for x in numbers]
        return Parts(n, self.frame, values, units, attention, self._loss_tokens(batch, extents, n))

    def _text_attention(self, batch: Mapping[str, Any], extents: list[int]) -> list[int]:
        """Squared tokens, or, where the mask numbers the documents of a packed sample (1, 2, 3 ...), the sum of
        theirs."""
        mask = batch.get("attention_mask")
        if (
            not isinstance(mask, torch.Tensor)
            or mask.dim() != 2
            or mask.dtype.is_floating_point
            or mask.numel() == 0
            or mask.dtype == torch.bool
            or int(mask.max()) <= 1
        ):
            return [extent * extent for extent in extents]
        return [int((torch.unique(row[row != 0], return_counts=True)[1] ** 2).sum()) for row in mask]

    def _loss_tokens(self, batch: Mapping[str, Any], extents: list[int], n: int) -> list[int]:
        if self.layout.loss_tokens:
            counts = [int(x) for x in self.layout.loss_tokens(batch)]
            if len(counts) != n:
                raise InvalidInput(f"loss_tokens= says {len(counts)} numbers for {n} samples")
            return counts
        labels = batch.get("labels")
        if not isinstance(labels, torch.Tensor) or labels.dim() != 2 or labels.shape[0] != n:
            return [0] * n
        # A causal model's loss compares token i with label i + 1: the first label is never used.
        used = labels[:, 1:] if self.layout.shift_labels else labels
        return (used != self.layout.ignore_index).sum(1).tolist()

    # --------------------------------------------------------------------------------------------------- what all share

    def _check_constants(self, constants: Mapping[str, Any]) -> None:
        for key, value in constants.items():
            digest = _digest(key, value)
            if self._digests.setdefault(key, digest) != digest:
                raise wrong(key, f"is declared constant, but it has changed between two steps, to {describe(value)}")

    def declared(self) -> list[Field]:
        """The fields of all rules so far, and those that tell other ranks of constants and keys."""
        made = [rule.declared(self.layout, self._rows_of(rule)) for rule in self.frame.rules.values()]
        for key, digest in self._digests.items():
            made.append(_mark(CONSTANT + key, digest))
        if self._sample_keys is not None:
            made.append(_mark(KEYS, _digest(KEYS, sorted(self._sample_keys))))
        return made

    def _rows_of(self, rule: Rule) -> str | None:
        grid = media.PATCHES.get(rule.key)
        return grid if rule.kind == "rows" and grid in self.frame.rules else None

    @property
    def sample_keys(self) -> list[str]:
        """Keys that each sample has, media aside."""
        return sorted(self._sample_keys or ())


def _added(columns: Sequence[Sequence[int]], n: int) -> list[int]:
    return [sum(column[i] for column in columns) for i in range(n)]


def _digest(key: str, value: Any) -> str:
    """What is equal has the same digest, tensors by dtype, shape and bits."""
    hashed = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            hashed.update(f"{item.dtype}{tuple(item.shape)}".encode())
            hashed.update(bytes(bits(item.detach().cpu().contiguous()).reshape(-1).view(torch.uint8).tolist()))
        elif isinstance(item, (list, tuple)):
            hashed.update(f"[{len(item)}".encode())
            for one in item:
                add(one)
        elif isinstance(item, Mapping):
            add([[name, item[name]] for name in sorted(item)])
        elif item is None or isinstance(item, (bool, int, float, str)):
            hashed.update(f"{type(item).__name__}{item!r};".encode())
        else:
            raise wrong(key, f"is {describe(item)}: a constant is made of numbers, strings, tensors, lists and dicts")

    add(value)
    return hashed.hexdigest()


def _mark(name: str, digest: str) -> Field:
    """A field that no sample has. Its fixed axes are a digest: where ranks differ in it, the merge of their fields
    fails on all of them, before anything moves."""
    a, b = int(digest[:6], 16) + 1, int(digest[6:12], 16) + 1
    return Field(name, "uint8", (-1, a, b), "concat")

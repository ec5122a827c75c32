# SPDX-License-Identifier: Apache-2.0
"""How much of a padded row is a sample's text.

A row is cut where every key has its pad value to the end, so that nothing is lost whatever the attention mask says. If
a pad value is not the loader's, padding looks like text: it would travel, and count. So the mask is used to check: what
it calls padding must be the pad value, and the error names the right one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .media import wrong

if TYPE_CHECKING:
    from .collated import Layout, Rule

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as integers, so that NaN equals itself and -0.0 is not 0.0."""
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_BITS[tensor.element_size()])


def text_extents(layout: Layout, rules: Iterable[Rule], batch: Mapping[str, Any], n: int, width: int) -> list[int]:
    """[n] tokens of each sample: up to the last one (from the first one) that is not padding in every key."""
    if not width:
        return [0] * n
    # Tokens from the unpadded end of a row to each place, itself included.
    places = torch.arange(1, width + 1) if layout.padding_side == "right" else torch.arange(width, 0, -1)
    found = [
        (rule, _content(rule, batch[rule.key])) for rule in rules if rule.kind == "text" and len(rule.text_axes) == 1
    ]
    mask = batch.get("attention_mask")
    if mask is not None and mask.dim() == 2 and any(rule.key == "attention_mask" for rule, _ in found):
        _check(layout, found, batch, mask != 0, places)
    content = torch.zeros(n, width, dtype=torch.bool)
    for _, one in found:
        content |= one
    return (content * places).amax(1).tolist()


def _content(rule: Rule, value: torch.Tensor) -> torch.Tensor:
    """[n, width] true where a key is not padding."""
    try:
        pad = torch.tensor(rule.pad, dtype=rule.dtype)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise wrong(rule.key, f"pad value {rule.pad!r} is no {rule.dtype}: {error}") from None
    differs = (bits(value) != bits(pad)).movedim(rule.axis, 0)
    return differs.flatten(1, -2).any(1) if differs.dim() > 2 else differs


def _check(
    layout: Layout,
    found: list[tuple[Rule, torch.Tensor]],
    batch: Mapping[str, Any],
    real: torch.Tensor,
    places: torch.Tensor,
) -> None:
    """Compares padding with the attention mask. Tokens behind the mask are allowed, and other keys beside them:
    collators put a stand-in image there where a batch has none. They are not all alike, as padding is."""
    ids = next((content for rule, content in found if rule.key == layout.batch_key), torch.zeros_like(real))
    _check_side(layout.padding_side, real, ids)
    last = (real * places).amax(1)
    for rule, content in found:
        if rule.key == layout.batch_key:
            _check_key(rule, batch, content & (places > last[:, None]), places > last[:, None], may_vary=True)
    last = ((real | ids) * places).amax(1)
    for rule, content in found:
        _check_key(rule, batch, content & (places > last[:, None]), places > last[:, None], may_vary=False)


def _check_side(side: str, real: torch.Tensor, ids: torch.Tensor) -> None:
    """A row that begins with padding and is text at its end is padded on the other side."""
    first, end = (0, -1) if side == "right" else (-1, 0)
    for row in (~real[:, first] & real[:, end] & ~ids[:, first]).nonzero().flatten().tolist():
        other = "left" if side == "right" else "right"
        raise wrong("attention_mask", f"the text is padded on the {other}: pass padding_side={other!r}", row)


def _check_key(
    rule: Rule, batch: Mapping[str, Any], content: torch.Tensor, outside: torch.Tensor, may_vary: bool
) -> None:
    for row in content.any(1).nonzero().flatten().tolist():
        value = batch[rule.key].select(rule.axis, row)[..., outside[row]].reshape(-1)
        if bool((value == value[0]).all()):
            raise wrong(
                rule.key,
                f"is padded with {value[0].item()}, its pad value is {rule.pad}: pass "
                f"pad_values={{{rule.key!r}: {value[0].item()}}}",
                row,
            )
        if not may_vary:
            raise wrong(
                rule.key,
                f"has more than padding where attention_mask is 0, and its pad value is {rule.pad}: pass pad_values=, "
                f"or recompute={{{rule.key!r}: function of the batch}}",
                row,
            )

# SPDX-License-Identifier: Apache-2.0
"""poise: keeps the data-parallel ranks of a training run evenly loaded.

    import poise
    for batch in poise.balance(loader, lengths=..., cost="qwen2.5-vl-7b"):
        train(batch)

`balance` wraps a DataLoader; `Group` is the library itself (submit samples, read balanced micro-batches);
`BatchSampler` balances by indices where lengths are known before reading; `plan` and `balanced_partitions` need no
daemon. Everything is
imported when it is first used, and libpoise is loaded then: POISE_LIBRARY names another one than the installed.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from ._version import __version__

NO_CAP = 0xFFFFFFFFFFFFFFFF  #: of the options cap_*: no limit at all

# Name: the module that has it.
_EXPORTS = {
    name: module
    for module, names in {
        "errors": "PoiseError EndOfData StepError Timeout Aborted Interrupted UseAfterFork VersionMismatch "
                  "InvalidInput OutOfMemory LibraryNotFound PoiseWarning",
        "options": "Phase presets algorithms preset",
        "samples": "Field Sample",
        "batch": "Batch Row Totals Mapping Incoming Outgoing",
        "tensors": "TensorView",
        "group": "Group Note",
        "planning": "plan Plan balanced_partitions get_seqlen_balanced_partitions",
        "sampler": "BatchSampler",
        "balance": "balance Balanced BatchInfo scale_for_mean",
        "lengths": "Measure",
        "mapping": "RankMapping",
        "data_balance": "DataBalance",
        "arguments": "add_arguments",
    }.items()
    for name in names.split()
}

__all__ = ["NO_CAP", "__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value  # the next time without this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(types.ModuleType):
    """Importing a submodule binds its name here. Where that name is an export (balance), the export it stays."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _EXPORTS and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

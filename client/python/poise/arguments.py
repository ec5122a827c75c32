# SPDX-License-Identifier: Apache-2.0
"""The command line flags of the system that poise descends from, for scripts of one's own."""

from __future__ import annotations

import argparse

DEFAULT_ALGORITHM = "least_move"
REFERENCE = "reference:"  # in front of an old name: that very algorithm
OLD_ALGORITHMS = ("post_global_balancing_greedy_without_pad", "post_mbs_balancing_greedy_without_pad")


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --use-data-balance and --data-balance-sorting-algo, and returns the parser, as Megatron's providers of extra
    arguments do. A flag that the parser has already stays as it is."""
    group = parser.add_argument_group("data balance")
    taken = parser._option_string_actions
    if "--use-data-balance" not in taken:
        group.add_argument(
            "--use-data-balance", action="store_true", help="balance the samples of each step over the ranks"
        )
    # The system's own spelling has underscores.
    names = [name for name in ("--data-balance-sorting-algo", "--data_balance_sorting_algo") if name not in taken]
    if len(names) == 2:
        group.add_argument(
            *names,
            dest="data_balance_sorting_algo",
            default=DEFAULT_ALGORITHM,
            metavar="NAME",
            help=f"how samples are placed (default: {DEFAULT_ALGORITHM}); {', '.join(OLD_ALGORITHMS)} mean the "
            f"default too: {REFERENCE}NAME is the old one, which makes runs slower",
        )
    return parser

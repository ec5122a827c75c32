# SPDX-License-Identifier: Apache-2.0
"""The flags of scripts."""

from __future__ import annotations

import argparse
import unittest

from poise.arguments import add_arguments


class Arguments(unittest.TestCase):
    def test_defaults(self):
        parser = argparse.ArgumentParser()
        self.assertIs(parser, add_arguments(parser))
        args = parser.parse_args([])
        self.assertEqual((False, "least_move"), (args.use_data_balance, args.data_balance_sorting_algo))

    def test_both_spellings(self):
        parser = add_arguments(argparse.ArgumentParser())
        for flag in ("--data-balance-sorting-algo", "--data_balance_sorting_algo"):
            args = parser.parse_args(["--use-data-balance", flag, "greedy"])
            self.assertEqual((True, "greedy"), (args.use_data_balance, args.data_balance_sorting_algo))

    def test_flags_that_are_there_stay(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("--use-data-balance", action="store_true")
        parser.add_argument("--data_balance_sorting_algo", default="mine")
        add_arguments(add_arguments(parser))
        self.assertEqual("mine", parser.parse_args([]).data_balance_sorting_algo)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""balance() between two nodes: two poised on one machine, each with a rank of its own."""

from __future__ import annotations

import os
import unittest

import cluster
import poise
from loading import length, loader_of


def on_nodes(rank, dirs, port, payload):
    os.environ["POISE_SOCKET_DIR"] = dirs[rank]
    balanced = poise.balance(loader_of(rank, 1), length, coordinators=f"tcp://127.0.0.1:{port}", payload=payload)
    try:
        found = [ident for batch in balanced for ident in batch["id"]]
    except poise.PoiseError as error:
        return str(error)
    return found


class Nodes(unittest.TestCase):
    def setUp(self) -> None:
        self.port = cluster.free_port()
        self.poised = [
            cluster.Poised("--listen", f"tcp://127.0.0.1:{self.port}", "--node-name", "a"),
            cluster.Poised("--node-name", "b"),
        ]

    def tearDown(self) -> None:
        for poised in self.poised:
            poised.close()

    def run_on(self, payload: str | None) -> list:
        dirs = [poised.dir for poised in self.poised]
        outcomes = cluster.Ranks(on_nodes, 2, (dirs, self.port, payload), {}).outcomes()
        self.assertEqual(["", ""], [outcome.error for outcome in outcomes])
        return [outcome.value for outcome in outcomes]

    def test_samples_travel_under_the_jobs_key(self):
        a, b = self.run_on(None)
        self.assertEqual([i for i in range(24)] + [1000 + i for i in range(24)], sorted(a + b))
        self.assertNotEqual(list(range(24)), sorted(a))

    def test_what_anybody_could_have_sent_is_not_unpickled(self):
        texts = self.run_on("plain")  # the first that refuses leaves, which may be all that the other one sees
        self.assertRegex(" ".join(texts), 'unpickles samples, and with payload="plain" anybody')
        for text in texts:
            self.assertRegex(text, "unpickles samples|rank . left before its first step")


if __name__ == "__main__":
    unittest.main()

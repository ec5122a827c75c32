# SPDX-License-Identifier: Apache-2.0
"""Samples as bytes and back: no daemon."""

from __future__ import annotations

import collections
import dataclasses
import gc
import random
import unittest
from unittest import mock

import torch

from poise.device import Placer, casts, map_tensors
from poise.errors import InvalidInput, PoiseError, PoiseWarning
from poise.exchange import BadSample, Encoder, decode, encode, measured
from poise.lengths import Measure

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    name: str
    tensor: torch.Tensor


def there_and_back(value, cast=None):
    encoded = encode(value, cast)
    memory = bytearray(encoded.nbytes)
    encoded.write(memoryview(memory))
    return decode(memory)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


class Tensors(unittest.TestCase):
    def same(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.assertEqual(
            (a.dtype, a.shape, a.stride() if a.numel() else ()), (b.dtype, b.shape, b.stride() if b.numel() else ())
        )
        self.assertEqual(bits(a), bits(b))

    def test_every_dtype_keeps_bits_and_shape(self):
        names = (
            "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 float8_e4m3fn "
            "float8_e5m2 complex64 complex128"
        ).split()
        for name in names:
            dtype = getattr(torch, name)
            for shape in ((), (0,), (3, 0, 2), (1,), (7, 1), (300, 5)):
                raw = torch.randint(
                    0,
                    2 if name == "bool" else 256,
                    (*shape, torch.empty(0, dtype=dtype).element_size()),
                    dtype=torch.uint8,
                )
                tensor = raw.view(dtype).reshape(shape)
                with self.subTest(name=name, shape=shape):
                    self.same(tensor, there_and_back(tensor))

    def test_memory_formats_are_kept(self):
        image = torch.rand(2, 3, 40, 30).to(memory_format=torch.channels_last)
        self.same(image, there_and_back(image))
        turned = torch.rand(40, 30).t()
        self.same(turned, there_and_back(turned))

    def test_views_send_what_they_show(self):
        base = torch.arange(10000.0).view(100, 100)
        for view in (base[::2, 1::3], base[5], base[:, 7], torch.ones(1).expand(1000), base.flip(0)[3:4]):
            back = there_and_back(view)
            self.assertTrue(torch.equal(view, back))
        self.assertLess(encode(base[5]).nbytes, 1000)  # not the 40,000 bytes of its storage

    def test_one_tensor_twice_stays_one(self):
        tensor = torch.rand(1000)
        back = there_and_back({"a": tensor, "b": [tensor]})
        self.assertIs(back["a"], back["b"][0])
        self.assertLess(encode([tensor] * 10).nbytes, 5000)

    def test_received_tensors_can_be_written(self):
        back = there_and_back([torch.zeros(3), torch.zeros(3000)])
        back[0] += 1
        back[1] += 1
        self.assertEqual(3003, sum(float(t.sum()) for t in back))

    def test_decoding_copies_no_large_tensor(self):
        encoded = encode({"x": torch.zeros(1 << 16)})
        memory = bytearray(encoded.nbytes)
        encoded.write(memoryview(memory))
        tensor = decode(memory)["x"]
        tensor.fill_(1.0)
        self.assertEqual(1 << 16, memory.count(b"\x00\x00\x80\x3f"))
        with self.assertRaises(BufferError):
            memory.clear()  # the tensor keeps it
        del tensor
        memory.clear()

    def test_rare_kinds_travel_as_pytorch_pickles_them(self):
        parameter = torch.nn.Parameter(torch.rand(5))
        back = there_and_back(parameter)
        self.assertIsInstance(back, torch.nn.Parameter)
        self.assertTrue(torch.equal(parameter, back) and back.requires_grad)
        leaf = torch.rand(5, requires_grad=True)
        self.assertTrue(there_and_back(leaf).requires_grad)
        sparse = torch.eye(4).to_sparse()
        self.assertTrue(torch.equal(sparse.to_dense(), there_and_back(sparse).to_dense()))
        conj = torch.tensor([1 + 2j]).conj()
        self.assertTrue(torch.equal(conj, there_and_back(conj)))

    def test_cast_at_submit(self):
        sample = {"x": torch.rand(1000), "i": torch.arange(5), "d": torch.rand(3, dtype=torch.float64)}
        back = there_and_back(sample, casts(torch.bfloat16))
        self.assertEqual(
            (torch.bfloat16, torch.int64, torch.float64), (back["x"].dtype, back["i"].dtype, back["d"].dtype)
        )
        self.assertTrue(torch.equal(sample["x"].to(torch.bfloat16), back["x"]))
        self.assertLess(encode(sample, casts(torch.bfloat16)).nbytes, encode(sample).nbytes - 1900)
        self.assertEqual(torch.float32, there_and_back(sample, casts({torch.float64: torch.float32}))["d"].dtype)
        with self.assertRaises(InvalidInput):
            casts("bf16")

    def test_a_tensor_on_an_accelerator_is_refused_with_where_to_put_balance(self):
        class Accelerated:  # there is none here: what the encoder asks of a tensor is its device
            device = torch.device("cuda", 1)

        from poise.exchange import _reduce_tensor

        with self.assertRaisesRegex(BadSample, r"cuda:1: put balance\(\) before the batch is moved"):
            _reduce_tensor(Accelerated(), torch, None)


class Objects(unittest.TestCase):
    def test_nested_values(self):
        big = bytes(range(256)) * 1000
        sample = {
            "text": "häßlich 漢字",
            "bytes": big,
            "array": bytearray(big),
            "none": None,
            "n": [1, 2.5, True, 1 << 80],
            "pair": Pair(torch.rand(2, 3), ("x", {4})),
            "deep": [[[{"k": torch.arange(4)}]]],
            "empty": {},
        }
        back = there_and_back(sample)
        self.assertEqual(sample["text"], back["text"])
        self.assertEqual((big, bytearray(big)), (back["bytes"], back["array"]))
        self.assertEqual(sample["n"], back["n"])
        self.assertTrue(torch.equal(sample["pair"].left, back["pair"].left) and isinstance(back["pair"], Pair))
        self.assertEqual([0, 1, 2, 3], back["deep"][0][0][0]["k"].tolist())
        record = there_and_back(Record("r", torch.ones(3)))
        self.assertEqual(("r", 3.0), (record.name, float(record.tensor.sum())))

    def test_random_values(self):
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)

        def value(depth: int):
            kind = rng.randrange(9 if depth < 4 else 6)
            if kind == 0:
                return rng.randbytes(rng.choice((0, 1, 511, 512, 513, 70000)))
            if kind == 1:
                return "".join(chr(rng.randrange(32, 0x2000)) for _ in range(rng.randrange(20)))
            if kind in (2, 3):
                return torch.randint(
                    -5,
                    5,
                    [rng.randrange(6) for _ in range(rng.randrange(4))],
                    dtype=rng.choice((torch.int64, torch.int8)),
                )
            if kind == 4:
                return rng.random()
            if kind == 5:
                return None
            inner = [value(depth + 1) for _ in range(rng.randrange(5))]
            return inner if kind == 6 else tuple(inner) if kind == 7 else {str(i): item for i, item in enumerate(inner)}

        def equal(a, b) -> bool:
            if isinstance(a, torch.Tensor):
                return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
            if isinstance(a, (list, tuple)):
                return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
            if isinstance(a, dict):
                return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
            return a == b

        for i in range(200):
            sample = value(0)
            self.assertTrue(equal(sample, there_and_back(sample)), f"seed {seed}, sample {i}: {sample!r:.200}")

    def test_bytes_that_are_not_ours_are_an_error(self):
        encoded = encode({"x": torch.rand(1000)})
        good = bytearray(encoded.nbytes)
        encoded.write(memoryview(good))
        for bad in (
            b"",
            b"poi1",
            bytes(good[:50]),
            b"poi2" + bytes(good[4:]),
            bytes(good[:4]) + b"\xff\xff\xff\x7f" + bytes(good[8:]),
            bytes(good[:-1000]),
        ):
            with self.assertRaises(PoiseError):
                decode(bad)

    def test_encoding_leaves_nothing_to_the_garbage_collector(self):
        gc.collect()
        gc.disable()
        try:
            encode({"x": torch.rand(100000)})
            self.assertEqual(0, gc.collect())
        finally:
            gc.enable()


class Measuring(unittest.TestCase):
    def test_what_a_lengths_function_may_return(self):
        self.assertEqual(((5,), None, 1), measured(5, ["length"], None))
        self.assertEqual(((6,), None, 1), measured(5.2, ["length"], None))
        self.assertEqual(((7,), None, 3), measured(torch.tensor(7), ["length"], torch.tensor(3)))
        self.assertEqual(((1, 2), None, 1), measured((1, 2), ["vision", "llm"], None))
        self.assertEqual(((0, 2), None, 0), measured({"llm": 2}, ["vision", "llm"], 0))
        self.assertEqual(((4, 2), (16, 9), 5), measured(Measure((4, 2), (16, 9), 5), ["vision", "llm"], None))
        filled = Measure({"vision": 4, "llm": 2}, {"vision": 8, "llm": 4}, preset=True)
        self.assertEqual(((2,), (4,), 1), measured(filled, ["llm"], None))
        self.assertEqual(((2,), None, 1), measured(filled, ["length"], None))

    def test_what_it_may_not(self):
        for value, phases, text in (
            (-1, ["length"], "negative"),
            (float("nan"), ["length"], "finite"),
            (float("inf"), ["length"], "finite"),
            (1 << 63, ["length"], "2\\^63"),
            ((1,), ["vision", "llm"], "vision, llm"),
            ({"vison": 3}, ["vision", "llm"], "'vison'"),
        ):
            with self.assertRaisesRegex(BadSample, text):
                measured(value, phases, None)

    def test_a_bad_sample_is_named(self):
        self.assertIn("nan", Encoder(lambda s: float("nan") if s == 2 else 1, ["length"])([1, 2]).error[1])
        index, text = Encoder(lambda s: 1 / (s - 3), ["length"])([5, 4, 3]).error
        self.assertEqual(2, index)
        self.assertRegex(text, r"^ZeroDivisionError: .*\(test_exchange.py:\d+\)$")
        index, text = Encoder(lambda s: 1, ["length"])([1, lambda: 0]).error
        self.assertEqual(1, index)
        self.assertIn("ickl", text)
        with self.assertRaisesRegex(TypeError, "lists of samples"):
            Encoder(lambda s: 1, ["length"])({"input_ids": 3})


class Places(unittest.TestCase):
    def test_without_an_accelerator_it_says_so_and_leaves_batches_alone(self):
        if torch.accelerator.is_available():
            self.skipTest("there is an accelerator")
        batch = {"x": torch.rand(3)}
        for keywords, word in (
            ({"pin_memory": True}, "pin_memory=True: there is no accelerator"),
            ({"device": "cuda"}, "no accelerator"),
            ({"device": "cpu"}, "in the host's memory already"),
        ):
            with self.assertWarnsRegex(PoiseWarning, word):
                placer = Placer(**keywords)
            self.assertIs(batch, placer.ready(placer.place(batch)))

    def test_a_copy_in_flight_keeps_its_source(self):
        # There is no accelerator here: the order of calls is what can be tested, with a stream that only takes notes.
        class Event:
            over = False

            def query(self):
                return self.over

        class Stream:
            events, waited = [], []

            def __enter__(self):
                return self

            def __exit__(self, *exc):
                return None

            def record_event(self):
                self.events.append(Event())
                return self.events[-1]

            def wait_event(self, event):
                self.waited.append(event)

        placer, stream = Placer(device="meta"), Stream()
        placer._side_stream = lambda torch: stream
        recorded = []
        with (
            mock.patch.object(torch.accelerator, "current_stream", lambda device: stream),
            mock.patch.object(torch.Tensor, "record_stream", lambda tensor, where: recorded.append(where)),
        ):
            first = placer.place({"x": torch.ones(2)})
            self.assertEqual(([], 1), (stream.waited, len(stream.events)))  # the trainer waits for nothing yet
            self.assertEqual("meta", placer.ready(first)["x"].device.type)
            self.assertEqual((stream.events, [stream]), (stream.waited, recorded))
            placer.place({"x": torch.ones(2)})
            self.assertIsNotNone(first.host)
            stream.events[0].over = True
            placer.place({"x": torch.ones(2)})
            self.assertIsNone(first.host)

    def test_moving_keeps_the_structure(self):
        placer = Placer(device="meta")  # the one device beside the CPU that is always there
        moved = placer.ready(placer.place({"a": [torch.rand(2), "s"], "p": Pair(torch.rand(1), 3)}))
        self.assertEqual(
            ("meta", "s", "meta", 3),
            (moved["a"][0].device.type, moved["a"][1], moved["p"].left.device.type, moved["p"].right),
        )
        ordered = map_tensors(collections.OrderedDict(a=torch.ones(1)), lambda t: t + 1)
        self.assertIsInstance(ordered, collections.OrderedDict)


if __name__ == "__main__":
    unittest.main()

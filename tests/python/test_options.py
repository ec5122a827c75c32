#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arguments that are wrong are named before anything is opened: options, costs, fields, samples."""

import ctypes
import pickle
import unittest

import rig
import poise
from poise import _c, options, samples


def open_fails(**wrong):
    arguments = {"job": "j", "rank": 0, "n_ranks": 1, "socket_dir": "/nonexistent", "daemon_timeout_ms": 1} | wrong
    try:
        poise.Group(**arguments)
    except poise.PoiseError as error:
        return error
    raise AssertionError("a group was opened")


class Options(unittest.TestCase):
    def test_no_daemon(self):
        error = open_fails()
        self.assertIn("/nonexistent", error.text)
        self.assertEqual(error.errno, -error.code)

    def test_every_member_of_the_struct_is_an_option(self):
        kinds = dict(_c.Options._fields_)
        values = {}
        for name in options.OPTION_NAMES:
            if name not in ("plan_only", "debug_slots", "cap_length_rank", "cap_length_micro_batch", "flags"):
                values[name] = "text" if kinds[name] is ctypes.c_char_p else 1
        opt, _ = options.make_options(values, [])
        for name, value in values.items():
            mine = getattr(opt, name)
            self.assertEqual(mine.decode() if isinstance(mine, bytes) else mine, value, name)
        untold = {name for name, _ in _c.Options._fields_} - set(options.OPTION_NAMES)
        self.assertEqual(untold, {"size", "phases", "phase_size", "n_phases"})

    def test_words(self):
        opt, _ = options.make_options({"mode": "shadow", "count": "free", "objective": "pipeline", "cut": "as-needed",
                                       "end": "continue", "plan_only": True, "flags": ["debug_slots"]}, [])
        self.assertEqual((opt.mode, opt.count, opt.objective, opt.cut, opt.end, opt.flags), (1, 2, 2, 2, 1, 3))

    def test_a_wrong_word_lists_the_right_ones(self):
        self.assertIn("equal, bounded, free", open_fails(count="even").text)

    def test_an_unknown_option_lists_the_nearest(self):
        error = open_fails(micro_batchsize=2)
        self.assertIsInstance(error, ValueError)
        self.assertIn("micro_batch_size", error.text)

    def test_numbers_that_do_not_fit_are_not_cut(self):
        self.assertIn("prefetch_depth is 4294967296", open_fails(prefetch_depth=2**32).text)
        self.assertIn("prefetch_depth is -1", open_fails(prefetch_depth=-1).text)
        self.assertIn("must be an integer", open_fails(prefetch_depth=1.5).text)

    def test_caps_by_phase(self):
        phases = options.preset("qwen2.5-vl-7b")
        opt, _ = options.make_options({"cap_length_micro_batch": {"llm": 8192}, "cap_length_rank": [1, poise.NO_CAP]},
                                      phases)
        at = [phase.name for phase in phases].index("llm")
        self.assertEqual(opt.cap_length_micro_batch[at], 8192)
        self.assertEqual(list(opt.cap_length_rank)[:3], [1, poise.NO_CAP, 0])
        self.assertIn("llm", open_fails(cost="qwen2.5-vl-7b", cap_length_rank={"lm": 1}).text)

    def test_costs(self):
        self.assertIn("qwen2.5-vl-7b", open_fails(cost="qwen").text)
        self.assertIn("poise.Phase", open_fails(cost=["vision"]).text)
        self.assertIn("linear of phase v", open_fails(cost=[poise.Phase("v", linear=-1)]).text)

    def test_presets_are_phases(self):
        for name in poise.presets():
            if ":" not in name:
                self.assertGreater(sum(phase.linear + phase.quadratic for phase in poise.preset(name)), 0, name)
        self.assertEqual([phase.name for phase in poise.preset("qwen2.5-vl-7b")], ["vision", "llm"])
        self.assertIn("least_move", poise.algorithms())

    def test_errors_can_be_pickled(self):
        error = poise.StepError("rank 3 is bad", -74, 3, 1, 17, "ids")
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(again), again.rank, again.step, type(again)), (str(error), 3, 17, poise.StepError))
        self.assertIsInstance(poise.Timeout("t", -110), TimeoutError)
        self.assertIsInstance(poise.OutOfMemory("m", -12), MemoryError)
        self.assertEqual(str(pickle.loads(pickle.dumps(poise.Timeout("late", -110)))), "late")


class Fields(unittest.TestCase):
    def test_types_by_any_name(self):
        class Numpy:
            name = "float32"
        for given, code in (("bf16", 11), ("bfloat16", 11), ("torch.int64", 9), ("str", 0), (Numpy(), 12), (14, 14),
                            ("half", 10)):
            self.assertEqual(samples.dtype_code(given), code)
        with self.assertRaisesRegex(poise.InvalidInput, "bfloat16"):
            samples.dtype_code("bfloat6")

    def test_pad_values(self):
        for dtype, value, bits in (("int64", -100, 2**64 - 100), ("int32", -1, 2**32 - 1), ("bool", True, 1),
                                   ("float32", 1.0, 0x3F800000),
                                   ("bfloat16", 1.0, 0x3F80), ("bfloat16", -2.5, 0xC020), ("float16", 1.0, 0x3C00),
                                   ("uint8", 0, 0),
                                   ("float64", None, 0), ("float32", -0.0, 0x80000000), ("bfloat16", float("-inf"),
                                                                                         0xFF80)):
            self.assertEqual(samples.pad_bits(samples.dtype_code(dtype), value, "f"), bits, (dtype, value))
        for dtype, value in (("uint8", 256), ("int64", 1.5), ("float8_e4m3", 1), ("complex128", 1), ("int8", "x")):
            with self.assertRaises(poise.InvalidInput):
                samples.pad_bits(samples.dtype_code(dtype), value, "f")

    def test_bfloat16_rounds_to_nearest_even(self):
        for value, bits in ((1.00390625, 0x3F80), (1.01171875, 0x3F82), (float("nan"), 0x7FC0), (3.4e38, 0x7F80)):
            self.assertEqual(samples.bfloat16_bits(value), bits)


class Packing(unittest.TestCase):
    def pack(self, *given, phases=("a",), **fields):
        declared = {name: samples.Declared(poise.Field(name, *rest)) for name, rest in fields.items()}
        samples.Packed(given, phases, declared).release()

    def fails(self, *given, **more):
        with self.assertRaises(poise.InvalidInput) as caught:
            self.pack(*given, **more)
        return caught.exception

    def test_wrong_lengths_name_the_sample(self):
        good = poise.Sample(length=1)
        self.assertEqual(self.fails(good, poise.Sample(length=(1, 2))).sample, 1)
        self.assertIn("a, b", self.fails(poise.Sample(length=1), phases=("a", "b")).text)
        self.assertIn("'llm'", self.fails(poise.Sample(length={"llm": 2, "a": 1}), phases=("a", "llms")).text)
        self.assertEqual(self.fails(good, good, poise.Sample(length=1.5)).sample, 2)
        self.assertEqual(self.fails(poise.Sample(length=2**63)).sample, 0)
        self.assertEqual(self.fails(good, poise.Sample(length=1, attention=-1)).sample, 1)

    def test_wrong_numbers_name_the_sample(self):
        self.assertEqual(self.fails(poise.Sample(length=1), poise.Sample(length=1, tag=-1)).sample, 1)
        self.assertEqual(self.fails(poise.Sample(length=1, loss_tokens=1.5)).sample, 0)
        self.assertIn("together, transposed", self.fails(poise.Sample(length=1, unit_layout="x")).text)

    def test_wrong_values_name_sample_and_field(self):
        ids = ("int64", (-1,))
        for value in (b"1234567", "text of no multiple", [1, 2.5], [[1], [2, 3]], object(),
                      memoryview(bytearray(8)).cast("d")):
            error = self.fails(poise.Sample({}, 1), poise.Sample({"ids": value}, 1), ids=ids)
            self.assertEqual((error.sample, error.field), (1, "ids"), value)
        error = self.fails(poise.Sample({"idx": [1]}, 1), ids=ids)
        self.assertIn("did you mean ids?", error.text)
        self.assertEqual(error.field, "idx")

    def test_bare_bytes_take_the_fields_shape(self):
        info = samples.Declared(poise.Field("px", "float32", (-1, 4)))
        shape = samples.value_of(info, bytes(48), [], [])[1]
        self.assertEqual(shape, (3, 4))
        self.assertEqual(samples.value_of(info, bytearray(0), [], [])[1], (0, 4))
        with self.assertRaises(poise.InvalidInput):
            samples.value_of(info, bytes(20), [], [])
        two = samples.Declared(poise.Field("px", "uint8", (-1, -1)))
        with self.assertRaises(poise.InvalidInput):
            samples.value_of(two, bytes(20), [], [])

    def test_buffers_are_given_back(self):
        data = bytearray(16)
        self.pack(poise.Sample({"ids": data}, 1), ids=("int64", (-1,)))
        data.append(1)  # a BufferError if somebody still had it
        with self.assertRaises(poise.InvalidInput):
            self.pack(poise.Sample({"ids": bytearray(16)}, 1), poise.Sample({"ids": 1.5}, 1), ids=("int64", (-1,)))


if __name__ == "__main__":
    rig.main()

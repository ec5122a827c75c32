#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The structs, constants and prototypes of _c.py are those of include/poise.h, as a C compiler sees it."""

import ctypes
import os
import re
import subprocess
import tempfile
import unittest

import rig
from poise import _c

HEADER = (rig.ROOT / "include" / "poise.h").read_text()

# By the type of a member in C: what ctypes may have for it. Pointers may be addresses.
KINDS = {
    "i32": {ctypes.c_int32}, "u32": {ctypes.c_uint32}, "i64": {ctypes.c_int64}, "u64": {ctypes.c_uint64,
                                                                                        ctypes.c_size_t},
    "double": {ctypes.c_double}, "char": {ctypes.c_char}, "uchar": {ctypes.c_ubyte},
}

PROGRAM = r"""
#include <poise.h>
#include <stdio.h>
#define KIND(x) _Generic((x), int32_t: "i32", uint32_t: "u32", int64_t: "i64", uint64_t: "u64", double: "double", \
    char: "char", unsigned char: "uchar", char *: "char[]", unsigned char *: "uchar[]", uint64_t *: "u64[]", \
    int64_t *: "i64[]", uint32_t *: "u32[]", struct poise_quality: "struct", default: "pointer")
#define MEMBER(s, c, py) printf("%s %s %zu %zu %s\n", #s, #py, offsetof(struct s, c), sizeof ((struct s *)0)->c, \
    KIND(((struct s *)0)->c));
#define SIZE(s) printf("%s . 0 %zu .\n", #s, sizeof(struct s));
#define NUMBER(n) printf("%s = %lld 0 .\n", #n, (long long)(n));
int main(void)
{
"""


def members(cls):
    return [(name.rstrip("_"), name, kind) for name, kind in cls._fields_]


def run_c(body):
    with tempfile.TemporaryDirectory() as work:
        source = os.path.join(work, "t.c")
        with open(source, "w") as file:
            file.write(PROGRAM + body + "return 0;\n}\n")
        subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", f"-I{rig.ROOT}/include", "-o", work + "/t", source],
                       check=True)
        return subprocess.run([work + "/t"], check=True, capture_output=True, text=True).stdout.splitlines()


class Structs(unittest.TestCase):
    def test_every_struct_of_the_header_is_there(self):
        named = set(re.findall(r"^struct (poise_\w+) \{", HEADER, re.M))
        self.assertEqual(named, set(_c.STRUCTS))

    def test_sizes_offsets_and_types(self):
        body = "".join(f"SIZE({name})\n" + "".join(f"MEMBER({name}, {c}, {py})\n" for c, py, _ in members(cls))
                       for name, cls in _c.STRUCTS.items())
        seen = 0
        for line in run_c(body):
            name, member, offset, size, kind = line.split()
            cls = _c.STRUCTS[name]
            with self.subTest(struct=name, member=member):
                seen += 1
                if member == ".":
                    self.assertEqual(int(size), ctypes.sizeof(cls))
                    continue
                mine = getattr(cls, member)
                self.assertEqual((mine.offset, mine.size), (int(offset), int(size)))
                self.check_kind(dict(cls._fields_)[member], kind, int(size))
        self.assertEqual(seen, sum(1 + len(cls._fields_) for cls in _c.STRUCTS.values()))

    def check_kind(self, mine, kind, size):
        if issubclass(mine, ctypes.Array):
            if kind == "pointer":  # an array of pointers
                self.assertIs(mine._type_, ctypes.c_char_p)
            else:
                self.assertTrue(kind.endswith("[]"), kind)
                self.assertIn(mine._type_, KINDS[kind[:-2]])
        elif kind in KINDS:
            self.assertIn(mine, KINDS[kind])
        elif kind == "struct":
            self.assertTrue(issubclass(mine, ctypes.Structure))
        else:  # any pointer; to numbers it is an address
            self.assertEqual(size, ctypes.sizeof(ctypes.c_void_p))
            self.assertTrue(mine in (ctypes.c_char_p, ctypes.c_void_p) or issubclass(mine, ctypes._Pointer), mine)

    def test_a_missing_member_would_be_seen(self):
        """What this file compares does catch drift: a struct without its last member has another size."""
        class Short(ctypes.Structure):
            _fields_ = _c.Options._fields_[:-1]
        self.assertNotEqual(ctypes.sizeof(Short), ctypes.sizeof(_c.Options))

    def test_numbers(self):
        wanted = {"POISE_MAX_DIMS": _c.MAX_DIMS, "POISE_MAX_PHASES": _c.MAX_PHASES, "POISE_MAX_EXTENTS": _c.MAX_EXTENTS,
                  "POISE_MAX_FIELDS": _c.MAX_FIELDS, "POISE_MAX_NAME": _c.MAX_NAME, "POISE_NONE": _c.NONE,
                  "POISE_DEFAULT_MICRO_BATCH": _c.DEFAULT_MICRO_BATCH, "POISE_PHASE_PADDED": _c.PHASE_PADDED,
                  "POISE_PHASE_BARRIER": _c.PHASE_BARRIER, "POISE_PLAN_ONLY": _c.PLAN_ONLY,
                  "POISE_DEBUG_SLOTS": _c.DEBUG_SLOTS, "POISE_INFO": _c.INFO, "POISE_WARNING": _c.WARNING,
                  "POISE_ERROR": _c.ERROR, "POISE_N_DTYPES": len(_c.DTYPES)}
        prefixes = {"mode": "MODE", "count": "COUNT", "objective": "OBJECTIVE", "cut": "CUT", "end": "END",
                    "pad_side": "PAD",
                    "pad_scope": "PAD", "unit_layout": "UNIT"}
        for member, words in _c.ENUMS.items():
            for number, word in enumerate(words):
                prefix = prefixes.get(member, "")
                wanted["_".join(part for part in ("POISE", prefix, word.upper()) if part)] = number
        for line in run_c("".join(f"NUMBER({name})\n" for name in wanted)):
            name, _, value, *_ = line.split()
            self.assertEqual(int(value), wanted[name], name)
        self.assertIn("#define POISE_NO_CAP UINT64_MAX", HEADER)
        self.assertEqual(_c.NO_CAP, 2**64 - 1)

    def test_no_enum_value_is_missing(self):
        for prefix, member in (("MODE", "mode"), ("COUNT", "count"), ("OBJECTIVE", "objective"), ("CUT", "cut"),
                               ("END", "end"),
                               ("UNIT", "unit_layout")):
            found = re.findall(rf"^#define POISE_{prefix}_(\w+) (\d+)", HEADER, re.M)
            self.assertEqual([name.lower() for name, _ in sorted(found, key=lambda one: int(one[1]))],
                             list(_c.ENUMS[member]))

    def test_prototypes(self):
        functions = set(re.findall(r"^[a-z].*[ *](poise_\w+)\(", HEADER, re.M))
        self.assertEqual(functions, set(_c._PROTOTYPES))

    def test_element_types(self):
        lib = _c.library()
        for code, (name, size) in enumerate(zip(_c.DTYPES, _c.ITEM_SIZES)):
            self.assertEqual(lib.poise_dtype_name(code).decode(), name)
            self.assertEqual(lib.poise_dtype_bytes(code), size)
        self.assertIsNone(lib.poise_dtype_name(len(_c.DTYPES)))

    def test_version_is_the_headers(self):
        self.assertEqual(re.search(r'^#define POISE_VERSION "(.*)"', HEADER, re.M).group(1), _c.__version__)


if __name__ == "__main__":
    rig.main()

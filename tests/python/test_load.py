#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which library is loaded, and what is said where it is the wrong one or none."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import rig

ASK = ("import poise\ntry:\n    print(len(poise.presets()))\n"
       "except ImportError as e:\n    print(type(e).__name__, '|', e)")


def ask(program=ASK, **env):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | env)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout.strip()


class Load(unittest.TestCase):
    def fake(self, work, source):
        path = os.path.join(work, "libfake.so")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", path, "-xc", "-"], input=source,
                       text=True, check=True)
        return path

    def test_poise_library_names_it(self):
        self.assertGreater(int(ask()), 5)

    def test_import_alone_loads_nothing(self):
        self.assertEqual(ask("import poise; print(poise.Phase('a'), poise.__version__)", POISE_LIBRARY="/nowhere"),
                         ask("import poise; print(poise.Phase('a'), poise.__version__)"))

    def test_a_library_that_is_not_there(self):
        text = ask(POISE_LIBRARY="/nowhere/libpoise.so")
        self.assertRegex(text, "^LibraryNotFound .*/nowhere/libpoise.so")
        self.assertIn("POISE_LIBRARY", text)

    def test_another_version_names_both(self):
        with tempfile.TemporaryDirectory() as work:
            path = self.fake(work, 'const char *poise_version(void) { return "9.8.7"; }')
            text = ask(POISE_LIBRARY=path)
        own = re.search(r'"(.*)"',
                        (rig.PACKAGE / "poise" / "_version.py").read_text().split("__version__ =")[1]).group(1)
        for part in ("VersionMismatch", "9.8.7", own, path, str(rig.PACKAGE / "poise")):
            self.assertIn(part, text)

    def test_a_library_that_is_something_else(self):
        with tempfile.TemporaryDirectory() as work:
            text = ask(POISE_LIBRARY=self.fake(work, "int nothing;"))
        self.assertRegex(text, "^LibraryNotFound .*is not libpoise")

    def test_torch_and_numpy_are_not_imported(self):
        program = ("import sys, poise\nfor name in ('Group', 'plan', 'BatchSampler', 'Field'):\n"
                   "    getattr(poise, name)\n"
                   "poise.plan([[1, 2], [3]])\nprint([n for n in ('torch', 'numpy') if n in sys.modules])")
        self.assertEqual(ask(program), "[]")

    def test_every_export_is_there(self):
        program = ("import poise\nfor name in poise.__all__:\n    try:\n        getattr(poise, name)\n"
                   "    except ImportError as e:\n"
                   "        assert e.name in ('torch', 'numpy'), (name, e)\nprint(len(poise.__all__))")
        self.assertGreater(int(ask(program)), 30)

    def test_a_name_that_is_not_there(self):
        self.assertIn("has no attribute 'blance'",
                      ask("import poise\ntry:\n    poise.blance\nexcept AttributeError as e:\n    print(e)"))


if __name__ == "__main__":
    rig.main()

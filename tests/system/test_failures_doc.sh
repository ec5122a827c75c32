#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/failures.md quotes what the code says: each message in it stands in the sources, where "..." is a part that varies.
set -eu
command -v python3 >/dev/null || { echo "python3 is missing"; exit 77; }
python3 - <<'PYTHON'
import glob
import re
import sys

literal = r'"((?:[^"\\]|\\.)*)"'
known = []
for path in glob.glob("client/**/*.c", recursive=True) + glob.glob("daemon/**/*.c", recursive=True) + glob.glob("proto/*.c"):
    text = re.sub(r'"\s*PRI[a-zA-Z0-9]+\s*"', "d", open(path).read())
    for run in re.finditer(literal + r"(?:\s*" + literal + ")*", text):
        joined = "".join(m.group(1) for m in re.finditer(literal, run.group(0)))
        known.append(re.sub(r"(?:%[-0-9.*]*(?:hh|h|ll|l|z|j)?[a-zA-Z])+", "...", joined.replace('\\"', '"')))
document = open("docs/failures.md").read()
rows = re.findall(r"^\| `([^`]+)`", document, flags=re.M)
missing = [row for row in rows if not any(row in text for text in known)]
for row in missing:
    print(f"docs/failures.md quotes a message that no source has: {row}", file=sys.stderr)
if len(rows) < 25:
    sys.exit(f"only {len(rows)} messages were found in docs/failures.md")
sys.exit(1 if missing else 0)
PYTHON

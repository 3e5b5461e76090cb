"""Builds the store servers of the tests, each once.

Lives here: which programs there are, and what pins each: a Go module with its sums, a package lock of npm. May use:
`tools/kept.py`, which says where the built ones are, `go` and `npm`. Never: a download by any other way than theirs.

`build.py [--print] [PROGRAM…]` builds what is missing of the named ones (all without a name); `--print` says the folder.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "tools"))
from kept import Kept  # noqa: E402

# Program: package of the Go module in the folder of that name.
GO = {
    "versitygw": "github.com/versity/versitygw/cmd/versitygw",
    "toxiproxy": "github.com/Shopify/toxiproxy/v2/cmd/server",
}
# Program: the script of the npm package that the folder of that name locks.
NODE = {"azurite": "node_modules/azurite/dist/src/blob/main.js"}


def build_go(name: str, half: Path):
    KEPT.go(name, half, name, GO[name])


def build_node(name: str, half: Path):
    """One program: a folder with its packages, and `run` to start it."""
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    for file in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name / file, half)
    command = ["npm", "ci", "--omit=dev", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    KEPT.run(name, command, half)
    start = half / "run"
    start.write_text(f'#!/bin/sh\nexec node "$(dirname "$0")/{NODE[name]}" "$@"\n')
    start.chmod(0o755)


KEPT = Kept("store-tools", HERE, dict.fromkeys(GO, build_go) | dict.fromkeys(NODE, build_node))


def lacks(names: list[str]) -> str | None:
    for command, those in {"go": GO, "npm": NODE, "node": NODE}.items():
        if set(names) & set(those) and not shutil.which(command):
            return f"{command} is missing, which {' and '.join(those)} need"
    return None


if __name__ == "__main__":
    sys.exit(KEPT.main(__doc__, lacks))

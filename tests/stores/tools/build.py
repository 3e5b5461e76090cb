"""Builds the store servers of the tests, each once.

Lives here: which programs there are, what pins each (a Go module with its sums, a package lock of npm), and where the
built ones are kept: a folder of the cache whose name is the content of all those files, so that a changed pin is a new
folder. May use: Python's own library, `go` and `npm`. Never: a download by any other way than theirs, checked by the sums.

`build.py [--print] [PROGRAM…]` builds what is missing of the named ones (all without a name); `--print` says the folder.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("FRESHET_CACHE") or Path.home() / ".cache" / "freshet")
# Program: package of the Go module in the folder of that name.
GO = {
    "versitygw": "github.com/versity/versitygw/cmd/versitygw",
    "toxiproxy": "github.com/Shopify/toxiproxy/v2/cmd/server",
}
# Program: the script of the npm package that the folder of that name locks.
NODE = {"azurite": "node_modules/azurite/dist/src/blob/main.js"}
PINS = ("go.mod", "go.sum", "package.json", "package-lock.json")
TAIL = 20  # lines of a failed build that are shown


def home() -> Path:
    """The folder of the built programs. It need not exist."""
    key = hashlib.sha256()
    for file in sorted(p for p in HERE.glob("*/*") if p.name in PINS):
        key.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
    return CACHE / "store-tools" / key.hexdigest()[:12]


def missing(names) -> list[str]:
    return [n for n in names if not (home() / n).exists()]


def run(name: str, command: list[str], where: Path, **env):
    made = subprocess.run(
        command,
        cwd=where,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if made.returncode:
        raise SystemExit("\n".join(made.stdout.splitlines()[-TAIL:]) + f"\nstore-tools: {name} does not build")


def build_go(name: str, half: Path):
    """One program, which is one file."""
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(half), GO[name]]
    run(name, command, HERE / name, CGO_ENABLED="0")


def build_node(name: str, half: Path):
    """One program: a folder with its packages, and `run` to start it."""
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    for file in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name / file, half)
    command = ["npm", "ci", "--omit=dev", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    run(name, command, half)
    start = half / "run"
    start.write_text(f'#!/bin/sh\nexec node "$(dirname "$0")/{NODE[name]}" "$@"\n')
    start.chmod(0o755)


def build(name: str):
    """One program, which appears in its place whole or not at all."""
    half = home() / f".{name}.{os.getpid()}"
    try:
        (build_go if name in GO else build_node)(name, half)
        half.rename(home() / name)
    finally:
        shutil.rmtree(half, ignore_errors=True)
        if half.exists():
            half.unlink()


def needed(names):
    """Says what the machine lacks before anything is built."""
    for command, those in {"go": GO, "npm": NODE, "node": NODE}.items():
        if set(names) & set(those) and not shutil.which(command):
            raise SystemExit(f"store-tools: {command} is missing, which {' and '.join(those)} need; install it and run again")


def build_missing(names):
    """Builds what of these is not there yet. Two at once wait for each other."""
    if not missing(names):
        return
    needed(missing(names))
    home().mkdir(parents=True, exist_ok=True)
    with (home() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        todo = missing(names)
        for at, name in enumerate(todo, 1):
            print(f"store-tools: {at} of {len(todo)}, {name} …", flush=True)
            began = time.monotonic()
            build(name)
            print(f"store-tools: {name}, {time.monotonic() - began:.0f} s", flush=True)


def main():
    every = [*GO, *NODE]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="tell", help="say the folder, build nothing")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="|".join(every))
    a = parser.parse_args()
    names = a.programs or every
    unknown = [n for n in names if n not in every]
    if unknown:
        raise SystemExit(f"store-tools: no such program: {' '.join(unknown)}; there are: {' '.join(every)}")
    if not a.tell:
        build_missing(names)
        print(f"store-tools: {' '.join(names)} in ", end="")
    print(home())


if __name__ == "__main__":
    sys.exit(main())

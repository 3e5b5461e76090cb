"""Programs that tests need, built once and kept.

Lives here: `Kept`, which builds what is missing of some programs into a folder of the cache whose name is the content of
the files that pin them, so that a changed pin is a new folder. May use: Python's own library, `go`. Never: which programs
there are (`tests/<world>/tools/build.py` says), or a download by any other way than their own tools, checked by the sums.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("FRESHET_CACHE") or Path.home() / ".cache" / "freshet")
PINS = ("go.mod", "go.sum", "package.json", "package-lock.json")
TAIL = 20  # lines of a failed build that are shown


class Kept:
    """`builders`: a program's name, and what builds it to a path. `groups`: words for several. `here`: where the pins lie."""

    def __init__(self, name: str, here: Path, builders: dict[str, Callable[[str, Path], None]], groups: dict[str, tuple] | None = None):
        self.name, self.here, self.builders, self.groups = name, here, builders, groups or {}

    def home(self) -> Path:
        """The folder of the built programs. It need not exist."""
        key = hashlib.sha256()
        for file in sorted(p for p in self.here.glob("*/*") if p.name in PINS):
            key.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
        return CACHE / self.name / key.hexdigest()[:12]

    def missing(self, names) -> list[str]:
        return [n for n in names if not (self.home() / n).exists()]

    def run(self, what: str, command: list[str], where: Path, **env):
        """A step of a build; ends the process with the end of its output where it fails."""
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
            raise SystemExit("\n".join(made.stdout.splitlines()[-TAIL:]) + f"\n{self.name}: {what} does not build")

    def go(self, name: str, half: Path, module: str, package: str, flags: str = "-s -w"):
        """A program of Go, which is one file."""
        command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(half), package]
        self.run(name, command, self.here / module, CGO_ENABLED="0")

    def build(self, name: str):
        """One program, which appears in its place whole or not at all."""
        half = self.home() / f".{name}.{os.getpid()}"
        try:
            self.builders[name](name, half)
            half.rename(self.home() / name)
        finally:
            shutil.rmtree(half, ignore_errors=True)
            half.unlink(missing_ok=True)

    def build_missing(self, names):
        """Builds what of these is not there yet. Two at once wait for each other."""
        if not self.missing(names):
            return
        self.home().mkdir(parents=True, exist_ok=True)
        with (self.home() / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            todo = self.missing(names)
            for at, name in enumerate(todo, 1):
                print(f"{self.name}: {at} of {len(todo)}, {name} …", flush=True)
                began = time.monotonic()
                self.build(name)
                print(f"{self.name}: {name}, {time.monotonic() - began:.0f} s", flush=True)

    def main(self, doc: str, lacks: Callable[[list[str]], str | None] | None = None):
        """The command line. `lacks`: what the machine lacks for these programs, if anything; asked before any is built."""
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--print", action="store_true", dest="tell", help="say the folder, build nothing")
        parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="|".join([*self.builders, *self.groups]))
        a = parser.parse_args()
        if a.tell:
            print(self.home())
            return
        names = [n for word in a.programs or self.builders for n in self.groups.get(word, (word,))]
        unknown = [n for n in names if n not in self.builders]
        if unknown:
            raise SystemExit(f"{self.name}: no such program: {' '.join(unknown)}; there are: {' '.join(self.builders)}")
        lacking = lacks(self.missing(names)) if lacks else None
        if lacking:
            raise SystemExit(f"{self.name}: {lacking}; install it and run again")
        self.build_missing(names)
        print(f"{self.name}: {' '.join(names)} in {self.home()}")

"""The Python environments of tests and benchmarks, each made once for each content of its requirements file.

Lives here: which there are, and where. May use: Python's own library, venv, pip. `venvs.py NAME` makes the environment where
it is missing, and prints its Python as the last line.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
CACHE = Path(os.environ.get("FRESHET_CACHE") or Path.home() / ".cache" / "freshet")
REQUIREMENTS = {
    "chart": "chart/requirements.txt",
    "clients": "clients/requirements.txt",
    "lance-context": "clients/requirements-lance-context.txt",
}


def python(name: str) -> Path:
    """The Python of an environment. Fails with what pip says where it cannot be made."""
    file = TESTS / REQUIREMENTS[name]
    key = hashlib.sha256(file.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = CACHE / "venvs" / f"{name}-{key}"
    found = home / "bin" / "python"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "READY").exists():
            print(f"makes the Python environment {name} (once)", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
            pip = [str(found), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
            subprocess.run([*pip, "-r", str(file)], check=True)
            (home / "READY").touch()
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in REQUIREMENTS:
        raise SystemExit(f"usage: venvs.py {'|'.join(REQUIREMENTS)}")
    print(python(sys.argv[1]))

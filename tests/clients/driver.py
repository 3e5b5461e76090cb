"""Drives the built binary as a user does.

Lives here: one call of `freshet`, a running `freshet local`, and what a folder held before and after. May use:
Python's own library. Never: Lance, or knowledge of what a table should hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

BINARY = os.environ.get("FRESHET", "freshet")
PATIENCE = 300  # seconds until a hanging process is a failure; no test passes or fails by being fast

OK, USAGE, NOT_FOUND, CREDENTIALS, UNREACHABLE, CORRUPT, REFUSED, INTERRUPTED = 0, 2, 3, 4, 5, 6, 7, 130


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return self.out + self.err


def command(*args) -> list[str]:
    return [BINARY, *(str(a) for a in args)]


def freshet(*args, expect: int | None = OK, env: dict | None = None) -> Result:
    """Runs one command to its end; fails with all that it said when the exit code is not the expected one."""
    done = subprocess.run(
        command(*args), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, env=os.environ | (env or {})
    )
    if expect is not None:
        assert done.returncode == expect, f"freshet {' '.join(map(str, args))}: exit code {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}"
    return Result(done.returncode, done.stdout, done.stderr)


def merge(uri, *args, expect: int | None = OK, **more) -> Result:
    return freshet("merge", "--table", uri, "--until-fresh", *args, expect=expect, **more)


def backlog(uri) -> dict:
    return freshet("backlog", "--table", uri, "-o", "json").json


def start(*args, env: dict | None = None) -> subprocess.Popen:
    """A command that goes on by itself; what it says is in `stdout`."""
    return subprocess.Popen(
        command(*args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | (env or {})
    )


def tree(folder) -> dict[str, str]:
    """Relative path to content of everything below a folder; a folder's own content is empty."""
    root = Path(folder)
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else ""
        for p in sorted(root.rglob("*"))
    }


def changes(before: dict, after: dict) -> list[str]:
    return sorted(
        [f"made {p}" for p in after.keys() - before.keys()]
        + [f"removed {p}" for p in before.keys() - after.keys()]
        + [f"changed {p}" for p in before.keys() & after.keys() if before[p] != after[p]]
    )


def eventually(what: str, look, child: subprocess.Popen | None = None):
    """Looks until `look()` gives something true, and returns it. Fails when patience ends or the process does."""
    began, last = time.monotonic(), None
    while time.monotonic() - began < PATIENCE:
        last = look()
        if last:
            return last
        if child is not None and child.poll() is not None:
            raise AssertionError(f"waiting for {what}: the process ended with code {child.returncode}\n{child.stdout.read()}")
        time.sleep(0.05)
    raise AssertionError(f"waited {PATIENCE} s for {what}, last seen {last!r}")


class Local:
    """A running `freshet local`, on a port that was free a moment ago."""

    def __init__(self, *args):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{s.getsockname()[1]}"
        self.child = start("local", *args, "--listen", self.address)

    def __enter__(self):
        eventually("the server", lambda: self.get("/readyz", missing=True)[0] == 200, self.child)
        return self

    def __exit__(self, *exc):
        self.stop(signal.SIGKILL)
        return False

    def stop(self, sig=signal.SIGTERM) -> int:
        if self.child.poll() is None:
            self.child.send_signal(sig)
        try:
            return self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise

    def get(self, path: str, missing=False, **query):
        """(status, body): JSON where it is JSON. A refused connection is status 0 when it may be missing."""
        url = f"http://{self.address}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        try:
            with urllib.request.urlopen(url, timeout=60) as r:
                status, raw = r.status, r.read()
        except urllib.error.HTTPError as e:
            status, raw = e.code, e.read()
        except (urllib.error.URLError, ConnectionError):
            if not missing:
                raise
            return 0, None
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw.decode(errors="replace")

    def page(self, name: str, **query) -> dict:
        status, body = self.get(f"/api/v1/experiments/{name}/records", **query)
        assert status == 200, f"{query}: {status} {body}"
        return body

    def records(self, name: str, source: str, limit=50) -> list[dict]:
        """Every record of a source, page by page."""
        out, more = [], True
        while more:
            page = self.page(name, source=source, limit=limit, offset=len(out))
            assert page["source"] == source and page["offset"] == len(out), {k: page[k] for k in page if k != "records"}
            out += page["records"]
            more = page["has_more"]
            assert page["records"] or not more, "a page with nothing in it promises more"
        return out

"""Runs the suite world by world and sums it up.

Lives here: which worlds there are (found, not listed), how each is run, and the short report. May use: Python's own
library and the commands cargo and python3. Never: knowledge of what a test means. Details go to files under --logs.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("FRESHET_CACHE") or Path.home() / ".cache" / "freshet")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or CACHE / "target")
TAIL = 40  # lines of a failing test that are shown


@dataclass
class Outcome:
    """What one world said: counts, the failing tests with the end of their output, and what was left out."""

    passed: int = 0
    failed: int = 0
    ignored: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)

    def fail(self, name: str, output: str):
        self.failed += 1
        self.failures.append((name, output))


class Run:
    """One child process whose output goes to a file, with a sign of life on the terminal while it works."""

    def __init__(self, logs: Path, limit: float, quiet: bool = False):
        self.logs, self.limit, self.quiet = logs, limit, quiet

    def __call__(self, name: str, command: list[str], env=None, watch=None) -> tuple[int, str]:
        """Returns (exit code, output). `watch(line)` may return a word of progress. 124 after the limit."""
        log = self.logs / f"{name}.log"
        began, state = time.monotonic(), {"word": ""}
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if self.quiet:
            atexit.register(lambda: child.poll() is None and kill(child))
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(name, began, state, done, child), daemon=True)
        ticker.start()
        lines = []
        try:
            with log.open("w") as out:
                for line in child.stdout:
                    shown = watch(line, state) if watch else line
                    if shown:
                        out.write(shown)
                        out.flush()
                        lines.append(shown)
            code = child.wait()
        except KeyboardInterrupt:
            kill(child)
            raise
        finally:
            done.set()
            ticker.join()
        if state.get("late"):
            lines.append(f"stopped: not done after {self.limit / 60:.0f} minutes\n")
            code = 124
        return code, "".join(lines)

    def _tick(self, name, began, state, done, child):
        tty, last = sys.stdout.isatty(), 0.0
        while not done.wait(1 if tty else 5):
            spent = time.monotonic() - began
            if spent > self.limit:
                state["late"] = True
                kill(child)
            if self.quiet:
                continue
            if tty:
                print(f"\r\033[K{name:<12} {spent / 60:5.1f} min  {state['word']}", end="", flush=True)
            elif spent - last >= 120:
                last = spent
                print(f"{name:<12} {spent / 60:5.1f} min  {state['word'] or 'still running'}", flush=True)
        if tty:
            print("\r\033[K", end="", flush=True)


def kill(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def tail(text: str, lines: int = TAIL) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])


# -- reading what the tools print ------------------------------------------------------------------------------------

RESULT = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
FAILED = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. FAILED", re.M)


def libtest(world: str, code: int, text: str) -> Outcome:
    """Counts of the `test result:` lines. A process that ended badly without saying what failed is one failure."""
    out = Outcome()
    for passed, failed, ignored in RESULT.findall(text):
        out.passed += int(passed)
        out.failed += int(failed)
        out.ignored += int(ignored)
    for name in FAILED.findall(text):
        part = re.search(rf"^---- {re.escape(name)} stdout ----\n(.*?)(?=^---- |^failures:$)", text, re.M | re.S)
        out.failures.append((f"{world}: {name}", tail(part.group(1) if part else text)))
    if code and not out.failed:
        out.fail(f"{world}: the process ended with code {code}", tail(text))
    if not code and not RESULT.search(text):
        out.fail(f"{world}: no result line", tail(text))
    return out


def junit(world: str, code: int, text: str, report: Path) -> Outcome:
    """Counts of a pytest run's report file."""
    out = Outcome()
    if not report.exists():
        out.fail(f"{world}: pytest wrote no report (code {code})", tail(text))
        return out
    for case in xml.parse(report).iter("testcase"):
        name = f"{world}: {case.get('classname', '')}::{case.get('name')}"
        bad = [b for kind in ("failure", "error") for b in case.findall(kind)]
        if bad:
            out.fail(name, tail(bad[0].text or bad[0].get("message") or ""))
        elif case.find("skipped") is not None:
            out.ignored += 1
        else:
            out.passed += 1
    if code not in (0, 1) and not out.failed:
        out.fail(f"{world}: pytest ended with code {code}", tail(text))
    return out


# -- the worlds ------------------------------------------------------------------------------------------------------


class Suite:
    def __init__(self, logs: Path, full: bool):
        self.full = full
        self.run = Run(logs, (6 * 60 if full else 45) * 60)
        self.logs = logs
        self.built: bool | None = None
        self.beside: dict[str, threading.Event] = {}
        self.made: dict[str, tuple[int, str]] = {}

    def worlds(self) -> dict:
        """Name to function, in the order of running: cheap ones first. Integration worlds are those of Cargo.toml."""
        out = {"rooms": self.rooms, "supply": self.supply, "chart": self.chart, "lint": self.lint, "unit": self.unit}
        out |= {name: self.integration(name) for name in self.test_targets()}
        if list((ROOT / "tests" / "clients").glob("test_*.py")):
            out["clients"] = self.clients
        return out

    def test_targets(self) -> list[str]:
        return [t["name"] for t in self.targets("test")]

    def targets(self, kind: str) -> list[dict]:
        text = subprocess.run(
            ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        return [t for p in json.loads(text)["packages"] for t in p["targets"] if kind in t["kind"]]

    def rooms(self) -> Outcome:
        return libtest("rooms", *self.run("rooms", ["python3", "tests/rooms/rooms.py"]))

    def supply(self) -> Outcome:
        return libtest("supply", *self.run("supply", ["python3", "tools/supply.py"]))

    def chart(self) -> Outcome:
        """The chart under Helm, the alerts under promtool. No cluster and none of our binaries."""
        out = Outcome()
        code, text = self.run("chart-tools", ["python3", "tests/cluster/tools/build.py", "helm"], watch=tools_progress)
        if code:
            out.fail("chart: helm does not build", tail(text))
            return out
        try:
            python = self.venv("chart")
        except RuntimeError as e:
            out.fail("chart: environment", str(e))
            return out
        report = self.logs / "chart.xml"
        report.unlink(missing_ok=True)
        command = [str(python), "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report.resolve()}", "tests/chart", "tests/alerts"]
        env = {"PYTHONDONTWRITEBYTECODE": "1"}
        return junit("chart", *self.run("chart", command, env=env, watch=pytest_progress), report)

    def lint(self) -> Outcome:
        out = Outcome()
        for name, command in {
            "rustfmt": ["cargo", "fmt", "--check"],
            "clippy": ["cargo", "clippy", "--locked", "--all-targets", "--message-format=json", "--", "-D", "warnings"],
        }.items():
            code, text = self.run(f"lint-{name}", command, watch=cargo_progress if name == "clippy" else None)
            if code:
                out.fail(f"lint: {name}", tail(text))
            else:
                out.passed += 1
        return out

    def build(self) -> Outcome:
        """Every binary the suite needs, so that a world's minutes are its own."""
        command = ["cargo", "test", "--locked", "--no-run", "--lib", "--bins"]
        command += ["--tests"] if self.test_targets() else []
        return self.compile("build", command + ["--message-format=json"])

    def compile(self, name: str, command: list[str]) -> Outcome:
        out = Outcome()
        code, text = self.run(name, command, watch=cargo_progress)
        self.built = not code
        if code:
            out.fail(f"{name}: does not compile", tail(text))
        return out

    def unit(self) -> Outcome:
        return self.cargo_test("unit", ["--lib", "--bins"])

    def integration(self, name: str):
        return lambda: self.tools(name) or self.cargo_test(name, ["--test", name])

    def make_tools_beside(self, names: list[str]):
        """Builds the programs of these worlds while cargo compiles: a crate that waits for another leaves a core idle."""
        scripts = {name: ROOT / "tests" / name / "tools" / "build.py" for name in names}
        quiet = Run(self.logs, self.run.limit, quiet=True)

        def work():
            for name, script in scripts.items():
                try:
                    if script.exists():
                        self.made[name] = quiet(f"{name}-tools", ["nice", "-n", "10", "python3", str(script)])
                finally:
                    self.beside[name].set()

        self.beside = {name: threading.Event() for name in names}
        threading.Thread(target=work, daemon=True).start()

    def tools(self, name: str) -> Outcome | None:
        """Builds the programs that a world keeps pinned in tests/<world>/tools, once. The outcome where that fails."""
        script = ROOT / "tests" / name / "tools" / "build.py"
        if not script.exists():
            return None
        began = time.monotonic()
        while name in self.beside and not self.beside[name].wait(120):
            say(f"{name + '-tools':<12} {(time.monotonic() - began) / 60:5.1f} min  still being built")
        code, text = self.made.get(name, (1, ""))
        if code:
            code, text = self.run(f"{name}-tools", ["python3", str(script)], watch=tools_progress)
        if not code:
            return None
        out = Outcome()
        out.fail(f"{name}: its tools do not build", tail(text))
        return out

    def cargo_test(self, world: str, which: list[str]) -> Outcome:
        command = ["cargo", "test", "--locked", "--no-fail-fast", *which, "--"]
        command += ["--include-ignored"] if self.full else []
        env = {"FRESHET_FULL": "1"} if self.full else {}
        return libtest(world, *self.run(world, command, env=env, watch=libtest_progress))

    def clients(self, which: str = "") -> Outcome:
        """Real clients against the built binary, each client in an environment of its own."""
        code, text = self.run("clients-build", ["cargo", "build", "--locked", "--bin", "freshet"])
        if code:
            out = Outcome()
            out.fail("clients: the binary does not build", tail(text))
            return out
        try:
            python, other = self.pythons()
        except RuntimeError as e:
            out = Outcome()
            out.fail("clients: environment", str(e))
            return out
        report = self.logs / "clients.xml"
        report.unlink(missing_ok=True)
        env = {
            "FRESHET": str(TARGET / "debug" / "freshet"),
            "LANCE_CONTEXT_PYTHON": str(other),
            "PYTHONDONTWRITEBYTECODE": "1",
        } | ({"FRESHET_FULL": "1"} if self.full else {})
        command = [str(python), "-m", "pytest", "-v", "--tb=short", f"--junitxml={report.resolve()}", f"tests/clients/{which}"]
        return junit("clients", *self.run("clients", command, env=env, watch=pytest_progress), report)

    def pythons(self) -> tuple[Path, Path]:
        """The Python of the tests with pylance, and that of lance-context: they pin different Lances."""
        return self.venv("clients"), self.venv("lance-context")

    def venv(self, name: str) -> Path:
        code, text = self.run(f"venv-{name}", ["python3", "tools/venvs.py", name])
        if code:
            raise RuntimeError(tail(text))
        return Path(text.splitlines()[-1])


def own_the_build():
    """All clones build into one folder, and cargo tells their crates apart by the times of files alone: where another clone
    built last, what it built would be taken for this one's. So this clone's sources become newer."""
    owner = TARGET / "built-from"
    # What cargo itself says of the binary that lies there: a clone's own `cargo` does not come by here.
    binary = TARGET / "debug" / "freshet.d"
    ours = owner.exists() and owner.read_text() == str(ROOT)
    if ours and (not binary.exists() or f" {ROOT}/src/main.rs" in binary.read_text()):
        return
    for folder in ("src", "tests", "benches"):
        for file in (ROOT / folder).rglob("*.rs"):
            file.touch()
    TARGET.mkdir(parents=True, exist_ok=True)
    owner.write_text(str(ROOT))


def cargo_progress(line: str, state: dict) -> str | None:
    """Counts crates of cargo's JSON messages; keeps what a person reads."""
    if not line.startswith("{"):
        return line
    try:
        message = json.loads(line)
    except json.JSONDecodeError:
        return line
    if message.get("reason") == "compiler-artifact":
        state["crates"] = state.get("crates", 0) + 1
        state["word"] = f"{state['crates']} crates, {message['target']['name']}"
    return (message.get("message") or {}).get("rendered") if message.get("reason") == "compiler-message" else None


def tools_progress(line: str, state: dict) -> str:
    state["word"] = line.strip()[:60]
    return line


def libtest_progress(line: str, state: dict) -> str:
    if line.startswith("test ") and " ... " in line:
        state["tests"] = state.get("tests", 0) + 1
        state["word"] = f"{state['tests']} tests"
    return line


def pytest_progress(line: str, state: dict) -> str:
    if "::" in line:
        state["word"] = line.split("::", 1)[1].strip()[:60]
    return line


# -- the report ------------------------------------------------------------------------------------------------------


def say(text: str):
    print(text, flush=True)


def line(name: str, out: Outcome, seconds: float):
    left = f"  {out.ignored:3} left out" if out.ignored else ""
    say(f"{name:<12} {seconds / 60:5.1f} min  {out.passed:5} passed  {out.failed:3} failed{left}")


def timed(name: str, work) -> Outcome:
    began = time.monotonic()
    out = work()
    line(name, out, time.monotonic() - began)
    return out


def finish(outcomes: list[Outcome], logs: Path) -> int:
    passed, failed = (sum(getattr(o, k) for o in outcomes) for k in ("passed", "failed"))
    for out in outcomes:
        for name, text in out.failures:
            say(f"\nFAILED {name}")
            for part in text.splitlines():
                say(f"  | {part}")
    if failed:
        say(f"\nwhole output: {logs}/*.log")
    say(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def test(suite: Suite, names: list[str]) -> int:
    worlds = suite.worlds()
    unknown = [n for n in names if n not in worlds]
    if unknown:
        say(f"no such world: {' '.join(unknown)}; there are: {' '.join(worlds)}")
        return 2
    outcomes, rust = [], {"unit", *suite.test_targets()}
    for name in names or worlds:
        # Not beside those that build a program themselves: one waits for another.
        if name not in ("rooms", "supply", "chart") and not suite.beside:
            suite.make_tools_beside([n for n in names or worlds if n in rust])
        if name in rust and suite.built is None:
            outcomes.append(timed("build", suite.build))
        if name in rust and not suite.built:
            continue
        outcomes.append(timed(name, worlds[name]))
    return finish(outcomes, suite.logs)


def build(suite: Suite) -> int:
    say("build: the development binary (minutes when cold, seconds when warm)")
    out = suite.compile("build", ["cargo", "build", "--locked", "--bin", "freshet", "--message-format=json"])
    for name, text in out.failures:
        say(f"FAILED {name}\n{text}")
    return out.failed


def soak(suite: Suite) -> int:
    """Kills: the seeded schedules SCHEDULES times over, and the real clients with all their seeds."""
    times = os.environ.get("SCHEDULES") or "20"
    outcomes = [timed("build", suite.build)]
    if suite.built:
        command = ["cargo", "test", "--locked", "--test", "table", "--", "--include-ignored", "schedules"]
        env = {"FRESHET_SCHEDULES": times}
        outcomes.append(timed("schedules", lambda: libtest("schedules", *suite.run("soak-schedules", command, env=env))))
        outcomes.append(timed("clients", lambda: suite.clients("test_killed.py")))
    return finish(outcomes, suite.logs)


def bench(suite: Suite) -> int:
    """Side-by-side ratios: cargo's bench targets, then the other clients. What they print comes as it is."""
    steps = [["cargo", "bench", "--locked", "--bench", t["name"]] for t in suite.targets("bench")]
    env = dict(os.environ)
    if (ROOT / "benches" / "clients.py").exists():
        python, other = suite.pythons()
        env |= {"FRESHET": str(TARGET / "release" / "freshet"), "LANCE_CONTEXT_PYTHON": str(other)}
        # Lance complains of every MemWAL table that it opens.
        env.setdefault("RUST_LOG", "off")
        steps += [["cargo", "build", "--locked", "--release", "--bin", "freshet"], [str(python), "-m", "benches.clients"]]
    for step in steps:
        say(f"bench: {' '.join(step)}")
        code = subprocess.run(step, cwd=ROOT, env=env).returncode
        if code:
            return code
    return 0


def scale(suite: Suite) -> int:
    """What many Experiments cost one controller. FRESHET, or the development binary."""
    outcomes = [] if "FRESHET" in os.environ else [timed("build", lambda: suite.compile("build", ["cargo", "build", "--locked", "--bin", "freshet"]))]
    if any(o.failed for o in outcomes):
        return finish(outcomes, suite.logs)
    env = {"FRESHET": str(TARGET / "debug" / "freshet")} | os.environ
    command = [str(suite.pythons()[0]), "-m", "benches.scale", os.environ.get("EXPERIMENTS") or "1000"]
    return subprocess.run(command, cwd=ROOT, env=env).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path, default=ROOT / "build")
    parser.add_argument("what", choices=["test", "build", "soak", "bench", "scale"])
    parser.add_argument("worlds", nargs="*")
    parser.add_argument("--full", action="store_true")
    a = parser.parse_args()
    a.logs.mkdir(parents=True, exist_ok=True)
    own_the_build()
    suite = Suite(a.logs, a.full or a.what == "soak")
    if a.what == "test":
        return test(suite, a.worlds)
    return {"build": build, "soak": soak, "bench": bench, "scale": scale}[a.what](suite)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)

"""The rooms' arrows, and the other rules of the source that a machine can judge.

Lives here: a small reader of Rust source (comments and strings taken out), the table of arrows, and one function a
rule. May use: Python's own library. Never: a rule that cannot fail; `selftest.py` breaks each of them on purpose.
Prints the way cargo's tests do. `rooms.py [ROOT]` judges a tree; without an argument this one, and the self-test too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BELOW = {"api", "table", "plan", "telemetry"}
# Room: the rooms it may name. `lib.rs` declares the rooms and `main.rs`, `cli` may name all.
ARROWS = {
    "api": set(),
    "table": set(),
    "plan": set(),
    "telemetry": set(),
    "engine": {"api", "plan", "table", "telemetry"},
    "server": {"table", "api", "telemetry"},
    "local": BELOW | {"engine", "server"},
    "cluster": {"api", "table", "telemetry"},
    "controller": BELOW | {"engine", "cluster"},
    "reader": {"api", "table", "telemetry", "server", "cluster"},
    "cli": BELOW | {"engine", "server", "local", "cluster", "controller", "reader"},
    "main": BELOW | {"engine", "server", "local", "cluster", "controller", "reader", "cli"},
}
LANCE = ("lance", "lance_core", "lance_encoding", "lance_file", "lance_index", "lance_io", "lance_table", "object_store")
WEB = ("axum", "reqwest", "hyper")
CLUSTER = ("kube", "k8s_openapi")
# Room: crates that must never come in.
STRANGERS = {
    "api": LANCE + WEB + ("datafusion", "arrow_array", "tokio"),
    "table": CLUSTER + WEB + ("schemars", "prometheus"),
    "plan": LANCE + WEB + CLUSTER + ("datafusion", "arrow_array", "tokio", "prometheus"),
    "engine": WEB + CLUSTER,
    "server": ("kube",),
    "cluster": LANCE,
    "reader": LANCE,
}
# File: the stranger that it alone may know. object_store has no other way to make a client that follows no redirect.
LET_IN = {"src/table/store/client.rs": "reqwest"}
# What only a writer of tables calls.
WRITES = r"\b(CommitBuilder|InsertBuilder|MergeInsertBuilder|WriteParams|commit_update|claim_epoch|initialize_mem_wal|mem_wal_writer)\b"
LONGEST = 550  # "about 500"
PLACES = r"(?<![\w.$}~-])/(?:root|home/\w+|Users/\w+|work|workspace|mnt)/"
SECRETS = r"\bAKIA(?!IOSFODNN7EXAMPLE)[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----|\bgh[pousr]_[A-Za-z0-9]{36}\b"
UNFINISHED = r"\b(?:todo!|unimplemented!|dbg!)\s*\(|\b(?:FIXME|XXX)\b"


@dataclass
class Finding:
    file: str
    line: int
    text: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.text}"


# -- reading Rust ----------------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r"""//[^\n]* | /\* | b?r(?P<h>\#*)".*?"(?P=h) | b?c?"(?:\\.|[^"\\])*" | b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\])'""", re.X | re.S
)


def blank(text: str) -> str:
    """The same text with spaces for all but line ends, so that places stay what they were."""
    return re.sub(r"[^\n]", " ", text)


def code_of(source: str) -> tuple[str, set[int]]:
    """Source without comments, strings and characters, every other character in its place; and the lines with comments."""
    out, at, comments = [], 0, set()
    while m := TOKEN.search(source, at):
        out.append(source[at : m.start()])
        end = m.end()
        if m.group() == "/*":
            depth = 1
            while depth and (n := re.compile(r"/\*|\*/").search(source, end)):
                depth += 1 if n.group() == "/*" else -1
                end = n.end()
        if m.group().startswith(("//", "/*")):
            comments.update(range(line_of(source, m.start()), line_of(source, end) + 1))
        out.append(blank(source[m.start() : end]))
        at = end
    return "".join(out) + source[at:], comments


def block_end(code: str, at: int) -> int:
    """Where the block that opens at or after `at` closes; a `;` before any block ends it too."""
    depth = 0
    for i in range(at, len(code)):
        if code[i] == "{":
            depth += 1
        elif code[i] == "}":
            depth -= 1
            if depth == 0:
                return i + 1
        elif code[i] == ";" and depth == 0:
            return i + 1
    return len(code)


def without_tests(code: str) -> str:
    """Code with every item under `#[cfg(test)]` or `#[test]` blanked."""
    for m in re.finditer(r"#\[(?:cfg\(test\)|cfg\(all\(test\b[^\]]*|test|tokio::test[^\]]*)\]", code):
        end = block_end(code, m.end())
        code = code[: m.start()] + blank(code[m.start() : end]) + code[end:]
    return code


def depth_at(code: str, at: int) -> int:
    """How many inline `mod name {` enclose a place."""
    return sum(1 for m in re.finditer(r"\bmod\s+\w+\s*\{", code[:at]) if block_end(code, m.start()) > at)


def names_after(code: str, at: int) -> list[str]:
    """First names of a path tail: `a::b` gives a, `{a::b, c as d}` gives a and c."""
    m = re.compile(r"\s*(\w+)").match(code, at)
    if m:
        return [m.group(1)]
    m = re.compile(r"\s*\{").match(code, at)
    if not m:
        return []
    inner, depth, parts = code[m.end() : block_end(code, m.start()) - 1], 0, [""]
    for c in inner:
        depth += (c == "{") - (c == "}")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [n.group(1) for p in parts if (n := re.match(r"\s*(\w+)", p))]


def line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


class Source:
    """One file of `src/`: its room, its place in the module tree, its text and its code."""

    def __init__(self, root: Path, path: Path):
        self.name = str(path.relative_to(root))
        parts = list(path.relative_to(root / "src").with_suffix("").parts)
        self.room = parts[0]
        self.module = parts[:-1] if parts[-1] == "mod" else parts
        self.text = path.read_text()
        self.code, self.comments = code_of(self.text)

    def test_modules(self):
        """Paths of the modules that this file declares for tests alone."""
        for m in re.finditer(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", self.code):
            yield [*self.module, m.group(1)]

    def from_root(self):
        """(place, name) of everything named from the crate's root."""
        for m in re.finditer(r"\b(?:crate|freshet)::", self.code):
            yield from ((m.start(), n) for n in names_after(self.code, m.end()))
        for m in re.finditer(r"(?<![\w:])(?:self::)?((?:super::)+)", self.code):
            here = len(self.module) + depth_at(self.code, m.start())
            if m.group(1).count("super") == here:
                yield from ((m.start(), n) for n in names_after(self.code, m.end()))


def sources(root: Path) -> list[Source]:
    return [Source(root, p) for p in sorted((root / "src").rglob("*.rs"))]


def sources_that_ship(root: Path) -> list[Source]:
    """Without the files of modules that are declared for tests alone."""
    everything = sources(root)
    tests = [path for s in everything for path in s.test_modules()]
    return [s for s in everything if not any(s.module[: len(t)] == t for t in tests)]


def project_files(root: Path) -> list[Path]:
    """What git tracks or would track; without git, all files."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, text=True
    )
    if done.returncode == 0 and done.stdout:
        names = [root / n for n in done.stdout.split("\0") if n]
    else:
        names = [p for p in root.rglob("*") if not {".git", "build", "target"} & set(p.relative_to(root).parts)]
    return sorted(p for p in names if p.is_file())


# -- rules -----------------------------------------------------------------------------------------------------------


def arrows_point_down_only(root: Path):
    rooms = set(ARROWS) | {s.room for s in sources(root)} - {"lib", "main"}
    for s in sources(root):
        if s.room == "lib":
            continue
        if s.room not in ARROWS:
            yield Finding(s.name, 1, f"the room `{s.room}` is not in the table of arrows")
            continue
        for at, name in s.from_root():
            if name in rooms and name != s.room and name not in ARROWS[s.room]:
                yield Finding(s.name, line_of(s.code, at), f"`{s.room}` must not name `{name}`")


def a_room_knows_no_stranger(root: Path):
    for s in sources(root):
        for crate in STRANGERS.get(s.room, ()):
            if LET_IN.get(s.name) == crate:
                continue
            for m in re.finditer(rf"(?<![\w:]){crate}::|\buse\s+{crate}\s*[;:]|\bextern\s+crate\s+{crate}\b", s.code):
                yield Finding(s.name, line_of(s.code, m.start()), f"`{s.room}` must not know the crate `{crate}`")


def the_server_never_writes_a_table(root: Path):
    for s in sources_that_ship(root):
        if s.room == "server":
            for m in re.finditer(WRITES, without_tests(s.code)):
                yield Finding(s.name, line_of(s.code, m.start()), f"`{m.group()}` writes a table")


def a_module_says_what_it_is(root: Path):
    for s in sources(root):
        if not s.text.startswith("//!"):
            yield Finding(s.name, 1, "does not open with a `//!` comment")


def a_file_is_short(root: Path):
    """Unit tests sit beside the code and are not counted with it, but a file as a whole has an end too."""
    for p in project_files(root):
        if p.suffix not in (".rs", ".py"):
            continue
        text, name = p.read_text(), str(p.relative_to(root))
        whole = len(text.splitlines())
        code = code_of(text)[0] if p.suffix == ".rs" else text
        own = whole - sum(1 for x, y in zip(code.splitlines(), without_tests(code).splitlines()) if x.strip() and not y.strip())
        if own > LONGEST or whole > 2 * LONGEST:
            yield Finding(name, whole, f"{own} lines and {whole - own} of tests, more than {LONGEST}")


def explained(source: Source, line: int) -> bool:
    """A comment on that line, or above it inside the same statement, or right before the statement."""
    text, code = source.text.splitlines(), source.code.splitlines()
    if line in source.comments:
        return True
    for above in range(line - 1, 0, -1):
        if above in source.comments and not code[above - 1].strip():
            return True
        if not text[above - 1].strip() or code[above - 1].rstrip().endswith((";", "{", "}", ",")):
            return False
    return False


def an_unwrap_is_explained(root: Path):
    for s in sources_that_ship(root):
        for m in re.finditer(r"\.\s*(unwrap|expect)\s*\(", without_tests(s.code)):
            line = line_of(s.code, m.start(1))
            if not explained(s, line):
                yield Finding(s.name, line, f"`{m.group(1)}` without a comment that proves it cannot fail")


def texts(root: Path):
    here = root / "tests" / "rooms"  # these rules have to name what they look for
    for p in project_files(root):
        if p.name == "Cargo.lock" or p.parent == here:
            continue
        try:
            yield str(p.relative_to(root)), p.read_text()
        except UnicodeDecodeError:
            continue


def no_place_of_a_machine_and_no_secret_is_written_down(root: Path):
    for name, text in texts(root):
        for m in re.finditer(f"{PLACES}|{SECRETS}", text):
            yield Finding(name, line_of(text, m.start()), f"`{m.group()[:12]}…` has no place in the project")


def nothing_is_left_unfinished(root: Path):
    for name, text in texts(root):
        if name.endswith((".rs", ".py")):
            for m in re.finditer(UNFINISHED, text):
                yield Finding(name, line_of(text, m.start()), f"`{m.group()}`")


RULES = (
    arrows_point_down_only,
    a_room_knows_no_stranger,
    the_server_never_writes_a_table,
    a_module_says_what_it_is,
    a_file_is_short,
    an_unwrap_is_explained,
    no_place_of_a_machine_and_no_secret_is_written_down,
    nothing_is_left_unfinished,
)


def report(results: list[tuple[str, list[str]]]) -> int:
    """Prints results as cargo's tests do; the exit code is theirs."""
    bad = [(n, lines) for n, lines in results if lines]
    for name, lines in results:
        print(f"test {name} ... {'FAILED' if lines else 'ok'}")
    print("\nfailures:\n" if bad else "")
    for name, lines in bad:
        print(f"---- {name} stdout ----", *lines, "", sep="\n")
    if bad:
        print("failures:", *(f"    {n}" for n, _ in bad), sep="\n")
    print(f"\ntest result: {'FAILED' if bad else 'ok'}. {len(results) - len(bad)} passed; {len(bad)} failed; 0 ignored")
    return 1 if bad else 0


def judge(root: Path) -> list[tuple[str, list[str]]]:
    return [(rule.__name__, [str(f) for f in rule(root)]) for rule in RULES]


def main() -> int:
    if len(sys.argv) > 1:
        return report(judge(Path(sys.argv[1]).resolve()))
    import selftest

    return report(judge(Path(__file__).resolve().parents[2]) + selftest.results())


if __name__ == "__main__":
    sys.exit(main())

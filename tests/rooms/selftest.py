"""Proof that every rule of `rooms.py` can fail, and that it lets right code pass.

Lives here: small trees of source, each wrong in one way. May use: rooms.py. Never: this project's own source.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import rooms

DOC = "//! What lives here.\n"
# Rule, case, file, content, number of findings.
CASES = [
    ("arrows_point_down_only", "a use", "src/table/open.rs", "use crate::engine::Queue;", 1),
    ("arrows_point_down_only", "a group", "src/engine/run.rs", "use crate::{plan::Plan, table, server::{a, b}};", 1),
    ("arrows_point_down_only", "a full path", "src/api/mod.rs", "fn f() { crate::table::open() }", 1),
    ("arrows_point_down_only", "the library's name", "src/plan/mod.rs", "use freshet::api::Spec;", 1),
    ("arrows_point_down_only", "super to the root", "src/plan/age.rs", "use super::super::engine::Queue;", 1),
    ("arrows_point_down_only", "super in a module inside", "src/plan/mod.rs", "mod a { use super::super::engine; }", 1),
    ("arrows_point_down_only", "an unknown room", "src/utils/mod.rs", "", 1),
    ("arrows_point_down_only", "what is allowed", "src/server/page.rs", "use crate::{table::Row, api, telemetry::Log};", 0),
    ("arrows_point_down_only", "its own room", "src/plan/mod.rs", "use crate::plan::Plan; mod a { use super::plan; }", 0),
    ("arrows_point_down_only", "words", "src/api/a.rs", '// crate::engine\n/* crate::engine /* */ crate::engine */ const A: &str = "crate::engine::";', 0),
    ("arrows_point_down_only", "raw words and lifetimes", "src/api/b.rs", "fn f<'a>(x: &'a str) { r#\"crate::engine \" \"#; '\"'; \"crate::engine\"; }", 0),
    ("a_room_knows_no_stranger", "Lance in api", "src/api/mod.rs", "use lance::Dataset;", 1),
    ("a_room_knows_no_stranger", "a cluster in table", "src/table/a.rs", "fn f(c: kube::Client) {}", 1),
    ("a_room_knows_no_stranger", "I/O in plan", "src/plan/mod.rs", "async fn f() { tokio::time::sleep(d).await }", 1),
    ("a_room_knows_no_stranger", "another stranger in the file that lets one in", "src/table/store/client.rs", "use hyper::Request;", 1),
    ("a_room_knows_no_stranger", "the one that is let in", "src/table/store/client.rs", "use reqwest::ClientBuilder;", 0),
    ("a_room_knows_no_stranger", "a client elsewhere", "src/table/store.rs", "use reqwest::ClientBuilder;", 1),
    ("a_room_knows_no_stranger", "a name that ends alike", "src/plan/mod.rs", "use crate::plan::balance::lance;", 0),
    ("the_server_never_writes_a_table", "a commit", "src/server/a.rs", "fn f() { CommitBuilder::new(d); }", 1),
    ("the_server_never_writes_a_table", "a test's own table", "src/server/a.rs", "#[cfg(test)]\nmod tests { fn f() { InsertBuilder::new(d); } }", 0),
    ("a_file_is_short", "too long", "src/plan/long.rs", "\n" * 600, 1),
    ("a_file_is_short", "long for its tests", "src/plan/long.rs", "#[cfg(test)]\nmod tests {\n" + "fn f() {}\n" * 600 + "}", 0),
    ("a_file_is_short", "long all the same", "src/plan/long.rs", "#[cfg(test)]\nmod tests {\n" + "fn f() {}\n" * 1200 + "}", 1),
    ("an_unwrap_is_explained", "bare", "src/plan/a.rs", "fn f() {\n    x.unwrap();\n}", 1),
    ("an_unwrap_is_explained", "over lines", "src/plan/a.rs", "fn f() {\n    x\n        .y()\n        .expect(\"z\");\n}", 1),
    ("an_unwrap_is_explained", "a comment of the line before last", "src/plan/a.rs", "fn f() {\n    // Why.\n    y();\n    x.unwrap();\n}", 1),
    ("an_unwrap_is_explained", "a comment beside another line", "src/plan/a.rs", "fn f() {\n    y(); // Why.\n    x.unwrap();\n}", 1),
    ("an_unwrap_is_explained", "a word in a string", "src/plan/a.rs", "fn f() {\n    x.expect(\"http://y\");\n}", 1),
    ("an_unwrap_is_explained", "explained above", "src/plan/a.rs", "fn f() {\n    // It was set above.\n    x\n        .y()\n        .unwrap();\n}", 0),
    ("an_unwrap_is_explained", "explained beside", "src/plan/a.rs", "fn f() {\n    x.unwrap(); // It was set above.\n}", 0),
    ("an_unwrap_is_explained", "in a test", "src/plan/a.rs", "#[cfg(test)]\nmod tests {\n    fn f() { x.unwrap(); }\n}", 0),
    ("an_unwrap_is_explained", "after a test module", "src/plan/a.rs", "#[cfg(test)]\nmod tests;\nfn f() {\n    x.unwrap();\n}", 1),
    ("no_place_of_a_machine_and_no_secret_is_written_down", "a home", "docs/a.md", "see /home/jo/freshet/x", 1),
    ("no_place_of_a_machine_and_no_secret_is_written_down", "a key", "docs/a.md", "AKIA" + "B" * 16, 1),
    ("no_place_of_a_machine_and_no_secret_is_written_down", "other paths", "docs/a.md", "~/.cache/" + "work/x $HOME/" + "root/ a/" + "work/b", 0),
    ("nothing_is_left_unfinished", "a hole", "src/plan/a.rs", "fn f() { todo!() }", 1),
]


def found(rule: str, file: str, content: str, doc: str = DOC) -> list:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.parent.mkdir(parents=True)
        path.write_text((doc if file.endswith(".rs") else "") + content + "\n")
        return list(getattr(rooms, rule)(Path(folder)))


def results() -> list[tuple[str, list[str]]]:
    """(name, what went wrong) of every case, and of the rules that have none."""
    cases = [(rule, case, found(rule, file, content), n) for rule, case, file, content, n in CASES]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "src/plan/cases").mkdir(parents=True)
        for name, text in {"mod.rs": "#[cfg(test)]\npub(crate) mod cases;\nmod age;", "cases/a.rs": "x.unwrap()", "age.rs": "x.unwrap()"}.items():
            (Path(folder) / "src/plan" / name).write_text(text)
        cases.append(("an_unwrap_is_explained", "files of tests alone", list(rooms.an_unwrap_is_explained(Path(folder))), 1))
    rule = "a_module_says_what_it_is"
    cases += [(rule, "no comment", found(rule, "src/api/a.rs", "fn f() {}", doc=""), 1), (rule, "a comment", found(rule, "src/api/a.rs", ""), 0)]
    out = [
        (f"selftest::{rule}::{case.replace(' ', '_')}", [] if len(got) == n else [f"{len(got)} findings, expected {n}: {got}"])
        for rule, case, got, n in cases
    ]
    unproved = [r.__name__ for r in rooms.RULES if not any(rule == r.__name__ and n for rule, _, _, n in cases)]
    return out + [("selftest::every_rule_is_seen_to_fail", [f"never seen to fail: {r}" for r in unproved])]

"""Judges what comes into the build: licences, banned crates, sources, and one version of rustls.

Lives here: the rules of `deny.toml` applied to `cargo metadata`, with no network. May use: Python's own library and
cargo. Never: advisories, which need the network (`make advisories`). Prints the way cargo's tests do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "rooms"))
from rooms import report  # noqa: E402

INDEX = "registry+https://github.com/rust-lang/crates.io-index"
PROVIDERS = {"aws-lc-rs", "ring"}


def packages(rules: dict) -> list[dict]:
    """Every crate of the locked graph on the platforms that are judged, with the features it is built with."""
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1"]
    for target in rules["graph"]["targets"]:
        command += ["--filter-platform", target]
    graph = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    features = {n["id"]: n["features"] for n in graph["resolve"]["nodes"]}
    return [p | {"built_with": features[p["id"]]} for p in graph["packages"] if p["id"] in features]


def allowed(expression: str, licences: set[str]) -> bool:
    """Whether an SPDX expression can be met by a set of licences. AND binds closer than OR; `/` is an old OR."""
    words = re.findall(r"\(|\)|[\w.+-]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while words and words[0] == "OR":
            words.pop(0)
            value = both() or value
        return value

    def both():
        value = one()
        while words and words[0] == "AND":
            words.pop(0)
            value = one() and value
        return value

    def one():
        word = words.pop(0)
        if word == "(":
            value = either()
            words.pop(0)
            return value
        if words and words[0] == "WITH":
            word = f"{word} WITH {words[1]}"
            del words[:2]
        return word in licences

    return either()


def licences(found: list[dict], rules: dict) -> list[str]:
    usual = set(rules["licenses"]["allow"])
    named = {e["name"]: set(e["allow"]) for e in rules["licenses"].get("exceptions", [])}
    return [
        f"{p['name']} {p['version']}: licence {p['license'] or 'not stated'}"
        for p in found
        if not p["license"] or not allowed(p["license"], usual | named.get(p["name"], set()))
    ]


def bans(found: list[dict], rules: dict) -> list[str]:
    names = {d["name"] for d in rules["bans"]["deny"]}
    return [f"{p['name']} {p['version']} is banned" for p in found if p["name"] in names]


def wildcards(found: list[dict], _rules: dict) -> list[str]:
    ours = [p for p in found if p["source"] is None]
    return [f"{p['name']} asks for any version of {d['name']}" for p in ours for d in p["dependencies"] if d["req"] == "*"]


def sources(found: list[dict], _rules: dict) -> list[str]:
    own = [p for p in found if p["source"] is None]
    foreign = [f"{p['name']} {p['version']} comes from {p['source']}" for p in found if p["source"] not in (None, INDEX)]
    return foreign + [f"{p['name']} comes from a folder" for p in own if p["name"] != "freshet"]


def one_tls(found: list[dict], _rules: dict) -> list[str]:
    """One version of rustls and at most one of each cryptography provider that it is built with."""
    out = []
    for name in ("rustls", *PROVIDERS):
        versions = sorted(p["version"] for p in found if p["name"] == name)
        if len(versions) > 1:
            out.append(f"{name} comes in {len(versions)} versions: {', '.join(versions)}")
    if not any(set(p["built_with"]) & {"aws_lc_rs", "ring"} for p in found if p["name"] == "rustls"):
        out.append("rustls is built without a provider that we know")
    return out


RULES = {"licences": licences, "bans": bans, "wildcards": wildcards, "sources": sources, "one_tls": one_tls}


def made_up(**changes) -> list[dict]:
    good = {"name": "a", "version": "1.0.0", "license": "MIT", "source": INDEX, "dependencies": [], "built_with": []}
    tls = good | {"name": "rustls", "built_with": ["ring"]}
    own = good | {"name": "freshet", "source": None}
    return [own, tls, good | changes]


def selftest(rules: dict) -> list[tuple[str, list[str]]]:
    """Every rule fails on a graph that breaks it, and none on a good one."""
    wrong = {
        "licences": [{"license": "GPL-3.0"}, {"license": None}, {"license": "MIT AND GPL-3.0"}, {"license": "MPL-2.0"}],
        "bans": [{"name": "openssl"}],
        "wildcards": [{"source": None, "name": "freshet", "dependencies": [{"name": "b", "req": "*"}]}],
        "sources": [{"source": "git+https://example.com/a"}, {"source": None}],
        "one_tls": [{"name": "rustls", "version": "0.22.0"}],
    }
    right = {"licences": [{"license": "GPL-3.0 OR (MIT AND Zlib)"}, {"license": "MIT/Apache-2.0"}, {"name": "option-ext", "license": "MPL-2.0"}]}
    out = []
    for name, rule in RULES.items():
        missed = [f"passes {w}" for w in wrong[name] if not rule(made_up(**w), rules)]
        out.append((f"selftest::{name}_can_fail", missed))
        noise = [t for r in ({}, *right.get(name, [])) for t in rule(made_up(**r), rules)]
        out.append((f"selftest::{name}_can_pass", noise))
    return out


def main() -> int:
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    found = packages(rules)
    print(f"{len(found)} crates")
    return report([(f"supply::{name}", rule(found, rules)) for name, rule in RULES.items()] + selftest(rules))


if __name__ == "__main__":
    sys.exit(main())

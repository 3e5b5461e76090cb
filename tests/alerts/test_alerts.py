"""The alerts, judged by Prometheus' own promtool, and what goes with each of them.

Lives here: the run of every alert's test file, and claims about all alerts. May use: promtool, PyYAML. Never: a second
telling of an expression.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RULES = ROOT / "charts" / "freshet" / "files" / "rules.yaml"
ALERTS = {r["alert"]: r for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"] if "alert" in r}
SECTIONS = ("## What it means", "## What to do", "## How it ends")


def promtool(*arguments: str) -> str:
    program = shutil.which("promtool")
    assert program, "no promtool: run `make setup`"
    done = subprocess.run([program, *arguments], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_the_rules():
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


@pytest.mark.parametrize("alert", ALERTS)
def test_the_alert_does_what_its_tests_say(alert):
    promtool("test", "rules", f"{alert}.yaml")


@pytest.mark.parametrize("alert", ALERTS)
def test_the_alert_is_seen_to_fire_to_resolve_to_stay_silent_and_to_survive_a_failover(alert):
    tests = yaml.safe_load((HERE / f"{alert}.yaml").read_text())["tests"]
    names = "; ".join(t["name"] for t in tests)
    for what in ("it fires", "resolves", "it does not fire", "failover"):
        assert what in names, what
    fired = [bool(c["exp_alerts"]) for t in tests for c in t["alert_rule_test"]]
    assert any(fired) and not all(fired)


@pytest.mark.parametrize("alert", ALERTS)
def test_the_alert_has_a_runbook_with_every_section(alert):
    text = (ROOT / "docs" / "runbooks" / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    for section in SECTIONS:
        assert section in text, section


def test_there_is_no_runbook_and_no_test_of_an_alert_that_is_gone():
    assert {p.stem for p in (ROOT / "docs" / "runbooks").glob("*.md")} == set(ALERTS)
    assert {p.stem for p in HERE.glob("*.yaml")} == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_the_alert_says_how_bad_it_is_and_what_is_so(alert):
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert "{{" not in rule["annotations"]["summary"]
    assert rule["annotations"]["description"].strip()


def test_every_metric_and_every_reason_that_the_rules_name_exists():
    text = RULES.read_text()
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "- record")))
    docs = (ROOT / "docs" / "metrics.md").read_text()
    for metric in set(re.findall(r"(?<![:\w])freshet_\w+", code)):
        assert f"| `{metric}` |" in docs, metric
    named = set(re.findall(r"^    (\w+), (?:Table|Shard|Told),$", (ROOT / "src" / "plan" / "reasons.rs").read_text(), re.M))
    assert len(named) > 20
    asked = {r for m in re.findall(r'reason=~?"([^"]+)"', code) for r in m.split("|")}
    assert asked and asked <= named, asked - named

"""The chart's world: Helm renders, Prometheus' and Lua's own programs judge; no cluster.

Lives here: where the programs are, and rendering the chart into plain documents. May use: helm, promtool, lua and
PyYAML. Never: a stand-in for one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "freshet"
KUBERNETES = "1.36.3"


def helm() -> str:
    """The Helm that the test cluster's tools build, else the one that HELM names."""
    if given := os.environ.get("HELM"):
        return given
    script = ROOT / "tests" / "cluster" / "tools" / "build.py"
    if script.exists():
        home = subprocess.run([sys.executable, script, "--print"], check=True, capture_output=True, text=True).stdout.strip()
        return str(Path(home) / "helm")
    return shutil.which("helm") or pytest.fail("no helm: run `make cluster-tools`, or name one in HELM")


class Chart:
    """The chart, rendered under values."""

    def __init__(self, folder: Path):
        self.folder = folder

    def run(self, *arguments: str, values: dict | None = None) -> subprocess.CompletedProcess:
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        command = [helm(), *arguments, "--values", str(file)]
        home = {f"HELM_{part}_HOME": str(self.folder / part) for part in ("CACHE", "CONFIG", "DATA")}
        # No cluster is asked, whichever the person's own configuration names.
        home["KUBECONFIG"] = str(self.folder / "none")
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | home)

    def template(self, values: dict | None = None, release="cartpole", namespace="labs") -> subprocess.CompletedProcess:
        where = ("--namespace", namespace, "--kube-version", KUBERNETES)
        return self.run("template", release, str(CHART), *where, values=values)

    def documents(self, values: dict | None = None, **names) -> list[dict]:
        done = self.template(values, **names)
        assert done.returncode == 0, done.stderr
        return [d for d in yaml.safe_load_all(done.stdout) if d]

    def refusal(self, values: dict) -> str:
        done = self.template(values)
        assert done.returncode != 0, "these values were accepted"
        return done.stderr


@pytest.fixture
def chart(tmp_path) -> Chart:
    return Chart(tmp_path)


def of_kind(documents: list[dict], kind: str) -> list[dict]:
    return [d for d in documents if d["kind"] == kind]


def only(documents: list[dict], kind: str) -> dict:
    found = of_kind(documents, kind)
    assert len(found) == 1, f"{len(found)} of kind {kind}"
    return found[0]

"""The health check for Argo CD, run by Lua itself.

Lives here: objects, and what Argo CD is to make of them. May use: the Lua interpreter, since Argo CD runs the same
language. Never: a second telling of the script's logic.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from conftest import CHART

SCRIPT = CHART / "files" / "argocd-health.lua"


def literal(value) -> str:
    """A value as Lua writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{literal(k)}] = {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(literal, value)) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    assert '"' not in value and "\\" not in value
    return f'"{value}"'


def health(obj: dict) -> tuple[str, str]:
    lua = shutil.which("lua5.4") or shutil.which("lua5.1") or shutil.which("lua")
    assert lua, "no Lua: run `make setup`"
    program = f"obj = {literal(obj)}\nlocal hs = (function()\n{SCRIPT.read_text()}\nend)()\nprint(hs.status)\nprint(hs.message)"
    done = subprocess.run([lua, "-"], input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    status, message = done.stdout.splitlines()
    return status, message


def experiment(conditions: dict | None, generation=3, observed=3, suspend=False, deleted=False) -> dict:
    metadata = {"name": "cartpole", "namespace": "labs", "generation": generation}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    obj = {"metadata": metadata, "spec": {"table": {"uri": "s3://rollouts/cartpole"}, "suspend": suspend}}
    if conditions is not None:
        obj["status"] = {
            "observedGeneration": observed,
            "conditions": [
                {"type": kind, "status": status, "reason": "Reason", "message": f"{kind} is {status}"}
                for kind, status in conditions.items()
            ],
        }
    return obj


WELL = {"Ready": "True", "Fresh": "True", "StorageReachable": "True"}
CASES = {
    "an object that nobody has seen yet is on its way": (experiment(None), "Progressing"),
    "an edit that nobody has seen yet is on its way": (experiment(WELL, generation=4), "Progressing"),
    "a fresh table is healthy": (experiment(WELL), "Healthy"),
    "a late table is on its way": (experiment(WELL | {"Fresh": "False"}), "Progressing"),
    "a table that nobody has seen for a while stays as it was": (experiment(WELL | {"Fresh": "Unknown"}), "Healthy"),
    "a table that is not there yet is on its way": (experiment({"Ready": "False", "Fresh": "Unknown"}), "Progressing"),
    "what only an edit can mend is degraded": (experiment({"Ready": "False", "Fresh": "Unknown", "Stalled": "True"}), "Degraded"),
    "a suspended table is suspended": (experiment(WELL, suspend=True), "Suspended"),
    "a deletion is on its way": (experiment(WELL, deleted=True), "Progressing"),
    "an edit under way is on its way": (experiment(WELL | {"Reconciling": "True"}), "Progressing"),
}


@pytest.mark.parametrize("name", CASES)
def test_argo_cd_sees_that(name):
    obj, wanted = CASES[name]
    status, message = health(obj)
    assert status == wanted
    assert message

"""What the clients' tests share: the binary must be there, and each test has a folder and a seed of its own."""

from __future__ import annotations

import os
import shutil

import driver
import pytest
from memwal import Table


def pytest_configure(config):
    os.environ.setdefault("LANCE_LOG", "error")
    if not shutil.which(driver.BINARY):
        raise pytest.UsageError(f"no binary at {driver.BINARY!r}: set FRESHET to the built freshet")


@pytest.fixture
def seed(request) -> int:
    """Named in the report of a failure; FRESHET_SEED sets it."""
    value = int(os.environ.get("FRESHET_SEED", "1"))
    request.node.user_properties.append(("seed", value))
    return value


@pytest.fixture
def table(tmp_path, seed) -> Table:
    """A table with 200 base rows and nothing pending."""
    return Table(tmp_path / "rollouts.lance", seed).create(range(200))

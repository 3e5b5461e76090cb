"""The resource's definition: what the code says is what the repository holds."""

from __future__ import annotations

from pathlib import Path

from driver import freshet, tree

ROOT = Path(__file__).parents[2]


def test_the_definitions_in_the_repository_are_those_of_the_code(tmp_path):
    freshet("crds", "--dir", tmp_path)
    made = tree(tmp_path)
    assert made and made == tree(ROOT / "crds"), "run `make crds` and commit what it writes"


def test_the_definition_on_the_terminal_is_the_one_in_the_file(tmp_path):
    freshet("crds", "--dir", tmp_path)
    (file,) = tmp_path.iterdir()
    said = freshet("crds", "--stdout").out
    assert said == file.read_text()
    assert "group: freshet.dev" in said and "kind: Experiment" in said and "name: v1alpha1" in said

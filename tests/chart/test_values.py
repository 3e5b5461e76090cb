"""What values the chart refuses, and with which words.

Lives here: a table of mistakes, each with what the refusal has to name. May use: conftest's chart. Never: a mistake
without its place in the message: that is what a person needs.
"""

from __future__ import annotations

import pytest
import yaml
from conftest import CHART

MISTAKES = [
    ({"replica": 2}, ["replica", "not allowed"]),
    ({"image": {"registry": "x"}}, ["/image", "registry"]),
    ({"image": {"digest": "sha256:1"}}, ["/image/digest", "pattern"]),
    ({"image": {"pullPolicy": "Sometimes"}}, ["/image/pullPolicy", "Always"]),
    ({"replicas": "two"}, ["/replicas", "integer"]),
    ({"replicas": -1}, ["/replicas", "minimum"]),
    ({"watchNamespaces": ["Labs"]}, ["/watchNamespaces/0", "pattern"]),
    ({"watchNamespaces": ["labs", "labs"]}, ["/watchNamespaces", "equal"]),
    ({"defaults": {"target": "5s"}}, ["/defaults", "target"]),
    ({"defaults": {"freshness": {"target": "5 seconds"}}}, ["/defaults/freshness/target", "pattern"]),
    ({"defaults": {"freshness": {"target": 5}}}, ["/defaults/freshness/target", "string"]),
    ({"limits": {"freshness": {"target": "5s"}}}, ["/limits/freshness/target", "object"]),
    ({"limits": {"freshness": {"target": {"most": "5s"}}}}, ["/limits/freshness/target", "most"]),
    ({"storage": {"grants": [{"namespaces": ["labs"]}]}}, ["/storage/grants/0", "uriPrefixes"]),
    ({"storage": {"grants": [{"namespaces": [], "uriPrefixes": ["s3://a/"]}]}}, ["/storage/grants/0/namespaces", "minItems"]),
    ({"storage": {"grants": [{"namespaces": ["labs"], "uriPrefixes": ["s3://a/b"]}]}}, ["uriPrefixes/0", "pattern"]),
    ({"storage": {"grants": [{"namespaces": ["labs"], "uriPrefixes": ["file:///data/"]}]}}, ["uriPrefixes/0", "pattern"]),
    ({"storage": {"grants": [{"namespaces": ["labs"], "uriPrefixes": ["az://box/data/"]}]}}, ["uriPrefixes/0", "pattern"]),
    ({"storage": {"allowedEndpoints": ["http://key:secret@minio:9000"]}}, ["/storage/allowedEndpoints/0"]),
    ({"resources": {"limits": {"memory": "lots"}}}, ["/resources/limits/memory", "pattern"]),
    ({"resources": {"limits": {"memory": "96Mi"}}}, ["the merge budget is below 64Mi", "raise resources.limits.memory"]),
    ({"mergeBudget": "1900Mi"}, ["mergeBudget is more than three quarters", "lower it or raise the limit"]),
    ({"prometheusRule": {"runbookUrl": "docs/"}}, ["/prometheusRule/runbookUrl"]),
    ({"terminationGracePeriodSeconds": 5}, ["/terminationGracePeriodSeconds", "minimum"]),
    ({"env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}]}, ["/env/0/name"]),
    ({"serviceAccount": {"create": False}}, ["serviceAccount.name is needed"]),
    ({"reader": {"enabled": True}}, ["reader.tls.existingSecret", "reader.plainHTTP"]),
    ({"reader": {"enabled": True, "plainHTTP": True, "tls": {"existingSecret": "x"}}}, ["reader", "not both"]),
    ({"reader": {"enable": True}}, ["/reader", "enable"]),
    ({"reader": {"audience": ""}}, ["/reader/audience"]),
    ({"reader": {"tls": {"existingSecret": "Mine"}}}, ["/reader/tls/existingSecret", "pattern"]),
    ({"reader": {"resources": {"limits": {"memory": "512Mi"}}, "enabled": True, "plainHTTP": True}}, ["reader.resources.limits.memory", "raise"]),
    (
        {"reader": {"enabled": True, "plainHTTP": True, "autoscaling": {"enabled": True, "minReplicas": 9}}},
        ["reader.autoscaling.minReplicas", "maxReplicas"],
    ),
    (
        {"reader": {"enabled": True, "plainHTTP": True, "serviceAccount": {"create": False}}},
        ["reader.serviceAccount.name is needed"],
    ),
]


@pytest.mark.parametrize(("values", "words"), MISTAKES, ids=[str(sorted(v)[0]) + f"-{i}" for i, (v, _) in enumerate(MISTAKES)])
def test_a_mistake_is_refused_where_it_is(chart, values, words):
    said = chart.refusal(values)
    for word in words:
        assert word in said, said


def test_every_value_that_the_chart_has_is_in_its_schema_and_the_other_way_round():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())

    def compare(value: dict, node: dict, path: str):
        if node.get("additionalProperties") is not False:
            return
        known = node["properties"]
        assert value.keys() <= known.keys(), path
        if value:  # An empty one, such as `limits`, is a shape that a person fills.
            assert known.keys() - value.keys() <= {"global", "claims"}, path
        for name, below in known.items():
            if isinstance(value.get(name), dict):
                compare(value[name], below, f"{path}/{name}")

    compare(values, schema, "")


def test_every_part_of_the_schema_refuses_what_it_does_not_know():
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())

    def closed(node: dict, path: str):
        if "properties" in node and path.split("/")[-1] not in {"requests", "limits", "[]"}:
            assert node.get("additionalProperties") is False, path
        for name, below in node.get("properties", {}).items():
            closed(below, f"{path}/{name}")

    closed(schema, "")

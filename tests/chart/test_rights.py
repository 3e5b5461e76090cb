"""What the chart lets whom do.

Lives here: claims about RBAC documents. May use: conftest's chart. Never: a claim that a right is enough or needed, which
only a cluster can tell.
"""

from __future__ import annotations

from conftest import of_kind

OPERATOR = {
    ("freshet.dev", "experiments"): {"list", "watch", "patch"},
    ("freshet.dev", "experiments/status"): {"patch"},
    ("", "secrets"): {"get"},
    ("events.k8s.io", "events"): {"create", "patch"},
}
READER = {
    ("freshet.dev", "experiments"): {"list", "watch"},
    ("", "secrets"): {"get"},
}
WITH_READER = {"reader": {"enabled": True, "plainHTTP": True}}
LEASE = {("coordination.k8s.io", "leases"): {"get", "create", "update"}}


def granted(role: dict) -> dict:
    """Verbs by group and resource."""
    out: dict = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                out.setdefault((group, resource), set()).update(rule["verbs"])
    return out


def named(documents, kind, end) -> list[dict]:
    return [d for d in of_kind(documents, kind) if d["metadata"]["name"].endswith(end)]


def test_the_operator_may_do_what_is_listed_here_and_nothing_else(chart):
    documents = chart.documents()
    (cluster,) = named(documents, "ClusterRole", "-controller")
    assert granted(cluster) == OPERATOR
    (lease,) = of_kind(documents, "Role")
    assert granted(lease) == LEASE
    # Of all Leases of its namespace it may read and write its own.
    for rule in lease["rules"]:
        assert rule["verbs"] == ["create"] or rule["resourceNames"] == ["cartpole-freshet-controller"]
    assert len(of_kind(documents, "ClusterRoleBinding")) == 1


def test_with_watched_namespaces_the_operator_has_no_right_on_the_cluster(chart):
    documents = chart.documents({"watchNamespaces": ["atari", "mujoco"]})
    assert not of_kind(documents, "ClusterRoleBinding")
    assert not named(documents, "ClusterRole", "-controller")
    roles = {d["metadata"]["namespace"]: d for d in named(documents, "Role", "-controller")}
    assert sorted(roles) == ["atari", "mujoco"]
    assert all(granted(role) == OPERATOR for role in roles.values())
    arguments = of_kind(documents, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [a for a in arguments if "watch" in a] == ["--watch-namespace=atari", "--watch-namespace=mujoco"]


def test_no_role_has_a_wildcard_and_none_lists_secrets(chart):
    for values in ({}, {"watchNamespaces": ["atari"]}, WITH_READER, WITH_READER | {"watchNamespaces": ["atari"]}):
        documents = chart.documents(values)
        for role in of_kind(documents, "Role") + of_kind(documents, "ClusterRole"):
            for (group, resource), verbs in granted(role).items():
                assert "*" not in {group, resource, *verbs}
                assert resource != "secrets" or verbs == {"get"}


def test_records_are_read_by_a_role_of_its_own_that_nothing_aggregates(chart):
    for role in of_kind(chart.documents(), "ClusterRole"):
        aggregated = [label for label in role["metadata"]["labels"] if "aggregate-to" in label]
        data = ("freshet.dev", "experiments/data") in granted(role)
        assert not (data and aggregated)
        assert data == role["metadata"]["name"].endswith("-data-reader")


def test_viewers_see_and_editors_change(chart):
    documents = chart.documents()
    (viewer,) = named(documents, "ClusterRole", "-viewer")
    assert viewer["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert set().union(*granted(viewer).values()) == {"get", "list", "watch"}
    (editor,) = named(documents, "ClusterRole", "-editor")
    assert {"create", "update", "patch", "delete"} <= granted(editor)[("freshet.dev", "experiments")]
    # A status is the operator's to write.
    assert ("freshet.dev", "experiments/status") not in granted(editor)


def test_the_reader_may_do_what_is_listed_here_and_ask_for_reviews_and_nothing_else(chart):
    documents = [d for d in chart.documents(WITH_READER) if "-reader" in d["metadata"]["name"]]
    (role,) = (d for d in of_kind(documents, "ClusterRole") if not d["metadata"]["name"].endswith("-data-reader"))
    assert granted(role) == READER
    bound = sorted(d["roleRef"]["name"] for d in of_kind(documents, "ClusterRoleBinding"))
    assert bound == ["cartpole-freshet-reader", "system:auth-delegator"]
    assert not of_kind(documents, "Role")


def test_with_watched_namespaces_the_reader_may_ask_for_reviews_alone_of_the_cluster(chart):
    documents = chart.documents(WITH_READER | {"watchNamespaces": ["atari", "mujoco"]})
    assert [d["roleRef"]["name"] for d in of_kind(documents, "ClusterRoleBinding")] == ["system:auth-delegator"]
    roles = {d["metadata"]["namespace"]: d for d in named(documents, "Role", "-reader")}
    assert sorted(roles) == ["atari", "mujoco"]
    assert all(granted(role) == READER for role in roles.values())


def test_records_are_read_and_listed_by_the_data_reader(chart):
    (role,) = named(chart.documents(), "ClusterRole", "-data-reader")
    assert granted(role) == {("freshet.dev", "experiments/data"): {"get", "list"}}

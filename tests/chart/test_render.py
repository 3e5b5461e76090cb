"""What the chart makes of its values.

Lives here: claims about rendered documents. May use: conftest's chart. Never: a whole rendering kept as a file, which
would say what changed and never what is right.
"""

from __future__ import annotations

import itertools
import shutil

import pytest
import yaml
from conftest import CHART, KUBERNETES, ROOT, of_kind, only

SWITCHES = {
    "scope": [{}, {"watchNamespaces": ["labs", "atari"]}],
    "replicas": [{"replicas": 1}, {"replicas": 3}],
    "monitoring": [
        {},
        {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prom"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prom"}, "runbookUrl": "https://example.org/runbooks/"},
        },
    ],
    "network": [
        {},
        {"networkPolicy": {"enabled": True, "metricsFrom": [{"podSelector": {}}], "recordsFrom": [{"podSelector": {}}]}},
    ],
    "reader": [
        {},
        {
            "reader": {
                "enabled": True,
                "tls": {"existingSecret": "reader-tls"},
                "autoscaling": {"enabled": True},
                "serviceAccount": {"annotations": {"role": "reads"}},
            }
        },
    ],
    "rest": [
        {},
        {
            "fullnameOverride": "acrobot",
            "crds": {"enabled": False},
            "rbac": {"aggregate": False},
            "podDisruptionBudget": {"enabled": False},
            "image": {"repository": "registry.example/x", "digest": "sha256:" + "0" * 64},
            "imagePullSecrets": [{"name": "pull"}],
            "podLabels": {"team": "rl"},
            "podAnnotations": {"note": "yes"},
            "priorityClassName": "high",
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
            ],
            "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
            "log": "debug",
            "defaults": {"freshness": {"target": "5s", "mergeAt": {"bytes": "512Mi"}}},
            "limits": {"freshness": {"target": {"min": "2s", "max": "1h"}}},
            "storage": {"grants": [{"namespaces": ["labs"], "uriPrefixes": ["s3://rollouts/labs/"]}]},
        },
    ],
}
MATRIX = list(itertools.product(*SWITCHES.values()))


def together(parts) -> dict:
    return {key: value for part in parts for key, value in part.items()}


def part(documents: list[dict], name: str) -> list[dict]:
    """What is of one of the two programs, the controller or the reader."""
    own = lambda d: d["metadata"]["name"].endswith(f"-{name}") and not d["metadata"]["name"].endswith("-data-reader")
    return [d for d in documents if own(d)]


def controller(documents) -> dict:
    return only(part(documents, "controller"), "Deployment")["spec"]["template"]["spec"]


def reader(documents) -> dict:
    return only(part(documents, "reader"), "Deployment")["spec"]["template"]["spec"]


@pytest.mark.parametrize("parts", MATRIX, ids=lambda parts: "-".join(str(i) for i in map(len, parts)))
def test_every_combination_of_switches_renders_whole_and_consistent(chart, parts):
    documents = chart.documents(together(parts))
    seen = [(d["apiVersion"], d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
    assert len(seen) == len(set(seen))
    accounts = {}
    for name in ("controller", "reader"):
        of_it = part(documents, name)
        if not of_kind(of_it, "Deployment"):
            assert name == "reader" and not of_it
            continue
        deployment = only(of_it, "Deployment")
        accounts[name] = deployment["spec"]["template"]["spec"]["serviceAccountName"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        for selector in (
            deployment["spec"]["selector"]["matchLabels"],
            only(of_it, "Service")["spec"]["selector"],
            *(p["spec"]["selector"]["matchLabels"] for p in of_kind(of_it, "PodDisruptionBudget")),
            *(p["spec"]["podSelector"]["matchLabels"] for p in of_kind(of_it, "NetworkPolicy")),
        ):
            # None of the two selects the other's Pods.
            assert selector.items() <= labels.items() and selector["app.kubernetes.io/component"] == name
    for binding in of_kind(documents, "RoleBinding") + of_kind(documents, "ClusterRoleBinding"):
        role = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        own = [(d["kind"], d["metadata"]["name"]) for d in documents]
        assert role in own or role == ("ClusterRole", "system:auth-delegator")
        name = "reader" if "-reader" in binding["metadata"]["name"] else "controller"
        assert [(s["name"], s["namespace"]) for s in binding["subjects"]] == [(accounts[name], "labs")]
    for document in documents:
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "cartpole"


@pytest.mark.parametrize("parts", [MATRIX[0], MATRIX[-1]], ids=["default", "everything"])
def test_helm_lint_finds_nothing(chart, parts):
    done = chart.run("lint", str(CHART), "--strict", "--kube-version", KUBERNETES, values=together(parts))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout and "[ERROR]" not in done.stdout


def test_two_releases_of_one_cluster_share_no_name(chart):
    def names(release):
        documents = chart.documents({"crds": {"enabled": False}}, release=release)
        return {(d["kind"], d["metadata"]["name"]) for d in documents}

    assert not names("cartpole") & names("pendulum")


def test_the_pod_meets_restricted_pod_security_and_writes_nowhere_but_tmp(chart):
    pod = controller(chart.documents())
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert writable == ["/tmp"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_probes_and_ports_are_those_of_the_arguments(chart):
    (container,) = controller(chart.documents())["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert f"--metrics-address=0.0.0.0:{ports['metrics']}" in container["args"]
    assert f"--health-address=0.0.0.0:{ports['health']}" in container["args"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


@pytest.mark.parametrize(
    ("limit", "given", "budget"),
    [("2Gi", "", 1 << 30), ("512Mi", "", 256 << 20), ("1500M", "", 750_000_000), ("2Gi", "800Mi", 800 << 20), (4294967296, "", 2 << 30)],
)
def test_the_merge_budget_follows_from_the_memory_limit(chart, limit, given, budget):
    values = {"resources": {"limits": {"memory": limit}}, "mergeBudget": given}
    (container,) = controller(chart.documents(values))["containers"]
    assert f"--budget={budget}" in container["args"]


def test_a_changed_configuration_starts_new_pods_and_an_unchanged_one_does_not(chart):
    def annotations(values):
        return only(chart.documents(values), "Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert annotations({}) == annotations({"podDisruptionBudget": {"enabled": False}})
    assert annotations({}) != annotations({"defaults": {"freshness": {"target": "5s"}}})


def test_the_configuration_holds_defaults_limits_and_grants_as_they_were_given(chart):
    values = together(MATRIX[-1])
    config = yaml.safe_load(only(chart.documents(values), "ConfigMap")["data"]["config.yaml"])
    assert config["defaults"] == values["defaults"]
    assert config["limits"] == values["limits"]
    assert config["storage"]["grants"] == values["storage"]["grants"]


def test_the_crd_is_the_generated_one_and_stays_when_the_release_goes(chart):
    generated = yaml.safe_load((ROOT / "crds" / "freshet.dev_experiments.yaml").read_text())
    crd = only(chart.documents(), "CustomResourceDefinition")
    assert crd["spec"] == generated["spec"]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not of_kind(chart.documents({"crds": {"enabled": False}}), "CustomResourceDefinition")


def test_the_charts_copy_of_the_crd_is_the_generated_file():
    copy, generated = (CHART / "files" / "crds", ROOT / "crds")
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == {p.name: p.read_bytes() for p in generated.iterdir()}


def test_disruptions_are_bounded_only_where_there_is_a_second_replica(chart):
    assert not of_kind(chart.documents({"replicas": 1}), "PodDisruptionBudget")
    assert only(chart.documents({"replicas": 2}), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_replicas_are_spread_over_nodes_and_zones(chart):
    spread = controller(chart.documents())["topologySpreadConstraints"]
    assert [s["topologyKey"] for s in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]


def test_the_service_monitor_keeps_the_experiments_own_labels_and_the_job_of_the_rules(chart):
    monitor = only(chart.documents({"serviceMonitor": {"enabled": True}}), "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    job = endpoint["relabelings"][0]["replacement"]
    assert f'job="{job}"' in (CHART / "files" / "rules.yaml").read_text()
    service = only(chart.documents(), "Service")
    assert endpoint["port"] in [p["name"] for p in service["spec"]["ports"]]


def test_the_prometheus_rule_is_the_plain_file_with_addresses_of_runbooks(chart):
    plain = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    values = {"prometheusRule": {"enabled": True, "runbookUrl": "https://example.org/runbooks"}}
    rule = only(chart.documents(values), "PrometheusRule")
    for group in rule["spec"]["groups"]:
        for alert in (r for r in group["rules"] if "alert" in r):
            assert alert["annotations"].pop("runbook_url") == f"https://example.org/runbooks/{alert['alert']}.md"
    assert rule["spec"] == plain


NOTES = """apiVersion: v1
kind: Notes
metadata:
  name: notes
text: |
{{ include "notes" . | indent 2 }}
"""


def test_the_notes_tell_three_commands_and_what_is_not_granted(chart, tmp_path):
    # Helm shows notes only where it has a cluster; so they are made a document of a copy of the chart.
    copy = tmp_path / "copy"
    shutil.copytree(CHART, copy)
    text = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "_notes.tpl").write_text('{{ define "notes" }}' + text + "{{ end }}")
    (copy / "templates" / "notes.yaml").write_text(NOTES)
    done = chart.run("template", "cartpole", str(copy), "--kube-version", KUBERNETES, values={"watchNamespaces": ["atari"]})
    assert done.returncode == 0, done.stderr
    notes = next(d["text"] for d in yaml.safe_load_all(done.stdout) if d and d["kind"] == "Notes")
    assert len([line for line in notes.splitlines() if line.strip().startswith("kubectl")]) == 3
    assert "atari" in notes and "storage.grants is empty" in notes


READER = {"reader": {"enabled": True, "tls": {"existingSecret": "reader-tls"}}}


def test_without_a_word_of_it_there_is_no_reader(chart):
    assert not part(chart.documents(), "reader")


def test_the_readers_pod_meets_restricted_pod_security_and_writes_nowhere_but_tmp(chart):
    pod = reader(chart.documents(READER))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert writable == ["/tmp"]


def test_the_readers_ports_and_probes_are_those_of_its_arguments(chart):
    documents = chart.documents(READER)
    (container,) = reader(documents)["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert f"--listen=0.0.0.0:{ports['records']}" in container["args"]
    assert f"--metrics-address=0.0.0.0:{ports['metrics']}" in container["args"]
    assert f"--health-address=0.0.0.0:{ports['health']}" in container["args"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    service = only(part(documents, "reader"), "Service")["spec"]
    assert {p["name"]: p["targetPort"] for p in service["ports"]} == {"https": "records", "metrics": "metrics"}
    # What is not ready may not answer: it cannot say yet what is not there.
    assert "publishNotReadyAddresses" not in service


def test_the_reader_serves_with_the_secrets_certificate_or_in_plain_words_without_one(chart):
    pod = reader(chart.documents(READER))
    arguments = pod["containers"][0]["args"]
    mounted = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    assert [v["secret"]["secretName"] for v in pod["volumes"] if v["name"] == "tls"] == ["reader-tls"]
    assert f"--tls-cert-file={mounted['tls']}/tls.crt" in arguments and f"--tls-key-file={mounted['tls']}/tls.key" in arguments
    assert "--plain-http" not in arguments
    pod = reader(chart.documents({"reader": {"enabled": True, "plainHTTP": True}}))
    assert "--plain-http" in pod["containers"][0]["args"]
    assert "tls" not in [v["name"] for v in pod["volumes"]]


def test_the_reader_goes_by_the_operators_grants_and_namespaces(chart):
    values = READER | {"watchNamespaces": ["atari"], "storage": {"allowedEndpoints": ["http://minio.storage.svc:9000"]}}
    documents = chart.documents(values)
    pods = [controller(documents), reader(documents)]
    configs = [next(v["configMap"]["name"] for v in p["volumes"] if v["name"] == "config") for p in pods]
    assert configs[0] == configs[1]
    arguments = [p["containers"][0]["args"] for p in pods]
    assert all("--config=/etc/freshet/config.yaml" in a and "--watch-namespace=atari" in a for a in arguments)
    assert "--namespace=labs" in arguments[1] and "--audience=freshet.dev" in arguments[1]


def test_the_autoscaler_takes_the_place_of_a_number(chart):
    documents = part(chart.documents(READER), "reader")
    assert only(documents, "Deployment")["spec"]["replicas"] == 2
    assert not of_kind(documents, "HorizontalPodAutoscaler")
    scaled = {"reader": READER["reader"] | {"autoscaling": {"enabled": True, "minReplicas": 1}}}
    documents = part(chart.documents(scaled), "reader")
    assert "replicas" not in only(documents, "Deployment")["spec"]
    scaler = only(documents, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == only(documents, "Deployment")["metadata"]["name"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 8)
    # One Pod may be all that there is: nothing then forbids to move it.
    assert not of_kind(documents, "PodDisruptionBudget")


def test_readers_are_scraped_under_a_job_of_their_own(chart):
    documents = part(chart.documents(READER | {"serviceMonitor": {"enabled": True}}), "reader")
    (endpoint,) = only(documents, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["relabelings"][0]["replacement"] == "freshet-reader"
    assert endpoint["port"] in [p["name"] for p in only(documents, "Service")["spec"]["ports"]]

"""Builds the programs of the test cluster, each once.

Lives here: which programs there are, and what module pins each. May use: `tools/kept.py`, which says where the built ones
are, and `go`. Never: a download by any other way than Go's own, checked by the sums.

`build.py [--print] [PROGRAM…]` builds what is missing of the named ones (all without a name); `--print` says the folder.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "tools"))
from kept import Kept  # noqa: E402

# Program: (module's folder, package).
PROGRAMS = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "kube-proxy": ("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    "helm": ("helm", "helm.sh/helm/v3/cmd/helm"),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler")
NODE = ("kubelet", "kube-proxy")


def kubernetes_version() -> str:
    text = (HERE / "kubernetes" / "go.mod").read_text()
    return re.search(r"^(?:require )?\s*k8s\.io/kubernetes (v\S+)", text, re.M).group(1)


def linker_flags(module: str) -> str:
    """Stripped, and Kubernetes' programs with the version that they otherwise do not know."""
    flags = "-s -w"
    if module == "kubernetes":
        version = kubernetes_version()
        major, minor = version[1:].split(".")[:2]
        for name, value in {"gitVersion": version, "gitMajor": major, "gitMinor": minor}.items():
            flags += f" -X k8s.io/component-base/version.{name}={value}"
    return flags


def build(name: str, half: Path):
    module, package = PROGRAMS[name]
    KEPT.go(name, half, module, package, linker_flags(module))


KEPT = Kept("cluster-tools", HERE, dict.fromkeys(PROGRAMS, build), {"control-plane": CONTROL_PLANE, "node": NODE})


def lacks(names: list[str]) -> str | None:
    return "go is missing" if names and not shutil.which("go") else None


if __name__ == "__main__":
    sys.exit(KEPT.main(__doc__, lacks))

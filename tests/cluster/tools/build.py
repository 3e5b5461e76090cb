"""Builds the programs of the test cluster, each once.

Lives here: which programs there are, what module pins each, and where the built ones are kept: a folder of the cache
whose name is the content of every `go.mod` and `go.sum` here, so that a changed pin is a new folder. May use: Python's
own library and `go`. Never: a download by any other way than Go's own, checked by the sums.

`build.py [--print] [PROGRAM…]` builds what is missing of the named ones (all without a name); `--print` says the folder.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("FRESHET_CACHE") or Path.home() / ".cache" / "freshet")
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
TAIL = 20  # lines of a failed build that are shown


def home() -> Path:
    """The folder of the built programs. It need not exist."""
    key = hashlib.sha256()
    for file in sorted(p for p in HERE.glob("*/go.*") if p.name in ("go.mod", "go.sum")):
        key.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
    return CACHE / "cluster-tools" / key.hexdigest()[:12]


def missing(names) -> list[str]:
    return [n for n in names if not (home() / n).exists()]


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


def build(name: str):
    """One program, which appears in its place whole or not at all."""
    module, package = PROGRAMS[name]
    half = home() / f".{name}.{os.getpid()}"
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", linker_flags(module)]
    made = subprocess.run(
        [*command, "-o", str(half), package],
        cwd=HERE / module,
        env=os.environ | {"CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if made.returncode:
        half.unlink(missing_ok=True)
        raise SystemExit("\n".join(made.stdout.splitlines()[-TAIL:]) + f"\ncluster-tools: {name} does not build")
    half.rename(home() / name)


def build_missing(names):
    """Builds what of these is not there yet. Two at once wait for each other."""
    if not missing(names):
        return
    home().mkdir(parents=True, exist_ok=True)
    with (home() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        todo = missing(names)
        for at, name in enumerate(todo, 1):
            print(f"cluster-tools: {at} of {len(todo)}, {name} …", flush=True)
            began = time.monotonic()
            build(name)
            size = (home() / name).stat().st_size / 1e6
            print(f"cluster-tools: {name}, {time.monotonic() - began:.0f} s, {size:.0f} MB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="tell", help="say the folder, build nothing")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="|".join(PROGRAMS) + "|control-plane|node")
    a = parser.parse_args()
    if a.tell:
        print(home())
        return
    names = []
    for word in a.programs or PROGRAMS:
        names += {"control-plane": CONTROL_PLANE, "node": NODE}.get(word, (word,))
    unknown = [n for n in names if n not in PROGRAMS]
    if unknown:
        raise SystemExit(f"cluster-tools: no such program: {' '.join(unknown)}; there are: {' '.join(PROGRAMS)}")
    build_missing(names)
    print(f"cluster-tools: {' '.join(names)} in {home()}")


if __name__ == "__main__":
    sys.exit(main())

"""Certificates and kubeconfigs of one test cluster.

Lives here: one authority and what it signs, made anew for every cluster with `openssl`, valid for days. May use: Python's
own library and `openssl`. Never: a key that outlives its cluster.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

DAYS = "30"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
# Name of the file: subject. The names are those that Kubernetes' own roles are bound to.
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "apiserver-to-kubelet": "/O=system:masters/CN=kube-apiserver-kubelet",
}


def openssl(*arguments: str):
    done = subprocess.run(["openssl", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]}: {done.stderr.strip()}")


class Authority:
    """Keys and certificates below one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(mode=0o700)
        openssl("req", "-x509", *KEY, "-days", DAYS, "-subj", "/CN=test-cluster", *self.pair("ca"))
        # As SEC 1, the one form of such a key that the API server reads a public key from.
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.key("service-accounts"))

    def key(self, name: str) -> str:
        return str(self.folder / f"{name}.key")

    def certificate(self, name: str) -> str:
        return str(self.folder / f"{name}.crt")

    def pair(self, name: str) -> tuple[str, ...]:
        return ("-keyout", self.key(name), "-out", self.certificate(name))

    def sign(self, name: str, subject: str, *extensions: str):
        command = ["req", "-x509", *KEY, "-days", DAYS, "-subj", subject, *self.pair(name)]
        command += ["-CA", self.certificate("ca"), "-CAkey", self.key("ca")]
        for extension in ("basicConstraints=critical,CA:FALSE", *extensions):
            command += ["-addext", extension]
        openssl(*command)

    def server(self, name: str, subject: str, addresses: list[str], names: list[str]):
        alternatives = ",".join([f"IP:{a}" for a in addresses] + [f"DNS:{n}" for n in names])
        self.sign(name, subject, f"subjectAltName={alternatives}", "extendedKeyUsage=serverAuth")

    def client(self, name: str, subject: str):
        self.sign(name, subject, "extendedKeyUsage=clientAuth")

    def kubeconfig(self, name: str, server: str) -> str:
        """A kubeconfig that needs no other file (JSON, which every reader of YAML reads)."""

        def data(file: str) -> str:
            return base64.b64encode(Path(file).read_bytes()).decode()

        cluster = {"server": server, "certificate-authority-data": data(self.certificate("ca"))}
        user = {"client-certificate-data": data(self.certificate(name)), "client-key-data": data(self.key(name))}
        whole = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        return json.dumps(whole, indent=1)

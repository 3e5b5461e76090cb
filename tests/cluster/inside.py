"""The inside of a test cluster: the first process of its own network, process and mount namespace.

Lives here: starting Kubernetes' programs, watching over them, and the few commands that come by standard input, one a
line: `start NAME`, `stop NAME`, `pause NAME`, `resume NAME`, `compact`. Each is answered by one line of JSON; the first
line says where the cluster is. May use: Python's own library and the built programs. Never: anything that outlives this
process: its end is the end of the namespaces and of all that runs in them. It ends when standard input does.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import node
import pki

ETCD = "http://127.0.0.1:2379"
SERVICES = "10.200.0.0/24"
PODS = "10.201.0.0/16"
PATIENCE = 120  # seconds until what hangs is a failure
# Who is not worth a line in the audit log: the cluster's own programs.
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "None",
            "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"],
        },
        {"level": "None", "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"]},
        {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*"]},
        {"level": "Metadata"},
    ],
}


def say(answer: dict):
    print(json.dumps(answer), flush=True)


class Cluster:
    """The programs by name: how each is started, and which of them run."""

    def __init__(self, folder: Path, programs: Path, address: str, gateway: str):
        self.folder, self.programs, self.address, self.gateway = folder, programs, address, gateway
        self.commands: dict[str, list[str]] = {}
        self.running: dict[str, int] = {}
        self.url = f"https://{address}:6443"
        (folder / "log").mkdir()
        self.authority = pki.Authority(folder / "pki")

    # -- processes ---------------------------------------------------------------------------------------------------

    def run(self, name: str, *flags: str, program: str | None = None):
        """Starts a program, and remembers how for later."""
        self.commands[name] = [program or str(self.programs / name), *flags]
        self.start(name)

    def start(self, name: str):
        if name in self.running:
            raise RuntimeError(f"{name} runs already")
        with (self.folder / "log" / f"{name}.log").open("ab") as log:
            # Its exit is seen by `reap`, not by this object.
            child = subprocess.Popen(self.commands[name], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running[name] = child.pid
        child.returncode = 0

    def signal(self, name: str, which: signal.Signals):
        if name not in self.running:
            raise RuntimeError(f"{name} does not run")
        os.kill(self.running[name], which)

    def stop(self, name: str):
        """Kills it: the API server ends slowly when asked, and a killed one is the harder test."""
        self.signal(name, signal.SIGKILL)
        os.waitpid(self.running.pop(name), 0)

    def reap(self):
        """Takes note of what ended. Orphans of containers end up here too."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.running = {n: p for n, p in self.running.items() if p != pid}

    def alive(self, name: str):
        """Fails with the end of its log where a program has ended."""
        if os.waitid(os.P_PID, self.running[name], os.WEXITED | os.WNOHANG | os.WNOWAIT):
            text = (self.folder / "log" / f"{name}.log").read_text(errors="replace")
            raise RuntimeError(f"{name} ended:\n" + "\n".join(text.splitlines()[-15:]))

    def until(self, name: str, what: str, ready):
        """Waits until a program is ready; fails at once where it ends, and late where it hangs."""
        begun = time.monotonic()
        while not ready():
            self.alive(name)
            if time.monotonic() - begun > PATIENCE:
                raise RuntimeError(f"{what} did not come within {PATIENCE} s")
            time.sleep(0.05)

    # -- talking to them ---------------------------------------------------------------------------------------------

    def etcd(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(ETCD + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def etcd_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{ETCD}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def api_ready(self) -> bool:
        context = ssl.create_default_context(cafile=self.authority.certificate("ca"))
        context.load_cert_chain(self.authority.certificate("admin"), self.authority.key("admin"))
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=context) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kubectl(self, *arguments: str):
        done = subprocess.run(
            [str(self.programs / "kubectl"), f"--kubeconfig={self.folder}/admin.conf", *arguments],
            env=os.environ | {"KUBECACHEDIR": f"{self.folder}/cache"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")

    def compact(self):
        """Forgets every older revision, so that a watch that resumes from one is told that it is gone."""
        now = self.etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        self.etcd("/v3/kv/compaction", {"revision": now, "physical": True})

    # -- bringing it up ----------------------------------------------------------------------------------------------

    def certificates(self):
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        addresses = [self.address, "127.0.0.1", SERVICES.replace(".0/24", ".1")]
        self.authority.server("apiserver", "/CN=kube-apiserver", addresses, names)
        for name, subject in pki.CLIENTS.items():
            self.authority.client(name, subject)
            self.kubeconfig(name)

    def kubeconfig(self, name: str):
        file = self.folder / f"{name}.conf"
        file.touch(mode=0o600)
        file.write_text(self.authority.kubeconfig(name, self.url))

    def control_plane(self):
        self.run(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
        )
        self.certificates()
        self.until("etcd", "etcd", self.etcd_ready)
        self.apiserver()
        self.until("kube-apiserver", "the API server's /readyz", self.api_ready)
        self.run(
            "kube-controller-manager",
            f"--kubeconfig={self.folder}/controller-manager.conf",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.authority.key('service-accounts')}",
            f"--root-ca-file={self.authority.certificate('ca')}",
            "--allocate-node-cidrs=true",
            f"--cluster-cidr={PODS}",
        )
        self.run(
            "kube-scheduler",
            f"--kubeconfig={self.folder}/scheduler.conf",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        )
        # A namespace's account is made by the controllers: from here on they work.
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--namespace=default", f"--timeout={PATIENCE}s")

    def apiserver(self):
        policy, key = self.folder / "audit.json", self.authority.key
        policy.write_text(json.dumps(AUDIT))
        self.run(
            "kube-apiserver",
            f"--etcd-servers={ETCD}",
            f"--advertise-address={self.address}",
            "--secure-port=6443",
            f"--service-cluster-ip-range={SERVICES}",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={self.authority.certificate('ca')}",
            f"--tls-cert-file={self.authority.certificate('apiserver')}",
            f"--tls-private-key-file={key('apiserver')}",
            # Else logs and exec ask for the node by a name that nobody resolves.
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self.authority.certificate('apiserver-to-kubelet')}",
            f"--kubelet-client-key={key('apiserver-to-kubelet')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key('service-accounts')}",
            f"--service-account-signing-key-file={key('service-accounts')}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.folder}/audit.log",
        )

    # -- commands ----------------------------------------------------------------------------------------------------

    def command(self, words: list[str]):
        match words:
            case ["start", name] if name in self.commands:
                self.start(name)
                ready = {"etcd": self.etcd_ready, "kube-apiserver": self.api_ready}.get(name)
                if ready:
                    self.until(name, name, ready)
            case ["stop", name]:
                self.stop(name)
            case ["pause", name]:
                self.signal(name, signal.SIGSTOP)
            case ["resume", name]:
                self.signal(name, signal.SIGCONT)
            case ["compact"]:
                self.compact()
            case _:
                raise RuntimeError(f"no such command: {' '.join(words)}")

    def serve(self):
        """Answers commands until standard input ends."""
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.reap()
        read, pending = selectors.DefaultSelector(), b""
        read.register(0, selectors.EVENT_READ)
        read.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in read.select():
                if key.fd == wake:
                    os.read(wake, 4096)
                    self.reap()
                    continue
                text = os.read(0, 4096)
                if not text:
                    return
                *lines, pending = (pending + text).split(b"\n")
                for line in lines:
                    answered(lambda: self.command(line.decode().split()))


def answered(work):
    try:
        work()
        say({"ok": True})
    except (RuntimeError, OSError) as e:
        say({"error": str(e)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--link", type=int, nargs=2, required=True, help="descriptors: say that we are here, hear the addresses")
    parser.add_argument("--node", action="store_true")
    parser.add_argument("--product", type=Path)
    a = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(a.link[0], b".")
    address, gateway = os.read(a.link[1], 100).decode().split()
    for end in a.link:
        os.close(end)
    node.private_folders(a.folder)
    node.links(address, gateway)
    try:
        images = node.Images(a.folder, a.product) if a.node else None
        cluster = Cluster(a.folder, a.programs, address, gateway)
        cluster.control_plane()
        if images:
            node.join(cluster, images)
    except (RuntimeError, OSError) as e:
        say({"error": str(e)})
        return 1
    place = {"folder": str(a.folder), "programs": str(a.programs), "kubeconfig": f"{a.folder}/admin.conf"}
    say(place | {"address": address, "gateway": gateway})
    cluster.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The node of a test cluster: containerd, kubelet and kube-proxy, in the cluster's own namespaces.

Lives here: the folders and addresses that the inside sees, the configuration of the three programs, and images that are
imported from files. May use: `image`, and Debian's containerd, runc and CNI plugins. Never: a registry.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import image

NAME = "berth"
SOCKET = "/run/containerd/containerd.sock"
PLUGINS = "/usr/lib/cni"
# What runs inside writes to these by habit; each cluster has its own.
PRIVATE = ("/run", "/var/lib", "/var/log")


def call(*command: str):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def private_folders(folder: Path):
    """Empty folders over the machine's own, seen by this mount namespace alone."""
    resolver = Path("/etc/resolv.conf")
    (folder / "resolv.conf").write_text(resolver.read_text() if resolver.exists() else "")
    for place in PRIVATE:
        own = folder / "root" / place[1:]
        own.mkdir(parents=True)
        call("mount", "--bind", str(own), place)
    (Path("/run") / "lock").mkdir()


def links(address: str, gateway: str):
    """The one link to the machine; the way to everything else goes through it."""
    call("ip", "link", "set", "lo", "up")
    call("ip", "address", "add", f"{address}/30", "dev", "eth0")
    call("ip", "link", "set", "eth0", "up")
    call("ip", "route", "add", "default", "via", gateway)


class Images:
    """The images of a cluster, made while other things start. A failure is told to who waits for them."""

    def __init__(self, folder: Path, product: Path | None):
        self.folder, self.failure = folder, None
        self.archives = {folder / "pause.tar": image.pause}
        if product:
            self.archives[folder / "product.tar"] = lambda out: image.product(out, product)
        self.thread = threading.Thread(target=self.make, daemon=True)
        self.thread.start()

    def make(self):
        try:
            for out, make in self.archives.items():
                make(out)
        except (OSError, subprocess.CalledProcessError) as e:
            self.failure = f"the images cannot be made: {e} {getattr(e, 'stderr', '')}"

    def bring_in(self):
        self.thread.join()
        if self.failure:
            raise RuntimeError(self.failure)
        for archive in self.archives:
            call("ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "import", str(archive))
            archive.unlink()


def join(cluster, images: Images):
    """Starts the node and waits until Kubernetes calls it ready."""
    folder = cluster.folder
    (folder / "cni").mkdir()
    (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(network()))
    (folder / "containerd.toml").write_text(containerd(folder))
    cluster.run("containerd", "--config", str(folder / "containerd.toml"), program="containerd")
    cluster.until("containerd", "containerd", lambda: Path(SOCKET).exists())
    images.bring_in()
    cluster.authority.client("kubelet", f"/O=system:nodes/CN=system:node:{NAME}")
    cluster.kubeconfig("kubelet")
    (folder / "kubelet.json").write_text(json.dumps(kubelet(cluster)))
    cluster.run(
        "kubelet",
        f"--config={folder}/kubelet.json",
        f"--kubeconfig={folder}/kubelet.conf",
        f"--hostname-override={NAME}",
        f"--node-ip={cluster.address}",
    )
    cluster.run(
        "kube-proxy",
        f"--kubeconfig={folder}/proxy.conf",
        f"--hostname-override={NAME}",
        "--proxy-mode=iptables",
        # The machine's limits of connections are not ours to change.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    )
    cluster.kubectl("wait", "--for=create", f"node/{NAME}", "--timeout=120s")
    cluster.kubectl("wait", "--for=condition=Ready", f"node/{NAME}", "--timeout=120s")


def network() -> dict:
    ranges = [[{"subnet": "10.201.0.0/24"}]]
    address = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": address}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}


def containerd(folder: Path) -> str:
    # Without restrict_oom_score_adj no sandbox starts where the machine's root may not lower the score.
    return f"""version = 2
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image.PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def kubelet(cluster) -> dict:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cluster.folder.name}",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": cluster.authority.certificate("ca")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": ["10.200.0.10"],
        "resolvConf": str(cluster.folder / "resolv.conf"),
        "failSwapOn": False,
        # A full disk of the machine is not what is tested.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }

"""A real Kubernetes on this machine, in namespaces of its own: for the tests, and for a person.

Lives here: making the namespaces and the one link into them, taking everything away at the end, and what a person asks
for (`up`, `down`). May use: Python's own library, `unshare`, `ip`. Never: a rule, an address or a port of the machine
beyond that link; nothing is left behind, for the kernel ends what runs in a process namespace with its first process.

`cluster.py serve [--node [--product BINARY]]` runs one until its standard input ends; what it says and hears there is told
in `inside.py`. `cluster.py up` makes one that stays and opens a shell on it; `cluster.py down` ends that one.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import ipaddress
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE / "tools")]
import build as tools  # noqa: E402
import image  # noqa: E402
import node  # noqa: E402

BASE = Path(tempfile.gettempdir()) / "freshet-clusters"
LINKS = ipaddress.ip_network("198.18.0.0/15")  # of nobody: set aside for tests of networks
CGROUPS = Path("/sys/fs/cgroup")
SELF = [sys.executable, str(Path(__file__).resolve())]


def die_with_parent():
    """Runs in a child before its program: the kernel kills it when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


# -- the namespaces and their one link -------------------------------------------------------------------------------


def first_process(unshare: int) -> int | None:
    """The first process of the new namespaces: the one child of `unshare`."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[1] == str(unshare):
                return int(stat.parent.name)
        except OSError:
            continue  # it has ended meanwhile
    return None


def link(unshare: int) -> tuple[str, str]:
    """A pair of devices between the machine and the namespace. The machine's end, by its name, holds the address taken."""
    while True:
        subnet = int(LINKS.network_address) + 4 * random.randrange(LINKS.num_addresses // 4)
        gateway, address = (str(ipaddress.ip_address(subnet + n)) for n in (1, 2))
        name = f"frsh{subnet:x}"
        pair = ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(unshare)]
        made = subprocess.run(pair, capture_output=True, text=True)
        if not made.returncode:
            break
        if "File exists" not in made.stderr:
            raise RuntimeError(made.stderr.strip())
    node.call("ip", "address", "add", f"{gateway}/30", "dev", name)
    node.call("ip", "link", "set", name, "up")
    return address, gateway


class Space:
    """One cluster's folder, locked while the cluster is there."""

    def __init__(self):
        BASE.mkdir(exist_ok=True)
        # Nobody sweeps between the making of a folder and its lock.
        with (BASE / "lock").open("w") as whole:
            fcntl.flock(whole, fcntl.LOCK_EX)
            sweep()
            self.folder = Path(tempfile.mkdtemp(prefix="freshet-", dir=BASE))
            self.lock = (self.folder / "lock").open("w")
            fcntl.flock(self.lock, fcntl.LOCK_EX)

    def cgroup(self):
        for place in cgroups(self.folder.name):
            place.mkdir(exist_ok=True)
            # A cpuset is born empty on the older kind of cgroups, and takes no process before it is filled.
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (place / file).exists() and not (CGROUPS / "cgroup.controllers").exists():
                    (place / file).write_text((place.parent / file).read_text())

    def remove(self):
        remove(self.folder)


def cgroups(name: str) -> list[Path]:
    """Where a cluster's cgroup is: once, or once for each controller on the older kind."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / name]
    return [d / name for d in CGROUPS.iterdir() if d.is_dir() and not d.is_symlink()]


def remove(folder: Path):
    for top in cgroups(folder.name):
        for place, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(place)
            except OSError as e:
                print(f"cluster: {place} stays: {e}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)


def sweep():
    """Removes the folders of clusters whose processes were killed all at once."""
    for folder in BASE.glob("freshet-*"):
        try:
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
        except OSError:
            continue  # it is in use, or somebody else was faster


# -- one cluster, from its beginning to its end -----------------------------------------------------------------------


def serve(want_node: bool, product: Path | None) -> int:
    """Runs a cluster until it ends: by the end of standard input, or by a signal."""
    if os.geteuid():
        raise RuntimeError("its namespaces need root; run this as root")
    for place in (BASE, tools.KEPT.home()):
        if str(place).startswith(tuple(f"{p}/" for p in node.PRIVATE)):
            raise RuntimeError(f"{place}: the cluster sees a folder of its own there; set TMPDIR or FRESHET_CACHE")
    if tools.KEPT.missing((*tools.CONTROL_PLANE, *(tools.NODE if want_node else ()))):
        raise RuntimeError("its programs are not built; run `make cluster-tools`")
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda *_: sys.exit(0))
    space = Space()
    child = None
    try:
        if want_node:
            space.cgroup()
        here, told = os.pipe(), os.pipe()
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        command += [sys.executable, str(HERE / "inside.py"), f"--folder={space.folder}", f"--programs={tools.KEPT.home()}"]
        command += ["--link", str(here[1]), str(told[0])] + (["--node"] if want_node else [])
        command += [f"--product={product.resolve()}"] if product else []
        child = subprocess.Popen(command, pass_fds=(here[1], told[0]), preexec_fn=die_with_parent)
        os.close(here[1])
        os.close(told[0])
        if not os.read(here[0], 1):
            raise RuntimeError("no namespaces can be made here")
        os.write(told[1], " ".join(link(child.pid)).encode())
        return child.wait()
    finally:
        if child:
            end(child)
        space.remove()


def end(unshare: subprocess.Popen):
    """Ends the namespaces by their first process, and waits until nothing runs in them."""
    first = first_process(unshare.pid)
    if first and unshare.poll() is None:
        os.kill(first, signal.SIGKILL)
    unshare.wait()


# -- for a person ----------------------------------------------------------------------------------------------------


class Kept:
    """The cluster that stays: what is known of it is in one folder."""

    def __init__(self, folder: Path):
        self.folder, self.state, self.log = folder, folder / "cluster.json", folder / "cluster.log"

    def known(self) -> dict | None:
        """What it said when it was ready, if it is still there."""
        try:
            known = json.loads(self.state.read_text())
            os.kill(known["pid"], 0)
            return known if Path(known["kubeconfig"]).exists() else None
        except (OSError, ValueError):
            return None

    def start(self, arguments: list[str]) -> dict:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Its two pipes have names, and it holds both ends of each: it hears no end, and never speaks to nobody.
        pipes = [self.pipe(name) for name in ("hears", "says")]
        with self.log.open("w") as log, os.fdopen(os.open(self.folder / "says", os.O_RDONLY)) as says:
            child = subprocess.Popen(
                [*SELF, "serve", *arguments], stdin=pipes[0], stdout=pipes[1], stderr=log, start_new_session=True
            )
            for end in pipes:
                os.close(end)
            line = says.readline()
        told = json.loads(line) if line else {"error": self.log.read_text()}
        if "error" in told:
            child.wait()
            raise SystemExit(f"cluster: {told['error']}")
        told["pid"] = child.pid
        self.state.write_text(json.dumps(told))
        return told

    def pipe(self, name: str) -> int:
        place = self.folder / name
        place.unlink(missing_ok=True)
        os.mkfifo(place, 0o600)
        return os.open(place, os.O_RDWR)

    def down(self):
        known = self.known()
        self.state.unlink(missing_ok=True)
        if not known:
            print("cluster: there is none")
            return
        process = os.pidfd_open(known["pid"])
        signal.pidfd_send_signal(process, signal.SIGTERM)
        select.select([process], [], [])
        print("cluster: ended")


def up(kept: Kept, product: Path | None, chart: Path | None) -> int:
    """The cluster with a node and the resource or the whole chart, and a shell on it where there is a terminal."""
    tools.KEPT.build_missing(tools.PROGRAMS)
    known = kept.known()
    if not known:
        print("cluster: starting …", flush=True)
        known = kept.start(["--node"] + ([f"--product={product}"] if product else []))
    path = [str(tools.KEPT.home()), *([str(product.parent.resolve())] if product else []), os.environ["PATH"]]
    env = os.environ | {"KUBECONFIG": known["kubeconfig"], "KUBECACHEDIR": f"{known['folder']}/cache", "PATH": ":".join(path)}
    for part in ("CACHE", "CONFIG", "DATA"):
        env[f"HELM_{part}_HOME"] = f"{known['folder']}/helm/{part.lower()}"
    for step in installed(chart) if chart else resource():
        code = subprocess.run(step, env=env).returncode
        if code:
            return code
    print(f"cluster: ready. KUBECONFIG={known['kubeconfig']}, kubectl and helm in {tools.KEPT.home()}; `make cluster-down` ends it")
    if sys.stdin.isatty():
        subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=env)
        print("cluster: it stays until `make cluster-down`")
    return 0


def resource() -> list[list[str]]:
    """Commands that bring in the resource alone."""
    crds = ["-f", str(ROOT / "crds")]
    return [["kubectl", "apply", "--server-side", *crds], ["kubectl", "wait", "--for=condition=Established", *crds]]


def installed(chart: Path) -> list[list[str]]:
    """Commands that install the chart with the image of the node, and wait until it runs."""
    repository, tag = image.PRODUCT.rsplit(":", 1)
    values = {"image.repository": repository, "image.tag": tag, "image.pullPolicy": "Never", "replicas": 1}
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    release = ["freshet", str(chart), "--namespace", "freshet", "--create-namespace"]
    return [["helm", "upgrade", "--install", *release, *sets, "--wait", "--timeout=3m"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["serve", "up", "down"])
    parser.add_argument("--node", action="store_true", help="with a node, so that Pods run")
    parser.add_argument("--product", type=Path, help="a binary of Freshet, for the image that Pods run")
    parser.add_argument("--chart", type=Path, help="for `up`: a chart to install with that image, in place of crds/ alone")
    parser.add_argument("--keep-in", type=Path, default=ROOT / "build" / "cluster", help="where `up` and `down` note theirs")
    a = parser.parse_args()
    if a.what == "serve":
        try:
            return serve(a.node, a.product)
        except (RuntimeError, OSError) as e:
            print(json.dumps({"error": str(e)}), flush=True)
            return 1
    kept = Kept(a.keep_in)
    if a.what == "down":
        kept.down()
        return 0
    return up(kept, a.product, a.chart)


if __name__ == "__main__":
    sys.exit(main())

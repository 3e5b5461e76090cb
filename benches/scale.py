"""What many Experiments cost one controller: memory, time until all are Fresh, and what is asked while nothing happens.

    FRESHET=target/release/freshet PY -m benches.scale 1000     (make scale sets everything up)

Lives here: so many tables on a real S3 server, written by pylance, half of them with one pending generation; a real control
plane; the controller as a process of this machine. May use: pylance, the clusters and store servers of the tests. Never: a
limit that fails; it prints what it measured.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

os.environ["RUST_LOG"] = "off"  # Lance complains of every MemWAL table that it opens

import lance  # noqa: E402
import pyarrow as pa  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SPACE = "scale"
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("value", pa.int64())])
QUIET = 150  # until nothing is left to do: drains come after 60 s, and what they left is told within 60 more
WATCHED = 60  # seconds that are counted


@contextmanager
def store(folder: Path):
    """An S3 server; the options that open its tables."""
    script = str(ROOT / "tests" / "stores" / "tools" / "build.py")
    subprocess.run(["python3", script, "versitygw"], check=True, stdout=subprocess.DEVNULL)
    home = subprocess.run(["python3", script, "--print"], check=True, capture_output=True, text=True).stdout.strip()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        at = "127.0.0.1:%d" % held.getsockname()[1]
    secret = uuid.uuid4().hex
    (folder / "root" / "runs").mkdir(parents=True)
    (folder / "beside").mkdir()
    command = [f"{home}/versitygw", "--access", "bench", "--secret", secret, "--quiet", "--keep-alive", "--port", at]
    command += ["posix", "--sidecar", str(folder / "beside"), str(folder / "root")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: not socket.socket().connect_ex((at.split(":")[0], int(at.split(":")[1]))))
        options = {"endpoint": f"http://{at}", "region": "us-east-1", "allow_http": "true"}
        yield options | {"access_key_id": "bench", "secret_access_key": secret}
    finally:
        server.kill()
        server.wait()


@contextmanager
def cluster():
    """A control plane; what it says of itself."""
    command = ["python3", str(ROOT / "tests" / "cluster" / "cluster.py"), "serve"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(child.stdout.readline())
    finally:
        child.stdin.close()
        child.wait()


def wait(ready, patience=300):
    end = time.monotonic() + patience
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


def make(n: int, options: dict):
    uri = f"s3://runs/t{n}"
    table = lance.write_dataset(pa.table({"id": [1, 2, 3], "value": [1, 2, 3]}, schema=SCHEMA), uri, storage_options=options)
    table.initialize_mem_wal(maintained_indexes=[], unsharded=True)
    if n % 2 == 0:
        table = lance.dataset(uri, storage_options=options)
        writer = table.mem_wal_writer(str(uuid.uuid5(uuid.NAMESPACE_OID, uri)), max_wal_flush_interval_ms=2)
        writer.put(pa.table({"id": [3, 4], "value": [9, 9]}, schema=SCHEMA))
        writer.close()


class Kubectl:
    def __init__(self, place: dict):
        self.program = f"{place['programs']}/kubectl"
        self.env = os.environ | {"KUBECONFIG": place["kubeconfig"], "KUBECACHEDIR": f"{place['folder']}/cache"}

    def __call__(self, *args: str, document: dict | None = None) -> str:
        text = json.dumps(document) if document else None
        return subprocess.run([self.program, *args], env=self.env, input=text, check=True, capture_output=True, text=True).stdout

    def fresh(self) -> int:
        of = '{range .items[*]}{.status.conditions[?(@.type=="Fresh")].status}{"\\n"}{end}'
        return self("get", "experiments", "-n", SPACE, "-o", f"jsonpath={of}").splitlines().count("True")


class Controller:
    def __init__(self, env: dict, config: Path):
        command = [os.environ["FRESHET"], "controller", "--output=json", f"--config={config}"]
        command += ["--metrics-address=127.0.0.1:0", "--health-address=127.0.0.1:0"]
        command += [f"--watch-namespace={SPACE}", f"--lease-namespace={SPACE}"]
        self.child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.told = json.loads(self.child.stdout.readline())

    def anonymous(self) -> float:
        """MiB that are no file's: what it holds, without the pages of its code."""
        lines = Path(f"/proc/{self.child.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))

    def seconds(self) -> float:
        """Of processor time."""
        words = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def samples(self, name: str) -> list[float]:
        with urllib.request.urlopen(f"http://{self.told['metrics']}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{")]

    def end(self):
        self.child.terminate()
        self.child.wait()


def asked(folder: str) -> Counter:
    """What the controller asked of the API server so far."""
    events = (json.loads(line) for line in Path(folder, "audit.log").read_text().splitlines() if line.endswith("}"))
    ours = (e for e in events if "kubectl" not in e.get("userAgent", ""))
    return Counter(f"{e['verb']} {e.get('objectRef', {}).get('resource')}" for e in ours)


def main(count: int):
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)))
        options = stack.enter_context(store(folder))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: make(n, options), range(count)))
        print(f"{count} tables are written, {(count + 1) // 2} of them have a pending generation", flush=True)
        place = stack.enter_context(cluster())
        kubectl = Kubectl(place)
        for args in (["apply", "--server-side", "-f", str(ROOT / "crds")], ["create", "namespace", SPACE]):
            kubectl(*args)
        kubectl("wait", "--for=condition=Established", "-f", str(ROOT / "crds"), "--timeout=60s")
        keys = {"aws_access_key_id": options["access_key_id"], "aws_secret_access_key": options["secret_access_key"]}
        meta = {"name": "keys", "namespace": SPACE, "labels": {"freshet.dev/storage": "true"}}
        kubectl("apply", "-f", "-", document={"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": keys})
        config = folder / "config.yaml"
        config.write_text(json.dumps({"storage": {"allowedEndpoints": [options["endpoint"]]}}))
        controller = Controller(kubectl.env, config)
        stack.callback(lambda: controller.end())
        wait(lambda: controller.samples("leader_election_master_status") == [1.0])
        idle = controller.anonymous()
        began = time.monotonic()
        kubectl("apply", "--server-side", "-f", "-", document={"apiVersion": "v1", "kind": "List", "items": [
            experiment(n, options["endpoint"]) for n in range(count)]})  # fmt: skip
        wait(lambda: kubectl.fresh() == count, 900)
        print(f"all Fresh {time.monotonic() - began:.0f} s after `kubectl apply` began", flush=True)
        time.sleep(QUIET)
        before, cpu, requests = asked(place["folder"]), controller.seconds(), sum(controller.samples("freshet_store_requests_total"))
        time.sleep(WATCHED)
        calls = asked(place["folder"]) - before
        requests = sum(controller.samples("freshet_store_requests_total")) - requests
        print(f"while nothing happens, in {WATCHED} s: of the API server {dict(calls)}; of the store {requests / count / WATCHED:.2f}")
        print(f"  requests a table and second; {(controller.seconds() - cpu) / WATCHED:.2f} of a processor")
        print(f"memory: {controller.anonymous():.0f} MiB, {controller.anonymous() - idle:.0f} above the process without any")
        controller.end()
        began = time.monotonic()
        controller = Controller(kubectl.env, config)
        wait(lambda: len(controller.samples("freshet_experiment_observed_timestamp_seconds")) == count, 900)
        print(f"all observed {time.monotonic() - began:.0f} s after a cold start")


def experiment(n: int, endpoint: str) -> dict:
    storage = {"endpoint": endpoint, "region": "us-east-1", "allowHTTP": True}
    spec = {"table": {"uri": f"s3://runs/t{n}", "secretRef": {"name": "keys"}, "storage": storage}}
    meta = {"name": f"t{n}", "namespace": SPACE}
    return {"apiVersion": "freshet.dev/v1alpha1", "kind": "Experiment", "metadata": meta, "spec": spec}


if __name__ == "__main__":
    main(int(sys.argv[1]))

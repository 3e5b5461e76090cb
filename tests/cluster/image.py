"""Images without a container engine and without a registry: an archive that `ctr images import` reads.

Lives here: the two images of the test cluster, made of files of this machine: the pause image, and the product's with
the libraries its binary needs. May use: Python's own library, `cc`, `strip`, `ldd`. Never: a download, or a time of day
in an image: the same files make the same image.

`image.py OUT.tar BINARY [NAME:TAG]` makes the product's image.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAUSE = "localhost/pause:1"
PRODUCT = "localhost/freshet:test"
USER = "65532:65532"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PASSWD = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


class Layer:
    """Files of one layer, added as they are."""

    def __init__(self, file: Path):
        self.file, self.made = file, set()
        self.tar = tarfile.open(file, "w")

    def parents(self, place: str):
        for parent in reversed(Path(place.lstrip("/")).parents[:-1]):
            self.folder(str(parent))

    def folder(self, place: str, mode=0o755):
        name = place.lstrip("/")
        if name not in self.made:
            self.made.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, mode
            self.tar.addfile(info)

    def add(self, place: str, content: bytes, mode=0o644):
        self.parents(place)
        info = tarfile.TarInfo(place.lstrip("/"))
        info.size, info.mode = len(content), mode
        self.tar.addfile(info, io.BytesIO(content))

    def program(self, place: str, file: Path):
        self.parents(place)
        info = tarfile.TarInfo(place.lstrip("/"))
        info.size, info.mode = file.stat().st_size, 0o755
        with file.open("rb") as content:
            self.tar.addfile(info, content)


def archive(out: Path, name: str, config: dict, fill):
    """An image of one layer that `fill(layer)` fills, under `name`."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        layer = Layer(Path(folder) / "layer.tar")
        fill(layer)
        layer.tar.close()
        with layer.file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[run("uname", "-m").strip()]
        whole = {"architecture": machine, "os": "linux", "config": config}
        whole |= {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
        text = json.dumps(whole).encode()
        described = f"{hashlib.sha256(text).hexdigest()}.json"
        manifest = [{"Config": described, "RepoTags": [name], "Layers": ["layer.tar"]}]
        half = out.with_suffix(".half")
        with tarfile.open(half, "w") as tar:
            for entry, content in ((described, text), ("manifest.json", json.dumps(manifest).encode())):
                info = tarfile.TarInfo(entry)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            info = tarfile.TarInfo("layer.tar")
            info.size = layer.file.stat().st_size
            with layer.file.open("rb") as content:
                tar.addfile(info, content)
        half.rename(out)


def pause(out: Path):
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pause"
        run("cc", "-static", "-Os", "-s", "-o", str(program), str(HERE / "pause.c"))
        archive(out, PAUSE, {"Entrypoint": ["/pause"], "User": USER}, lambda layer: layer.program("/pause", program))


def libraries(binary: Path) -> list[Path]:
    """What the loader loads for it, the loader itself too, at the places where it looks for them."""
    return [Path(p) for p in re.findall(r"(/\S+) \(0x", run("ldd", str(binary)))]


def product(out: Path, binary: Path, name: str = PRODUCT):
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        small = Path(folder) / "freshet"
        run("strip", "-o", str(small), str(binary))

        def fill(layer: Layer):
            for library in libraries(binary):
                layer.program(str(library), library.resolve())
            if Path(CERTIFICATES).exists():
                layer.add(CERTIFICATES, Path(CERTIFICATES).read_bytes())
            layer.add("/etc/passwd", PASSWD.encode())
            layer.folder("/tmp", 0o1777)
            layer.program("/usr/bin/freshet", small)

        archive(out, name, {"Entrypoint": ["/usr/bin/freshet"], "User": USER, "Env": ["PATH=/usr/bin:/bin"]}, fill)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    product(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])

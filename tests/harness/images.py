"""Container images of the project, built with buildah and run by runc: as a non-root user, on a read-only root file
system. Mounts are in namespaces of the commands that need them, so a killed test leaves none."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

from harness.machine import debian_root
from harness.manifests import DEPLOY
from harness.processes import Daemon
from harness.programs import ROOT

DOCKERFILE = DEPLOY / "container/Dockerfile"


def collected(out):
    """Runs the first stage's commands that fill /out, with the programs built on this machine."""
    stage = DOCKERFILE.read_text().replace("\\\n", " ").split("\nFROM ")[1]
    build, = [line.removeprefix("RUN ") for line in stage.splitlines() if "bazel build" in line]
    commands = [each for each in re.split(r"\s+&&\s+", build) if "/out" in each]
    subprocess.run(["sh", "-ec", "\n".join(commands).replace("/out", str(out))], cwd=ROOT, check=True)


class Images:
    """Images in one directory. tests/debian/build provides the base in place of debian:12-slim, which would need a
    registry."""

    BASE = "localhost/debian:12-slim"

    def __init__(self, directory, mark):
        for each in ("buildah", "runc"):
            if not shutil.which(each):
                pytest.skip(f"{each} is not installed (Debian package {each})")
        self._directory, self._mark = directory, mark
        self._buildah = f"buildah --root {directory}/store --runroot {directory}/run --storage-driver overlay"
        self._sh(f"""c=$($B from scratch); cp -a {debian_root("slim")}/. "$($B mount $c)"; $B commit --rm --quiet $c {self.BASE}""")

    def _sh(self, script):
        """Runs a script in a mount namespace and returns its stdout. $B is buildah."""
        done = subprocess.run(["unshare", "--mount", "bash", "-ec", f"B='{self._buildah}'\n{script}"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def build(self, context, *targets):
        """Builds stages of the Dockerfile. `context` replaces the first stage, which takes an hour."""
        text = re.sub(r"^FROM \S+ AS build\n.*?(?=^FROM )", "FROM scratch AS build\nCOPY . /out/\n", DOCKERFILE.read_text(),
                      flags=re.MULTILINE | re.DOTALL)
        assert "bazel" not in text.split("FROM", 1)[1]
        file = self._directory / "Dockerfile"
        file.write_text(text)
        for target in targets:
            self._sh(f"$B build --isolation chroot --file {file} --build-arg BASE={self.BASE} --target {target} --tag {target} {context}")

    def of_program(self, path, image):
        """Image that contains one static program."""
        self._sh(f"""c=$($B from scratch); $B copy --quiet $c {path} /program; $B config --entrypoint '["/program"]' $c
            $B commit --rm --quiet $c localhost/{image}""")

    def saved(self, image, name, path):
        """Saves the image under this name to a file that container runtimes can import."""
        self._sh(f"$B push --quiet localhost/{image} docker-archive:{path}:{name}")

    def within(self, image, script):
        """Runs a script on the image's files, which are mounted at $root. Returns its stdout."""
        return self._sh(f'c=$($B from --pull-never localhost/{image}); root=$($B mount $c)\n{script}\n$B rm $c >/dev/null')

    def bytes_of(self, image):
        return int(self.within(image, "du --summarize --apparent-size --block-size 1 $root | cut -f 1"))

    def started(self, image, name, arguments=(), mounts=(), network=None, env=()):
        """Starts a container as a Daemon. `mounts`: [(source, destination, read-only)]. `network`: pid whose network
        namespace it joins."""
        config = json.loads(self._sh(f"$B inspect --type image localhost/{image}"))["OCIv1"]["config"]
        bundle = self._directory / name
        (bundle / "rootfs").mkdir(parents=True)
        subprocess.run(["runc", "spec"], cwd=bundle, check=True)
        spec = json.loads((bundle / "config.json").read_text())
        user, group = (int(each) for each in config["User"].split(":"))
        spec["process"].update(terminal=False, user={"uid": user, "gid": group}, capabilities={}, rlimits=[],
                               args=[*config["Entrypoint"], *(arguments or config.get("Cmd", []))], env=[*config["Env"], *env])
        assert spec["process"]["noNewPrivileges"] and spec["root"]["readonly"]
        spec["mounts"] += [{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}]
        spec["mounts"] += [{"destination": str(there), "type": "bind", "source": str(here), "options": ["rbind", "ro" if only else "rw"]}
                           for here, there, only in mounts]
        network_path = {"path": f"/proc/{network}/ns/net"} if network else {}
        spec["linux"]["namespaces"] = [{**each, **network_path} if each["type"] == "network" else each
                                       for each in spec["linux"]["namespaces"]]
        (bundle / "config.json").write_text(json.dumps(spec))
        return Daemon(name, ["unshare", "--mount", "bash", "-ec", f"""B='{self._buildah}'; cd {bundle}
            mount --bind "$($B mount $($B from --pull-never localhost/{image}))" rootfs
            exec runc --root {self._directory}/runc run {name}-{self._mark[:8]}"""], self._directory / f"{name}.log", self._mark)

    def remove(self):
        subprocess.run(["unshare", "--mount", "sh", "-c", f"{self._buildah} rm --all; {self._buildah} rmi --all --force"],
                       capture_output=True)
        shutil.rmtree(self._directory / "store", ignore_errors=True)

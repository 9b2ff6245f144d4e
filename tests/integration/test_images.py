"""Tests of the images of deploy/container: size, content, and a job that trains in their containers. Only the first
build stage is not run: its output is taken from this machine."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

from harness.images import Images, collected
from harness.manifests import DEPLOY
from harness.processes import Daemon, descendants
from harness.programs import ROOT, program
from harness.security import Security
from harness.specs import one_rank
from harness.wait import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
USER = 65532
SITE = next((ROOT / ".python").resolve().glob("lib/python3*/site-packages"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    for each in ("coordinator/fsdpd-coordinator", "agent/fsdpd-agent", "fsdp/fsdpd-rank", "client/fsdpctl"):
        program(each)
    directory = tmp_path_factory.mktemp("images")
    made = Images(directory, "images")
    try:
        collected(directory / "out")
        made.build(directory / "out", "coordinator", "agent", "fsdpctl")
        yield made
    finally:
        made.remove()
        shutil.rmtree(directory / "out", ignore_errors=True)


def test_images_are_within_documented_sizes(images):
    sizes = {image: images.bytes_of(image) for image in ("coordinator", "fsdpctl", "agent")}
    print({image: f"{size / 1e6:.0f} MB" for image, size in sizes.items()})
    assert sizes["coordinator"] < 60e6 and sizes["fsdpctl"] < 60e6 and 0.4e9 < sizes["agent"] < 0.7e9, sizes


def test_gpu_agent_image_is_within_bound(images, tmp_path):
    """Uses a program linked with LibTorch's GPU libraries in place of the GPU rank, which would have to be built."""
    rank, out = tmp_path / "rank", tmp_path / "out"
    subprocess.run(["gcc", "-x", "c", "-", "-x", "none", "-o", rank, "-Wl,--no-as-needed,--allow-shlib-undefined",
                    f"-Wl,-rpath,{SITE}/torch/lib", *(SITE / f"torch/lib/libtorch{part}.so" for part in ("_cuda", "_cpu"))],
                   input="int main(void) { return 0; }", text=True, check=True)
    try:
        subprocess.run([DEPLOY / "container/collect_libtorch", ROOT / ".python", out, rank], check=True)
        libraries = sum(each.lstat().st_size for each in out.rglob("*") if not each.is_dir())
    finally:
        shutil.rmtree(out)
    without = images.bytes_of("agent") - int(images.within("agent", f"du --summarize --apparent-size --block-size 1 $root{SITE} | cut -f 1"))
    print(f"{libraries / 1e9:.2f} GB of libraries, {without / 1e9:.2f} GB beside them")
    assert 2e9 < libraries < libraries + without < 4.5e9


def test_image_sbom_has_debian_packages(images):
    def bill(image):
        return {each["name"]: each["versionInfo"] for each in
                json.loads(images.within(image, "deploy/packages/sbom --root $root"))["packages"]}
    agent = bill("agent")
    assert {"libc6", "libprometheus-cpp-pull1.0", "grpc", "torch"} <= set(agent) and "nvidia-nccl-cu13" not in agent
    assert agent["libc6"] in images.within("agent", "cat $root/var/lib/dpkg/status")
    assert "grpc" in bill("coordinator") and "libc6" not in bill("coordinator")


@pytest.fixture
def network():
    """A process with a network namespace that containers share like a pod; returns its pid."""
    holder = Daemon("network", ["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep 600"], os.devnull, "images")
    wait_until("it has a network", lambda: "LOOPBACK,UP" in inside(holder.pid, "ip", "link").stdout)
    yield holder.pid
    holder.kill()


def inside(pid, *command):
    return subprocess.run(["nsenter", f"--target={pid}", "--net", *command], capture_output=True, text=True)


def owned(path):
    """Makes a directory readable and writable for the user of the images."""
    path.mkdir(exist_ok=True)
    for each in [path, *path.rglob("*")]:
        os.chown(each, USER, USER)
    return path


def test_job_trains_in_read_only_containers(images, network, tmp_path):
    security = Security(tmp_path / "security", names=("coordinator",))
    security.agent_flags("node-0")
    spec = tmp_path / "job.yaml"
    spec.write_text(yaml.safe_dump(one_rank(steps=3)))
    spec.chmod(0o644)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 coordinator localhost\n")
    for each in (tmp_path / "security", tmp_path / "state", tmp_path / "work"):
        owned(each)
    tls, names = (security.pki, "/etc/fsdpd/tls", True), (hosts, "/etc/hosts", True)
    token = security.token_file("ada")

    def ctl(name, *arguments):
        container = images.started("fsdpctl", name, ["--server", "coordinator:7777", *arguments], network=network, mounts=[
            tls, names, (token, "/token", True), (spec, "/job.yaml", True)],
            env=["FSDPD_COORDINATOR_CA=/etc/fsdpd/tls/ca.crt", "FSDPD_TOKEN_FILE=/token"])
        return container.wait(), container.text()

    # Both as docs/deploy.md has them: the coordinator by the command of its image.
    coordinator = images.started("coordinator", "coordinator", network=network, mounts=[
        tls, names, (security.tokens, "/etc/fsdpd/tokens", True), (tmp_path / "state", "/var/lib/fsdpd", False)])
    started = re.search(r"fsdpd-agent:0\.1\.0 \\\n((?:.*\\\n)*.*)", (ROOT / "docs/deploy.md").read_text())[1]
    agent = images.started("agent", "agent", [*started.replace("\\\n", " ").split(), "--device", "cpu", "--slots", "1"], network=network,
                           mounts=[tls, names, (tmp_path / "work", "/var/lib/fsdpd", False)])
    try:
        wait_until("the agent is attached", lambda: "agent attached node=node-0" in coordinator.text())
        code, output = ctl("submit", "submit", "-f", "/job.yaml", "--follow")
        assert code == 0, output + agent.text() + coordinator.text()
        status = pathlib.Path(f"/proc/{main_process(agent)}/status").read_text()
        assert f"Uid:\t{USER}\t" in status and "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
    finally:
        codes = [each.stop() for each in (agent, coordinator)]
    assert codes == [0, 0], agent.text() + coordinator.text()


def main_process(container):
    """Returns the pid of the container's program in the host's namespace."""
    return next(each.pid for each in descendants(container.pid) if each.program.startswith("fsdpd-"))

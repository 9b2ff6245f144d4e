"""Tests of the coordinator's arguments in deploy/, for Kubernetes and systemd: the web UI is on loopback and requires a
token, and quotas are read."""

import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from harness.manifests import CHART, DEPLOY, helm, named, objects, of_overlay, pod_specs
from harness.programs import ROOT, program
from harness.wait import wait_until

TWO_QUOTAS = ["--set", "quotas.vision=64,quotas.nlp=0"]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """Files that an installation creates first: certificates and the line of a token."""
    directory = tmp_path_factory.mktemp("secrets")
    subprocess.run([DEPLOY / "certificates", directory / "pki", "coordinator", "localhost", "127.0.0.1"], check=True)
    line = subprocess.run([program("client/fsdpctl"), "token", "new", "me", "--role", "viewer", "--out", directory / "me.token"],
                          capture_output=True, text=True, check=True).stdout
    (directory / "tokens").write_text(line)
    return directory


def chart(*values):
    done = helm("template", "fsdpd", CHART, "--namespace", "fsdpd", *values)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def of_pod(made, secrets, directory):
    """Arguments of a container, with its mounts replaced by test directories."""
    for name in ("tls", "people", "quotas", "revoked", "state"):
        (directory / name).mkdir()
    for key, file in {"ca.crt": "ca.crt", "tls.crt": "coordinator.crt", "tls.key": "coordinator.key"}.items():
        shutil.copy(secrets / "pki" / file, directory / "tls" / key)
    shutil.copy(secrets / "tokens", directory / "people")
    for name, mount in (("fsdpd-quotas", "quotas"), ("fsdpd-revoked-certificates", "revoked")):
        for key, text in named(made, "ConfigMap", name)["data"].items():
            (directory / mount / key).write_text(text)
    spec = pod_specs(made)["fsdpd-coordinator"]
    arguments = "\n".join(spec["containers"][0]["args"])
    for mount in spec["containers"][0]["volumeMounts"]:
        arguments = arguments.replace(mount["mountPath"], str(directory / mount["name"]))
    return arguments.split("\n")


def of_unit(secrets, directory, **changed):
    """Command line of the unit, expanded from coordinator.env as systemd does."""
    (directory / "etc/tls").mkdir(parents=True)
    for file in ("coordinator.crt", "coordinator.key"):
        shutil.copy(secrets / "pki" / file, directory / "etc/tls")
    shutil.copy(secrets / "pki/ca.crt", directory / "etc/tls")
    shutil.copy(secrets / "tokens", directory / "etc")
    settings = dict(re.findall(r"^(FSDPD_\w+)=(.*)$", (DEPLOY / "systemd/coordinator.env").read_text(), re.MULTILINE))
    settings |= changed
    unit = (DEPLOY / "systemd/fsdpd-coordinator.service").read_text()
    line = re.search(r"^ExecStart=\S+ ((?:.*\\\n)*.*)$", unit, re.MULTILINE)[1].replace("\\\n", " ").replace("%S", str(directory))
    line = re.sub(r"\$\{?(\w+)\}?", lambda name: settings[name[1]], line)
    return shlex.split(line.replace("/etc/fsdpd", str(directory / "etc")).replace("/var/lib", str(directory)))


class Coordinator:
    """Runs within `with`, on free ports."""

    def __init__(self, arguments, directory):
        self.log = directory / "log"
        self.ports = {number: str(free_port()) for number in ("7777", "7779", "7780", "7781")}
        (directory / "fsdpd-coordinator").mkdir(exist_ok=True)
        text = re.sub(r"\b(?:0\.0\.0\.0|127\.0\.0\.1):(\d+)", lambda found: f"127.0.0.1:{self.ports[found[1]]}",
                      "\n".join(arguments))
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen([program("coordinator/fsdpd-coordinator"), *text.split("\n")], stderr=log)

    def __enter__(self):
        try:
            wait_until("the coordinator serves, or has ended",
                       lambda: self._process.poll() is not None or "coordinator: serving" in self.output())
        except BaseException:
            self._process.kill()
            raise
        assert self._process.poll() is None, self.output()
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(timeout=30) == 0, self.output()

    def output(self):
        return self.log.read_text()

    def ended(self):
        return self._process.wait(timeout=30), self.output()

    def page(self, secrets, path, token=None):
        """Returns the HTTP status."""
        requested = urllib.request.Request(f"https://127.0.0.1:{self.ports['7781']}{path}")
        if token:
            requested.add_header("Authorization", f"Bearer {token}")
        try:
            trusted = ssl.create_default_context(cafile=secrets / "pki/ca.crt")
            with urllib.request.urlopen(requested, context=trusted, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as refused:
            return refused.code


def check_page(coordinator, secrets):
    assert coordinator.page(secrets, "/") == 200
    assert coordinator.page(secrets, "/api/ListJobs?q={}") == 401
    assert coordinator.page(secrets, "/api/ListJobs?q={}", (secrets / "me.token").read_text().strip()) == 200


@pytest.mark.parametrize("made", ["overlay", "chart"])
def test_kubernetes_arguments(made, secrets, tmp_path):
    arguments = of_pod(of_overlay("cpu-test") if made == "overlay" else chart(*TWO_QUOTAS), secrets, tmp_path)
    # An address other than loopback would be open to every client that reaches the pod.
    assert "--web-listen=127.0.0.1:7781" in arguments
    with Coordinator(arguments, tmp_path) as coordinator:
        check_page(coordinator, secrets)


def test_chart_quotas_are_readable(secrets, tmp_path):
    made = chart(*TWO_QUOTAS)
    text = named(made, "ConfigMap", "fsdpd-quotas")["data"]["quotas"]
    assert text == "# PROJECT RANKS\nnlp 0\nvision 64\n"
    assert named(of_overlay("gpu"), "ConfigMap", "fsdpd-quotas")["data"] == {"quotas": "# PROJECT RANKS\n"}
    arguments = of_pod(made, secrets, tmp_path)
    (tmp_path / "quotas/quotas").write_text(text + "vision many\n")
    code, output = Coordinator(arguments, tmp_path).ended()
    assert code != 0 and f"{tmp_path}/quotas/quotas: line 4: " in output


def test_without_web_ui(secrets, tmp_path):
    arguments = of_pod(chart("--set", "coordinator.webListen="), secrets, tmp_path)
    assert not [each for each in arguments if each.startswith("--web-listen")]
    with Coordinator(arguments, tmp_path) as coordinator:
        assert "serving web UI" not in coordinator.output()


def test_systemd_arguments(secrets, tmp_path):
    with Coordinator(of_unit(secrets, tmp_path), tmp_path) as coordinator:
        check_page(coordinator, secrets)


def test_systemd_arguments_with_quotas_without_web_ui(secrets, tmp_path):
    reported = (DEPLOY / "systemd/coordinator.env").read_text()
    flag = re.search(r"--quotas /etc/fsdpd/quotas\b", reported)[0]
    arguments = of_unit(secrets, tmp_path, FSDPD_QUOTAS=flag, FSDPD_WEB="")
    (tmp_path / "etc/quotas").write_text("vision many\n")
    code, output = Coordinator(arguments, tmp_path).ended()
    assert code != 0 and f"{tmp_path}/etc/quotas: line 1: " in output
    (tmp_path / "etc/quotas").write_text("vision 64\n")
    with Coordinator(arguments, tmp_path) as coordinator:
        assert "serving web UI" not in coordinator.output()
    assert "FSDPD_QUOTAS" in (ROOT / "docs/deploy.md").read_text()

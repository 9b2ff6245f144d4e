"""Tests that the files of deploy/ for systemd and containers are valid and use existing flags, and that the example job
specs are accepted. test_kubernetes.py tests the Kubernetes files."""

import configparser
import json
import os
import re
import shutil
import subprocess

import pytest

from harness.manifests import DEPLOY, named, of_overlay, pod_specs
from harness.programs import ROOT, program

PROGRAMS = {"fsdpd-coordinator": "coordinator/fsdpd-coordinator", "fsdpd-agent": "agent/fsdpd-agent"}
SYSTEMD_EXPOSURE_LIMIT = {"fsdpd-coordinator": 20, "fsdpd-agent": 45}  # Tenths of systemd-analyze's scale, 0 to 10.


# Flags ---------------------------------------------------------------------------------------------------------------


def flags_in_manifests(name):
    for overlay in ("gpu", "ha-etcd"):
        yield from pod_specs(of_overlay(overlay))[name]["containers"][0]["args"]
    unit = (DEPLOY / f"systemd/{name}.service").read_text()
    yield from re.search(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)[1].split()
    dockerfile = (DEPLOY / "container/Dockerfile").read_text()
    stage = dockerfile.split(f'ENTRYPOINT ["/usr/local/bin/{name}"]')[1].split("FROM")[0]
    yield from re.findall(r'"(--[a-z-]+)"', stage)


def test_metrics_port_differs_from_dcgm_exporter():
    """DCGM's exporter, which most GPU nodes run, listens on 9400."""
    agent = named(of_overlay("gpu"), "DaemonSet", "fsdpd-agent")["spec"]["template"]
    port = agent["metadata"]["annotations"]["prometheus.io/port"]
    assert port != "9400"
    assert f"--metrics-listen=0.0.0.0:{port}" in agent["spec"]["containers"][0]["args"]
    assert {"name": "metrics", "containerPort": int(port)} in agent["spec"]["containers"][0]["ports"]
    policy = named(of_overlay("gpu"), "NetworkPolicy", "fsdpd-agent")["spec"]["ingress"]
    assert [{"port": int(port)}] in [rule.get("ports") for rule in policy]
    for place, output in [("deploy/systemd/agent.env", f"FSDPD_METRICS_LISTEN=0.0.0.0:{port}\n"),
                        ("deploy/container/Dockerfile", f"\nEXPOSE {port}\n"),
                        ("docs/deploy.md", f"--metrics-listen 0.0.0.0:{port} "),
                        ("dashboards/prometheus.yml", f"node1:{port}")]:
        assert output in (ROOT / place).read_text(), place


def test_coordinator_metrics_have_one_port():
    coordinator = named(of_overlay("gpu"), "StatefulSet", "fsdpd-coordinator")["spec"]["template"]
    port = coordinator["metadata"]["annotations"]["prometheus.io/port"]
    assert f"--metrics-listen=0.0.0.0:{port}" in coordinator["spec"]["containers"][0]["args"]
    policy = named(of_overlay("gpu"), "NetworkPolicy", "fsdpd-coordinator")["spec"]["ingress"]
    assert [{"port": int(port)}] in [rule.get("ports") for rule in policy]
    for place, output in [("deploy/systemd/coordinator.env", f"--metrics-listen 0.0.0.0:{port}\n"),
                        ("docs/deploy.md", f"`--metrics-listen` ({port} in the shipped"),
                        ("dashboards/prometheus.yml", f"coordinator:{port}")]:
        assert output in (ROOT / place).read_text(), place


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_flag_exists(name):
    help_text = subprocess.run([program(PROGRAMS[name]), "--help"], capture_output=True, text=True).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", help_text))
    requested = {arg.split("=")[0] for arg in flags_in_manifests(name) if arg.startswith("--")}
    assert requested and requested <= known, f"{name} has no {requested - known}"


# systemd -------------------------------------------------------------------------------------------------------------


def installed(name, tmp_path):
    """The unit as systemd loads it on a machine with the program."""
    unit = tmp_path / f"{name}.service"
    text = (DEPLOY / f"systemd/{name}.service").read_text()
    unit.write_text(re.sub(rf"/usr/local/bin/{name}|/usr/bin/nvidia-modprobe", "/bin/true", text))
    return unit


def analyze(*arguments):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed (Debian package systemd)")
    done = subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", [*PROGRAMS, "fsdpd-devices"])
def test_systemd_accepts_unit(name, tmp_path):
    code, output = analyze("verify", "--man=no", installed(name, tmp_path))
    # It reads the machine's own units too; what it says against those is not ours.
    ours = [line for line in output.splitlines() if name in line]
    assert not ours and (code == 0 or output), output


@pytest.mark.parametrize("name, key", [("fsdpd-agent", "KillMode"), ("fsdpd-devices", "RemainAfterExit")])
def test_detects_typo_in_unit(tmp_path, name, key):
    unit = installed(name, tmp_path)
    unit.write_text(unit.read_text().replace(f"{key}=", f"{key}s="))
    assert f"{key}s" in analyze("verify", "--man=no", unit)[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_units_are_confined(name, tmp_path):
    code, output = analyze("security", "--offline=true", f"--threshold={SYSTEMD_EXPOSURE_LIMIT[name]}", "--no-pager",
                         installed(name, tmp_path))
    assert code == 0, output


STOP_LIMIT_MS = 30000  # kStopLimit of agent/main.cc: how long the agent continues to stop ranks after their grace period.


def test_stop_timeout_covers_save():
    """Regression: ranks had 5 s of their pod's 120 s."""
    def leave_time(arguments):
        return int(re.search(r"--grace-ms[= ](\d+)", arguments)[1]) + STOP_LIMIT_MS
    unit, settings = (DEPLOY / f"systemd/{name}" for name in ("fsdpd-agent.service", "agent.env"))
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit.read_text())[1]) * 1000 > leave_time(settings.read_text())
    started = re.search(r"docker run .*fsdpd-agent(.|\n)*?--grace-ms \d+", (ROOT / "docs/deploy.md").read_text())[0]
    assert int(re.search(r"--stop-timeout (\d+)", started)[1]) * 1000 > leave_time(started)
    assert "kStopLimit = absl::Seconds(30)" in (ROOT / "agent/main.cc").read_text()


def test_agent_starts_after_devices():
    unit = (DEPLOY / "systemd/fsdpd-agent.service").read_text()
    assert all(re.search(rf"^{key}=.*\bfsdpd-devices.service", unit, re.MULTILINE) for key in ("Wants", "After"))
    devices = (DEPLOY / "systemd/fsdpd-devices.service").read_text()
    assert "Type=oneshot" in devices and "ExecStart=-/usr/bin/nvidia-modprobe" in devices


@pytest.mark.parametrize("name", PROGRAMS)
def test_unit_variables_have_defaults(name):
    unit = (DEPLOY / f"systemd/{name}.service").read_text()
    settings = (DEPLOY / f"systemd/{name.removeprefix('fsdpd-')}.env").read_text()
    used = set(re.findall(r"\$\{?(FSDPD_\w+)", unit))
    assert used and used == set(re.findall(r"^(FSDPD_\w+)=", settings, re.MULTILINE))


@pytest.mark.parametrize("name", PROGRAMS)
def test_daemon_restarts_until_port_is_free(name):
    """Regression: systemd's default limit of five starts in ten seconds left the unit failed."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / f"systemd/{name}.service")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert (unit["Service"]["Restart"], unit["Service"]["RestartPreventExitStatus"]) == ("always", "2")


def test_documented_command_creates_user(tmp_path):
    """Runs the documented commands with an empty root, so that existing users of this machine do not matter."""
    if not shutil.which("systemd-sysusers"):
        pytest.skip("systemd-sysusers is not installed (Debian package systemd)")
    commands = [line.split()[1:] for line in (ROOT / "docs/deploy.md").read_text().splitlines()
                if line.startswith("sudo ") and "sysusers" in line]
    assert [command[0] for command in commands] == ["install", "systemd-sysusers"], commands
    install, make = commands
    subprocess.run([*install[:-1], f"{tmp_path}{install[-1]}"], cwd=ROOT, check=True)
    done = subprocess.run([*make, "--dry-run", f"--root={tmp_path}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "Creating user 'fsdpd'" in done.stderr, done.stderr
    for name in PROGRAMS:
        assert "\nUser=fsdpd\n" in (DEPLOY / f"systemd/{name}.service").read_text()


# Job specs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", sorted((DEPLOY / "examples").glob("*.yaml")), ids=lambda spec: spec.name)
def test_example_has_no_warnings(spec):
    done = subprocess.run([program("client/fsdpctl"), "validate", "--offline", "-o", "json", "-f", spec],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The quickstart writes the token file of its spec later, next to its copy.
    assert not [fault for fault in json.loads(done.stdout)["violations"] if fault["rule"] != "token_file_here"], done.stdout


# Containers ----------------------------------------------------------------------------------------------------------


def test_dockerfile_sources_exist():
    sources = [word for line in (DEPLOY / "container/Dockerfile").read_text().splitlines()
               if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]]
    assert sources and all((ROOT / source).exists() for source in sources), sources


def test_stages_are_defined_before_use():
    known = set()
    for line in (DEPLOY / "container/Dockerfile").read_text().splitlines():
        words = line.split()
        if line.startswith("FROM "):
            assert words[1] in known | {"scratch", "${BASE}"}, line
            known.add(words[3])
        for stage in re.findall(r"--from=(\w+)", line):
            assert stage in known, line
    assert {"coordinator", "agent", "fsdpctl"} <= known


def stages():
    """Returns {name: lines}, with continued lines joined."""
    found = {}
    for line in (DEPLOY / "container/Dockerfile").read_text().replace("\\\n", " ").splitlines():
        if line.startswith("FROM "):
            found[line.split()[3]] = lines = []
        elif found and not line.startswith("#"):
            lines.append(line)
    return found


@pytest.mark.parametrize("stage", ["coordinator", "agent"])
def test_new_volume_belongs_to_user(stage):
    """A volume inherits the owner of the image's directory, which must exist before VOLUME; otherwise root owns it."""
    lines = stages()[stage]
    user = next(line.split()[1] for line in lines if line.startswith("USER "))
    volume = next(line.split()[1] for line in lines if line.startswith("VOLUME "))
    copied = f"COPY --from=build --chown={user} /out/state {volume}"
    assert lines.index(copied) < lines.index(f"VOLUME {volume}"), lines
    assert any("install -d -m 700 /out/state" in line for line in stages()["build"])


def test_images_do_not_request_gpus():
    """Regression: a container had all GPUs of its node, regardless of its request."""
    assert not [line for lines in stages().values() for line in lines if "NVIDIA_VISIBLE_DEVICES" in line]


SITE = "environment/lib/python3.11/site-packages"


def shared_object(path, *needs):
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = ["-shared", "-fPIC"] if ".so" in path.name else ["-Wl,-e,0", "-nostartfiles"]
    subprocess.run(["gcc", "-x", "c", *kind, "-nodefaultlibs", "-Wl,--no-as-needed", f"-Wl,-soname,{path.name}", "-o", path, "/dev/null", "-x", "none",
                    *[part for each in needs for part in (each, f"-Wl,-rpath,{each.parent}")]], check=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_collect_libtorch_accepts_relative_directory(tmp_path, device):
    """Regression: the script changed directory first and wrote 3.6 GB into the shared environment; the image for CPU
    ranks also had all of it."""
    site = tmp_path / SITE
    torch = {name: site / f"torch/lib/libtorch_{name}.so" for name in ("cpu", "cuda")}
    by_name = site / "nvidia/cudnn/lib/libcudnn_ops.so.9"  # Opened at run time, not linked.
    for library in [*torch.values(), by_name]:
        shared_object(library)
    for name in ("torch/lib/libtorch_cpu.a", "torch/include/torch.h"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(name)
    rank = tmp_path / "rank"
    shared_object(rank, *{"cpu": [torch["cpu"]], "cuda": torch.values()}[device])
    before = sorted(site.rglob("*"))
    (tmp_path / "caller").mkdir()
    subprocess.run([DEPLOY / "container/collect_libtorch", "../environment", "out/here", rank], cwd=tmp_path / "caller",
                   check=True)
    assert sorted(site.rglob("*")) == before
    found = tmp_path / f"caller/out/here{site}"
    shipped = {found / each.relative_to(site) for each in ([torch["cpu"]] if device == "cpu" else [*torch.values(), by_name])}
    assert {each for each in found.rglob("*") if each.is_file()} == shipped


@pytest.mark.parametrize("name", ["coordinator/fsdpd-coordinator", "client/fsdpctl"])
def test_collected_program_is_root_file_system(name, tmp_path):
    """For images with only this program; 60 MB is the limit of such an image."""
    subprocess.run([DEPLOY / "container/collect_program", program(name), tmp_path], check=True)
    assert sum(each.stat().st_size for each in tmp_path.rglob("*") if each.is_file()) < 60e6
    if os.geteuid() != 0:
        pytest.skip("another root directory takes root")
    output = subprocess.run(["chroot", tmp_path, f"/usr/local/bin/{name.split('/')[1]}", "--help"], capture_output=True,
                          text=True)
    assert output.returncode == 0 and output.stdout, output.stderr

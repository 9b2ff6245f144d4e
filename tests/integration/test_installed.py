"""Tests of the packages of deploy/packages on a separate Debian machine, installed as in docs/deploy.md: systemd starts
the hardened units, and jobs train."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from harness import pages
from harness.machine import Machine, changed, debian_root
from harness.manifests import DEPLOY
from harness.programs import BIN, program
from harness.specs import ENDLESS
from harness.training import saving
from harness.wait import wait_until

CTL = "fsdpctl --server 127.0.0.1:7777 --coordinator-ca /etc/fsdpd/tls/ca.crt --token-file /shared/me.token "


def made(what, out):
    done = subprocess.run([DEPLOY / "packages/make", what, out, "--bin", BIN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    for each in ("coordinator/fsdpd-coordinator", "client/fsdpctl"):
        program(each)
    return made("control", tmp_path_factory.mktemp("control"))


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    for each in ("agent/fsdpd-agent", "fsdp/fsdpd-rank"):
        program(each)
    return made("node", tmp_path_factory.mktemp("node"))


def newer(package, out):
    """Package file of a later release with one more line in its settings."""
    tree = out / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    for path, before, after in [("DEBIAN/control", "Version: ", "Version: 9."), ("etc/fsdpd/coordinator.env", "#", "# New.\n#")]:
        (tree / path).write_text((tree / path).read_text().replace(before, after, 1))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, out / "newer.deb"], check=True, capture_output=True)
    return out / "newer.deb"


def test_package_installs_and_removes_in_root_directory(control, tmp_path):
    """As for the root of an image: the maintainer scripts must work without systemd."""
    (tmp_path / "upper").mkdir()
    for name, file in (("control.deb", control), ("newer.deb", newer(control, tmp_path))):
        (tmp_path / "upper" / name).write_bytes(open(file, "rb").read())
    output = changed(debian_root("machine"), tmp_path, """
        apt-get install -y ./control.deb
        getent passwd fsdpd
        systemctl enable fsdpd-coordinator
        echo FSDPD_QUOTAS=--quotas=/mine >>/etc/fsdpd/coordinator.env
        dpkg --force-confold --install newer.deb
        tail -n 1 /etc/fsdpd/coordinator.env; ls /etc/fsdpd
        dpkg --remove fsdpd-control
        tail -n 1 /etc/fsdpd/coordinator.env; ls /etc/systemd/system/multi-user.target.wants
        dpkg --purge fsdpd-control
        getent passwd fsdpd
        find / -xdev -name '*fsdp*' """)
    assert output.count("FSDPD_QUOTAS=--quotas=/mine") == 2 and "coordinator.env.dpkg-dist" in output
    left = output.rsplit("Purging", 1)[1]
    assert "fsdpd:x:" in left and not [line for line in left.splitlines() if line.startswith("/")], output
    assert "fsdpd-coordinator.service" not in output, "nothing starts it any more"


def commands(machine):
    """The commands of the page's systemd section, with certificates and a token for this machine."""
    subprocess.run([DEPLOY / "certificates", machine.shared / "pki", "coordinator", "127.0.0.1"], check=True)
    subprocess.run([DEPLOY / "certificates", machine.shared / "pki", "node", machine.name], check=True)
    token = subprocess.run([program("client/fsdpctl"), "token", "new", "me", "--role", "admin", "--out", machine.shared / "me.token"],
                           check=True, capture_output=True, text=True)
    (machine.shared / "tokens").write_text(token.stdout)
    block, = [each.text for each in pages.blocks("docs/deploy.md") if "systemctl enable --now fsdpd-agent" in each.text]
    return ["cd /shared", 'sudo() { "$@"; }', *block.splitlines()]


def secured(machine):
    # Units, users and settings came with the packages.
    machine("\n".join(line for line in commands(machine) if not re.search("sysusers|deploy/", line)))


def has_its_node(machine):
    wait_until("the agent is there", lambda: f"{machine.name} " in machine(f"{CTL} nodes", code=None))


def job(machine, job_id):
    return json.loads(machine(f"{CTL} get {job_id} -o json"))


def submitted(machine, name, **spec):
    """Submits a job that saves to a directory that the unit permits."""
    directory = machine.shared / "text"
    whole = yaml.safe_dump(saving(directory, name=name, resources={"nodes": 1, "ranks_per_node": 2}, **spec))
    (machine.shared / "job.yaml").write_text(whole.replace(f"{directory}/run", f"/ckpt/{name}").replace(str(directory), "/shared/text"))
    return json.loads(machine(f"{CTL} submit -f /shared/job.yaml -o json"))["id"]


def reached(machine, job_id, **wanted):
    def state():
        reported = job(machine, job_id)
        return all(value(reported) for value in wanted.values()) and reported
    return wait_until(f"{job_id}: {', '.join(wanted)}", state, timeout_s=90, interval_s=0.5)


def made_step(number):
    return lambda reported: int(reported.get("last_step", {}).get("step", 0)) >= number


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_systemd_installation_survives_upgrades_and_crashes(control, node, tmp_path):
    with Machine(tmp_path / "machine") as machine:
        for file in (control, newer(control, tmp_path)):
            shutil.copy(file, machine.shared)
        machine("apt-get install -y /shared/fsdpd-control_*.deb")
        install(machine, node)
        for unit in ("fsdpd-coordinator", "fsdpd-agent"):
            assert machine.property(unit, "ActiveState") == "inactive", "neither starts anything"
        machine("install -d -o fsdpd /ckpt; chmod 755 /shared; sed -i 's/^FSDPD_AGENT_FLAGS=.*/& --slots 2/' /etc/fsdpd/agent.env")
        devices_are_told_of(machine)
        secured(machine)
        trains(machine)
        job_id = outlives_an_upgrade(machine)
        comes_back_after_crashes(machine, job_id)
        ends_in_order(machine)
        goes_when_it_is_purged(machine)


def install(machine, node):
    shutil.copy(node, machine.shared)
    machine("cd /root; tar xf /shared/fsdpd-node-*.tar.gz; cd fsdpd-node-*; ./install")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_documented_commands_run_build(node, tmp_path):
    with Machine(tmp_path / "machine") as machine:
        install(machine, node)  # Only its rank remains, with its libraries.
        machine("rm /usr/local/bin/fsdpd-agent /etc/systemd/system/fsdpd-* /etc/sysusers.d/fsdpd.conf /etc/fsdpd/agent.env")
        for each in ("coordinator/fsdpd-coordinator", "agent/fsdpd-agent", "client/fsdpctl"):
            shutil.copy(program(each), machine.shared)
        shutil.copytree(DEPLOY / "systemd", machine.shared / "deploy/systemd")
        machine("install -m 755 -t /usr/local/bin /shared/fsdp*")
        machine("\n".join(commands(machine)))
        has_its_node(machine)


def devices_are_told_of(machine):
    """Checks the unit that loads NVIDIA's modules, with a program that records its calls."""
    machine("printf '#!/bin/sh\\necho \"$@\" >/run/asked\\n' >/usr/bin/nvidia-modprobe; chmod +x /usr/bin/nvidia-modprobe")


def trains(machine):
    has_its_node(machine)
    assert machine("cat /run/asked") == "-c 0 -u\n" and machine.property("fsdpd-devices", "Result") == "success"
    times = [int(machine.property(unit, f"{what}TimestampMonotonic")) for unit, what in
             (("fsdpd-devices", "ExecMainExit"), ("fsdpd-agent", "ExecMainStart"))]
    assert 0 < times[0] <= times[1], times
    job_id = submitted(machine, "first")
    reached(machine, job_id, succeeded=lambda reported: reported["state"] == "succeeded")
    assert "step" in machine(f"{CTL} logs {job_id}")
    assert machine("ls /ckpt/first").split()
    for unit in ("fsdpd-coordinator", "fsdpd-agent"):
        status = machine(f"cat /proc/{machine.pid(unit)}/status")
        assert "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status, status
        assert re.search(r"^Uid:\t(\d+)", status, re.MULTILINE)[1] == machine("id -u fsdpd").strip()


def outlives_an_upgrade(machine):
    """Upgrades during a running job, which it returns: the coordinator is a new process, and the job's attempt is
    unchanged."""
    job_id = submitted(machine, "long", steps=ENDLESS)
    before = reached(machine, job_id, running=made_step(3))
    machine("echo FSDPD_QUOTAS= >>/etc/fsdpd/coordinator.env")
    first = machine.pid("fsdpd-coordinator")
    machine("dpkg --force-confold --install /shared/newer.deb")
    assert machine.pid("fsdpd-coordinator") not in (0, first)
    step = int(before["last_step"]["step"])
    after = reached(machine, job_id, trains_on=made_step(step + 10))
    assert after["attempt"] == before["attempt"] == 1
    return job_id


def comes_back_after_crashes(machine, job_id):
    ranks = machine("grep --files-with-matches fsdpd-rank /proc/[0-9]*/comm").split()
    assert len(ranks) == 2
    for unit in ("fsdpd-coordinator", "fsdpd-agent"):
        first = machine.pid(unit)
        machine(f"kill -KILL {first}")
        wait_until(f"{unit} is started again", lambda: machine.pid(unit) not in (0, first), interval_s=0.2)
    assert machine(f"cat {' '.join(ranks)} 2>/dev/null", code=None) == "", "no rank of the agent before is left"
    reached(machine, job_id, goes_on=lambda reported: reported["attempt"] == 2, from_its_checkpoint=made_step(1))


def ends_in_order(machine):
    machine("systemctl stop fsdpd-agent")
    assert machine.property("fsdpd-agent", "Result") == "success"
    assert "fsdpd-rank" not in machine("cat /proc/[0-9]*/comm 2>/dev/null", code=None)


def goes_when_it_is_purged(machine):
    machine("apt-get purge -y fsdpd-control")
    assert machine.property("fsdpd-coordinator", "ActiveState") == "inactive"
    assert machine.property("fsdpd-coordinator", "LoadState") == "not-found"
    assert not machine("find /etc/systemd -name '*coordinator*'")
    # Jobs, certificates and tokens are their administrator's.
    assert machine("ls /var/lib/fsdpd-coordinator /etc/fsdpd").split()
    assert "coordinator.env" not in machine("ls /etc/fsdpd").split()

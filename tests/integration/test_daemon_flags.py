"""Tests of the daemons' errors for invalid flags and unsuitable machines."""

import re
import socket
import subprocess

import pytest

from harness.programs import program
from harness.wait import wait_until


def run(name, *arguments, code, timeout_s=60):
    """Runs a daemon that is expected to exit by itself; returns its output."""
    done = subprocess.run([program(name), *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s,
                          stdin=subprocess.DEVNULL)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    return text


def coordinator(directory, *arguments, code):
    return run("coordinator/fsdpd-coordinator", "--state-dir", directory / "state", "--insecure", *arguments,
               code=code)


def agent(directory, *arguments, code):
    return run("agent/fsdpd-agent", "--coordinator", "127.0.0.1:1", "--insecure", "--work-dir", directory / "work",
               *arguments, code=code)


@pytest.mark.parametrize("flag, value", [("--advertise", "c1:7777"), ("--leader-lease-seconds", "9"), ("--etcd-ca", "ca.crt"),
                                         ("--etcd-cert", "c.crt"), ("--etcd-key", "c.key")])
def test_rejects_ha_flags_with_state_dir(tmp_path, flag, value):
    output = coordinator(tmp_path, flag, value, code=2)
    assert flag in output and "requires --store" in output, output
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("address, why", [("0.0.0.0:7777", "is a wildcard address"), ("[::]:7777", "is a wildcard address"),
                                          ("c1:0", "port 0")])
def test_rejects_unreachable_advertised_address(address, why):
    output = run("coordinator/fsdpd-coordinator", "--insecure", "--store", "etcd://127.0.0.1:1", "--advertise", address,
               code=2)
    assert f"--advertise: {address}" in output and why in output, output


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nonsense", "::1:7777", ":7777", "127.0.0.1:-1"])
def test_invalid_address_is_usage_error(tmp_path, address):
    assert address in coordinator(tmp_path, "--listen", address, code=2)
    assert address in coordinator(tmp_path, "--web-listen", address, code=2)
    assert address in agent(tmp_path, "--metrics-listen", address, code=2)
    assert not (tmp_path / "state").exists(), "nothing is made for a wrong command line"


def test_port_in_use_prints_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        for output in (coordinator(tmp_path, "--listen", address, code=1),
                     coordinator(tmp_path, "--listen", "127.0.0.1:0", "--web-listen", address, code=1),
                     agent(tmp_path, "--node", "n", "--metrics-listen", address, "--rank-binary", "/bin/true", code=1)):
            lines = output.splitlines()
            assert len(lines) == 1 and address in lines[0] and "in use" in lines[0], output


@pytest.mark.parametrize("binary, output", [("/no/such/rank", "/no/such/rank: No such file"), ("/etc", "/etc is not")])
def test_agent_without_rank_binary_does_not_register(tmp_path, binary, output):
    assert f"--rank-binary: rank binary {output}" in agent(tmp_path, "--node", "n", "--rank-binary", binary, code=2)


def test_agent_with_unreachable_ranks_does_not_register(tmp_path):
    output = agent(tmp_path, "--node", "n", "--rank-binary", "/bin/true", "--bind-address", "203.0.113.9", code=1)
    assert "--bind-address: '203.0.113.9' is not an address of this machine" in output


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_agent_with_wildcard_rank_address_does_not_register(tmp_path, address):
    output = agent(tmp_path, "--node", "n", "--rank-binary", "/bin/true", "--bind-address", address, code=1)
    assert f"--bind-address: '{address}' is a wildcard address" in output


def test_multi_node_agent_warns_about_loopback(tmp_path):
    def output(coordinator):
        return run("agent/fsdpd-agent", "--coordinator", coordinator, "--coordinator-ca", "/no/ca", "--tls-cert", "/no/cert",
                   "--tls-key", "/no/key", "--node", "n", "--work-dir", tmp_path / "work", "--rank-binary", "/bin/true", code=2)
    warning = "--bind-address 127.0.0.1 is a loopback address: ranks of other nodes cannot reach"
    assert warning in output("127.0.0.1:7777,192.0.2.1:7777") and warning not in output("127.0.0.1:7777,localhost:7777")


def test_node_with_missing_gpus_does_not_register_as_cpu(tmp_path):
    """Regression: after a boot with a failed driver the node silently registered for CPU ranks."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "gpus").write_text("1024\n")
    output = agent(tmp_path, "--node", "n", "--rank-binary", "/bin/true", code=1)
    assert "GPUs: all are missing (want 1024" in output, output


@pytest.mark.parametrize("node", ["a_b", "a..b", "-a", "a" * 64])
def test_agent_rejects_invalid_node_name(tmp_path, node):
    assert node in agent(tmp_path, "--node", node, code=2)


def test_default_node_name_is_lower_case_hostname(tmp_path):
    # Each exits immediately, because its rank binary is missing; its log has its name.
    host = re.escape(socket.gethostname().lower())
    assert re.search(rf" agent {host}: ", agent(tmp_path, "--rank-binary", "/no", code=2))
    assert " agent dgx-01.lab.example: " in agent(tmp_path, "--node", "DGX-01.Lab.example", "--rank-binary", "/no", code=2)


def test_work_dir_is_reported_as_absolute_path(tmp_path):
    process = subprocess.Popen([program("agent/fsdpd-agent"), "--coordinator", "127.0.0.1:1", "--insecure", "--node", "a",
                                "--device", "cpu", "--work-dir", "here/../work"], cwd=tmp_path, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert f" work_dir={tmp_path}/work " in next(line for line in process.stderr if "serving" in line)
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("flag", ["--plugin-dir", "--path-root"])
def test_invalid_directory_is_usage_error(tmp_path, flag):
    assert "/no/such/directory: No such file" in agent(tmp_path, "--node", "n", flag, "/no/such/directory", code=2)
    assert "/etc/passwd: not a directory" in agent(tmp_path, "--node", "n", flag, "/etc/passwd", code=2)


@pytest.mark.parametrize("flags, output", [
    (["--label", "gpu"], "'gpu' is not KEY=VALUE"),
    (["--label=-x=1"], "'-x' is not a label key"),
    (["--label", "gpu=h200;"], "'h200;' is not a label value"),
    (["--label", "gpu=a", "--label", "gpu=b"], "--label: duplicate key 'gpu'"),
    (["--label", ",".join(f"k{each}=v" for each in range(65))], "--label: too many (got 65, want at most 64)"),
    (["--nvlink-domain", "rack 7"], "'rack 7' is not a label value"),
])
def test_invalid_label_is_usage_error(tmp_path, flags, output):
    assert output in agent(tmp_path, "--node", "n", *flags, code=2)


TLS = ["--tls-cert", "c", "--tls-key", "k"]


def test_plaintext_requires_insecure_and_loopback(tmp_path):
    def output(name, *arguments):
        return run(name, *arguments, code=2).strip()

    directory = ["--state-dir", tmp_path / "state"]
    assert "--tls-cert is required, or --insecure" in output("coordinator/fsdpd-coordinator", *directory)
    assert "--tls-client-ca is required" in output("coordinator/fsdpd-coordinator", *directory, *TLS)
    assert "--tokens is required" in output("coordinator/fsdpd-coordinator", *directory, *TLS, "--tls-client-ca", "a")
    assert "excludes" in output("coordinator/fsdpd-coordinator", *directory, *TLS, "--insecure")
    for listen in ("0.0.0.0:7777", "[::]:7777", "10.0.0.1:7777"):
        assert f"--insecure: {listen} is not a loopback address" in output(
            "coordinator/fsdpd-coordinator", *directory, "--insecure", "--listen", listen)
    work = ["--work-dir", tmp_path / "work", "--node", "n"]
    assert "--coordinator-ca is required, or --insecure" in output("agent/fsdpd-agent", *work, "--coordinator", "h:1")
    assert "--insecure: the coordinator h:1 is not on this machine" in output(
        "agent/fsdpd-agent", *work, "--coordinator", "h:1", "--insecure")
    assert not list(tmp_path.iterdir()), "nothing is made for a wrong command line"


def test_invalid_tls_files_print_one_line(tmp_path):
    (tmp_path / "tokens").write_text("alice\n")
    flags = [*TLS, "--tls-client-ca", tmp_path / "none", "--tokens", tmp_path / "tokens"]
    output = run("coordinator/fsdpd-coordinator", "--state-dir", tmp_path / "state", *flags, code=2).splitlines()
    assert len(output) == 1 and f"--tls-client-ca {tmp_path / 'none'}: No such file" in output[0], output


def test_revoked_certificates_require_tls(tmp_path):
    assert "--insecure excludes --revoked-certs" in coordinator(tmp_path, "--revoked-certs", tmp_path / "revoked", code=2)


def test_unreadable_file_is_usage_error_of_flag(tmp_path):
    for path, why in [(tmp_path / "none" / "log", "No such file"), (tmp_path, "Is a directory")]:
        output = coordinator(tmp_path, "--audit-log", path, code=2)
        assert f"--audit-log {path}: {why}" in output, output
    port = tmp_path / "none" / "port"
    assert f"--port-file {port}: No such file" in coordinator(tmp_path, "--port-file", port, "--listen", "127.0.0.1:0", code=2)
    assert f"--port-file {port}: No such file" in agent(
        tmp_path, "--node", "n", "--rank-binary", "/bin/true", "--metrics-listen", "127.0.0.1:0", "--port-file", port, code=2)
    assert "--work-dir: is empty" in run("agent/fsdpd-agent", "--coordinator", "127.0.0.1:1", "--insecure", "--work-dir", "",
                                         code=2)
    files = ["--tls-cert", tmp_path / "c", "--tls-key", tmp_path / "k", "--coordinator-ca", tmp_path / "none"]
    output = run("agent/fsdpd-agent", "--coordinator", "h:1", "--work-dir", tmp_path / "work", "--node", "n", *files,
               code=2)
    assert re.search(r"--(tls-cert|tls-key|coordinator-ca) \S+: No such file", output), output


def test_backup_and_restore_errors_are_one_line(tmp_path):
    """Regression: an unreadable directory raised an exception, and an empty path meant /."""
    def output(command, source, target, code):
        flags = ("--state-dir", "--to") if command == "backup" else ("--from", "--state-dir")
        lines = run("coordinator/fsdpd-coordinator", command, flags[0], source, flags[1], target, code=code).splitlines()
        return lines if code == 2 else lines[0] if len(lines) == 1 else pytest.fail(str(lines))

    for command, source, target in [("backup", "", "x"), ("backup", "x", ""), ("restore", "", "x"), ("restore", "x", "")]:
        assert any("is empty" in line for line in output(command, source, target, 2))
    (tmp_path / "file").write_text("x")
    assert "Not a directory" in output("backup", tmp_path / "file", tmp_path / "copy", 1)
    assert "Not a directory" in output("restore", tmp_path / "file" / "copy", tmp_path / "state", 1)
    assert f"{tmp_path}/none: no such file [FILE_ERROR]" in output("restore", tmp_path / "none", tmp_path / "state", 1)
    assert output("backup", tmp_path / "none", tmp_path / "copy", 1).endswith(" [FILE_ERROR]")
    assert not (tmp_path / "state").exists(), "what is refused leaves nothing"


def test_stopped_agent_has_requested_exit_code(tmp_path):
    """A Kubernetes Job counts a pod that exits with 0 as completed, and does not start it again."""
    ready = tmp_path / "ready"
    command = [program("agent/fsdpd-agent"), "--coordinator", "127.0.0.1:1", "--insecure", "--node", "n", "--work-dir",
               tmp_path / "work", "--metrics-listen", "127.0.0.1:0", "--port-file", ready, "--rank-binary", "/bin/true"]
    for flags, code in (([], 0), (["--stopped-exit-code", "143"], 143)):
        ready.unlink(missing_ok=True)
        with subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL) as process:
            try:
                wait_until("the agent serves", ready.exists)
            finally:
                process.terminate()
            assert process.wait(timeout=60) == code
    assert "--stopped-exit-code" in agent(tmp_path, "--stopped-exit-code", "256", code=2)

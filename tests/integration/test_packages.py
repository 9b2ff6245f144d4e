"""Tests of the packages of deploy/packages: their content, and that the programs run where they are installed."""

import json
import re
import shutil
import subprocess
import tarfile

import pytest

from harness.manifests import DEPLOY
from harness.programs import BIN, ROOT, program
from harness.wait import wait_until

MAKE = DEPLOY / "packages/make"


def made(*arguments, umask=-1):
    done = subprocess.run([MAKE, *arguments], capture_output=True, text=True, umask=umask)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    for each in ("coordinator/fsdpd-coordinator", "client/fsdpctl"):
        program(each)
    return made("control", tmp_path_factory.mktemp("control"), "--bin", BIN)


def test_control_package_programs_run(control, tmp_path):
    fields = subprocess.run(["dpkg-deb", "--field", control, "Package", "Depends", "Architecture"], capture_output=True,
                            text=True, check=True).stdout
    assert "Package: fsdpd-control" in fields and "Architecture: amd64" in fields
    subprocess.run(["dpkg-deb", "--extract", control, tmp_path], check=True)
    for name in ("fsdpd-coordinator", "fsdpctl", "fsdpd-certificates"):
        assert (tmp_path / "usr/bin" / name).stat().st_mode & 0o777 == 0o755
    version = subprocess.run([tmp_path / "usr/bin/fsdpd-coordinator", "--version"], capture_output=True, text=True)
    assert version.stdout.split() == ["fsdpd-coordinator", control.split("_")[1]]
    unit = (tmp_path / "lib/systemd/system/fsdpd-coordinator.service").read_text()
    assert "ExecStart=/usr/bin/fsdpd-coordinator " in unit and "/usr/local" not in unit
    # Of all libraries that the programs are linked with, a package is asked for.
    linked = {line.split()[2] for name in ("fsdpd-coordinator", "fsdpctl") for line in subprocess.run(
        ["ldd", tmp_path / "usr/bin" / name], capture_output=True, text=True, check=True).stdout.splitlines() if "=>" in line}
    owners = {subprocess.run(["dpkg", "--search", f"*{path.removeprefix('/lib')}"], capture_output=True, text=True,
                             check=True).stdout.split(":")[0] for path in linked}
    # The compiler's own comes with the C++ library.
    assert all(owner in fields for owner in owners - {"libgcc-s1"}), owners


def test_upgrade_keeps_changed_settings(control, tmp_path):
    subprocess.run(["dpkg-deb", "--control", control, tmp_path], check=True)
    assert (tmp_path / "conffiles").read_text() == "/etc/fsdpd/coordinator.env\n"
    for script in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", tmp_path / script], check=True)


def test_packages_are_reproducible(control, tmp_path):
    """Independent of the user: dpkg-deb rejected directories that only their owner can read."""
    again = made("control", tmp_path, "--bin", BIN, umask=0o077)
    assert open(again, "rb").read() == open(control, "rb").read()


def compiled(path, text, *flags):
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-x", "c", "-", "-x", "none", "-o", path, *flags], input=text, text=True, check=True)


# Ends when its input does, as one that trains for a while.
RANK = "#include <stdio.h>\nint answer(void); int main(void) { getchar(); return answer(); }"


def node_of(directory, answer):
    """An unpacked archive with a rank and a LibTorch of one function in the places of the real ones."""
    library = directory / "environment/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so"
    compiled(library, f"int answer(void) {{ return {answer}; }}", "-shared", "-fPIC", f"-Wl,-soname,{library.name}")
    library.parent.chmod(0o700)  # An environment may be readable only by its owner.
    compiled(directory / "bin/fsdp/fsdpd-rank", RANK, library,
             f"-Wl,-rpath,{library.parent}:{library.parents[2]}/nvidia/cu13/lib:/elsewhere/site-packages/torch/lib")
    (directory / "bin/agent").mkdir()
    shutil.copy(program("agent/fsdpd-agent"), directory / "bin/agent/fsdpd-agent")
    archive = made("node", directory / "out", "--bin", directory / "bin", "--environment", directory / "environment", umask=0o077)
    # The rank is to find its libraries where the package puts them, and not where they were.
    shutil.rmtree(directory / "environment")
    tarfile.open(archive).extractall(directory)
    return directory / archive.rsplit("/", 1)[1].removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    return node_of(tmp_path_factory.mktemp("node"), 42)


def installed(node, root):
    done = subprocess.run([node / "install", "--root", root], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def answer_of(root):
    return subprocess.run([root / "usr/local/bin/fsdpd-rank"], stdin=subprocess.DEVNULL).returncode


def test_installed_rank_finds_libraries(node, tmp_path):
    installed(node, tmp_path)
    assert answer_of(tmp_path) == 42
    assert subprocess.run([tmp_path / "usr/local/bin/fsdpd-agent", "--version"]).returncode == 0
    for name in ("fsdpd-agent.service", "fsdpd-devices.service"):
        assert (tmp_path / "etc/systemd/system" / name).read_text() == (DEPLOY / "systemd" / name).read_text()
    assert (tmp_path / "etc/sysusers.d/fsdpd.conf").exists()


def test_archive_is_readable_by_agent_user(node):
    archive, = node.parent.glob("out/*.tar.gz")
    entries = tarfile.open(archive).getmembers()
    assert {entry.mode for entry in entries if entry.isdir()} == {0o755}
    assert {entry.mode for entry in entries if entry.isfile()} == {0o755, 0o644}


def test_reinstall_keeps_settings_and_running_ranks(node, tmp_path):
    """Regression: a rank opens some libraries late, and found those of the next build or none."""
    root, lib = tmp_path / "root", tmp_path / "root/usr/local/lib"
    (lib / "fsdpd").mkdir(parents=True)  # As installations had it before builds had directories of their own.
    installed(node, root)
    first, = lib.iterdir()
    settings = root / "etc/fsdpd/agent.env"
    settings.write_text("FSDPD_DEVICE=cpu\n")
    newer = node_of(tmp_path / "newer", 43)
    rank = subprocess.Popen([root / "usr/local/bin/fsdpd-rank"], stdin=subprocess.PIPE)
    try:
        # Its libraries are open from its first system calls on.
        wait_until("the rank runs", lambda: str(first) in open(f"/proc/{rank.pid}/maps").read())
        installed(newer, root)
        assert answer_of(root) == 43 and (first / "torch/lib/libtorch_cpu.so").exists() and len(list(lib.iterdir())) == 2
    finally:
        rank.communicate()
    assert rank.returncode == 42
    installed(newer, root)
    assert answer_of(root) == 43 and not first.exists() and len(list(lib.iterdir())) == 1
    assert settings.read_text() == "FSDPD_DEVICE=cpu\n"


def test_rejects_rank_of_other_environment(node, tmp_path):
    compiled(tmp_path / "bin/fsdp/fsdpd-rank", "int main(void) { return 0; }", "-Wl,-rpath,/elsewhere/torch/lib")
    (tmp_path / "bin/agent").mkdir()
    shutil.copy(program("agent/fsdpd-agent"), tmp_path / "bin/agent/fsdpd-agent")
    (tmp_path / "environment/lib/python3.11/site-packages").mkdir(parents=True)
    done = subprocess.run([MAKE, "node", tmp_path / "out", "--bin", tmp_path / "bin", "--environment",
                           tmp_path / "environment"], capture_output=True, text=True)
    assert done.returncode == 1 and "/elsewhere/torch/lib" in done.stderr and "Traceback" not in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_sbom_has_linked_and_loaded_libraries():
    text = subprocess.run([DEPLOY / "packages/sbom"], capture_output=True, text=True, check=True).stdout
    assert subprocess.run([DEPLOY / "packages/sbom"], capture_output=True, text=True, check=True).stdout == text
    bill = json.loads(text)
    assert (bill["spdxVersion"], bill["SPDXID"], bill["dataLicense"]) == ("SPDX-2.3", "SPDXRef-DOCUMENT", "CC0-1.0")
    versions = {each["name"]: each["versionInfo"] for each in bill["packages"]}
    assert {"grpc", "abseil", "protobuf", "openssl", "sqlite3", "yaml-cpp", "torch", "nvidia-nccl-cu13"} <= set(versions)
    pinned = re.search(r"^torch==(\S+)", (ROOT / "third_party/python.txt").read_text(), re.MULTILINE)[1]
    assert versions["torch"] == pinned and "googletest" not in versions
    known = {each["SPDXID"] for each in bill["packages"]} | {bill["SPDXID"]}
    assert len(known) == len(bill["packages"]) + 1
    assert {each[end] for each in bill["relationships"] for end in ("spdxElementId", "relatedSpdxElement")} == known


def test_docs_have_package_names():
    documented = (ROOT / "docs/deploy.md").read_text()
    for command in ("deploy/packages/make control OUT", "deploy/packages/make node OUT", "deploy/packages/sbom", "sudo ./install"):
        assert command in documented

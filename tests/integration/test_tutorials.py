"""Tests of docs/tutorials/kubernetes.md without a cluster: the files, objects, secrets and nodes in its commands are
those that the page and deploy/ create. kubelets/test_tutorial.py has a cluster. The commands of kind itself are not
tested."""

import re
import shlex

import pytest
import yaml

from harness import pages
from harness.manifests import DEPLOY, helm, named, objects, pod_specs, rendered
from harness.programs import ROOT
from integration.test_kubernetes import by_name, faults

PAGE = "docs/tutorials/kubernetes.md"
KINDS = {"svc": "Service", "statefulset": "StatefulSet", "daemonset": "DaemonSet", "job": "Job"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The reader's directory after the commands that need no cluster."""
    with pages.Reader(PAGE, tmp_path_factory.mktemp("tutorial") / "clone") as reader:
        reader.run()
        yield reader.directory


def commands(*programs):
    """Returns the words of each command that uses or creates a cluster."""
    text = "".join(block.text for block in pages.blocks(PAGE) if block.why).replace("\\\n", " ")
    lines = [line.strip().removesuffix(" &") for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.split()[0] in programs]


def files_of(words):
    """Returns the paths in the clone that a command reads."""
    after = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-f", "-k", "--config") and
             not words[at + 1].startswith("job/")]
    return after + [word.split("=")[-1] for word in words if word.startswith("--from-file=")]


def secrets():
    """Returns {name: keys} of `kubectl create secret generic`; None for a directory."""
    made = {}
    for words in commands("kubectl"):
        if "secret" in words:
            keys = [word.split("=", 1)[1].split("=")[0].split("/")[-1] for word in words if word.startswith("--from-file=")]
            made[words[words.index("generic") + 1]] = keys
    return made


def test_files_of_commands_exist(clone):
    read = [path for words in commands("kubectl", "helm", "kind", "docker") for path in files_of(words)]
    assert len(read) >= 14
    assert not [path for path in read if not (clone / path).exists()]


def test_applied_objects_are_valid_and_match_chart(clone, tmp_path):
    directory, = [words[words.index("-k") + 1] for words in commands("kubectl") if "-k" in words]
    made = objects(rendered(clone / directory))
    assert not faults(made, tmp_path)
    install, = commands("helm")
    assert install[:3] == ["helm", "install", "fsdpd"]
    done = helm("template", *[ROOT / word if (ROOT / word).exists() else word for word in install[2:]])
    assert done.returncode == 0, done.stderr
    chart, kustomized = by_name(objects(done.stdout)), by_name(made)
    assert chart == kustomized
    env = pod_specs(made)["fsdpd-agent"]["containers"][0]["env"]
    assert {"name": "FSDPD_SLOTS", "value": "4"} in env


def test_objects_of_commands_exist(clone):
    made = objects(rendered(clone / "try/mine"))
    made += objects((DEPLOY / "kubernetes/examples/first-job.yaml").read_text())
    requested = [re.fullmatch(r"(\w+)/([\w-]+)", word) for words in commands("kubectl") for word in words]
    requested = [each for each in requested if each and each[1] in KINDS]
    assert len(requested) >= 5
    for each in requested:
        named(made, KINDS[each[1]], each[2])


def test_secrets_have_keys_of_pods(clone):
    made = objects(rendered(clone / "try/mine"))
    first = named(objects((DEPLOY / "kubernetes/examples/first-job.yaml").read_text()), "Job", "fsdpd-first-job")
    specs = {**pod_specs(made), "first": first["spec"]["template"]["spec"]}
    known, seen = secrets(), 0
    for spec in specs.values():
        container = spec["containers"][0]
        directories = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        reported = " ".join([*container["args"], *(str(each.get("value")) for each in container.get("env", []))])
        for volume in spec["volumes"]:
            if "secret" not in volume:
                continue
            for key in re.findall(rf"{directories[volume['name']]}/([\w.$()-]+)", reported):
                seen += 1
                # A node's pair, of a directory with those of all.
                assert "$(" in key or key in known[volume["secret"]["secretName"]], (volume, key)
    assert seen >= 7


def test_certificates_match_nodes_of_cluster(clone):
    """kind names nodes by cluster and role, numbered from the second on."""
    cluster = yaml.safe_load((clone / "try/kind.yaml").read_text())
    workers = [each for each in cluster["nodes"] if each["role"] == "worker"]
    nodes = {f"{cluster['name']}-worker{index if index > 1 else ''}" for index in range(1, len(workers) + 1)}
    assert {path.stem for path in (clone / "try/pki/nodes").glob("*.crt")} == nodes
    drained = {words[2] for words in commands("kubectl", "fsdpctl") if words[1] in ("drain", "uncordon")}
    assert drained and drained <= nodes
    loaded = {words[words.index("--name") + 1] for words in commands("kind") if "--name" in words}
    assert loaded == {cluster["name"]}

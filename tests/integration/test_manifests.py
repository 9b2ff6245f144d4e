"""What deploy/ ships for Kubernetes, systemd and containers is well formed, and names flags that the programs have;
its example job specs are accepted.

The schemas are Kubernetes' own, applied strictly: an unknown field is an error, as it is for an API server.
"""

import configparser
import copy
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from harness.programs import ROOT, program

DEPLOY = ROOT / "deploy"
KUBERNETES_VERSION = "1.32"
OVERLAYS = ["cpu-test", "gpu"]
PROGRAMS = {"fsdpd-coordinator": "coordinator/fsdpd-coordinator", "fsdpd-agent": "agent/fsdpd-agent"}
SYSTEMD_EXPOSURE_LIMIT = {"fsdpd-coordinator": 20, "fsdpd-agent": 45}  # Tenths of systemd-analyze's scale, 0 to 10.


# Kubernetes ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def validator():
    """The folder with kubernetes-validate; installed once per version into the user's cache."""
    pins = DEPLOY / "kubernetes/validator.txt"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "fsdpd"
    folder = cache / f"kubernetes-validate-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--target", partial, "-r", pins], check=True)
        try:
            partial.rename(folder)
        except OSError:  # Another test run was first.
            shutil.rmtree(partial)
    return folder


def faults(objects, tmp_path):
    """What the schemas say against the objects; empty when they are right. An unknown kind is a fault too."""
    stream = tmp_path / "objects.yaml"
    stream.write_text(yaml.safe_dump_all(objects))
    done = subprocess.run([sys.executable, "-m", "kubernetes_validate", "--strict", "-k", KUBERNETES_VERSION, stream],
                          env={**os.environ, "PYTHONPATH": str(validator())}, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) >= len(objects), f"the validator judged {len(lines)} of {len(objects)} objects"
    return [line for line in lines if not line.startswith("INFO")]


def merged(base, patch):
    """The part of a strategic merge that the overlays use: mappings by key, lists of named objects by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in patch.items()}}
    if isinstance(base, list) and isinstance(patch, list) and all("name" in each for each in base + patch):
        by_name = {each["name"]: each for each in base}
        return list({**by_name, **{each["name"]: merged(by_name.get(each["name"]), each) for each in patch}}.values())
    return patch


def labelled(each, label):
    """As kustomize does: on the object, and with includeTemplates on the pods and the volume claims that it makes."""
    places = [each["metadata"]]
    if label.get("includeTemplates") and "template" in each.get("spec", {}):
        makes = [each["spec"]["template"], *each["spec"].get("volumeClaimTemplates", [])]
        places += [made["metadata"] for made in makes]
    for metadata in places:
        metadata["labels"] = {**metadata.get("labels", {}), **label["pairs"]}


def rendered_by_kubectl(overlay, folder=DEPLOY / "kubernetes"):
    done = subprocess.run(["kubectl", "kustomize", folder / "overlays" / overlay], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def rendered_by_hand(overlay, folder=DEPLOY / "kubernetes"):
    base = folder / "base"
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
    objects = [each for name in kustomization["resources"] for each in yaml.safe_load_all((base / name).read_text())]
    for each, label in itertools.product(objects, kustomization["labels"]):
        labelled(each, label)
    for entry in yaml.safe_load((folder / "overlays" / overlay / "kustomization.yaml").read_text())["patches"]:
        patch = yaml.safe_load((folder / "overlays" / overlay / entry["path"]).read_text())
        target = [(each["kind"], each["metadata"]["name"]) for each in objects].index(
            (patch["kind"], patch["metadata"]["name"]))
        objects[target] = merged(objects[target], patch)
    return objects


# A machine without kubectl still checks every line.
RENDERERS = [rendered_by_hand] + ([rendered_by_kubectl] if shutil.which("kubectl") else [])
each_rendering = pytest.mark.parametrize("render, overlay", list(itertools.product(RENDERERS, OVERLAYS)))


def named(objects, kind, name):
    return next(each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)


def pod_templates(objects):
    return {each["metadata"]["name"]: each["spec"]["template"] for each in objects
            if each["kind"] in ("StatefulSet", "DaemonSet")}


def pod_specs(objects):
    return {name: template["spec"] for name, template in pod_templates(objects).items()}


@each_rendering
def test_an_overlay_satisfies_the_schemas(render, overlay, tmp_path):
    assert not faults(render(overlay), tmp_path)


@pytest.mark.parametrize("path, value, said", [
    (("spec", "replica"), 2, "replica"),
    (("spec", "template", "spec", "terminationGracePeriod"), 30, "terminationGracePeriod"),
    (("spec", "template", "spec", "containers", 0, "readinesProbe"), {}, "readinesProbe"),
    (("spec", "replicas"), "one", "one"),
    (("apiVersion",), "apps/v2", "apps/v2"),
])
def test_a_typo_is_caught(path, value, said, tmp_path):
    coordinator = copy.deepcopy(named(rendered_by_hand("cpu-test"), "StatefulSet", "fsdpd-coordinator"))
    place = coordinator
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert said in "\n".join(faults([coordinator], tmp_path))


@each_rendering
def test_pods_are_restricted(render, overlay):
    """Pod Security "restricted", which the namespace enforces, and no token for an API that nobody calls."""
    objects = render(overlay)
    namespace = named(objects, "Namespace", "fsdpd")["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"
    specs = pod_specs(objects)
    assert set(specs) == {"fsdpd-coordinator", "fsdpd-agent"}
    for spec in specs.values():
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


@each_rendering
def test_selectors_find_the_pods(render, overlay):
    objects = render(overlay)
    labels = [template["metadata"]["labels"] for template in pod_templates(objects).values()]
    services = [each["spec"]["selector"] for each in objects if each["kind"] == "Service"]
    budgets = [each["spec"]["selector"]["matchLabels"] for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert len(services) == 2 and len(budgets) == 1
    for selector in services + budgets:
        assert any(selector.items() <= pod.items() for pod in labels), selector
    assert named(objects, "StatefulSet", "fsdpd-coordinator")["spec"]["serviceName"] in [
        each["metadata"]["name"] for each in objects if each["kind"] == "Service"]


@each_rendering
def test_every_secret_that_is_mounted_is_made_as_documented(render, overlay):
    documented = (ROOT / "docs/deploy.md").read_text()
    made = re.findall(r"^kubectl -n fsdpd create secret generic (\S+)", documented, re.MULTILINE)
    mounted = {volume["secret"]["secretName"]: volume["secret"] for spec in pod_specs(render(overlay)).values()
               for volume in spec["volumes"] if "secret" in volume}
    assert set(mounted) == set(made) and len(made) == 3
    # The daemons refuse keys that every user may read.
    assert all(secret["defaultMode"] & 0o007 == 0 for secret in mounted.values())


@each_rendering
def test_variables_in_arguments_are_defined(render, overlay):
    for spec in pod_specs(render(overlay)).values():
        for container in spec["containers"]:
            used = set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))
            assert used <= {each["name"] for each in container.get("env", [])}


# What an API server lets change in place, of a StatefulSet's spec; elsewhere it is the selector that may not change.
MUTABLE = {"replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
           "persistentVolumeClaimRetentionPolicy", "minReadySeconds"}


def immutable(objects):
    """{(kind, name): what a later apply may not change}."""
    fixed = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in objects
             if each["kind"] in ("StatefulSet", "DaemonSet", "Deployment")}
    return {key: {name: value for name, value in spec.items()
                  if name == "selector" or key[0] == "StatefulSet" and name not in MUTABLE}
            for key, spec in fixed.items()}


@each_rendering
def test_the_next_release_changes_nothing_that_may_not_change(render, overlay, tmp_path):
    folder = shutil.copytree(DEPLOY / "kubernetes", tmp_path / "next")
    kustomization = folder / "base/kustomization.yaml"
    version = yaml.safe_load(kustomization.read_text())["images"][0]["newTag"]
    kustomization.write_text(kustomization.read_text().replace(version, "99.0.0"))
    now, later = render(overlay), render(overlay, folder)
    assert now != later, "the release has another version"
    assert immutable(now) == immutable(later)
    assert set(immutable(now)) == {("StatefulSet", "fsdpd-coordinator"), ("DaemonSet", "fsdpd-agent")}


def test_a_node_offers_as_many_slots_as_gpus():
    container = pod_specs(rendered_by_hand("gpu"))["fsdpd-agent"]["containers"][0]
    slots = next(each["value"] for each in container["env"] if each["name"] == "FSDPD_SLOTS")
    assert {slots} == {container["resources"][bound]["nvidia.com/gpu"] for bound in ("requests", "limits")}


# Flags ---------------------------------------------------------------------------------------------------------------


def flags_in_manifests(name):
    specs = pod_specs(rendered_by_hand("gpu"))
    yield from (arg for arg in specs[name]["containers"][0]["args"])
    unit = (DEPLOY / f"systemd/{name}.service").read_text()
    yield from re.search(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)[1].split()
    dockerfile = (DEPLOY / "container/Dockerfile").read_text()
    stage = dockerfile.split(f'ENTRYPOINT ["/usr/local/bin/{name}"]')[1].split("FROM")[0]
    yield from re.findall(r'"(--[a-z-]+)"', stage)


def test_metrics_are_at_one_port_and_not_at_that_of_the_dcgm_exporter():
    """DCGM's exporter, which GPU nodes usually run, listens on 9400."""
    agent = named(rendered_by_hand("gpu"), "DaemonSet", "fsdpd-agent")["spec"]["template"]
    port = agent["metadata"]["annotations"]["prometheus.io/port"]
    assert port != "9400"
    assert f"--metrics-listen=0.0.0.0:{port}" in agent["spec"]["containers"][0]["args"]
    assert {"name": "metrics", "containerPort": int(port)} in agent["spec"]["containers"][0]["ports"]
    policy = named(rendered_by_hand("gpu"), "NetworkPolicy", "fsdpd-agent")["spec"]["ingress"]
    assert [{"port": int(port)}] in [rule.get("ports") for rule in policy]
    for place, said in [("deploy/systemd/agent.env", f"FSDPD_METRICS_LISTEN=0.0.0.0:{port}\n"),
                        ("deploy/container/Dockerfile", f"\nEXPOSE {port}\n"),
                        ("docs/deploy.md", f"--metrics-listen 0.0.0.0:{port} "),
                        ("dashboards/prometheus.yml", f"node1:{port}")]:
        assert said in (ROOT / place).read_text(), place


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_flag_exists(name):
    help_text = subprocess.run([program(PROGRAMS[name]), "--help"], capture_output=True, text=True).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", help_text))
    asked = {arg.split("=")[0] for arg in flags_in_manifests(name) if arg.startswith("--")}
    assert asked and asked <= known, f"{name} has no {asked - known}"


# systemd -------------------------------------------------------------------------------------------------------------


def installed(name, tmp_path):
    """The unit as systemd sees it where the program is installed."""
    unit = tmp_path / f"{name}.service"
    unit.write_text((DEPLOY / f"systemd/{name}.service").read_text().replace(f"/usr/local/bin/{name}", "/bin/true"))
    return unit


def analyze(*arguments):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed (Debian package systemd)")
    done = subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_systemd_accepts_the_unit(name, tmp_path):
    code, said = analyze("verify", "--man=no", installed(name, tmp_path))
    # It reads the machine's own units too; what it says against those is not ours.
    ours = [line for line in said.splitlines() if name in line]
    assert not ours and (code == 0 or said), said


def test_a_typo_in_a_unit_is_caught(tmp_path):
    unit = installed("fsdpd-agent", tmp_path)
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KilMode=mixed"))
    assert "KilMode" in analyze("verify", "--man=no", unit)[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_units_are_confined(name, tmp_path):
    code, said = analyze("security", "--offline=true", f"--threshold={SYSTEMD_EXPOSURE_LIMIT[name]}", "--no-pager",
                         installed(name, tmp_path))
    assert code == 0, said


STOP_LIMIT_MS = 30000  # kStopLimit of agent/main.cc: how long the agent goes on ending ranks after their grace.


def test_who_ends_an_agent_waits_until_its_ranks_have_saved():
    """Ranks had 5 s of the 120 s that their pod had."""
    def leave_time(arguments):
        return int(re.search(r"--grace-ms[= ](\d+)", arguments)[1]) + STOP_LIMIT_MS
    unit, settings = (DEPLOY / f"systemd/{name}" for name in ("fsdpd-agent.service", "agent.env"))
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit.read_text())[1]) * 1000 > leave_time(settings.read_text())
    started = re.search(r"docker run .*fsdpd-agent(.|\n)*?--grace-ms \d+", (ROOT / "docs/deploy.md").read_text())[0]
    assert int(re.search(r"--stop-timeout (\d+)", started)[1]) * 1000 > leave_time(started)
    assert "kStopLimit = absl::Seconds(30)" in (ROOT / "agent/main.cc").read_text()


def test_an_agent_starts_after_the_devices_that_it_may_see():
    unit = (DEPLOY / "systemd/fsdpd-agent.service").read_text()
    assert all(re.search(rf"^{key}=.*\bfsdpd-devices.service", unit, re.MULTILINE) for key in ("Wants", "After"))
    devices = (DEPLOY / "systemd/fsdpd-devices.service").read_text()
    assert "Type=oneshot" in devices and "ExecStart=-/usr/bin/nvidia-modprobe" in devices


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_variable_of_a_unit_has_a_default(name):
    unit = (DEPLOY / f"systemd/{name}.service").read_text()
    settings = (DEPLOY / f"systemd/{name.removeprefix('fsdpd-')}.env").read_text()
    used = set(re.findall(r"\$\{?(FSDPD_\w+)", unit))
    assert used and used == set(re.findall(r"^(FSDPD_\w+)=", settings, re.MULTILINE))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_daemon_whose_port_is_taken_for_a_while_comes_back(name):
    """systemd's own limit of five starts in ten seconds left it failed for good."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / f"systemd/{name}.service")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert (unit["Service"]["Restart"], unit["Service"]["RestartPreventExitStatus"]) == ("always", "2")


def test_what_the_docs_say_makes_the_user_of_the_units(tmp_path):
    """The documented commands, word for word, with an empty root: what this machine has already plays no part."""
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
def test_an_example_is_accepted_without_remark(spec):
    done = subprocess.run([program("client/fsdpctl"), "validate", "--offline", "-o", "json", "-f", spec],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The quickstart writes the tokens of its own spec beside it, later and elsewhere.
    assert not [fault for fault in json.loads(done.stdout)["faults"] if fault["rule"] != "token_file_here"], done.stdout


# Containers ----------------------------------------------------------------------------------------------------------


def test_what_the_dockerfile_copies_exists():
    sources = [word for line in (DEPLOY / "container/Dockerfile").read_text().splitlines()
               if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]]
    assert sources and all((ROOT / source).exists() for source in sources), sources


def test_stages_are_defined_before_use():
    known = set()
    for line in (DEPLOY / "container/Dockerfile").read_text().splitlines():
        words = line.split()
        if line.startswith("FROM "):
            assert words[1] in known or words[1] == "scratch" or ":" in words[1], line
            known.add(words[3])
        for stage in re.findall(r"--from=(\w+)", line):
            assert stage in known, line
    assert {"coordinator", "agent", "fsdpctl"} <= known


def stages():
    """{name: its lines}; a continued line is one."""
    found = {}
    for line in (DEPLOY / "container/Dockerfile").read_text().replace("\\\n", " ").splitlines():
        if line.startswith("FROM "):
            found[line.split()[3]] = lines = []
        elif found and not line.startswith("#"):
            lines.append(line)
    return found


@pytest.mark.parametrize("stage", ["coordinator", "agent"])
def test_a_new_volume_belongs_to_the_user_that_writes_it(stage):
    """It gets the owner of the image's folder, which must be there before VOLUME is said; else it is root's."""
    lines = stages()[stage]
    user = next(line.split()[1] for line in lines if line.startswith("USER "))
    volume = next(line.split()[1] for line in lines if line.startswith("VOLUME "))
    copied = f"COPY --from=build --chown={user} /out/state {volume}"
    assert lines.index(copied) < lines.index(f"VOLUME {volume}"), lines
    assert any("install -d -m 700 /out/state" in line for line in stages()["build"])


def test_no_image_asks_for_gpus_by_itself():
    """It once had all of its node's, whatever the container was given."""
    assert not [line for lines in stages().values() for line in lines if "NVIDIA_VISIBLE_DEVICES" in line]


SITE = "environment/lib/python3.11/site-packages"


def shared_object(path, *needs):
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = ["-shared", "-fPIC"] if ".so" in path.name else ["-Wl,-e,0", "-nostartfiles"]
    subprocess.run(["gcc", "-x", "c", *kind, "-nodefaultlibs", "-Wl,--no-as-needed", f"-Wl,-soname,{path.name}", "-o", path, "/dev/null", "-x", "none",
                    *[part for each in needs for part in (each, f"-Wl,-rpath,{each.parent}")]], check=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_rank_needs_of_libtorch_is_collected_into_a_relative_folder_of_the_caller(tmp_path, device):
    """It once changed folder first, and put 3.6 GB into the environment that all clones share; and the image for CPU
    ranks once had all of it."""
    site = tmp_path / SITE
    torch = {name: site / f"torch/lib/libtorch_{name}.so" for name in ("cpu", "cuda")}
    by_name = site / "nvidia/cudnn/lib/libcudnn_ops.so.9"  # Opened at run time, linked by nobody.
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
def test_a_program_that_was_collected_is_a_root_file_system(name, tmp_path):
    """Of the images that have nothing else; 60 MB is what such an image may have."""
    subprocess.run([DEPLOY / "container/collect_program", program(name), tmp_path], check=True)
    assert sum(each.stat().st_size for each in tmp_path.rglob("*") if each.is_file()) < 60e6
    if os.geteuid() != 0:
        pytest.skip("another root folder takes root")
    said = subprocess.run(["chroot", tmp_path, f"/usr/local/bin/{name.split('/')[1]}", "--help"], capture_output=True,
                          text=True)
    assert said.returncode == 0 and said.stdout, said.stderr

"""Kubernetes objects of deploy/: by overlay, and by the Helm chart with the equivalent values."""

import functools
import pathlib
import subprocess

import yaml

from harness.cached import made_once, pip_install
from harness.programs import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/fsdpd"
OVERLAYS = ["cpu-test", "gpu", "ha-etcd", "kueue", "monitoring"]
# Not in the chart, because secrets must exist in the namespace before the chart is installed.
NOT_OF_THE_CHART = {"Namespace"}


def tool(name):
    """Path of a tool installed by deploy/setup --tools, which tests/run calls."""
    found = ROOT / ".tools/bin" / name
    assert found.exists(), f"{found}: not found; run deploy/setup --tools"
    return found


@functools.lru_cache(maxsize=None)
def validator():
    """Directory with kubernetes-validate; installed once per version in the user's cache."""
    pins = DEPLOY / "kubernetes/validator.txt"
    return made_once("kubernetes-validate", [pins], lambda directory: pip_install(pins, directory))


def rendered(directory):
    """Rendered objects of a kustomization, as text."""
    done = subprocess.run([tool("kustomize"), "build", directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.lru_cache(maxsize=None)
def overlay_text(overlay, directory=DEPLOY / "kubernetes"):
    return rendered(pathlib.Path(directory) / "overlays" / overlay)


def values_of(overlay):
    """Helm flags that correspond to an overlay; the chart's defaults are those of gpu."""
    return [] if overlay == "gpu" else ["--values", CHART / f"values-{overlay}.yaml"]


def helm(verb, *arguments):
    """Runs helm and returns the completed process. Without a cluster helm would assume Kubernetes 1.20."""
    version = ["--kube-version", "1.36"]
    return subprocess.run([str(each) for each in (tool("helm"), verb, *version, *arguments)], capture_output=True, text=True)


@functools.lru_cache(maxsize=None)
def chart_text(overlay):
    done = helm("template", "fsdpd", CHART, "--namespace", "fsdpd", *values_of(overlay))
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text):
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def of_overlay(overlay):
    return objects(overlay_text(overlay))


def named(among, kind, name):
    return next(each for each in among if each["kind"] == kind and each["metadata"]["name"] == name)


def pod_templates(among):
    return {each["metadata"]["name"]: each["spec"]["template"] for each in among
            if each["kind"] in ("StatefulSet", "DaemonSet", "Job")}


def pod_specs(among):
    return {name: template["spec"] for name, template in pod_templates(among).items()}

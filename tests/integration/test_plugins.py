"""Tests of a model in a user's shared object: described once, planned without it, loaded by every rank."""

import json
import pathlib
import subprocess

import pytest

from harness.cluster import Cluster
from harness.programs import program
from harness.specs import corpus, spec

PLUGIN = "examples/plugin/residual_mlp.so"
ARGS = '{"layers": 2}'


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("plugins"), agents=0) as made:
        for node in ("node-0", "node-1"):
            made.start_agent(node, plugin_dir=pathlib.Path(program(PLUGIN)).parent)
        yield made


@pytest.fixture(scope="module")
def description(tmp_path_factory):
    described = subprocess.run([program("fsdp/fsdpd-rank"), "--describe-plugin", program(PLUGIN), "--args", ARGS],
                               capture_output=True, text=True, check=True, timeout=180)
    path = tmp_path_factory.mktemp("plugin") / "residual_mlp.json"
    path.write_text(described.stdout)
    return path


def written(cluster, description, directory, **plugin):
    model = {"llama": None, "plugin": {"path": program(PLUGIN), "description": str(description), **plugin}}
    text = corpus(directory / "corpus.txt")
    made = spec(steps=40, model=model, data={"synthetic": None, "tokens": [{"path": str(text), "type": "u8"}]})
    return cluster.write_spec(made)


def submit(cluster, description, directory, **plugin):
    """Submits with fsdpctl, which reads the description."""
    path = written(cluster, description, directory, **plugin)
    return json.loads(cluster.ctl("submit", "-f", path, "-o", "json").expect(0).out)["id"]


def test_job_with_plugin_trains(cluster, description, tmp_path):
    job = cluster.wait_state(submit(cluster, description, tmp_path), "SUCCEEDED")
    assert job.last_step.loss < job.first_loss - 1


def test_rank_rejects_plugin_that_differs_from_description(cluster, description, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(description.read_text().replace('"64"', '"48"'))
    job = cluster.wait_state(submit(cluster, other, tmp_path), "FAILED")
    assert "describes another model" in job.reason and "units[1].params[1].shape[0]: 48 -> 64" in job.reason


def test_missing_plugin_is_named(cluster, description, tmp_path):
    missing = str(pathlib.Path(program(PLUGIN)).with_name("missing.so"))
    job = cluster.wait_state(submit(cluster, description, tmp_path, path=missing), "FAILED")
    assert missing in job.reason and "No such file" in job.reason, job.reason


def test_plugin_outside_directory_is_refused(cluster, description, tmp_path):
    refused = cluster.ctl("submit", "-f", written(cluster, description, tmp_path, path="/nowhere/mine.so")).expect(3)
    assert "no connected agent loads /nowhere/mine.so" in refused.err, refused


def test_plugins_require_agent_directory(own, description, tmp_path):
    with own(agents=1) as cluster:
        refused = cluster.ctl("submit", "-f", written(cluster, description, tmp_path)).expect(3)
        assert "model.plugin.path" in refused.err and "--plugin-dir DIR" in refused.err, refused

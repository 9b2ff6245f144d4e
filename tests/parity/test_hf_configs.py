"""Tests of configurations written by classes of transformers: `model.hf_config` knows all their fields, and presets
that equal the defaults of a class compile to the same program."""

import json
import subprocess

import pytest
import transformers
from test_transformers import CONFIGS

from harness.programs import program


def run(command, model, tmp_path, *more):
    (tmp_path / "job.yaml").write_text(
        f"name: a\nmodel: {{{model}}}\ndata: {{synthetic: {{vocab: 256}}, sequence_length: 16}}\ntrain: {{steps: 1}}\n"
        "resources: {device: cpu, memory_budget_bytes: 1000000000000}\n")
    done = subprocess.run([program("client/fsdpctl"), command, "--offline", "-f", tmp_path / "job.yaml", *more],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("name", CONFIGS)
def test_knows_all_fields_of_transformers(name, tmp_path):
    # With fields that have their defaults, too.
    (tmp_path / "config.json").write_text(CONFIGS[name].to_json_string(use_diff=False))
    assert "hf_not_known" not in run("validate", "hf_config: config.json", tmp_path).stderr


@pytest.mark.parametrize(("preset", "config"), [("gpt2", transformers.GPT2Config()),
                                                ("mixtral-8x7b", transformers.MixtralConfig())])
def test_presets_match_transformers_defaults(preset, config, tmp_path):
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    ours, theirs = (json.loads(run("plan", model, tmp_path, "-o", "json").stdout)
                    for model in (f"preset: {preset}", "hf_config: config.json"))
    for key in ("parameters", "flops_per_step", "program_hash"):
        assert ours[key] == theirs[key], key

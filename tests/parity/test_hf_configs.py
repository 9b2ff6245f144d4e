"""Every field that transformers' own configuration classes write is read by `model.hf_config`, refused, or on the list
of fields without effect (fsdp/checkpoint/hf_fields.cc)."""

import subprocess

import pytest
from test_transformers import CONFIGS

from harness.programs import program


@pytest.mark.parametrize("name", CONFIGS)
def test_no_field_of_transformers_is_unknown(name, tmp_path):
    # With fields that have their defaults, too.
    (tmp_path / "config.json").write_text(CONFIGS[name].to_json_string(use_diff=False))
    (tmp_path / "job.yaml").write_text(
        "name: a\nmodel: {hf_config: config.json}\ndata: {synthetic: {}, sequence_length: 16}\ntrain: {steps: 1}\n"
        "resources: {device: cpu}\n")
    done = subprocess.run([program("client/fsdpctl"), "validate", "--offline", "-f", tmp_path / "job.yaml"],
                          capture_output=True, text=True, check=False)
    assert "hf_not_known" not in done.stderr + done.stdout
    assert done.returncode == 0, done.stderr

"""Tests of non-finite steps: batches are skipped, or the job rewinds to the last checkpoint and skips their samples."""

import json
import re
import struct

import pytest

from harness.specs import spec
from harness.training import Record, messages
from harness.wait import wait_until

STEPS = 20
EVERY = 5
BAD = 200  # A byte that no text holds.
SAMPLE = 17  # Tokens, with the last target.


def text_with_one_bad_sample(path, sample):
    """130 ASCII samples, one of which has other bytes in its middle; a job of 20 steps reads 80 of them."""
    tokens = bytearray((b"the quick brown fox jumps over the lazy dog. " * 200)[:SAMPLE * 130])
    begin = SAMPLE * sample
    tokens[begin + 5:begin + 12] = bytes([BAD] * 7)
    path.write_bytes(tokens)
    return path


@pytest.fixture(scope="module")
def poisoned(shared, tmp_path_factory):
    """A checkpoint with an infinite embedding for one byte, so that samples with it have a non-finite loss."""
    directory = tmp_path_factory.mktemp("poisoned")
    made = spec(steps=1, name="start", checkpoint={"dir": str(directory / "run")})
    shared.wait_state(shared.submit(made), "SUCCEEDED")
    written = shared.write_spec(made, "start.yaml")
    shared.ctl("ckpt", "convert", directory / "run" / "iter_0000001", directory / "hf", "--to", "hf", "--dtype", "float32",
               "--spec", written).expect(0)
    file = directory / "hf" / "model.safetensors"
    content = bytearray(file.read_bytes())
    size = struct.unpack_from("<Q", content)[0]
    tensor = json.loads(content[8:8 + size])["model.embed_tokens.weight"]
    width = tensor["shape"][1]
    at = 8 + size + tensor["data_offsets"][0] + BAD * width * 4
    content[at:at + 4 * width] = struct.pack("<f", float("inf")) * width
    file.write_bytes(content)
    shared.ctl("ckpt", "convert", directory / "hf", directory / "start", "--to", "fsdp_dtensor").expect(0)
    return directory / "start"


def made_of(directory, poisoned, action, **train):
    text = text_with_one_bad_sample(directory / "text.bin", 40)
    return spec(steps=STEPS, name="bad-steps", data={"synthetic": None, "tokens": [{"path": str(text), "type": "u8"}]},
                train={"on_nonfinite": {"action": action}, **train},
                checkpoint={"dir": str(directory / "run"), "every_steps": EVERY, "load": str(poisoned),
                            "load_optimizer": False})


def test_skips_and_reports_non_finite_step(cluster, poisoned, tmp_path):
    job = cluster.wait_state(cluster.submit(made_of(tmp_path, poisoned, "skip")), "SUCCEEDED")
    assert job.attempt == 1 and job.skipped_steps == len(job.bad_steps) >= 1
    bad = job.bad_steps[0]
    assert bad.end_sample == bad.first_sample + 4 == 4 * bad.step
    output = rf"step {bad.step} was skipped: not finite, loss -?nan and gradient norm -?nan " \
           rf"\(samples {bad.first_sample} to {bad.end_sample - 1}\)"
    assert any(re.fullmatch(output, text) for text in messages(job)), messages(job)
    described = cluster.ctl("describe", job.id).expect(0).out
    assert re.search(rf"^  {bad.step} +not finite +-?nan .* {bad.first_sample} to {bad.end_sample - 1}$", described, re.M)
    log = cluster.ctl("logs", job.id, "--rank", "0").expect(0).out
    assert f"skipped: not finite, samples {bad.first_sample} to {bad.end_sample - 1}" in log
    metric = f'fsdpd_bad_steps_total{{fsdpd_job="{job.id}",rank="0",kind="nonfinite"}} {job.skipped_steps}'
    assert metric in cluster.scrape("node-0"), "of a job that has just ended"


def test_non_finite_step_fails_job_by_default(cluster, poisoned, tmp_path):
    made = made_of(tmp_path, poisoned, "stop")
    made["restart"] = {"max_attempts": 1}
    job = cluster.wait_state(cluster.submit(made), "FAILED")
    assert re.search(r"step \d+: not finite: loss -?nan, gradient norm -?nan \(samples \d+ to \d+\)", job.reason), job.reason
    assert job.failure.bad_step.step > 0 and not job.failure.bad_step.rewind


def went_back(job):
    output = [re.match(r"attempt (\d+) rewinds: .* from the checkpoint of step (\d+) and skips samples (\d+) to "
                     r"(\d+)$", text) for text in messages(job)]
    return [[int(number) for number in each.groups()] for each in output if each]


def test_job_rewinds_and_skips_samples(cluster, poisoned, tmp_path):
    made = made_of(tmp_path, poisoned, "rewind")
    made["restart"] = {"max_attempts": 1}
    job_id = cluster.submit(made)
    record = Record(cluster, job_id)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    backs = went_back(job)
    assert job.rewinds == len(backs) == job.attempt - 1 >= 1, messages(job)
    _, step, first, last = backs[0]
    bad = job.bad_steps[0]
    assert step == (bad.step - 1) // EVERY * EVERY and (first, last) == (4 * step, 4 * bad.step - 1)
    assert [(each.first, each.end) for each in job.skipped_samples][0] == (first, last + 1)
    assert job.skipped_steps == 0 and bad.rewind
    losses = record.losses()
    assert set(dict(losses)) == set(range(1, STEPS + 1)) and all(loss == loss for _, loss in losses), losses
    # One that never sees them: the samples behind come in their order.
    described = cluster.ctl("describe", job_id).expect(0).out
    assert f"samples {first} to {last} are skipped" in described
    assert f"attempt:   {job.attempt} of {job.attempt}\n" in described, "none of them counted"


def test_skipped_samples_survive_coordinator_restart(own, poisoned, tmp_path):
    """The coordinator is killed after it decided to rewind, before or after the next launch."""
    with own() as cluster:
        made = made_of(tmp_path, poisoned, "rewind")
        made["restart"] = {"max_attempts": 1}
        job_id = cluster.submit(made)
        wait_until("the job has gone back", lambda: cluster.job(job_id).rewinds == 1)
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(2)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.rewinds == 1 and job.attempt == 2, messages(job)
        assert job.skipped_samples[0].end == 4 * job.bad_steps[0].step

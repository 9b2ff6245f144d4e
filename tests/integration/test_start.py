"""Tests of exports as a Hugging Face directory, of jobs that start from one, and of the reported origin."""

import re

from harness import checkpoints
from harness.training import messages, saving

# The small spec's, but that positions turn at another pace: the same shapes.
OTHER = {"llama": {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "layers": 2, "heads": 4, "kv_heads": 2,
                   "rope_theta": 500000.0}}


def rank_log(cluster, job_id):
    return cluster.ctl("logs", job_id, "--rank", "0").expect(0).out


def test_export_and_start_from_hugging_face(cluster, tmp_path):
    made = saving(tmp_path, steps=10, checkpoint={"export": "hf"})
    first = cluster.submit(made)
    job, directory = cluster.wait_state(first, "SUCCEEDED"), tmp_path / "run/hf"
    assert (job.exported.format, job.exported.path, job.exported.error) == ("hf", str(directory), "")
    assert 0 < job.exported.bytes < (directory / "model.safetensors").stat().st_size
    assert any(text.startswith(f"Hugging Face directory {directory} written (") for text in messages(job)), messages(job)
    described = cluster.ctl("describe", first).expect(0).out
    assert re.search(rf"^exported: {re.escape(str(directory))} \(", described, re.M), described
    assert checkpoints.steps_in(tmp_path / "run") == [5, 10] and "export hf  " in rank_log(cluster, first)

    second = cluster.submit(saving(tmp_path / "second", steps=5, checkpoint={"load": str(directory)}))
    job = cluster.wait_state(second, "SUCCEEDED")
    assert (job.restored.step, job.restored.path) == (0, str(directory))
    assert f"attempt 1 starts at step 1 with the parameters of a checkpoint ({directory})" in messages(job), messages(job)
    described = cluster.ctl("describe", second).expect(0).out
    assert f"started at step 1, with only the parameters, from {directory} (read in " in described, described

    refused = cluster.submit(saving(tmp_path / "third", steps=5, checkpoint={"load": str(directory)}, model=OTHER,
                                    restart={"max_attempts": 1}))
    job = cluster.wait_state(refused, "FAILED")
    assert "config.json: rope_theta: 10000 there, and 500000 in this job" in job.failure.error, job.failure.error
    # From any rank: ranks that were informed by others may exit before they report it.
    lines = cluster.ctl("logs", refused).expect(0).out.splitlines()
    assert any(line.endswith("  config.json: rope_theta: 10000 there, and 500000 in this job") for line in lines), lines


def test_reports_other_run_of_same_model(cluster, tmp_path):
    first = cluster.submit(saving(tmp_path, steps=5))
    cluster.wait_state(first, "SUCCEEDED")
    reported = cluster.submit(saving(tmp_path / "more", steps=10, train={"seed": 99}, checkpoint={"load": str(tmp_path / "run")}))
    job = cluster.wait_state(reported, "SUCCEEDED")
    assert job.restored.step == 5
    assert list(job.restored.notes) == [f"data: {tmp_path}/corpus.txt there, and {tmp_path}/more/corpus.txt here",
                                        "train.seed: 1 there, and 99 here"]
    described = cluster.ctl("describe", reported).expect(0).out
    assert "\n  note: train.seed: 1 there, and 99 here\n" in described, described
    assert re.search(r" W .*: train.seed: 1 there, and 99 here$", rank_log(cluster, reported), re.M)
    done = cluster.submit(saving(tmp_path / "done", steps=5, checkpoint={"load": str(tmp_path / "run")},
                                 restart={"max_attempts": 1}))
    assert "is at step 5 and train.steps is 5: no steps left" in cluster.wait_state(done, "FAILED").failure.error

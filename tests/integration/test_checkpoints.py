"""Tests of resumed jobs: after any process is killed, results are bit-identical to those of an uninterrupted run."""

import json
import random
import re
import signal

import pytest

from harness import checkpoints
from harness.specs import corpus
from harness.training import EVERY, STEPS, Record, WholeRun, kill_rank, messages, saving, submit_from, wait_committed
from harness.wait import wait_until


def went_on_after(job, attempt=2):
    """Returns the step after which an attempt resumed, from the job's events."""
    output = [re.match(rf"attempt {attempt} resumes after step (\d+) \(", text) for text in messages(job)]
    assert any(output), messages(job)
    return next(int(each.group(1)) for each in output if each)


def test_killed_rank_loses_only_unsaved_steps(cluster, whole, tmp_path):
    job_id = cluster.submit(saving(tmp_path, restart={"max_attempts": 3}))
    record = Record(cluster, job_id)
    known = wait_committed(cluster, job_id, 2 * EVERY)
    kill_rank(cluster, 3)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    step = went_on_after(job)
    assert job.attempt == 2 and step >= known and step % EVERY == 0
    assert (job.restored.step, job.restored.path) == (step, str(checkpoints.path_of(tmp_path / "run", step)))
    assert (job.failure.attempt, job.failure.rank, job.failure.signal) == (1, 3, signal.SIGKILL)
    assert job.checkpoints[-1].step == STEPS
    assert any(re.search(rf"^attempt 1 of \d failed after step \d+: rank 3 on node-1 failed: killed by signal 9.*"
                         rf", from the checkpoint of step \d+$", text) for text in messages(job)), messages(job)
    losses = record.losses()
    whole.assert_same(losses, tmp_path / "run")
    first = losses[0][0]
    assert first <= known and set(dict(losses)) == set(range(first, STEPS + 1)), "no step was left out"
    assert checkpoints.assert_whole(tmp_path / "run") == [STEPS - 2 * EVERY, STEPS - EVERY, STEPS]
    reported = record.text()
    assert f"resumes after step {step}" in reported and f"checkpoint of step {known} committed" in reported, reported


def test_offloaded_job_matches_after_rank_kill(cluster, whole, tmp_path):
    job_id = cluster.submit(saving(tmp_path, fsdp={"offload": {"optimizer": True, "activation_layers": 1}}))
    record = Record(cluster, job_id)
    wait_committed(cluster, job_id, 2 * EVERY)
    kill_rank(cluster, 2)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert job.attempt == 2 and went_on_after(job) >= 2 * EVERY
    whole.assert_same(record.losses(), tmp_path / "run")
    checkpoints.assert_whole(tmp_path / "run")
    host = job.memory_plan.host_bytes
    assert host > next(c.bytes for c in job.memory_plan.components if c.name == "optimizer"), job.memory_plan
    assert "in host memory; device buffers" in cluster.ctl("describe", job_id).expect(0).out


def test_output_shows_resume_step_and_checkpoints(cluster, tmp_path):
    job_id = cluster.submit(saving(tmp_path, steps=40))
    wait_committed(cluster, job_id, EVERY)
    kill_rank(cluster, 1)
    step = went_on_after(cluster.wait_state(job_id, "SUCCEEDED"))
    described = cluster.ctl("describe", job_id).expect(0).out
    path = checkpoints.path_of(tmp_path / "run", step)
    assert re.search(rf"^attempt 2 started after step {step}, from {re.escape(str(path))} \(read in ", described, re.M)
    last = checkpoints.path_of(tmp_path / "run", 40)
    assert re.search(rf"^checkpoints:\n  STEP .*\n  40 .* {re.escape(str(last))}$", described, re.M), described
    assert re.search(rf"attempt 2 resumes after step {step} ", described), described
    assert "40/40" in cluster.ctl("get").expect(0).out
    job = json.loads(cluster.ctl("get", job_id, "-o", "json").expect(0).out)
    assert (job["state"], int(job["restored"]["step"]), job["restored"]["skipped_checkpoints"]) == ("succeeded", step, [])
    newest = job["checkpoints"][-1]
    assert (int(newest["step"]), newest["path"], newest["error"]) == (40, str(last), "")
    size = sum(file.stat().st_size for file in last.glob("*.distcp"))
    assert int(newest["bytes"]) == size and newest["seconds"] > 0


def test_killed_agent_loses_only_unsaved_steps(own, whole, tmp_path):
    """The agent of rank 0, which commits: unsent reports are lost with it."""
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path))
        record = Record(cluster, job_id)
        known = wait_committed(cluster, job_id, 2 * EVERY)
        cluster.agents["node-0"].kill()
        cluster.start_agent("node-0")
        job = cluster.wait_state(job_id, "SUCCEEDED")
        step = went_on_after(job)
        assert job.attempt == 2 and step >= known
        assert (job.failure.node, job.failure.rank) == ("node-0", -1), "no rank is to blame"
        losses = record.losses()
        whole.assert_same(losses, tmp_path / "run")
        assert set(dict(losses)) >= set(range(step + 1, STEPS + 1))
        checkpoints.assert_whole(tmp_path / "run")


def test_killed_coordinator_loses_no_step_of_job_without_checkpoints(own, whole, tmp_path):
    """Ranks exchange the state of their saves through the coordinator, which is killed while each step saves."""
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path, checkpoint={"every_steps": 1}))
        record = Record(cluster, job_id)
        wait_committed(cluster, job_id, 3)
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(2)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.attempt == 1 and not job.HasField("failed_checkpoint"), job
        steps = [saved.step for saved in job.checkpoints]
        assert steps == sorted(set(steps)) and steps[-1] == STEPS, "each once, in order"
        whole.assert_same(record.losses(), tmp_path / "run")
        assert checkpoints.assert_whole(tmp_path / "run") == [STEPS - 2, STEPS - 1, STEPS]


def test_killed_rank_and_coordinator_lose_only_unsaved_steps(own, whole, tmp_path):
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path))
        record = Record(cluster, job_id)
        known = wait_committed(cluster, job_id, 2 * EVERY)
        cluster.coordinator.kill()
        kill_rank(cluster, 2)
        wait_until("all ranks are gone", lambda: not cluster.all_ranks())
        newest = checkpoints.assert_whole(tmp_path / "run")[-1]
        assert newest >= known
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(2)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.attempt == 2 and went_on_after(job) == newest, "what is on disk counts, whatever was reported of it"
        assert (job.failure.rank, job.failure.signal) == (2, signal.SIGKILL)
        whole.assert_same(record.losses(), tmp_path / "run")
        checkpoints.assert_whole(tmp_path / "run")


def test_restored_backup_loses_no_trained_step(own, whole, tmp_path):
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path, restart={"max_attempts": 2}))
        record = Record(cluster, job_id)
        wait_until("it is launched", lambda: cluster.job(job_id).attempt == 1)
        backup = tmp_path / "backup.db"
        assert cluster.coordinator_says("backup", "--state-dir", cluster.state_dir, "--to", backup).startswith("wrote ")
        saved = 0
        for attempt in (1, 2):
            wait_committed(cluster, job_id, saved + EVERY)  # By this attempt: one that saves nothing counts.
            wait_until("its ranks are there", lambda: cluster.job(job_id).attempt == attempt and len(cluster.all_ranks()) == 4)
            kill_rank(cluster, 2)
            wait_until("all ranks are gone", lambda: not cluster.all_ranks())
            saved = cluster.job(job_id).checkpoints[-1].step
        newest = 3
        wait_until("it goes on", lambda: cluster.job(job_id).attempt == newest)
        known = wait_committed(cluster, job_id, saved + EVERY)
        cluster.coordinator.kill()
        cluster.state_dir.rename(tmp_path / "lost")
        cluster.coordinator_says("restore", "--from", backup, "--state-dir", cluster.state_dir)
        cluster.start_coordinator(listen=cluster.address)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.attempt == newest + 1 and job.refused_launches == newest - 1, job
        assert any(f"hosts attempt {newest} of the job: the coordinator's state is older" in text
                   for text in messages(job)), messages(job)
        assert went_on_after(job, newest + 1) >= known, "the attempt that it knew nothing of has saved"
        whole.assert_same(record.losses(), tmp_path / "run")
        checkpoints.assert_whole(tmp_path / "run")


def test_carried_state_survives_failure(cluster, tmp_path):
    """Covers a growing loss scale, two micro-batches per step, a replicated mesh, a schedule over all steps, and
    evaluation."""
    def made(directory):
        directory.mkdir(exist_ok=True)
        held_out = corpus(directory / "held_out.txt", tokens=100)
        return saving(directory, steps=40, data={"validation": [{"path": str(held_out), "type": "u8"}]},
                      train={"global_batch": 8, "evaluation": {"every_steps": 10}},
                      schedule={"cosine": {"warmup_steps": 4}}, precision={"compute": "fp16"},
                      fsdp={"strategy": "optim_grads_params", "outer": {"size": 2}})
    whole = WholeRun(cluster, tmp_path / "whole", made(tmp_path / "whole"))
    job_id = cluster.submit(made(tmp_path / "killed"))
    record = Record(cluster, job_id)
    wait_committed(cluster, job_id, EVERY)
    kill_rank(cluster, 0)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert went_on_after(job) >= EVERY and job.attempt == 2
    whole.assert_same(record.losses(), tmp_path / "killed" / "run")
    for field in ("loss_scale", "learning_rate", "grad_norm"):
        assert getattr(job.last_step, field) == getattr(whole.job.last_step, field), field
    assert job.last_step.evaluation.loss == whole.job.last_step.evaluation.loss


def test_job_resumes_from_cancelled_job(cluster, whole, tmp_path):
    cancelled = cluster.submit(saving(tmp_path / "cancelled", name="cancelled"))
    wait_committed(cluster, cancelled, EVERY)
    cluster.cancel(cancelled)
    newest = checkpoints.assert_whole(tmp_path / "cancelled" / "run")[-1]
    job_id = submit_from(cluster, cancelled, saving(tmp_path / "on", name="on"))
    record = Record(cluster, job_id)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert job.restored.step == cluster.job(cancelled).checkpoints[-1].step <= newest
    losses = record.losses()
    assert [step for step, _ in losses] == list(range(job.restored.step + 1, STEPS + 1))
    whole.assert_same(losses, tmp_path / "on" / "run")


OTHERS = {
    "two-whole": ({"nodes": 1, "ranks_per_node": 2}, {"strategy": "no_shard"}),
    "one": ({"nodes": 1, "ranks_per_node": 1}, None),
    "hsdp": ({"nodes": 2, "ranks_per_node": 2}, {"strategy": "optim_grads_params", "outer": {"size": 2}}),
    "two-optim": ({"nodes": 2, "ranks_per_node": 1}, {"strategy": "optim"}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_job_resumes_with_other_world_size(cluster, whole, tmp_path, name):
    resources, fsdp = OTHERS[name]
    after = STEPS - EVERY
    sections = {"resources": resources, **({"fsdp": fsdp} if fsdp else {})}
    job_id = submit_from(cluster, f"{whole.job_id}@{after}", saving(tmp_path, name=name, **sections))
    record = Record(cluster, job_id)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert (job.attempt, job.restored.step) == (1, after)
    assert job.restored.path == str(checkpoints.path_of(whole.directory, after))
    whole.assert_close(record.losses(), after)
    assert checkpoints.assert_whole(tmp_path / "run") == [STEPS]


def test_job_continues_newest_checkpoint_with_more_steps(cluster, whole, tmp_path):
    job_id = submit_from(cluster, whole.job_id, saving(tmp_path, name="more", steps=STEPS + 3))
    record = Record(cluster, job_id)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert job.restored.step == STEPS
    losses = record.losses()
    assert [step for step, _ in losses] == [STEPS + 1, STEPS + 2, STEPS + 3]
    assert losses[0][1] == pytest.approx(whole.losses[STEPS], rel=0.5), "it goes on where the other was"
    output = cluster.ctl("submit", "-f", cluster.directory / "more.yaml", "--from", f"{whole.job_id}@7").expect(4)
    assert f"{whole.job_id} has no checkpoint of step 7; available: {STEPS - 2 * EVERY}, {STEPS - EVERY}, {STEPS}" in output.err, output


KILLS = 7


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1])
def test_repeatedly_killed_job_matches_undisturbed_job(own, tmp_path, seed):
    """300 steps, with a random rank killed at a random step of every 40."""
    chance = random.Random(seed)
    with own() as cluster:
        whole = WholeRun(cluster, tmp_path / "whole", saving(tmp_path / "whole", name="whole", steps=300))
        job_id = cluster.submit(saving(tmp_path / "killed", steps=300, restart={"max_attempts": 3}))
        record = Record(cluster, job_id)
        for kill in range(KILLS):
            step = 40 * kill + chance.randrange(EVERY, 40)
            wait_until(f"attempt {kill + 1} is at step {step}",
                       lambda: (cluster.job(job_id).attempt == kill + 1
                                and cluster.state(job_id) == "RUNNING"
                                and cluster.job(job_id).last_step.step >= step))
            kill_rank(cluster, chance.randrange(4))
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.attempt == KILLS + 1, "attempts count from the newest checkpoint"
        whole.assert_same(record.losses(), tmp_path / "killed" / "run")
        checkpoints.assert_whole(tmp_path / "killed" / "run")

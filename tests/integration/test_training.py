"""Tests of a job from submit to its end, on two agents with two ranks each."""

import math

import pytest

from harness.specs import corpus, one_rank, spec


def test_job_trains_and_succeeds(cluster, tmp_path):
    text = corpus(tmp_path / "corpus.txt")
    job_id = cluster.submit(spec(steps=40, data={"synthetic": None, "tokens": [{"path": str(text), "type": "u8"}]}))
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert job.last_step.step == 40
    # A model that knows nothing is at ln(256) = 5.55; the text repeats itself, so forty steps teach it much.
    assert abs(job.first_loss - math.log(256)) < 0.7
    assert job.last_step.loss < job.first_loss - 1
    assert job.attempt == 1 and job.end_unix_nanos > job.start_unix_nanos >= job.create_unix_nanos > 0
    assert sorted((place.node, place.first_rank, place.ranks) for place in job.placements) == [
        ("node-0", 0, 2), ("node-1", 2, 2)]
    assert job.last_step.tokens == 4 * 16
    assert job.peak_bytes > 0 and job.memory_plan.peak_bytes > 0


def losses(cluster, made):
    """Returns the loss of every step from the job's watch stream."""
    from harness.stubs import coordinator
    job_id = cluster.submit(made)
    stream = cluster.api().WatchJob(coordinator.WatchJobRequest(id=job_id), timeout=180)
    found = {update.step.step: update.step.loss for update in stream if update.HasField("step")}
    job = cluster.wait_state(job_id, "SUCCEEDED")
    found[job.last_step.step] = job.last_step.loss
    return found


PROGRAMS = {
    "whole": {"strategy": "no_shard"},
    "optim": {"strategy": "optim"},
    "optim and grads": {"strategy": "optim_grads"},
    "everything": {"strategy": "optim_grads_params"},
    "recompute": {"strategy": "optim_grads_params", "recompute": "full"},
    "keep gathered": {"strategy": "optim_grads_params", "keep_gathered": True},
    "hsdp": {"strategy": "optim_grads_params", "outer": {"size": 2}},
    "hfsdp": {"strategy": "optim_grads_params", "outer": {"size": 2, "strategy": "optim"}},
}


def test_losses_are_equal_for_all_strategies_meshes_and_worlds(cluster):
    train = {"global_batch": 8, "micro_batch": 1}
    one = losses(cluster, one_rank(steps=6, train=train))
    assert 6 in one and len(one) >= 2
    for name, fsdp in PROGRAMS.items():
        other = losses(cluster, spec(steps=6, train=train, fsdp=fsdp))
        for step in set(one) & set(other):
            assert other[step] == pytest.approx(one[step], rel=1e-5), f"{name}: step {step}"


def test_context_parallel_losses_match_one_rank(cluster):
    train = {"global_batch": 4, "micro_batch": 1}
    one = losses(cluster, one_rank(steps=6, train=train))
    for context in (2, 4):
        other = losses(cluster, spec(steps=6, train=train, parallel={"context": context}))
        assert other[6] == pytest.approx(one[6], rel=1e-5), f"{context} ranks to a sample"


def test_tensor_parallel_losses_match_one_rank(cluster):
    train = {"global_batch": 4, "micro_batch": 1}
    one = losses(cluster, one_rank(steps=6, train=train))
    for parallel in ({"tensor": 2}, {"tensor": 2, "context": 2}):
        other = losses(cluster, spec(steps=6, train=train, parallel=parallel))
        assert other[6] == pytest.approx(one[6], rel=1e-5), parallel


def test_pipeline_losses_match_one_rank(cluster):
    train = {"global_batch": 8, "micro_batch": 1}
    one = losses(cluster, one_rank(steps=6, train=train))
    for parallel in ({"pipeline": 2}, {"pipeline": 4}, {"pipeline": 2, "tensor": 2}):
        other = losses(cluster, spec(steps=6, train=train, parallel=parallel))
        assert other[6] == pytest.approx(one[6], rel=1e-5), parallel


GPT2 = {"llama": None, "gpt2": {"vocab_size": 256, "hidden_size": 32, "layers": 2, "heads": 4, "positions": 16}}
KINDS = {
    "gpt2 by sgd": {"model": GPT2, "optimizer": {"adamw": None, "sgd": {"lr": 0.5, "momentum": 0.9}}},
    "tied": {"model": {"llama": {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "layers": 2, "heads": 4,
                                 "kv_heads": 2, "tied_embeddings": True, "qk_norm": True}}},
    "fp16": {"precision": {"compute": "fp16"}},
    "samples over all ranks": {"parallel": {"context": 4}},
    "matrices over a node's ranks": {"parallel": {"tensor": 2}},
    "bf16 wire": {"precision": {"compute": "bf16", "grad_comm": "bf16", "main_grads": "bf16", "moments": "bf16"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_job_kinds_train_and_evaluate(cluster, tmp_path, kind):
    text = corpus(tmp_path / "corpus.txt")
    held_out = corpus(tmp_path / "held_out.txt", tokens=700)  # No whole number of rounds.
    files = {"synthetic": None, "tokens": [{"path": str(text), "type": "u8"}],
             "validation": [{"path": str(held_out), "type": "u8"}]}
    job_id = cluster.submit(spec(steps=40, data=files, train={"evaluation": {"every_steps": 15}}, **KINDS[kind]))
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert job.last_step.loss < job.first_loss - 0.5
    evaluation = job.last_step.evaluation
    assert evaluation.tokens == 699, "every target of the file but none of the padding"
    assert abs(evaluation.loss - job.last_step.loss) < 1
    assert job.last_step.HasField("loss_scale") == (kind == "fp16")


def test_same_spec_gives_equal_run(cluster):
    first, second = losses(cluster, spec(steps=4)), losses(cluster, spec(steps=4))
    assert first[4] == second[4]
    other_seed = losses(cluster, spec(steps=4, train={"seed": 2}))
    assert other_seed[4] != first[4]


def test_two_jobs_run_concurrently(cluster):
    place = {"nodes": 1, "ranks_per_node": 2}
    ids = [cluster.submit(spec(steps=5, name=name, resources=place)) for name in ("left", "right")]
    jobs = [cluster.wait_state(job_id, "SUCCEEDED") for job_id in ids]
    assert {job.id for job in jobs} == set(ids) and len(set(ids)) == 2

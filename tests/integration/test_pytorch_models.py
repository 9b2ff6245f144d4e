"""Tests of docs/pytorch_models.md: its model is exported and trained, and loaded into PyTorch. And of packages without their
compiled code: who may run them, and what a spec and a node reject."""

import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import zipfile

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import transformers
import yaml

from harness import pages, wheel
from harness.cluster import Cluster, fsdpctl
from harness.small_disk import small_disk
from harness.specs import corpus, spec
from harness.stubs import event
from harness.training import kill_rank
from harness.wait import wait_until

PAGE = "docs/pytorch_models.md"
# The export compiles eight libraries, of about ten seconds of one core each, while other tests run.
pytestmark = pytest.mark.timeout(1700)


def graph(params, **others):
    return {"params": [{"name": name, "shape": shape, "decay": len(shape) > 1} for name, shape in params.items()],
            "variants": [{"recompute": "RECOMPUTE_NONE"}], **others}


HIDDEN = {"output_bytes": 32 * 16 * 4, "output_type": "DTYPE_FP32"}
MODEL = {
    "vocab_size": 96, "sequence_length": 32, "micro_batch_size": 1, "compute": "DTYPE_FP32", "device": "DEVICE_CPU",
    "graphs": [graph({"weight": [96, 16]}, **HIDDEN), graph({"mlp.weight": [16, 16]}, **HIDDEN),
               graph({"norm.weight": [16], "lm_head.weight": [96, 16]}, head={"weight": 1})],
    "units": [{"name": "embed", "module": "embed"}, {"name": "layers.0", "module": "layers.0", "graph": 1},
              {"name": "head", "graph": 2}],
}


def write_package(path, model=MODEL, **files):
    manifest = {"schema": 1, "model": model, "graphs": [{} for _ in model["graphs"]], "units": [{} for _ in model["units"]],
                "files": [{"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                          for name, content in files.items()]}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"manifest.json": json.dumps(manifest), **files}.items():
            archive.writestr(name, content)
    return path


def package_spec(cluster, path, **others):
    train = {"steps": 5, "global_batch": 1}
    made = {**spec(), "model": {"package": {"path": str(path)}}, "data": {"synthetic": {}}, "train": train,
            "precision": {}, "resources": {"nodes": 1}, "restart": {"max_attempts": 3}}
    return cluster.write_spec({**made, **others})


def submit_package(cluster, path, **others):
    return json.loads(cluster.ctl("submit", "-f", package_spec(cluster, path, **others), "-o", "json").expect(0).out)["id"]


def test_package_requires_agent_directory(own, tmp_path):
    path = write_package(tmp_path / "mine.fsdpd")
    with own(agents=1) as cluster:
        refused = cluster.ctl("submit", "-f", package_spec(cluster, path)).expect(3)
        assert "model.package.path" in refused.err and "--plugin-dir DIR" in refused.err, refused


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def cluster(directory, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), agents=0) as made:
        made.start_agent("node-0", plugin_dir=directory)
        yield made


def test_plan_comes_from_package(cluster, directory):
    path = write_package(directory / "planned.fsdpd")
    plan = cluster.ctl("plan", "-f", package_spec(cluster, path)).expect(0).out
    assert "data.sequence_length" in plan and "the package was exported for it" in plan and "layers.0" in plan


@pytest.mark.parametrize("others, rule", [
    ({"data": {"synthetic": {}, "sequence_length": 64}}, "package_sequence_length"),
    ({"fsdp": {"recompute": "full"}}, "package_recompute"),
    ({"precision": {"compute": "bf16"}}, "package_compute"),
])
def test_job_must_have_shape_of_package(cluster, directory, others, rule):
    path = write_package(directory / "shaped.fsdpd")
    assert f"[{rule}]" in cluster.ctl("submit", "-f", package_spec(cluster, path, **others)).expect(3).err


def test_job_runs_only_on_nodes_that_allow_its_package(own, tmp_path):
    """Also through a symlink, which the agent of the first node resolves."""
    for name in ("real", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("real")
    path = write_package(tmp_path / "link/mine.fsdpd")
    with own(agents=0) as cluster:
        cluster.start_agent("node-0", plugin_dir=tmp_path / "other")
        refused = cluster.ctl("submit", "-f", package_spec(cluster, path)).expect(3)
        assert f"no connected agent loads {path}" in refused.err, refused
        cluster.start_agent("node-1", plugin_dir=tmp_path / "link")
        two = package_spec(cluster, path, resources={"nodes": 2}, train={"steps": 5})
        waits = json.loads(cluster.ctl("submit", "-f", two, "-o", "json").expect(0).out)["id"]
        reason = f"node-0 has no --plugin-dir that contains {path}"
        wait_until("the reason is shown", lambda: reason in cluster.ctl("describe", waits).expect(0).out)
        failed = cluster.wait_state(submit_package(cluster, path), "FAILED")
        assert failed.failure.node == "node-1" and "compiled by PyTorch" in failed.reason, failed
        assert {each.node for each in failed.failed_attempts} == {"node-1"}, failed.failed_attempts


def test_damaged_package_is_reported_at_its_field(cluster, directory):
    path = directory / "damaged.fsdpd"
    path.write_text("text")
    refused = cluster.ctl("submit", "-f", package_spec(cluster, path)).expect(3)
    assert "[package_unreadable]" in refused.err and "is not a package of fsdpctl model export" in refused.err, refused


def fails_again(cluster, job, attempts=2):
    failed = cluster.wait_state(job, "FAILED")
    assert failed.attempt == attempts and "failed in the same way on node node-" in failed.reason, failed.reason
    return failed


def test_work_dir_without_space_or_execution_is_named(own, tmp_path):
    runs = {**MODEL, "target": "x86-64-v3", "torch_version": torch.__version__}
    path = write_package(tmp_path / "big.fsdpd", runs, values=bytes(8 << 20))
    with small_disk(tmp_path / "work", size="4m") as work, own(agents=0) as cluster:
        cluster.start_agent("node-0", plugin_dir=tmp_path, work_dir=work)
        failed = fails_again(cluster, submit_package(cluster, path))
        assert failed.failure.cause == event.FAILURE_CAUSE_DISK and "needs 8.00 MiB, but only " in failed.reason, failed
        assert "another --work-dir" in failed.reason and str(work) in failed.reason, failed.reason
        subprocess.run(["mount", "-o", "remount,noexec,size=64m", work], check=True)
        failed = fails_again(cluster, submit_package(cluster, path))
        assert failed.failure.cause == event.FAILURE_CAUSE_CONFIGURATION, failed
        assert "noexec" in failed.reason and "another --work-dir" in failed.reason and str(work) in failed.reason, failed


def test_missing_package_is_tried_on_all_nodes(own, tmp_path):
    path = write_package(tmp_path / "missing.fsdpd")
    nodes = ["node-0", "node-1", "node-2"]
    with own(agents=0) as cluster:
        for name in nodes:
            cluster.start_agent(name, plugin_dir=tmp_path)
        cluster.ctl("cordon", *nodes).expect(0)
        job = submit_package(cluster, path, restart={"max_attempts": 9})
        path.unlink()
        cluster.ctl("uncordon", *nodes).expect(0)
        failed = fails_again(cluster, job, attempts=4)
        assert f"model.package.path: '{path}' cannot be opened" in failed.reason, failed.reason
        assert sorted(each.node for each in failed.failed_attempts[:3]) == nodes, failed.failed_attempts


# --- The model of the page.

def shortened(commands):
    """Without the installation, and with one mode of activation checkpointing, which is half of the compilation."""
    lines = [line for line in commands.splitlines(True) if not line.startswith("pip ")]
    return "".join(lines).replace("--device cpu", "--device cpu --recompute none")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's commands after its installation: export, plan, submit. Yields the cluster and the reader's directory."""
    directory = tmp_path_factory.mktemp("page") / "clone"
    with Cluster(tmp_path_factory.mktemp("trained"), agents=0) as made, pages.Reader(PAGE, directory) as reader:
        made.start_agent("node-0", plugin_dir=directory)
        corpus(directory / "some.txt")
        reader.environment["FSDPD_SERVER"] = made.address
        reader.run(timeout_s=1500, chosen=lambda block: block.why == "run by", changed=shortened)
        made.first, = [job.id for job in made.jobs()]
        yield made, directory


def page_spec(directory, **changed):
    return {**yaml.safe_load((directory / "job.yaml").read_text()), **changed}


def submit_page(cluster, directory, **changed):
    (directory / "other.yaml").write_text(yaml.safe_dump(page_spec(directory, **changed)))
    return json.loads(cluster.ctl("submit", "-f", directory / "other.yaml", "-o", "json").expect(0).out)["id"]


def page_model(directory):
    found = importlib.util.spec_from_file_location("my_model", directory / "my_model.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.build(layers=2)


def test_model_of_page_trains(page):
    cluster, _ = page
    job = cluster.job(cluster.first)
    assert cluster.state(job.id) == "SUCCEEDED" and job.last_step.loss < job.first_loss - 1


def test_ranks_run_without_python(page):
    cluster, directory = page
    job = submit_page(cluster, directory, train={"steps": 100_000, "global_batch": 8}, resources={"ranks_per_node": 2})
    cluster.wait_step(job, 3)
    ranks = cluster.ranks("node-0")
    assert len(ranks) == 2
    for rank in ranks:
        libraries = pathlib.Path(f"/proc/{rank.pid}/maps").read_text()
        assert "libpython" not in libraries and "none.backward.so" in libraries
    cluster.ctl("cancel", job, "--wait").expect(0)


def test_pytorch_loads_checkpoint_of_package(page):
    cluster, directory = page
    runs = directory / "runs"
    job = submit_page(cluster, directory, checkpoint={"dir": str(runs), "every_steps": 20},
                      train={"steps": 40, "global_batch": 8}, resources={"ranks_per_node": 2})
    done = cluster.wait_state(job, "SUCCEEDED")
    model = page_model(directory)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    dcp.load({"model": {"module": model.state_dict()}}, checkpoint_id=str(max(runs.glob("iter_*"))))
    assert not any(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    text = torch.frombuffer(bytearray((directory / "some.txt").read_bytes()), dtype=torch.uint8).long()[:64 * 65].view(-1, 65)
    loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    assert abs(loss.item() - done.last_step.loss) < 0.3, (loss, done.last_step.loss)
    again = submit_page(cluster, directory, checkpoint={"load": str(runs)}, train={"steps": 43, "global_batch": 8})
    assert abs(cluster.wait_state(again, "SUCCEEDED").first_loss - done.last_step.loss) < 0.3


def test_killed_job_in_stages_ends_like_one_rank(page):
    """A rank is killed, and the next attempt resumes. The same job on one rank has the same losses."""
    cluster, directory = page
    train, data = {"steps": 60, "global_batch": 4, "seed": 5}, {"synthetic": {}}
    alone = submit_page(cluster, directory, train=train, data=data, fsdp={"strategy": "no_shard"},
                        resources={"ranks_per_node": 1})
    job = submit_page(cluster, directory, train=train, data=data, parallel={"pipeline": 2},
                      resources={"ranks_per_node": 2}, checkpoint={"dir": str(directory / "staged"), "every_steps": 10,
                                                                   "export": "hf"})
    cluster.wait_step(job, 25)
    kill_rank(cluster, 1)
    done = cluster.wait_state(job, "SUCCEEDED")
    assert done.attempt == 2
    expected = cluster.wait_state(alone, "SUCCEEDED").last_step.loss
    assert done.last_step.loss == pytest.approx(expected, abs=1e-4)
    exported = safetensors.torch.load_file(directory / "staged/hf/model.safetensors")
    model = page_model(directory)
    model.load_state_dict(exported)
    saved = {name: torch.empty_like(each) for name, each in exported.items()}
    dcp.load({"model": {"module": saved}}, checkpoint_id=str(directory / "staged/iter_0000060"))
    assert all(torch.equal(saved[name], each) for name, each in exported.items())
    assert not (directory / "staged/hf/config.json").exists()  # The model is not one of transformers.


def export(directory, config, length, modes):
    config.save_pretrained(directory / "hf")
    package = directory / "model.fsdpd"
    path = f"{wheel.commands(directory / 'bin')}:{os.environ['PATH']}"
    fsdpctl("model", "export", "--hf", directory / "hf", "--sequence-length", length, "--device", "cpu", "--recompute", modes,
            "-o", package, env={"PATH": path}, timeout_s=1500).expect(0)
    return package


@pytest.mark.nightly
def test_ranks_need_the_planned_memory(own, tmp_path):
    config = transformers.LlamaConfig(vocab_size=4096, hidden_size=256, intermediate_size=768, num_hidden_layers=6,
                                      num_attention_heads=4, num_key_value_heads=2)
    package = export(tmp_path, config, 512, "none,selective,full")
    with own(agents=0) as cluster:
        cluster.start_agent("node-0", plugin_dir=tmp_path)
        ranks, train = {"nodes": 1, "ranks_per_node": 2}, {"steps": 4, "global_batch": 2}
        for mode in ("none", "selective", "full"):
            for strategy in ("no_shard", "optim_grads_params"):
                fsdp = {"recompute": mode, "strategy": strategy}
                job = cluster.wait_state(submit_package(cluster, package, fsdp=fsdp, resources=ranks, train=train), "SUCCEEDED")
                measured, planned = job.last_step.memory, {each.name: each.bytes for each in job.memory_plan.components}
                # Between steps. The plan does not round large blocks up to the size classes of the host's allocator.
                state = sum(planned[name] for name in ("main_params", "optimizer", "gradients", "library")) + measured.arena_bytes
                if strategy == "no_shard":
                    state -= measured.arena_bytes  # It holds the gradients.
                peak = job.peak_bytes - (measured.allocated_bytes - state)
                assert peak == pytest.approx(job.memory_plan.peak_bytes, rel=0.02), fsdp


@pytest.mark.nightly
def test_transformers_loads_export_of_package(own, tmp_path):
    config = transformers.Gemma2Config(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                       num_attention_heads=4, num_key_value_heads=2, head_dim=8, eos_token_id=7)
    package = export(tmp_path, config, 32, "none")
    with own(agents=0) as cluster:
        cluster.start_agent("node-0", plugin_dir=tmp_path)
        job = submit_package(cluster, package, checkpoint={"dir": str(tmp_path / "runs"), "export": "hf"})
        cluster.wait_state(job, "SUCCEEDED")
        loaded = [{"load": str(tmp_path / "runs/hf")}, {"load": str(tmp_path / "runs"), "load_optimizer": False}]
        losses = {cluster.wait_state(submit_package(cluster, package, checkpoint=each), "SUCCEEDED").first_loss for each in loaded}
        assert len(losses) == 1, losses
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "runs/hf", output_loading_info=True)
    assert not any(info.values()) and model.config.eos_token_id == 7 and model.config.use_cache and model.dtype == torch.float32, info
    saved = {name: torch.empty_like(each) for name, each in model.named_parameters()}
    dcp.load({"model": {"module": saved}}, checkpoint_id=str(tmp_path / "runs/iter_0000005"))
    assert all(torch.equal(saved[name], each) for name, each in model.named_parameters())


def flip_byte_of_library(package):
    with zipfile.ZipFile(package) as archive:
        member = archive.getinfo("graphs/1/none.backward.so")
    content = bytearray(package.read_bytes())
    content[member.header_offset + 5000] ^= 1
    package.write_bytes(content)


FAULTS = {  # After the submission, on the node.
    "flipped byte": (flip_byte_of_library, "graphs/1/none.backward.so"),
    "another package": (lambda package: write_package(package), "digest"),
    "truncated": (lambda package: package.write_bytes(package.read_bytes()[:50_000]), "is not a package"),
    "deleted": (lambda package: package.unlink(), "No such file"),
}


def test_nodes_report_damaged_packages(page, own):
    _, directory = page
    with own(agents=0) as cluster:
        jobs = {}
        for fault in FAULTS:
            copy = directory / f"{fault.replace(' ', '_')}.fsdpd"
            shutil.copy(directory / "my_model.fsdpd", copy)
            jobs[fault] = submit_page(cluster, directory, model={"package": {"path": str(copy)}})
            FAULTS[fault][0](copy)
        cluster.start_agent("node-0", plugin_dir=directory)
        for fault, job in jobs.items():
            reason = cluster.wait_state(job, "FAILED").reason
            assert f"{fault.replace(' ', '_')}.fsdpd" in reason and FAULTS[fault][1] in reason, (fault, reason)

"""Tests of docs/lora.md: its job trains adapters of a model of transformers, which PEFT loads and merges; a killed job ends with
the same adapters; and another base model is refused."""

import json
import subprocess
import sys

import pytest
import safetensors.torch
import torch
import transformers

from harness import pages, peft_package
from harness.cluster import Cluster
from harness.specs import corpus
from harness.training import kill_rank

PAGE = "docs/lora.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's commands, on a CPU. Yields the cluster, the reader's directory and the output."""
    directory = tmp_path_factory.mktemp("page") / "clone"
    with Cluster(tmp_path_factory.mktemp("trained"), agents=1) as made, pages.Reader(PAGE, directory) as reader:
        corpus(directory / "some.txt")
        save_model(directory / "llama", seed=1)
        reader.environment["FSDPD_SERVER"] = made.address
        said = reader.run(chosen=lambda block: block.why == "run by",
                          changed=lambda text: text.replace("-f job.yaml", "-f job.yaml --set resources.device=cpu"))
        yield made, directory, said


def save_model(directory, seed):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


def submit(cluster, directory, **changes):
    sets = [word for field, value in changes.items() for word in ("--set", f"{field.replace('__', '.')}={value}")]
    made = cluster.ctl("submit", "-f", directory / "job.yaml", "--set", "resources.device=cpu", *sets, "-o", "json").expect(0)
    return json.loads(made.out)["id"]


def adapters(directory):
    return safetensors.torch.load_file(directory / "peft/adapter_model.safetensors")


def test_page_trains_and_exports(page):
    cluster, directory, said = page
    assert " trainable) on 1 ranks" in said and "frozen weights in fp32" in said, said
    job, = cluster.jobs()
    assert job.state == cluster.wait_state(job.id, "SUCCEEDED").state and job.last_step.loss < job.first_loss
    assert f"LoRA:      adapters of rank 16 of {directory}/llama\n" in cluster.ctl("describe", job.id).expect(0).out
    found = adapters(directory / "runs/adapters")
    assert len(found) == 2 * 7 * 2 and all(each.abs().max() > 0 for each in found.values())


def test_peft_loads_and_merges_the_export(page):
    _, directory, _ = page
    code = "".join(block.text for block in pages.blocks(PAGE) if block.language == "python")
    program = f"import sys; sys.path.append({str(peft_package.SITE)!r})\n{code}\nmodel.merge_and_unload().save_pretrained('theirs')"
    subprocess.run([sys.executable, "-c", program], cwd=directory, check=True)
    theirs, ours, base = (safetensors.torch.load_file(directory / name / "model.safetensors")
                          for name in ("theirs", "merged", "llama"))
    assert theirs.keys() == ours.keys() == base.keys()
    for name, each in theirs.items():
        torch.testing.assert_close(ours[name], each, atol=1e-6, rtol=1e-6)
        assert torch.equal(each, base[name]) != name.endswith("_proj.weight"), name
    assert transformers.AutoModelForCausalLM.from_pretrained(directory / "merged").dtype == torch.float32


def test_ckpt_convert_writes_the_files_of_the_export(page):
    cluster, directory, _ = page
    for source, target in (("runs/adapters", "again"), ("runs/adapters/iter_0000050", "earlier")):
        cluster.ctl("ckpt", "convert", directory / source, directory / target, "--to", "peft").expect(0)
    exported, again, earlier = ({path.name: path.read_bytes() for path in (directory / name).iterdir() if path.name != "fsdpd.json"}
                                for name in ("runs/adapters/peft", "again", "earlier"))
    assert exported.keys() == {"adapter_model.safetensors", "adapter_config.json"} and again == exported
    assert earlier["adapter_config.json"] == exported["adapter_config.json"]
    assert earlier["adapter_model.safetensors"] != exported["adapter_model.safetensors"]


def test_job_exports_merged_model(page):
    cluster, directory, _ = page
    job = submit(cluster, directory, checkpoint__dir=directory / "runs/hf", checkpoint__export="hf", train__steps=20)
    assert cluster.wait_state(job, "SUCCEEDED").exported.error == ""
    cluster.ctl("ckpt", "merge", directory / "runs/hf", directory / "by-hand", "--dtype", "float32").expect(0)
    exported, by_hand = ((directory / name / "model.safetensors").read_bytes() for name in ("runs/hf/hf", "by-hand"))
    assert exported == by_hand
    # A job that starts from the merged model has the loss at which a step of the adapters would begin.
    made = submit(cluster, directory, checkpoint__dir=directory / "runs/again", train__steps=1,
                  train__lora__base_model=directory / "runs/hf/hf", train__seed=7)
    more = submit(cluster, directory, checkpoint__dir=directory / "runs/more", train__steps=1, train__seed=7,
                  checkpoint__load=directory / "runs/hf", checkpoint__load_optimizer="false")
    first, second = (cluster.wait_state(each, "SUCCEEDED").first_loss for each in (made, more))
    assert first == pytest.approx(second, rel=1e-5)


def test_bf16_job_exports_merged_model(page):
    """The hash of the rounded weights is that of the ranks, or the export would be refused."""
    cluster, directory, _ = page
    job = submit(cluster, directory, checkpoint__dir=directory / "runs/bf16", checkpoint__export="hf", train__steps=5,
                 precision__compute="bf16")
    assert cluster.wait_state(job, "SUCCEEDED").exported.error == ""


def test_merge_refuses_another_base_model(page):
    cluster, directory, _ = page
    save_model(directory / "changed", seed=4)
    done = cluster.ctl("ckpt", "merge", directory / "runs/adapters", directory / "wrong", "--base", directory / "changed")
    assert done.code not in (0, None) and "were trained with other frozen weights" in done.err, done
    assert not (directory / "wrong").exists()


@pytest.mark.parametrize("words, error", [
    (["llama", "out"], "is neither a checkpoint of a LoRA job nor a directory of PEFT"),
    (["runs/adapters/peft", "out", "--base", "nowhere"], "nowhere"),
    (["runs/adapters", "llama"], "llama: already exists"),
])
def test_merge_reports_wrong_directories(page, words, error):
    cluster, directory, _ = page
    done = cluster.ctl("ckpt", "merge", *(word if word.startswith("--") else directory / word for word in words))
    assert done.code not in (0, None) and error in done.err, done


@pytest.mark.parametrize("ranks, base_type", [(1, "compute"), (2, "nf4")])
def test_killed_job_ends_with_the_same_adapters(page, ranks, base_type):
    cluster, directory, _ = page
    runs = [directory / f"runs/{name}-{ranks}" for name in ("whole", "killed")]
    settings = {"resources__ranks_per_node": ranks, "train__global_batch": 4, "checkpoint__every_steps": 10,
                "train__lora__base_type": base_type}
    whole = cluster.wait_state(submit(cluster, directory, checkpoint__dir=runs[0], **settings), "SUCCEEDED")
    killed = submit(cluster, directory, checkpoint__dir=runs[1], **settings)
    cluster.wait_step(killed, 25)
    kill_rank(cluster, ranks - 1)
    done = cluster.wait_state(killed, "SUCCEEDED")
    assert (done.attempt, done.last_step.loss) == (2, whole.last_step.loss)
    theirs = adapters(runs[0])
    assert all(torch.equal(each, theirs[name]) for name, each in adapters(runs[1]).items())


def test_adapter_is_continued_only_on_its_base_model(page):
    cluster, directory, _ = page
    first = directory / "runs/first"
    cluster.wait_state(submit(cluster, directory, checkpoint__dir=first, train__steps=20), "SUCCEEDED")
    expected = {}
    for name, load in (("peft", first / "peft"), ("native", first)):
        more = submit(cluster, directory, checkpoint__dir=directory / f"runs/{name}", checkpoint__load=load,
                      checkpoint__load_optimizer="false", train__steps=5)
        expected[name] = cluster.wait_state(more, "SUCCEEDED").first_loss
    assert expected["peft"] == expected["native"]
    save_model(directory / "other", seed=2)
    other = submit(cluster, directory, checkpoint__dir=directory / "runs/other", checkpoint__load=first, train__steps=30,
                   train__lora__base_model=directory / "other")
    assert "the adapters were trained with other frozen weights" in cluster.wait_state(other, "FAILED").reason
    narrow = {"train__lora__base_type": "nf4", "train__steps": 30}
    other_type = submit(cluster, directory, checkpoint__dir=first, checkpoint__load=first, **narrow)
    assert "write base_type: compute, or convert the checkpoint" in cluster.wait_state(other_type, "FAILED").reason
    of_peft = submit(cluster, directory, checkpoint__dir=directory / "runs/narrow", checkpoint__load=first / "peft", **narrow)
    cluster.wait_state(of_peft, "SUCCEEDED")
    stronger = submit(cluster, directory, checkpoint__dir=directory / "runs/stronger", checkpoint__load=first, train__steps=30,
                      train__lora__alpha=64)
    assert "another scale of the adapters (got 2, want 4)" in cluster.wait_state(stronger, "FAILED").reason
    full = submit(cluster, directory, checkpoint__dir=directory / "runs/full", checkpoint__load=directory / "llama")
    assert "has no adapters; set train.lora.base_model" in cluster.wait_state(full, "FAILED").reason

"""Tests of `fsdpctl model export`: packages of models of transformers and of a user's file, run from their manifests only
(package_runner.py), against autograd of the original module."""

import dataclasses
import zipfile

import pytest
import torch
from fsdpd.model import build, check, compile, costs, head, manifest, masks, partition, timing, trace, units
from fsdpd.model.initial import Constant, Normal, Recorder, Uniform, Unknown
from fsdpd.v1 import job_pb2

from clients.model_sources import SHAPE, SMALL, TWO_STREAMS, export_words, hugging_face, traced, user_file
from clients.package_runner import DTYPES, Package, eager_step, relative_error


def batch():
    tokens = torch.randint(96, (SHAPE.micro_batch, SHAPE.sequence + 1), generator=torch.Generator().manual_seed(5))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    targets[0, 3] = -100
    return inputs, targets


def check_training(package, module, limit=1e-5):
    """Loss and gradients of a package against autograd, in each of its activation checkpointing modes."""
    tokens, targets = (each.to(package.device) for each in batch())
    values = package.values()
    parameters = dict(module.named_parameters())
    assert set(values) == set(parameters)
    assert all(torch.equal(values[name], parameter.detach()) for name, parameter in parameters.items())
    module.to(package.device)
    for parameter in parameters.values():
        parameter.data = parameter.data.to(DTYPES[package.model.compute])
    loss, gradients = eager_step(module, tokens, targets)
    for variant in package.model.graphs[1].variants:
        found_loss, found = package.step(values, tokens, targets, variant.recompute)
        assert found_loss == pytest.approx(loss, rel=limit)
        errors = {name: relative_error(found[name], gradient.cpu()) for name, gradient in gradients.items()}
        assert max(errors.values()) < limit, errors
        frozen = set(values) - set(gradients)
        assert all(not found[name].any() for name in frozen)


@pytest.mark.nightly
@pytest.mark.timeout(1500)  # Eight libraries, of about ten seconds of one core each.
def test_llama_trains_from_its_package(run_model, tmp_path):
    source = hugging_face(tmp_path, "llama")
    code, out, error = run_model(*export_words("--hf", "llama", "--recompute", "none", "--initial-values", "data"))
    assert code == 0, error
    assert out == "model:\n  package: {path: model.fsdpd}\n"
    assert "model.fsdpd: 4 units, 3 graphs, " in error
    package = Package("model.fsdpd", tmp_path / "unpacked")
    model = package.model
    assert [unit.name for unit in model.units] == ["model.embed_tokens", "model.layers.0", "model.layers.1", "head"]
    assert [unit.module for unit in model.units] == ["model.embed_tokens", "model.layers.0", "model.layers.1", ""]
    assert [unit.graph for unit in model.units] == [0, 1, 1, 2]
    assert (model.vocab_size, model.sequence_length, model.micro_batch_size) == (96, 32, 2)
    assert (model.compute, model.device, model.target) == (job_pb2.DTYPE_FP32, job_pb2.DEVICE_CPU, "x86-64-v3")
    layer = model.graphs[1]
    assert {param.name: param.decay for param in layer.params}["self_attn.q_proj.weight"]
    assert not {param.name: param.decay for param in layer.params}["input_layernorm.weight"]
    tokens, matrices = 64, 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64
    # Attention: two products of [32, 32] and [32, 8] in 2 x 4 heads, half of it for the causal mask.
    attention = 2 * 2 * 8 * 32 * 32 * 8 / 2
    assert layer.attention_flops == attention
    assert layer.forward_flops == 2 * tokens * matrices + attention
    assert layer.output_bytes == 2 * 32 * 32 * 4
    none, = layer.variants
    # At least the two norms' inputs, the attention's inputs and result, and the three results of the MLP's products.
    assert none.saved_bytes > 4 * tokens * (32 * 4 + 16 * 2 + 64 * 2)
    assert none.workspace_bytes > 0 and layer.evaluation_workspace_bytes > 0
    check_training(package, build.build(source, True, 1, None).module)
    check_thread_counts(package)
    check_libraries(tmp_path / "unpacked")


def check_thread_counts(package):
    tokens, targets = batch()
    threads = torch.get_num_threads()
    losses = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            losses.append(package.step(package.values(), tokens, targets)[0])
    finally:
        torch.set_num_threads(threads)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def check_libraries(directory):
    for library in directory.glob("graphs/*/*.so"):
        data = library.read_bytes()
        assert b"fsdpctl-model-" not in data and str(torch.__path__[0]).encode() not in data, library
    with zipfile.ZipFile("model.fsdpd") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)} and not archive.comment


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name, names", [
    ("gemma2", ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"]),
    ("gemma3", ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"]),
    ("neox", ["gpt_neox.embed_in", "gpt_neox.layers.0", "gpt_neox.layers.1", "head"]),
])
def test_model_of_transformers_trains_from_its_package(run_model, tmp_path, name, names):
    source = hugging_face(tmp_path, name)
    code, _, error = run_model(*export_words("--hf", name, "--dropout", 0, "--initial-values", "data"))
    assert code == 0, error
    package = Package("model.fsdpd", tmp_path / "unpacked")
    assert [unit.name for unit in package.model.units] == names
    assert package.model.units[-1].tied_to == ("" if name == "neox" else "model.embed_tokens")
    check_training(package, build.build(source, True, 1, 0.0).module)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_two_residual_streams_and_alibi_train_from_their_package(run_model, tmp_path):
    source = user_file(tmp_path, TWO_STREAMS)
    code, out, error = run_model(*export_words("model.py:build", "--initial-values", "data", "--jobs", 2))
    assert code == 0, error
    assert out == "model:\n  package: {path: model.fsdpd}\n"
    assert "model.fsdpd: 4 units, 3 graphs, " in error
    package = Package("model.fsdpd", tmp_path / "unpacked")
    head = package.model.graphs[2].head
    assert (head.weight, head.bias, head.logit_scale, head.soft_cap) == (2, 3, 0.5, 3.0)
    assert [len(graph.variants) for graph in package.model.graphs] == [1, 3, 1]
    full = package.model.graphs[1].variants[2]
    assert full.recompute == job_pb2.RECOMPUTE_FULL and full.recomputed_flops > 0
    assert full.saved_bytes == 2 * 32 * (32 + 2) * 4
    check_training(package, build.build(source, True, 1, None).module)


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype, limit", [("fp32", 1e-4), ("bf16", 6e-2)])
def test_model_trains_on_gpu_from_its_package(run_model, tmp_path, name, dtype, limit):
    source = hugging_face(tmp_path, name)
    code, _, error = run_model(*export_words("--hf", name, "--initial-values", "data", "--device", "cuda", "--dtype", dtype,
                                       "--jobs", 8))
    assert code == 0, error
    package = Package("model.fsdpd", tmp_path / "unpacked")
    assert package.model.target == "sm_{}{}".format(*torch.cuda.get_device_capability())
    check_training(package, build.build(source, True, 1, None).module, limit)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_library_is_reproducible(tmp_path):
    """Equal graphs give equal libraries, wherever they are compiled."""
    _, found, last = traced(user_file(tmp_path, SMALL))
    libraries = []
    for name in ("a", "b"):
        calls = partition.partition(last[1], ["full"])
        libraries.append(tmp_path / name / "backward.so")
        compile.compile_one(compile.work_of("backward", calls.variants[0].backward, found.device, libraries[-1]))
    assert libraries[0].read_bytes() == libraries[1].read_bytes()


def test_time_is_mean_of_calls_after_the_first(monkeypatch):
    """Calls are asynchronous: time passes when the device is waited for."""
    now, pending, first = [0.0], [], []

    def run():
        pending.append(0.25 if first else 10.0)
        first.append(True)

    def synchronize():
        now[0] += sum(pending)
        pending.clear()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert timing.seconds_per_call(run, synchronize, at_least=2.0) == 0.25
    assert len(first) == 11  # 5 take 1.25 s.


def test_manifest_has_measured_times(tmp_path):
    _, found, (_, layer, *_) = traced(user_file(tmp_path, SMALL))
    calls = partition.partition(layer, ["none", "full"])
    seconds = {id(calls.evaluation): 1.0, id(calls.variants[0].forward): 2.0, id(calls.variants[0].backward): 3.0,
               id(calls.variants[1].backward): 4.0}

    def timed(call, inputs):
        return dataclasses.replace(check.eager(call, inputs), seconds=lambda: seconds[id(call)])
    measured = check.Check(layer, 96, None, found.device).run(calls, timed)
    made = manifest.Manifest(found, "x86-64-v3")
    libraries = {each: tmp_path / "model.py" for each in seconds}
    made.add_graph(layer, calls, libraries, measured)
    times = [(each.forward_seconds, each.backward_seconds) for each in made.message.model.graphs[0].variants]
    assert times == [(2.0 if calls.variants[0].forward else 1.0, 3.0), (1.0, 4.0)]


def attention_masks(unit):
    nodes = unit.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default)
    return [(trace.arguments(node)["is_causal"], trace.arguments(node)["attn_mask"] is not None) for node in nodes]


def test_causal_mask_becomes_argument_of_attention(tmp_path):
    _, _, found = traced(hugging_face(tmp_path, "gemma3"))
    assert attention_masks(found[1]) == [(False, True)]  # A sliding window.
    assert attention_masks(found[2]) == [(True, False)]
    assert len(found[2].buffers) == 2  # Rotary tables only.


def test_repeated_keys_are_grouped(tmp_path):
    """On a GPU, the kernel takes the keys of grouped-query attention without copies."""
    _, found, _ = traced(hugging_face(tmp_path, "llama"))
    nodes = found.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default)
    assert len(nodes) == 2
    for node in nodes:
        masks.group_keys(node)
        assert node.kwargs["enable_gqa"] and node.args[1].meta["val"].shape == (2, 2, 32, 8)


def test_equal_layers_share_a_graph(tmp_path):
    _, _, found = traced(user_file(tmp_path, TWO_STREAMS))
    signatures = [units.signature(unit) for unit in found]
    assert signatures[1] == signatures[2] and len(set(signatures)) == 3
    assert [unit.name for unit in found] == ["embedding", "layers.0", "layers.1", "head"]
    packed = found[0].graph.graph.output_node().args[0]
    assert packed.target == torch.ops.aten.reshape.default and packed.args[0].target == torch.ops.aten.cat.default


def test_rotary_tables_are_buffers_of_all_layers(tmp_path):
    _, found, (_, first, second, _) = traced(hugging_face(tmp_path, "llama"))
    assert [name for name, _ in first.buffers] == [name for name, _ in second.buffers]
    rotary = hugging_face(tmp_path, "llama").build().model.rotary_emb
    expected = rotary(torch.zeros(1), torch.arange(SHAPE.sequence)[None])
    assert sorted(each.sum() for _, each in first.buffers) == sorted(each.sum() for each in expected)
    operations = {partition.operation(node) for node in first.graph.graph.nodes}
    assert not operations & {"cos", "sin", "arange"}


TABLES = """
import torch
class Tables(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cos", torch.full((1, 32, 16), 2.0))
        self.register_buffer("phase", torch.linspace(0, 1, 32 * 16).view(32, 16))
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
    def forward(self, x, tables):
        return self.linear(x * tables.cos) + tables.phase.cos() * tables.phase.cos()
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = Tables()
        self.embed = torch.nn.Embedding(96, 16)
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.head = torch.nn.Linear(16, 96)
    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.tables)
        return self.head(x)
def build():
    return Model()
"""


def test_table_is_stored_once_and_not_for_a_buffer_of_its_name(tmp_path):
    _, found, made = traced(user_file(tmp_path, TABLES))
    described = manifest.Manifest(found, "x86-64-v3")
    for unit in made:
        described.add_unit(unit, 0, {each.name: Constant(0.0) for each in unit.params})
    assert sorted(list(each.shape) for each in described.message.buffers) == [[1, 32, 16], [32, 16]]
    assert len(described.message.units[1].buffers) >= 2
    assert set(described.message.units[1].buffers) == set(described.message.units[2].buffers) == {0, 1}


def test_selective_recompute_repeats_no_products(tmp_path):
    layer = traced(hugging_face(tmp_path, "llama"))[2][1]
    none, selective, full = partition.partition(layer, ["none", "selective", "full"]).variants
    products = [sum(map(partition.is_product, each.backward.graph.graph.nodes)) for each in (none, selective, full)]
    assert products[0] == products[1] < products[2]
    saved = [costs.saved_bytes(0, each) for each in (none, selective, full)]
    assert saved[0] > saved[1] > saved[2] == 0


def test_sliding_window_of_mask():
    size, query = 12, torch.zeros(2, 4, 12, 8)

    def window_of(mask):
        return masks.sliding_window(mask, query, query)
    for window in (1, 5, 12):
        mask = masks.window_mask(size, window, torch.device("cpu"))
        assert window_of(mask.expand(2, 1, size, size)) == window
        assert window_of(torch.zeros(size, size).masked_fill(~mask, -3e38)) == window
    broken = masks.window_mask(size, size, torch.device("cpu")).clone()
    broken[7, 2] = False
    assert window_of(broken) is None
    assert window_of(torch.ones(size, size, dtype=torch.bool)) is None
    assert window_of(torch.zeros(size, size).masked_fill(~broken, -1.5)) is None
    assert masks.sliding_window(mask, query, query[:, :, :6]) is None


def recipe(fill):
    recorder = Recorder()
    with recorder:
        module = torch.nn.Linear(64, 64)
        fill(module.weight)
    return recorder.recipe(module.weight)


def filled(operation):
    def fill(weight):
        with torch.no_grad():
            operation(weight)
    return fill


@pytest.mark.parametrize("fill, expected", [
    (lambda w: None, Uniform(-0.125, 0.125)),  # nn.Linear's own.
    (lambda w: torch.nn.init.normal_(w, 0.5, 0.02), Normal(0.5, 0.02)),
    (lambda w: w.data.normal_(std=0.3).mul_(0.5), Normal(0.0, 0.15)),
    (lambda w: torch.nn.init.trunc_normal_(w, std=0.02, a=-0.06, b=0.06), Normal(0.0, 0.02, 3.0)),
    (lambda w: torch.nn.init.trunc_normal_(w, std=0.02), Normal(0.0, 0.02)),  # Within 100 standard deviations.
    (lambda w: torch.nn.init.constant_(w, 0.25), Constant(0.25)),
    (lambda w: w.data.copy_(torch.ones(64, 64) * 2), Constant(2.0)),
    (lambda w: torch.nn.init.zeros_(w), Constant(0.0)),
    (lambda w: torch.nn.init.orthogonal_(w), Unknown),
    (filled(lambda w: w[3:5].normal_()), Unknown),
    (filled(lambda w: w.clamp_(-0.1, 0.1)), Unknown),
])
def test_recipe_of_initial_values(fill, expected):
    found = recipe(fill)
    if expected is Unknown:
        assert isinstance(found, Unknown), found
        return
    assert type(found) is type(expected)
    assert vars(found) == pytest.approx(vars(expected), rel=1e-4), found


def test_parameters_stay_on_the_meta_device(tmp_path):
    built = build.build(hugging_face(tmp_path, "gemma3"), False, 0, None)
    parameters = dict(built.module.named_parameters())
    assert all(parameter.is_meta for parameter in parameters.values())
    assert not any(buffer.is_meta for buffer in built.module.buffers())
    assert built.module.lm_head.weight is built.module.model.embed_tokens.weight
    assert built.recorder.recipe(parameters["model.layers.0.mlp.up_proj.weight"]) == Normal(0.0, 0.02)
    assert built.recorder.recipe(parameters["model.norm.weight"]) == Constant(0.0)

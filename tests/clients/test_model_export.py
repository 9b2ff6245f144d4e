"""Tests of `fsdpctl model export` and `check`: packages of models of transformers and of a user's file, run from their manifests only
(package_runner.py), against autograd of the original module; and models that are not supported."""

import os
import re
import shlex
import subprocess
import zipfile

import pytest
import torch
import transformers
from fsdpd.model import build, command, compile, costs, fold, head, manifest, masks, partition, trace, units
from fsdpd.model.initial import Constant, Normal, Recorder, Uniform, Unknown
from fsdpd.v1 import job_pb2

from clients.conftest import TOOLS
from clients.package_runner import DTYPES, Package, eager_step, relative_error
from harness.programs import ROOT

SHAPE = trace.Shape(2, 32)
SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
         "max_position_embeddings": 64, "num_hidden_layers": 2}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=8,
                                                    layer_types=["sliding_attention", "full_attention"]),
    # Layer drop, and gradients of key biases, which are 0 but for rounding.
    "opt": lambda: transformers.OPTConfig(**SIZES, ffn_dim=64, word_embed_proj_dim=32),
    # Attention whose result has another order of memory with gradients.
    "neox_japanese": lambda: transformers.GPTNeoXJapaneseConfig(**SIZES, intermediate_multiple_size=2),
    # Positions are read, and initial values are set by .data.
    "bamba": lambda: transformers.BambaConfig(**SIZES, num_key_value_heads=2, attn_layer_indices=[1], mamba_n_heads=4,
                                              mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8),
    "neox": lambda: transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5),
}
# A model with two residual streams of different widths, ALiBi, a scaled and capped head, and a frozen parameter.
TWO_STREAMS = '''
import math
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.gate = nn.Linear(2, d)
        self.gate.bias.requires_grad_(False)

    def forward(self, x, y, bias):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))
        y = y + torch.tanh(x.view(b, s, 2, d // 2).mean(-1))
        return x * torch.sigmoid(self.gate(y)), y


class Model(nn.Module):
    def __init__(self, d=32, layers=2, vocab=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, d, padding_idx=0)
        self.start = nn.Linear(d, 2)
        self.layers = nn.ModuleList([Layer(d) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, 5).float(), persistent=False)

    def forward(self, tokens):
        at = torch.arange(tokens.shape[1], device=tokens.device)
        distance = (at[None, :] - at[:, None]).float()
        bias = (self.slopes[:, None, None] * distance).masked_fill(distance > 0, -math.inf)[None]
        x = self.embed(tokens)
        y = self.start(x)
        for layer in self.layers:
            x, y = layer(x, y, bias)
        return 3 * torch.tanh(self.out(self.norm(x) + y.mean(-1, keepdim=True)) * 0.5 / 3)


def build(layers=2):
    return Model(layers=layers)
'''


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Runs a command in the test's directory; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = command.run(command.arguments_parser().parse_args([str(word) for word in words]))
        return (code, *capfd.readouterr())
    return call


def export_words(*words):
    return ("export", *words, "--sequence-length", SHAPE.sequence, "--micro-batch-size", SHAPE.micro_batch, "--device", "cpu",
            "--jobs", 1, "-o", "model.fsdpd")


def hugging_face(tmp_path, name):
    CONFIGS[name]().save_pretrained(tmp_path / name)
    return build.hugging_face_source(tmp_path / name)


def user_file(tmp_path, text, name="model.py"):
    (tmp_path / name).write_text(text)
    return build.file_source(f"{tmp_path / name}:build", "{}")


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
def test_llama_trains_from_its_package(run, tmp_path):
    source = hugging_face(tmp_path, "llama")
    code, out, error = run(*export_words("--hf", "llama", "--recompute", "none", "--initial-values", "data"))
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
    # The rotary embedding has a product of [4, 1] and [1, 32].
    assert layer.forward_flops == 2 * tokens * matrices + attention + 2 * 4 * 32
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
def test_model_of_transformers_trains_from_its_package(run, tmp_path, name, names):
    source = hugging_face(tmp_path, name)
    code, _, error = run(*export_words("--hf", name, "--dropout", 0, "--initial-values", "data"))
    assert code == 0, error
    package = Package("model.fsdpd", tmp_path / "unpacked")
    assert [unit.name for unit in package.model.units] == names
    assert package.model.units[-1].tied_to == ("" if name == "neox" else "model.embed_tokens")
    check_training(package, build.build(source, True, 1, 0.0).module)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_two_residual_streams_and_alibi_train_from_their_package(run, tmp_path):
    source = user_file(tmp_path, TWO_STREAMS)
    code, out, error = run(*export_words("model.py:build", "--initial-values", "data", "--jobs", 2))
    assert code == 0, error
    assert out == "model:\n  package: {path: model.fsdpd}\n"
    assert "model.fsdpd: 4 units, 3 graphs, " in error
    package = Package("model.fsdpd", tmp_path / "unpacked")
    head = package.model.graphs[2].head
    assert (head.weight, head.bias, head.logit_scale, head.soft_cap) == (2, 3, 0.5, 3.0)
    assert [len(graph.variants) for graph in package.model.graphs] == [1, 2, 1]
    full = package.model.graphs[1].variants[1]
    assert full.recompute == job_pb2.RECOMPUTE_FULL and full.recomputed_flops > 0
    assert full.saved_bytes == 2 * 32 * (32 + 2) * 4
    check_training(package, build.build(source, True, 1, None).module)


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype, limit", [("fp32", 1e-4), ("bf16", 6e-2)])
def test_model_trains_on_gpu_from_its_package(run, tmp_path, name, dtype, limit):
    source = hugging_face(tmp_path, name)
    code, _, error = run(*export_words("--hf", name, "--initial-values", "data", "--device", "cuda", "--dtype", dtype,
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


def traced(source, device="cpu", dropout=None):
    built = build.build(source, False, 0, dropout)
    paths = units.unit_paths(built.module, source)
    found = trace.trace(built, SHAPE, torch.float32, torch.device(device))
    masks.simplify_masks(found)
    fold.fold_tables(found)
    return built, found, units.cut_units(found, paths)


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


# A small model, in which each case replaces one line.
SMALL = '''
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        return x + self.dropout(self.linear(x))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(96, 16)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(16, 96)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build():
    return Model()
'''
REFUSALS = {
    "dropout": ("nn.Dropout(0.0)", "nn.Dropout(0.1)", r"model.py:14 \(.*dropout.*\): random operations \(native_dropout here\) .*; add --dropout 0"),
    "random": ("return x + self.dropout", "return x + torch.rrelu(x) + self.dropout",
               r"model.py:14 \(.*rrelu.*\): random operations \(rrelu.* here\) are not supported; remove them"),
    "buffer": ("return x + self.dropout", "self.calls += 1\n        return x + self.dropout",
               r"model.py:14 \(self.calls \+= 1\): forward changes layers.0.calls, but a buffer, parameter or input"),
    "statistics": ("nn.Dropout(0.0)", "nn.BatchNorm1d(32)", r"model.py:14 \(.*dropout.*\): forward changes .*running_mean, .*nn.LayerNorm"),
    "complex": ("return x + self.dropout", "return x + self.calls.real + self.dropout",
                r"model.py:14 \(return x .*\): layers.0.calls is a buffer of type torch.complex64, .*; store torch.view_as_real"),
    "short": ("return x + self.dropout", "return x + self.calls + self.dropout",
              r"model.py:14 \(return x .*\): layers.0.calls is a buffer of type torch.int16, .*; convert it to float32"),
    "arguments": ("def forward(self, tokens):", "def forward(self, tokens, mask, at=0):",
                  r"model.py:34 \(Model.forward\): missing a required argument: 'mask' \(want a forward of token ids only\)"),
    "import": ("import torch\n", "import torch, nothing\n", r"model.py:2 \(import torch, nothing\): ModuleNotFoundError: No module"),
    "syntax": ("import torch\n", "import\n", r"model.py:2 \(import\): SyntaxError: "),
    "build": ("nn.Linear(16, 16)", "nn.Linear()", r"model.py:9 \(.*\): TypeError: Linear.__init__.* missing .*'\n"
              r"  called at \S*model.py:31 \(.*Layer.*\)\n  called at \S*model.py:42 \(return Model\(\)\)\n$"),
    "nameless": ("def build", "fsdp_unit_modules = [Layer, 'Missing']\n\n\ndef build",
                 r"model.py:41 \(fsdp_unit_modules = .*\): the model has no module 'Missing'"),
    "detach": ("x = layer(x)", "x = layer(x.detach())", r"model.py:37 \(.*detach.*\): stopping a gradient"),
    "autocast": ("x = layer(x)", "with torch.autocast('cpu', torch.bfloat16):\n                x = layer(x)",
                 r"model.py:37 \(with torch.autocast.*\): torch.autocast is not supported; use --dtype"),
    "nested": ("x = layer(x)", "with torch.autocast('cpu', enabled=False), torch.no_grad():\n                x = layer(x)",
               "stopping a gradient with detach or torch"),
    "inference": ("x = layer(x)", "with torch.inference_mode():\n                x = layer(x)",
                  r"model.py:\d+ .*: torch.inference_mode is not supported"),
    "complex": ("x = layer(x)", "z = torch.view_as_complex(x.unflatten(-1, (-1, 2)))\n"
                "            with torch.no_grad():\n                z = z * 2\n            x = layer(torch.view_as_real(z).flatten(-2))",
                "stopping a gradient with detach or torch"),
    "item": ("x = layer(x)", "x = layer(x) * x.max().item()", "a number that is read from a tensor"),
    "no_grad": ("x = layer(x)", "with torch.no_grad():\n                x = layer(x)", "stopping a gradient with detach or torch"),
    "function": ("x = layer(x)", "x = Straight.apply(layer(x))", "Straight: torch.autograd.Function is not supported"),
    "control": ("x = layer(x)", "x = layer(x) if x.sum() > 0 else x", r"^fsdpctl model: \S*model.py:37 \(x = layer.*\): control flow that depends on values .*; .* torch.where\n$"),
    "size": ("x = layer(x)", "x = layer(x) + x.flatten(0, 1)[torch.where(tokens.flatten() > 3)[0]].sum()",
             r"model.py:37 \(x = layer.*\): a size that depends on values of tensors is not supported"),
    "loss": ("return self.head(x)", "return self.head(x).mean()", r"model.py:38 .*of shape \[\] \(want logits of shape \[2, 32, "),
    "softmax": ("return self.head(x)", "return self.head(x).softmax(-1)", r"model.py:38 .*: softmax after the final linear layer"),
    "computed": ("return self.head(x)", "return nn.functional.linear(x, self.head.weight * 2, self.head.bias)", "has a computed weight"),
    "order": ("x = layer(x)", "x = self.layers[1](self.layers[0](x)) if layer is self.layers[0] else self.layers[0](x)",
              "unit modules do not run one after the other"),
    "mean": ("x = self.embed(tokens)", "x = self.embed(tokens)\n        m = x.mean((0, 1))",
             r"model.py:36 .*a value of shape \[16\] passes from one unit to a later one"),
    "unused": ("self.head = ", "self.extra = nn.Parameter(torch.zeros(3))\n        self.head = ",
               "extra: forward does not use this parameter"),
    "shared": ("self.head = ", "self.layers[1].linear = self.layers[0].linear\n        self.head = ",
               "layers.0.linear.*: only the last unit may share a parameter"),
    "one": ("nn.ModuleList([Layer(), Layer()])", "nn.Sequential(Layer(), Layer())", "the model has no nn.ModuleList of layers"),
    "nothing": ("return Model()", "return 3", r"build does not return a torch.nn.Module \(got int\)"),
}


def check_words(*words):
    return ("check", *words, "--sequence-length", SHAPE.sequence, "--micro-batch-size", SHAPE.micro_batch)


def test_check_prints_units(run, tmp_path):
    (tmp_path / "model.py").write_text(TWO_STREAMS)
    code, out, error = run(*check_words("model.py:build"))
    assert (code, error) == (0, "fsdpctl model: embed.weight: the row of padding_idx starts with the values of the other rows, "
                                "not with zeros\n")
    assert re.sub(" +", " ", out).splitlines() == [
        "UNIT COUNT PARAMETERS", "embedding 1 3,138", "layers.0 to layers.1 2 4,384", "head 1 3,232", "", "parameters: 15,138",
        "final linear layer: out.weight and out.bias, scale 0.5, soft cap 3"]


@pytest.mark.parametrize("name", ["opt", "neox_japanese", "bamba"])
def test_check_of_transformers(run, tmp_path, name):
    hugging_face(tmp_path, name)
    code, out, error = run(*check_words("--hf", name, "--dropout", 0))
    assert code == 0 and "final linear layer: " in out, error


@pytest.mark.parametrize("old, new, message", [
    ("nn.Dropout(0.0)", "nn.Dropout(0.1)", "model.py:14 "),
    # A model that export refuses only without --initial-values data has a note.
    ("self.dropout = ", "nn.init.orthogonal_(self.linear.weight)\n        self.dropout = ", "linear.weight: its initial values have"),
    ("self.dropout = ", "self.scale = float(self.linear.weight[0, 0])\n        self.dropout = ", "reads values of parameters"),
])
def test_check_reports_what_export_refuses(run, tmp_path, old, new, message):
    (tmp_path / "model.py").write_text(SMALL.replace(old, new))
    code, out, error = run(*check_words("model.py:build"))
    assert message in error and (code, "UNIT" in out) in ([(0, True)] if "initial-values data" in error else [(2, False)]), error


@pytest.mark.parametrize("mode", ["none", "none,full"])
def test_check_finds_incorrect_gradient(run, tmp_path, monkeypatch, mode):
    (tmp_path / "model.py").write_text(TWO_STREAMS)
    gradients = partition.Joint.gradients

    def swapped(joint, results):
        found = gradients(joint, results)
        if ("GRAD_PARAM", 4) in found:  # A layer, in which the first two are weight and bias of a norm.
            found["GRAD_PARAM", 0], found["GRAD_PARAM", 1] = found["GRAD_PARAM", 1], found["GRAD_PARAM", 0]
        return found
    monkeypatch.setattr(partition.Joint, "gradients", swapped)
    code, _, error = run(*check_words("model.py:build", "--recompute", mode))
    assert code == 2 and "the gradient of layers.0.norm.weight differs from autograd's by" in error, error


def swap_parameters(unit):
    unit.params[:2] = unit.params[1::-1]
    return unit


@pytest.mark.parametrize("name, planted", [
    ("masks.sliding_window", lambda real: lambda *given: (real(*given) or 0) + 1),
    ("head.rounded", lambda real: lambda scale: 1.5 * real(scale)),
    ("units.Unit", lambda real: lambda *given: swap_parameters(real(*given))),
])
def test_check_finds_incorrect_cut(run, tmp_path, monkeypatch, name, planted):
    """Each unit is correct by itself, but the units together are not the model."""
    hugging_face(tmp_path, "gemma3")
    module, _, attribute = name.rpartition(".")
    where = {"masks": masks, "head": head, "units": units}[module]
    monkeypatch.setattr(where, attribute, planted(getattr(where, attribute)))
    code, _, error = run(*check_words("--hf", "gemma3"))
    assert code == 2 and "units: their logits differ from those of the model by " in error, error


def test_documented_check_prints_documented_units(run, tmp_path):
    page = (ROOT / "docs/pytorch_models.md").read_text()
    (tmp_path / "my_model.py").write_text(re.search(r"```python\n(# my_model.py.*?)```", page, re.DOTALL)[1])
    words, shown = re.search(r"^fsdpctl model (check my_model.*?)\n```.*?^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL).groups()
    assert run(*shlex.split(words)) == (0, shown, "")


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses_model(run, tmp_path, name):
    old, new, message = REFUSALS[name]
    assert old in SMALL
    text = SMALL.replace(old, new)
    kind = {"complex": "torch.complex64", "short": "torch.int16"}.get(name)
    text = text.replace("torch.zeros(())", f"torch.zeros(3, dtype={kind})[:1]") if kind else text
    if name == "mean":
        text = text.replace("return self.head(x)", "return self.head(x + m)")
    (tmp_path / "model.py").write_text(text)
    code, _, error = run(*export_words("model.py:build"))
    assert code == 2, error
    assert error.startswith("fsdpctl model: ") and "Traceback" not in error
    assert re.search(message, error, re.DOTALL), error
    assert not (tmp_path / "model.fsdpd").exists()


@pytest.mark.parametrize("words, message", [
    ((), "model: set FILE.py:FUNCTION or --hf DIR, not both"),
    (("model.py:build", "--hf", "."), "model: set FILE.py:FUNCTION or --hf DIR, not both"),
    (("model.py",), "model.py: is not FILE.py:FUNCTION"),
    (("none.py:build",), "none.py: no such file"),
    (("model.py:other",), "model.py: does not define a function other"),
    (("model.py:build", "--args", "[]"), "--args: is not a JSON object of the function's arguments (got list, "),
    (("model.py:build", "--args", "{"), "--args: is not JSON"),
    (("model.py:build", "--args", '{"depth": 1}'), "--args: do not fit build: got an unexpected keyword argument 'depth'"),
    (("model.py:build", "--dropout", "0.1"), "--dropout 0.1: random operations are not supported"),
    (("--hf", "."), "--hf .: has no config.json"),
])
def test_refuses_arguments(run, tmp_path, words, message):
    (tmp_path / "model.py").write_text(SMALL)
    code, _, error = run(*export_words(*words))
    assert code == 2 and message in error, error


def test_refuses_values_without_recipe(run, tmp_path, monkeypatch):
    """The message names the parameter, before anything is compiled."""
    (tmp_path / "model.py").write_text(SMALL.replace(
        "self.dropout = ", "nn.init.orthogonal_(self.linear.weight)\n        self.dropout = "))
    code, _, error = run(*export_words("model.py:build"))
    assert code == 2 and "layers.0.linear.weight: its initial values have no recipe (" in error, error
    assert "add --initial-values data" in error and "compiling" not in error, error


def test_declared_unit_modules_and_scaled_head(tmp_path):
    text = SMALL.replace("nn.ModuleList([Layer(), Layer()])", "nn.Sequential(Layer(), Layer())").replace(
        "return self.head(x)", "return self.head(x) / 4") + "\n\nfsdp_unit_modules = [Layer]\n"
    _, _, found = traced(user_file(tmp_path, text))
    assert [unit.name for unit in found] == ["embed", "layers.0", "layers.1", "head"]
    assert (found[-1].head.scale, found[-1].head.soft_cap) == (0.25, 0.0)


@pytest.mark.parametrize("old, new", [
    ("x = layer(x)", "y = torch.zeros_like(x)\n            y[:, 0] = x[:, 1]\n            x = layer(x + y)"),  # Assignment.
    ("x = self.embed(tokens)", "with torch.no_grad():\n            y = self.w * 2\n        x = self.embed(tokens) + y"),  # Frozen.
])
def test_check_of_operations(run, tmp_path, old, new):
    text = SMALL.replace(old, new)
    text = text if "self.w" not in new else text.replace("self.head =", "self.w = nn.Parameter(torch.zeros(16), False)\n        self.head =")
    (tmp_path / "model.py").write_text(text)
    code, _, error = run(*check_words("model.py:build"))
    assert code == 0, error


def test_constants_become_buffers_and_operations(tmp_path):
    text = SMALL.replace("x = layer(x)", "x = layer(x) * torch.tensor([0.5, 2.0] * 8) + torch.tensor(0.25)")
    _, _, found = traced(user_file(tmp_path, text))
    (_, value), = found[2].buffers
    assert value.tolist() == [0.5, 2.0] * 8
    node, = found[2].graph.graph.find_nodes(op="call_function", target=torch.ops.aten.full.default)
    assert node.args == ([], 0.25)


def test_tied_unit_has_its_unique_name(tmp_path):
    """Two units have parameters outside their modules, so their names are made unique."""
    text = SMALL.replace("self.head = ", "self.w = nn.ParameterList([torch.zeros(96, 16), torch.zeros(96, 16)])\n        self.head = ")
    text = text.replace("x = layer(x)", "x = layer(x, self.w[0 if layer is self.layers[0] else 1], tokens)")
    text = text.replace("def forward(self, x):\n        return x +", "def forward(self, x, w, tokens):\n        return x + w[tokens] +")
    _, _, found = traced(user_file(tmp_path, text.replace("self.head(x)", "nn.functional.linear(x, self.w[1], self.head)").replace(
        "nn.Linear(16, 96)", "nn.Parameter(torch.zeros(96))")))
    assert [unit.name for unit in found] == ["embed", "unit", "unit.2", "head"] and found[-1].tied_to == "unit.2"


def test_dropout_is_set_to_zero(tmp_path):
    text = SMALL.replace("nn.Dropout(0.0)", "nn.Dropout(0.1)")
    _, _, found = traced(user_file(tmp_path, text), dropout=0.0)
    assert len(found) == 4


def test_missing_libraries_name_install_command(site, tmp_path):
    (tmp_path / "model.py").write_text(SMALL)
    # The Python of the tools has no PyTorch.
    done = subprocess.run([TOOLS / "python", "-m", "fsdpd.model", *map(str, export_words("model.py:build"))], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'CLONE/clients/python[model]'" in done.stderr, done.stderr
    assert "fsdpctl-model = fsdpd.model.command:main" in next(site.glob("*.dist-info/entry_points.txt")).read_text()


def test_accepts_documented_commands():
    """Parses the commands of docs and help."""
    parser = command.arguments_parser()
    helps = [sub.epilog for action in parser._subparsers._group_actions for sub in action.choices.values()]
    lines = re.findall(r"^ *fsdpctl model (.+)$", "\n".join([(ROOT / "docs/pytorch_models.md").read_text(), *helps]), re.MULTILINE)
    assert len(lines) == 7
    for line in lines:
        parser.parse_args(shlex.split(line))

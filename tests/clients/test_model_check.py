"""Tests of `fsdpctl model check`, and of models and arguments that `check` and `export` refuse."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
import torch
from fsdpd.model import command, head, masks, partition, units

from clients.conftest import TOOLS
from clients.model_sources import SMALL, TWO_STREAMS, check_words, export_words, hugging_face, traced, user_file
from harness.programs import ROOT

REFUSALS = {
    "dropout": ("nn.Dropout(0.0)", "nn.Dropout(0.1)", r"model.py:14 \(.*dropout.*\): random operations \(native_dropout here\) .*; add --dropout 0"),
    "random": ("return x + self.dropout", "return x + torch.rrelu(x) + self.dropout",
               r"model.py:14 \(.*rrelu.*\): random operations \(rrelu.* here\) are not supported; remove them"),
    "buffer": ("return x + self.dropout", "self.calls += 1\n        return x + self.dropout",
               r"model.py:14 \(self.calls \+= 1\): forward changes layers.0.calls, but a buffer, parameter or input"),
    "statistics": ("nn.Dropout(0.0)", "nn.BatchNorm1d(32)", r"model.py:14 \(.*dropout.*\): forward changes .*running_mean, .*nn.LayerNorm"),
    "complex_buffer": ("return x + self.dropout", "return x + self.calls.real + self.dropout",
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
    "data": ("x = layer(x)", "x = x + layer(x.data)", r"model.py:37 \(x = x \+ layer\(x.data\)\): .data is not supported in forward"),
    "item": ("x = layer(x)", "x = layer(x) * x.max().item()", "a number that is read from a tensor"),
    "no_grad": ("x = layer(x)", "with torch.no_grad():\n                x = layer(x)",
                r"model.py:\d+ \(.*\): stopping a gradient with detach or torch.no_grad"),
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
    "positions": ("x = self.embed(tokens)", "x = self.embed(tokens) + nn.functional.embedding(torch.arange(32), torch.zeros(8, 16))",
                  r"model.py:35 \(x = .*\): index out of range in self; a table of positions"),
    "exit": ("return Model()", "raise SystemExit(3)", r"model.py: build calls sys.exit\(3\)"),
    "empty": ("nn.ModuleList([Layer(), Layer()])", "nn.ModuleList()", "the model's largest nn.ModuleList is empty"),
    "layers": ("nn.ModuleList([Layer(), Layer()])", "nn.ModuleList(Layer() for _ in range(1025))",
               r"layers.0: one of 1,025 unit modules \(want at most 1,024\)"),
    "parameters": ("nn.Dropout(0.0)", "nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(4097))",
                   r"layers.0: a unit with 4,0\d\d parameters \(want at most 4,096\)"),
    "nothing": ("return Model()", "return 3", r"build does not return a torch.nn.Module \(got int\)"),
}


def test_check_prints_units(run_model, tmp_path):
    (tmp_path / "model.py").write_text(TWO_STREAMS)
    code, out, error = run_model(*check_words("model.py:build"))
    assert (code, error) == (0, "fsdpctl model: warning: embed.weight: the row of padding_idx starts with the values of the "
                                "other rows, not with zeros\n")
    assert re.sub(" +", " ", out).splitlines() == [
        "UNIT COUNT PARAMETERS", "embedding 1 3,138", "layers.0 to layers.1 2 4,384", "head 1 3,232", "", "parameters: 15,138",
        "final linear layer: out.weight and out.bias, scale 0.5, soft cap 3"]


@pytest.mark.parametrize("name", ["opt", "neox_japanese", "bamba"])
def test_check_of_transformers(run_model, tmp_path, name):
    hugging_face(tmp_path, name)
    code, out, error = run_model(*check_words("--hf", name, "--dropout", 0))
    assert code == 0 and "final linear layer: " in out, error


@pytest.mark.parametrize("old, new, message", [
    ("nn.Dropout(0.0)", "nn.Dropout(0.1)", "model.py:14 "),
    # A model that export refuses only without --initial-values data has a note.
    ("self.dropout = ", "nn.init.orthogonal_(self.linear.weight)\n        self.dropout = ", "linear.weight: its initial values have"),
    ("self.dropout = ", "self.scale = float(self.linear.weight[0, 0])\n        self.dropout = ", "reads values of parameters"),
])
def test_check_reports_what_export_refuses(run_model, tmp_path, old, new, message):
    (tmp_path / "model.py").write_text(SMALL.replace(old, new))
    code, out, error = run_model(*check_words("model.py:build"))
    assert message in error and (code, "UNIT" in out) in ([(0, True)] if "initial-values data" in error else [(2, False)]), error


@pytest.mark.parametrize("mode", ["none", "none,full"])
def test_check_finds_incorrect_gradient(run_model, tmp_path, monkeypatch, mode):
    (tmp_path / "model.py").write_text(TWO_STREAMS)
    gradients = partition.Joint.gradients

    def swapped(joint, results):
        found = gradients(joint, results)
        if ("GRAD_PARAM", 4) in found:  # A layer, in which the first two are weight and bias of a norm.
            found["GRAD_PARAM", 0], found["GRAD_PARAM", 1] = found["GRAD_PARAM", 1], found["GRAD_PARAM", 0]
        return found
    monkeypatch.setattr(partition.Joint, "gradients", swapped)
    code, _, error = run_model(*check_words("model.py:build", "--recompute", mode))
    assert code == 2 and "the gradient of layers.0.norm.weight differs from autograd's by" in error, error


def swap_parameters(unit):
    unit.params[:2] = unit.params[1::-1]
    return unit


@pytest.mark.parametrize("name, planted", [
    ("masks.sliding_window", lambda real: lambda *given: (real(*given) or 0) + 1),
    ("head.rounded", lambda real: lambda scale: 1.5 * real(scale)),
    ("units.Unit", lambda real: lambda *given: swap_parameters(real(*given))),
])
def test_check_finds_incorrect_cut(run_model, tmp_path, monkeypatch, name, planted):
    """Each unit is correct by itself, but the units together are not the model."""
    hugging_face(tmp_path, "gemma3")
    module, _, attribute = name.rpartition(".")
    where = {"masks": masks, "head": head, "units": units}[module]
    monkeypatch.setattr(where, attribute, planted(getattr(where, attribute)))
    code, _, error = run_model(*check_words("--hf", "gemma3"))
    assert code == 2 and "units: their logits differ from those of the model by " in error, error


# Documents of the first row for all rows.
FIRST_ROW = ("x = self.embed(tokens)", "d = (position_ids[0] == 0).cumsum(0)\n        x = self.embed(tokens)\n        "
             "x = (d[:, None] == d).tril().to(x.dtype) @ x")
POSITIONS = ("def forward(self, tokens):", "def forward(self, tokens, position_ids):")
# Separate documents, but positions that count from the start of the sample.
OWN_DOCUMENT = ("x = self.embed(tokens)", "d = (position_ids == 0).cumsum(1)\n        x = self.embed(tokens)\n        "
                "x = (d[:, :, None] == d[:, None]).tril().to(x.dtype) @ x")
PLACE = ("@ x", "@ x + torch.arange(tokens.shape[1])[:, None]")
DEPENDENT = ("--documents: the logits of a document depend on the document before it or on its place in the sample; the model must "
             "derive its attention mask and all positions from position_ids")
# Documents are separate, and all tokens of a document see each other's positions.
SEPARATE = (POSITIONS, OWN_DOCUMENT, ("@ x", "@ x + position_ids[..., None]"))
ALL_TOKENS = ("x = layer(x)", "x = layer(x) + x.mean(1, keepdim=True)")
BLOCKS = ("@ x", "@ x\n        at = torch.arange(tokens.shape[1]) // 8\n        x = ((d[:, :, None] == d[:, None]) & (at[:, None] == at)).tril().to(x.dtype) @ x")
MIXED = ("x = self.embed(tokens)", "x = self.embed(tokens) + {} * 1e-3\n        x = x.cumsum(1)")


@pytest.mark.parametrize("changes, message", [
    ((), r"model.py:34 \(Model.forward\): .*unexpected keyword argument 'position_ids' \(want a forward of token ids and position_ids\)"),
    ((POSITIONS,), "--documents: forward does not use position_ids"),
    ((POSITIONS, (MIXED[0], MIXED[1].format("position_ids[..., None]"))), DEPENDENT),
    ((POSITIONS, FIRST_ROW), DEPENDENT),
    ((POSITIONS, OWN_DOCUMENT, PLACE), DEPENDENT),
    ((*SEPARATE, ALL_TOKENS), DEPENDENT),
    ((*SEPARATE[:2], BLOCKS), DEPENDENT),
])
def test_refuses_documents_that_are_not_separate(run_model, tmp_path, changes, message):
    text = SMALL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "model.py").write_text(text)
    for rows in [2] if FIRST_ROW in changes else [1, 2]:
        code, _, error = run_model(*check_words("model.py:build", "--documents"), "--micro-batch-size", rows)
        assert code == 2 and re.search(message, error), error


def test_accepts_separate_documents(run_model, tmp_path):
    text = SMALL
    for old, new in SEPARATE:
        text = text.replace(old, new)
    (tmp_path / "model.py").write_text(text)
    for rows in (1, 2):
        code, _, error = run_model(*check_words("model.py:build", "--documents"), "--micro-batch-size", rows)
        assert (code, error) == (0, "")


def test_check_separates_documents_of_transformers(run_model, tmp_path):
    hugging_face(tmp_path, "gemma3")
    code, _, error = run_model(*check_words("--hf", "gemma3", "--documents"))
    assert code == 0, error
    hugging_face(tmp_path, "bamba")  # State-space layers continue over documents.
    code, _, error = run_model(*check_words("--hf", "bamba", "--documents", "--dropout", 0))
    assert code == 2 and DEPENDENT in error, error


def test_documented_check_prints_documented_units(run_model, tmp_path):
    page = (ROOT / "docs/pytorch_models.md").read_text()
    (tmp_path / "my_model.py").write_text(re.search(r"```python\n(# my_model.py.*?)```", page, re.DOTALL)[1])
    words, shown = re.search(r"^fsdpctl model (check my_model.*?)\n```.*?^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL).groups()
    assert run_model(*shlex.split(words)) == (0, shown, "")


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses_model(run_model, tmp_path, name):
    old, new, message = REFUSALS[name]
    assert old in SMALL
    text = SMALL.replace(old, new)
    kind = {"complex_buffer": "torch.complex64", "short": "torch.int16"}.get(name)
    text = text.replace("torch.zeros(())", f"torch.zeros(3, dtype={kind})[:1]") if kind else text
    if name == "mean":
        text = text.replace("return self.head(x)", "return self.head(x + m)")
    (tmp_path / "model.py").write_text(text)
    code, _, error = run_model(*export_words("model.py:build"))
    assert code == 2, error
    assert error.startswith("fsdpctl model: ") and "Traceback" not in error
    assert re.search(message, error, re.DOTALL), error
    assert not (tmp_path / "model.fsdpd").exists()


@pytest.mark.parametrize("output, message", [
    ("", "--output .: is not a file name"), ("/dev/null", "--output /dev/null: exists and is not a regular file"),
    (".", "--output .: is not a file name"), ("none/x.fsdpd", "--output none/x.fsdpd: no directory none")])
def test_checks_output_before_compiling(run_model, tmp_path, output, message):
    (tmp_path / "model.py").write_text(SMALL)
    code, _, error = run_model(*export_words("model.py:build"), "-o", output)
    assert code == 2 and message in error and "compiling" not in error, error


BLOCKED = '''
import argparse, hashlib, sys
from fsdpd import program
program.GRACE_S = 0.1
def run(options):
    print("runs", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", (1 << 31) - 1)
sys.exit(program.Program("model", (), "output").run_interruptible(argparse.Namespace(run=run)))
'''


def test_interrupt_ends_an_operation_that_runs(site):
    with subprocess.Popen([sys.executable, "-c", BLOCKED], env={**os.environ, "PYTHONPATH": str(site)}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == "fsdpctl model: interrupted\n"


def test_warns_of_a_model_that_is_not_causal(run_model, tmp_path):
    (tmp_path / "model.py").write_text(SMALL.replace("x = layer(x)", "x = layer(x) + x.mean(1, keepdim=True)"))
    code, _, error = run_model(*check_words("model.py:build"))
    assert code == 0 and error.startswith("fsdpctl model: warning: the logits of a token depend on later tokens"), error


def test_check_accepts_a_table_that_is_computed_from_another(run_model, tmp_path):
    (tmp_path / "model.py").write_text(SMALL.replace(
        "x = self.embed(tokens)", "a = torch.arange(32.0)[:, None] * torch.ones(16) / 32\n        x = self.embed(tokens) * a + a.exp()"))
    code, _, error = run_model(*check_words("model.py:build"))
    assert (code, error) == (0, "")


def test_reports_lack_of_memory(run_model, tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(SMALL)

    def fail(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 38400000000 bytes. Error code 12")
    monkeypatch.setattr(torch, "randint", fail)
    code, _, error = run_model(*check_words("model.py:build"))
    assert (code, error) == (2, "fsdpctl model: --sequence-length 32 and --micro-batch-size 2: out of memory on cpu (an allocation of "
                                "38400000000 bytes failed); set smaller values\n")


@pytest.mark.parametrize("words, message", [
    ((), "model: is missing; set FILE.py:FUNCTION or --hf DIR"),
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
def test_refuses_arguments(run_model, tmp_path, words, message):
    (tmp_path / "model.py").write_text(SMALL)
    code, _, error = run_model(*export_words(*words))
    assert code == 2 and message in error, error


def test_refuses_values_without_recipe(run_model, tmp_path, monkeypatch):
    """The message names the parameter, before anything is compiled."""
    (tmp_path / "model.py").write_text(SMALL.replace(
        "self.dropout = ", "nn.init.orthogonal_(self.linear.weight)\n        self.dropout = "))
    code, _, error = run_model(*export_words("model.py:build"))
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
def test_check_of_operations(run_model, tmp_path, old, new):
    text = SMALL.replace(old, new)
    text = text if "self.w" not in new else text.replace("self.head =", "self.w = nn.Parameter(torch.zeros(16), False)\n        self.head =")
    (tmp_path / "model.py").write_text(text)
    code, _, error = run_model(*check_words("model.py:build"))
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

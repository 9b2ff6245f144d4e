"""LoRA against PEFT and transformers: the same base model, adapters and batches have the same losses, gradients and adapters,
and PEFT reads the exported adapters."""

import dataclasses
import json

import numpy
import pytest
import safetensors.torch
import torch
import transformers
from fsdp2_rank import optimizer
from google.protobuf import json_format
from peer import cosine_rate
from setting import BETAS, CLIP_NORM, DECAY, EPSILON, FLOOR, GLOBAL_BATCH, LR, SEQUENCE, STEPS, WARMUP, Setting, run_message
from test_transformers import SIZES, job

from harness import peft_package

LOSS_TOLERANCE = 1e-5      # Relative, per token.
GRADIENT_TOLERANCE = 1e-5  # Relative norm of each tensor.
ADAPTER_TOLERANCE = 1e-3   # The same, after all steps.
RANK, ALPHA = 4, 12.0
SIZES = {**SIZES, "num_hidden_layers": 2}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
# In the order of our parameters.
OF_A_LAYER = ["input_layernorm", *(f"self_attn.{each}" for each in ATTENTION), "post_attention_layernorm",
              *(f"mlp.{each}" for each in LINEAR[4:])]
CONFIGS = {
    "llama": (transformers.LlamaConfig(**SIZES, rope_theta=10000.0), LINEAR),
    "qwen2": (transformers.Qwen2Config(**SIZES, rope_theta=1e6, tie_word_embeddings=True), LINEAR),  # Biases.
    "qwen3": (transformers.Qwen3Config(**SIZES, head_dim=32, rope_theta=1e6), LINEAR),
    "mixtral": (transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, rope_theta=1e4), ATTENTION),
}
# Small differences may change which experts a token chooses, so these jobs are short.
STEPS_WITH_EXPERTS = 4


@dataclasses.dataclass(frozen=True)
class Case:
    family: str = "llama"
    world: int = 2
    strategy: str = "optim_grads_params"
    parallel: tuple = ()
    rank_stabilized: bool = False
    nf4: bool = False
    bf16_base: bool = False

    def __str__(self):
        axes = "".join(f" {name} {size}" for name, size in self.parallel)
        flags = "".join(f" {name}" for name in ("rank_stabilized", "nf4", "bf16_base") if getattr(self, name))
        return f"{self.family} world {self.world} {self.strategy}{axes}{flags}"


CASES = [
    *(Case(world=world) for world in (1, 2, 3, 4)),
    *(Case(strategy=strategy) for strategy in ("no_shard", "optim", "optim_grads")),
    Case(parallel=(("tensor", 2),)), Case(parallel=(("pipeline", 2),), strategy="no_shard"),
    *(Case(family=family) for family in CONFIGS if family != "llama"),
    Case(family="qwen2", parallel=(("tensor", 2),)), Case(rank_stabilized=True),
    *(Case(world=world, nf4=True) for world in (1, 2, 3)), Case(family="qwen3", nf4=True), Case(family="mixtral", nf4=True),
    *(Case(world=world, bf16_base=True) for world in (1, 3)), Case(family="qwen2", bf16_base=True), Case(bf16_base=True, nf4=True),
]


class Peer:
    """A model with adapters of PEFT, and its directories."""

    def __init__(self, directory, case):
        self.peft = peft_package.load()
        self.config, self.targets = CONFIGS[case.family]
        self.config.architectures = [transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(self.config)].__name__]
        torch.manual_seed(3)
        torch.set_num_threads(1)
        self.base, self.adapter = directory / "base", directory / "adapter"
        self.plain().to(torch.bfloat16 if case.bf16_base else torch.float32).save_pretrained(self.base)
        lora = self.peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=self.targets, use_rslora=case.rank_stabilized,
                                    task_type="CAUSAL_LM")
        self.nf4 = case.nf4
        self.model = self.peft.get_peft_model(self.loaded(), lora)
        for name, each in self.model.named_parameters():
            if "lora_B" in name:  # With zeros, A would have no gradient in the first step.
                torch.nn.init.normal_(each, std=0.02)
        self.model.save_pretrained(self.adapter)

    def plain(self):
        model = transformers.AutoModelForCausalLM.from_config(self.config, attn_implementation="eager")
        for each in model.parameters():  # Large enough that attention differs from a mean, whose gradients are rounding noise.
            is_vector = each.dim() == 1
            torch.nn.init.normal_(each, mean=float(is_vector), std=0.1)
        return model

    def loaded(self, dtype=torch.float32):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.base, dtype=dtype, attn_implementation="eager").train()
        if self.nf4:
            round_to_nf4(model, self.targets)
        return model

    def restart(self, dtype):
        """Starts again from the saved adapters, with the base model in `dtype`. Adapters stay in fp32."""
        self.model = self.peft.PeftModel.from_pretrained(self.loaded(dtype), self.adapter, is_trainable=True)

    def adapters(self):
        return {name.replace(".default.", "."): each for name, each in self.model.named_parameters() if each.requires_grad}

    def loss(self, tokens, targets):
        text = torch.cat((tokens, targets[:, -1:]), dim=1)
        return self.model(input_ids=text, labels=torch.cat((tokens[:, :1], targets), dim=1)).loss

    def train(self, batches):
        adamw = optimizer(self.model, {"lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY})
        losses = []
        for step, (tokens, targets) in enumerate(batches, 1):
            for group in adamw.param_groups:
                group["lr"] = LR * cosine_rate(step, WARMUP, len(batches), FLOOR)
            adamw.zero_grad()
            loss = self.loss(tokens, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.adapters().values(), CLIP_NORM)
            adamw.step()
            losses.append(loss.item())
        return losses


def round_to_nf4(model, targets):
    functional = peft_package.bitsandbytes_functional()
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            # Flat, as on GPUs: on CPUs, dequantize_4bit of bitsandbytes 0.50.2 takes a wrong scale if blocks cross rows.
            codes, state = functional.quantize_4bit(module.weight.data.flatten(), blocksize=64, quant_type="nf4")
            module.weight.data = functional.dequantize_4bit(codes, state).view_as(module.weight)


def lora_job(directory, peer, case):
    setting = Setting(case.world, 1, True)
    message = job(directory, peer.config)
    size = numpy.prod([size for _, size in case.parallel] or [1])
    spec = {"train": {"steps": STEPS_WITH_EXPERTS if case.family == "mixtral" else STEPS,
                      "micro_batch": int(setting.micro_batch * size),
                      "lora": {"rank": RANK, "alpha": ALPHA, "base_model": str(peer.base), "rank_stabilized": case.rank_stabilized,
                               "base_type": "BASE_TYPE_NF4" if case.nf4 else "BASE_TYPE_COMPUTE",
                               "targets": ["*.attention.*"] if peer.targets == ATTENTION else []}},
            "fsdp": {"strategy": f"STRATEGY_{case.strategy.upper()}"}, "parallel": dict(case.parallel),
            "checkpoint": {"load": str(peer.adapter), "dir": str(directory / "runs"), "export": "peft"},
            "resources": {"ranks_per_node": case.world}}
    message.fsdp.Clear()
    if ("pipeline", 2) in case.parallel:  # Each stage needs adapters: embedding and head have none.
        spec["parallel"]["stage_units"] = [2, 2]
    json_format.ParseDict(spec, message)
    return message


def train_ours(directory, message):
    """Losses, and batches as [step, tokens or targets, sample, token]."""
    losses = run_message(directory, message, None).losses
    dump, alone = directory / "batches", message.__class__()
    alone.CopyFrom(message)
    alone.ClearField("parallel")
    alone.ClearField("checkpoint")
    alone.resources.ranks_per_node, alone.train.micro_batch = 1, GLOBAL_BATCH
    run_message(directory, alone, None, "--dump-batches", dump)  # Every world reads the same batches.
    batches = torch.from_numpy(numpy.fromfile(dump, dtype=numpy.int64))
    return losses, batches.reshape(-1, 2, GLOBAL_BATCH, SEQUENCE)


def relative(ours, theirs):
    return (torch.linalg.norm(ours - theirs) / torch.linalg.norm(theirs)).item()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_and_adapters_match_peft(case, tmp_path):
    peer = Peer(tmp_path, case)
    message = lora_job(tmp_path, peer, case)
    losses, batches = train_ours(tmp_path, message)
    theirs = peer.train(batches)
    numpy.testing.assert_allclose(losses, theirs, rtol=LOSS_TOLERANCE, atol=0)
    exported = safetensors.torch.load_file(tmp_path / "runs/peft/adapter_model.safetensors")
    assert exported.keys() == peer.adapters().keys()
    before = safetensors.torch.load_file(peer.adapter / "adapter_model.safetensors")
    for name, each in peer.adapters().items():
        assert relative(exported[name], each.detach()) < ADAPTER_TOLERANCE, name
        assert relative(before[name], each.detach()) > 10 * ADAPTER_TOLERANCE, f"{name} does not move"
    read = peer.peft.PeftModel.from_pretrained(peer.loaded(), tmp_path / "runs/peft").eval()
    tokens = batches[0, 0]
    torch.testing.assert_close(read(input_ids=tokens).logits, peer.model.eval()(input_ids=tokens).logits, atol=1e-3, rtol=0)
    assert read.merge_and_unload()  # PEFT accepts the configuration.
    config = json.loads((tmp_path / "runs/peft/adapter_config.json").read_text())
    assert config["target_modules"] == sorted(peer.targets) and config["base_model_name_or_path"] == str(peer.base)


def first_gradients(directory, peer, message):
    """Our gradients of the first step, and its batch. One step of SGD subtracts the gradient times the rate, which is so large that
    rounding does not count."""
    rate, message.train.steps = 1e5, 1
    message.checkpoint.dir += "/first"
    message.optimizer.Clear()
    message.schedule.Clear()
    message.optimizer.sgd.lr = rate
    _, batches = train_ours(directory, message)
    before = safetensors.torch.load_file(peer.adapter / "adapter_model.safetensors")
    after = safetensors.torch.load_file(directory / "runs/first/peft/adapter_model.safetensors")
    return {name: (each.double() - after[name].double()) / rate for name, each in before.items()}, batches[0]


@pytest.mark.parametrize("case", [*(Case(family=family) for family in CONFIGS), Case(bf16_base=True)], ids=str)
def test_first_gradients_match_peft(case, tmp_path):
    peer = Peer(tmp_path, case)
    gradients, batch = first_gradients(tmp_path, peer, lora_job(tmp_path, peer, case))
    peer.loss(*batch).backward()
    for name, each in peer.adapters().items():
        assert relative(gradients[name], each.grad.double()) < GRADIENT_TOLERANCE, name


@pytest.mark.parametrize("case", [Case(world=1, bf16_base=True), Case(family="qwen3", bf16_base=True)], ids=str)
def test_bf16_errors_are_those_of_peft(case, tmp_path):
    """With compute: bf16, rounding errors (the distance to a run of PEFT in fp32 from the same weights) are at most twice those of
    PEFT with a bf16 base."""
    peer = Peer(tmp_path, case)
    message = lora_job(tmp_path, peer, case)
    json_format.ParseDict({"precision": {"compute": "DTYPE_BF16"}}, message)
    ours, batches = train_ours(tmp_path, message)
    exported = safetensors.torch.load_file(tmp_path / "runs/peft/adapter_model.safetensors")
    gradients, batch = first_gradients(tmp_path, peer, message)
    losses, adapters, slopes = [ours], [exported], [gradients]
    for dtype in (torch.bfloat16, torch.float32):
        peer.restart(dtype)
        peer.loss(*batch).backward()
        slopes.append({name: each.grad.double() for name, each in peer.adapters().items()})
        losses.append(peer.train(batches))
        adapters.append({name: each.detach() for name, each in peer.adapters().items()})
    error_of_ours, error_of_theirs = (numpy.linalg.norm(numpy.divide(each, losses[-1]) - 1) for each in losses[:2])
    assert error_of_ours < 2 * error_of_theirs and error_of_theirs > 10 * LOSS_TOLERANCE
    numpy.testing.assert_allclose(ours, losses[-1], rtol=2**-9, atol=0)  # The rounding of one bf16 number.
    for of_ours, of_theirs, exact in (slopes, adapters):
        error_of_ours, error_of_theirs = (numpy.mean([relative(each[name], exact[name]) for name in exact])
                                          for each in (of_ours, of_theirs))
        assert error_of_ours < 2 * error_of_theirs


@pytest.mark.parametrize("world", [1, 2, 3])
def test_frozen_weights_have_the_bits_of_bitsandbytes(world, tmp_path):
    case = Case(world=world, nf4=True)
    peer = Peer(tmp_path, case)
    message = lora_job(tmp_path, peer, case)
    message.train.steps = 1
    message.schedule.Clear()
    ours = run_message(tmp_path, message, None).weights
    theirs, begin = peer.loaded(), 0
    for name in ["model.embed_tokens", *(f"model.layers.{layer}.{each}" for layer in range(2) for each in OF_A_LAYER), "model.norm", "lm_head"]:
        want = theirs.get_submodule(name).weight.detach().numpy().ravel()
        got = ours[begin:begin + want.size]
        assert numpy.array_equal(got.view(numpy.int32), want.view(numpy.int32)), name
        begin += want.size
        if name.endswith(OF_A_LAYER[-1]):  # The adapters follow the weights of their layer.
            begin += sum(each.numel() for each in peer.adapters().values()) // 2
    assert begin == ours.size


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_merge_verifies_quantized_base_and_adds_to_its_weights(family, tmp_path):
    """The export verifies the recorded hash, which is of the quantized weights, with the files of the base model."""
    case = Case(family=family, nf4=True)
    peer = Peer(tmp_path, case)
    message = lora_job(tmp_path, peer, case)
    message.train.steps, message.checkpoint.export = 1, "hf"
    message.schedule.Clear()
    message.optimizer.adamw.lr = 1e-30
    run_message(tmp_path, message, None)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "runs/hf").state_dict()
    peer.nf4 = False
    want = peer.peft.PeftModel.from_pretrained(peer.loaded(), peer.adapter).merge_and_unload().state_dict()
    for name, each in want.items():
        torch.testing.assert_close(merged[name], each, atol=1e-6, rtol=0)

"""Parity with Hugging Face transformers, whose models share no code with the engine or with the references in this directory:
from the same weights on the same tokens, twenty steps have the same losses and weights up to fp32 rounding.

Jobs use the config.json of each model (`model.hf_config`), as users do.
"""

import json
import subprocess

import numpy
import pytest
import torch
import transformers
from fsdp2_rank import optimizer
from google.protobuf import json_format
from peer import cosine_rate
from setting import BETAS, CLIP_NORM, DECAY, EPSILON, FLOOR, GLOBAL_BATCH, LR, SEQUENCE, STEPS, WARMUP
from setting import WEIGHT_TOLERANCE, Result, Setting, assert_agree, job_spec, read_weights, run_message
from setting import write_start_weights
from transformers.pytorch_utils import Conv1D

from harness.programs import program
from harness.specs import to_message

# Two ranks, three micro-batches and clipping on our side; one process and one batch on theirs.
SETTING, FSDP = Setting(2, 3, True), {"strategy": "optim_grads_params"}
SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
# Of the eight frequencies one keeps its pace, two are between, five are divided: all three cases of the formula.
LLAMA31_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}
YARN = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.7, "mscale_all_dim": 1.2,
        "original_max_position_embeddings": 64}
LATENTS = {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12,
           "qk_rope_head_dim": 16, "v_head_dim": 10}
CONFIGS = {
    "llama 3.1": transformers.LlamaConfig(**SIZES, rope_theta=10000.0, rope_scaling=LLAMA31_ROPE, rms_norm_eps=1e-5),
    "qwen2": transformers.Qwen2Config(**SIZES, rope_theta=1e6, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=32, rope_theta=1e6),  # Heads wider than hidden / heads.
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=None),
    "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, rope_theta=1e4),
    # A dense layer, weights that do not add up to 1, and experts narrower than the dense layer.
    "qwen3 moe": transformers.Qwen3MoeConfig(**SIZES, head_dim=32, num_experts=5, num_experts_per_tok=3,
                                             moe_intermediate_size=48, norm_topk_prob=False, mlp_only_layers=[0]),
    # DeepSeek-V3's routing: groups of sigmoid scores, and experts that every token goes to.
    "dots1": transformers.Dots1Config(**SIZES, head_dim=32, n_routed_experts=6, n_shared_experts=2, n_group=3,
                                      topk_group=2, num_experts_per_tok=2, moe_intermediate_size=24,
                                      first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5),
    # With latents, whose norms have an epsilon of their own; values are narrower than queries. YaRN is DeepSeek's, but
    # with two scales: of eight pairs some keep their pace and some are divided. Every expert gets tokens: AdamW there
    # would leave one without any as it is, and here it decays.
    "deepseek v3": transformers.DeepseekV3Config(**{**SIZES, **LATENTS}, n_routed_experts=8, n_shared_experts=2,
                                                 n_group=2, topk_group=1, num_experts_per_tok=3,
                                                 moe_intermediate_size=24, first_k_dense_replace=1, rms_norm_eps=1e-4,
                                                 rope_scaling=YARN),
    "deepseek v3 dense": transformers.DeepseekV3Config(**{**SIZES, **LATENTS, "q_lora_rank": None, "v_head_dim": 32},
                                                       first_k_dense_replace=3, rope_interleave=False),
    # One score chooses a group, and the scores of all experts weigh results as they are.
    "deepseek v2": transformers.DeepseekV2Config(**{**SIZES, **LATENTS, "v_head_dim": 12}, n_routed_experts=9, n_shared_experts=2,
                                                 n_group=3, topk_group=2, topk_method="group_limited_greedy",
                                                 num_experts_per_tok=3, moe_intermediate_size=24, first_k_dense_replace=1,
                                                 routed_scaling_factor=3.0),
    "deepseek v2 lite": transformers.DeepseekV2Config(**{**SIZES, **LATENTS, "q_lora_rank": None}, n_routed_experts=6,
                                                      n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=24),
    "qwen2 yarn": transformers.Qwen2Config(**SIZES, rope_theta=1e4, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    "gpt2": transformers.GPT2Config(vocab_size=256, n_embd=64, n_layer=3, n_head=4, n_positions=32, resid_pdrop=0.0,
                                    embd_pdrop=0.0, attn_pdrop=0.0),
}
# Where a token's scores are nearly equal round-off decides which expert it goes to, and from there on runs differ: by
# the twentieth step two of three have met such a token.
STEPS_WITH_EXPERTS = 4
LLAMA_LAYER = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_norm",
               "self_attn.k_norm", "self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.q_a_layernorm",
               "self_attn.q_b_proj", "self_attn.kv_a_layernorm", "self_attn.kv_b_proj", "self_attn.o_proj",
               "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
QWEN_EXPERTS = ("mlp", ("gate_proj", "up_proj", "down_proj"))
EXPERTS = {"mixtral": ("block_sparse_moe", ("w1", "w3", "w2")), "qwen3_moe": QWEN_EXPERTS, "dots1": QWEN_EXPERTS,
           "deepseek_v2": QWEN_EXPERTS, "deepseek_v3": QWEN_EXPERTS}
COUNTS = {"mixtral": "num_local_experts", "qwen3_moe": "num_experts", "dots1": "n_routed_experts",
          "deepseek_v2": "n_routed_experts", "deepseek_v3": "n_routed_experts"}
GPT2_LAYER = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")


def has_experts(config):
    return config.model_type in EXPERTS and getattr(config, "first_k_dense_replace", 0) < config.num_hidden_layers


def layer_names(config):
    """Names of a layer's modules with parameters. Ours has one matrix of all experts together."""
    if not has_experts(config):
        return LLAMA_LAYER
    ffn, matrices = EXPERTS[config.model_type]
    count = getattr(config, COUNTS[config.model_type])
    experts = (f"{ffn}.experts.{expert}.{matrix}" for matrix in matrices for expert in range(count))
    return (*LLAMA_LAYER, f"{ffn}.gate", *experts, *(f"{ffn}.shared_experts.{matrix}" for matrix in matrices))


def modules(model):
    """Modules with parameters in the order of fsdp/plan/model/model_facts.h. A tied head has none."""
    body = model.base_model
    if model.config.model_type == "gpt2":
        first, layers, inner, norm = [body.wte, body.wpe], body.h, GPT2_LAYER, body.ln_f
    else:
        first, layers, inner, norm = [body.embed_tokens], body.layers, layer_names(model.config), body.norm
    within = [dict(layer.named_modules()) for layer in layers]
    head = [] if model.config.tie_word_embeddings else [model.lm_head]
    return [*first, *(each[name] for each in within for name in inner if name in each), norm, *head]


def parameters(model):
    """Views with our shapes: matrices are [out, in], while GPT-2's are transposed."""
    for module in modules(model):
        yield module.weight.T if isinstance(module, Conv1D) else module.weight
        if getattr(module, "bias", None) is not None:
            yield module.bias
        if hasattr(module, "e_score_correction_bias"):
            yield module.e_score_correction_bias


def load(model, flat):
    with torch.no_grad():
        for parameter in parameters(model):
            parameter.copy_(flat[:parameter.numel()].view_as(parameter))
            flat = flat[parameter.numel():]
    assert flat.numel() == 0, f"{flat.numel()} weights more than the model has"


class Balance:
    """DeepSeek-V3's balancing: after a step each selection bias moves by `rate` towards an equal fraction of the step's
    choices."""

    def __init__(self, model, rate):
        self.rate, self.got = rate, {}
        for module in model.modules():
            if hasattr(module, "e_score_correction_bias"):
                module.register_forward_hook(self.count)

    def count(self, router, _, chosen):
        read = chosen[0].unflatten(0, (-1, SEQUENCE + 1))[:, :-1]  # The last target is no token of ours.
        got = torch.bincount(read.flatten(), minlength=len(router.e_score_correction_bias))
        self.got[router] = self.got.get(router, 0) + got

    def step(self):
        for router, got in self.got.items():
            router.e_score_correction_bias += self.rate * torch.sign(got.double().mean() - got).float()
        self.got.clear()


class RouterLosses:
    """Router losses (docs/expert_parallelism.md), from the logits of each layer's `gate`."""

    def __init__(self, model, per_token, balance, z):
        self.per_token, self.balance, self.z, self.logits = per_token, balance, z, []
        for name, module in model.named_modules():
            if name.endswith(".gate"):
                module.register_forward_hook(lambda *call: self.logits.append(call[-1]))

    def take(self, targets):
        """Losses of the last forward. A sample is weighted by its number of targets."""
        counted = (targets != -100).sum(1).float()
        total = 0.0
        for logits in self.logits:
            logits = logits.unflatten(0, (-1, SEQUENCE + 1))[:, :-1]  # The last target is no token of ours.
            scores = logits.softmax(-1)
            choices = torch.nn.functional.one_hot(scores.topk(self.per_token).indices, scores.shape[-1]).sum(2)
            shares = choices.float().mean(1) / self.per_token
            balance = scores.shape[-1] * (shares * scores.mean(1)).sum(1)
            z = logits.logsumexp(-1).square().mean(1)
            total = total + ((self.balance * balance + self.z * z) * counted / counted.sum()).sum()
        self.logits.clear()
        return total


def train(model, start, batches, bias_update_rate=0.0, router_losses=None):
    """A standard training loop with the loss that the model computes."""
    load(model, torch.from_numpy(read_weights(start)))
    balance = Balance(model, bias_update_rate)
    adamw = optimizer(model, {"lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY})
    losses = []
    for step, (tokens, targets) in enumerate(batches, 1):
        for group in adamw.param_groups:
            group["lr"] = LR * cosine_rate(step, WARMUP, len(batches), FLOOR)
        text = torch.cat((tokens, targets[:, -1:].clamp(min=0)), dim=1)
        assert torch.equal(text[:, 1:].where(targets >= 0, targets), targets)
        loss = model(text, labels=torch.cat((tokens[:, :1], targets), dim=1)).loss  # It shifts labels by itself.
        adamw.zero_grad()
        (loss + router_losses.take(targets) if router_losses else loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        adamw.step()
        balance.step()
        losses.append(loss.item())
    return Result(losses, torch.cat([each.flatten() for each in parameters(model)]).detach().numpy())


def job(directory, config):
    """JobSpec of `config`; fsdpctl reads the model from the file that transformers writes."""
    config.save_pretrained(directory)
    made = job_spec(SETTING, FSDP)
    requested = directory / "asked.yaml"
    requested.write_text(json.dumps({**made, "model": {"hf_config": str(directory / "config.json")}}))  # JSON is YAML.
    done = subprocess.run([program("client/fsdpctl"), "plan", "--offline", "-o", "json", "-f", requested],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    message = to_message(made)
    message.model.Clear()
    model = json.loads(done.stdout)["resolved"]["model"]
    if experts := model.get("llama", {}).get("experts"):  # People's words of an enum, which the proto's JSON has not.
        for name in ("scores", "group_scores"):
            value = experts.get(name, "auto")
            experts[name] = f"{name}_{value if value != 'auto' else 'unspecified'}".upper()
    json_format.ParseDict(model, message.model)
    return message


@pytest.fixture
def model(request):
    config = CONFIGS[request.param]
    config.architectures = [transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()


@pytest.mark.parametrize("model", CONFIGS, indirect=True)
def test_losses_and_weights_match_transformers(model, tmp_path):
    start, dump = tmp_path / "start", tmp_path / "batches"
    write_start_weights(parameters(model), start)
    message = job(tmp_path, model.config)
    steps = message.train.steps = STEPS_WITH_EXPERTS if has_experts(model.config) else STEPS
    ours = run_message(tmp_path, message, start, "--dump-batches", dump)
    batches = torch.from_numpy(numpy.fromfile(dump, dtype=numpy.int64))
    theirs = train(model, start, batches.reshape(steps, 2, GLOBAL_BATCH, SEQUENCE))
    assert_agree(ours, theirs, steps)
    assert numpy.abs(ours.weights - read_weights(start)).max() > 1e-2, "the run moves the weights"


@pytest.mark.parametrize("model", ["dots1", "deepseek v3"], indirect=True)
def test_selection_bias_updates_match_transformers_routing(model, tmp_path):
    start, dump, rate = tmp_path / "start", tmp_path / "batches", 0.01
    write_start_weights(parameters(model), start)
    message = job(tmp_path, model.config)
    message.model.llama.experts.bias_update_rate = rate
    steps = message.train.steps = STEPS_WITH_EXPERTS
    ours = run_message(tmp_path, message, start, "--dump-batches", dump)
    batches = torch.from_numpy(numpy.fromfile(dump, dtype=numpy.int64)).reshape(steps, 2, GLOBAL_BATCH, SEQUENCE)
    assert_agree(ours, train(model, start, batches, rate), steps)
    stays = train(model, start, batches)
    moved = numpy.abs(ours.weights - stays.weights)
    assert rate / 2 > WEIGHT_TOLERANCE, "a bias that moved once less would be seen"
    assert (moved > rate / 2).sum() > model.config.n_routed_experts


def write_masked_text(directory, message):
    """Samples with between none and all targets, like the answers of chats."""
    random = numpy.random.default_rng(5)
    samples = 400
    counts = random.random((samples, 1)) ** 2 > random.random((samples, SEQUENCE))
    random.integers(0, 256, counts.size, dtype=numpy.uint8).tofile(directory / "text")
    counts.astype(numpy.uint8).tofile(directory / "mask")
    message.data.ClearField("synthetic")
    message.data.tokens.add(path=str(directory / "text"), mask=str(directory / "mask"), type="TOKEN_TYPE_U8")


@pytest.mark.parametrize("model", ["mixtral", "qwen3 moe"], indirect=True)
def test_router_losses_do_not_depend_on_mask(model, tmp_path):
    """Regression: they were too large by (all tokens / targets)."""
    start, dump = tmp_path / "start", tmp_path / "batches"
    write_start_weights(parameters(model), start)
    message = job(tmp_path, model.config)
    write_masked_text(tmp_path, message)
    experts = message.model.llama.experts
    experts.balance_loss, experts.z_loss = 0.5, 0.1
    steps = message.train.steps = STEPS_WITH_EXPERTS
    ours = run_message(tmp_path, message, start, "--dump-batches", dump)
    batches = torch.from_numpy(numpy.fromfile(dump, dtype=numpy.int64)).reshape(steps, 2, GLOBAL_BATCH, SEQUENCE)
    counted = (batches[:, 1] != -100).float().mean()
    assert 0.2 < counted < 0.5, counted
    losses = RouterLosses(model, experts.per_token, experts.balance_loss, experts.z_loss)
    assert_agree(ours, train(model, start, batches, router_losses=losses), steps)
    # As strong as before, they would be seen.
    strong = RouterLosses(model, experts.per_token, experts.balance_loss / counted, experts.z_loss / counted)
    other = train(model, start, batches, router_losses=strong)
    assert numpy.abs(ours.weights - other.weights).max() > 5 * WEIGHT_TOLERANCE


@pytest.mark.parametrize("model", ["llama 3.1", "qwen2 yarn"], indirect=True)
def test_detects_other_rope(model, tmp_path):
    start = tmp_path / "start"
    write_start_weights(parameters(model), start)
    message = job(tmp_path, model.config)
    ours = run_message(tmp_path, message, start)
    message.model.llama.rope_scaling.factor *= 1.1
    other = run_message(tmp_path, message, start)
    assert numpy.abs(ours.weights - other.weights).max() > 5 * WEIGHT_TOLERANCE

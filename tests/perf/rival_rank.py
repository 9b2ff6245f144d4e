"""Common part of the rivals of gpu_vs_rival.py on NCCL: a Llama-family decoder, compiled block by block, batches, and timing of
steps. fsdp2_speed.py and megatron_fsdp_speed.py shard the model and define a step. They are started as

    torchrun --nproc-per-node N fsdp2_speed.py JOB.json

JOB.json: model (sizes as in model.llama of a JobSpec; experts have softmax scores and one group), micro_batch,
sequence_length, accumulation, warmup, steps, reduce (fp32 or bf16), keep_gathered (do not reshard after forward), context
(context-parallel degree), tensor (tensor-parallel degree), recompute (each block's forward runs again in backward), offload
(the optimizer is in host memory), fp8 (torchao's recipe for blocks' matrices, tensorwise or rowwise; with tensorwise,
parameters are gathered in FP8; null: bf16).
Rank 0 prints one JSON line: steps in ms, tokens per second and GPU, peak memory, device mallocs while timed.
"""

import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


def turn(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        hidden, heads, kv = m["hidden_size"], m["heads"], m["kv_heads"]
        self.grouped, self.head = kv != heads, m.get("head_size", hidden // heads)
        self.wq = nn.Linear(hidden, heads * self.head, bias=False)
        self.wk = nn.Linear(hidden, kv * self.head, bias=False)
        self.wv = nn.Linear(hidden, kv * self.head, bias=False)
        self.wo = nn.Linear(heads * self.head, hidden, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(self.head, eps=1e-5) if m.get("qk_norm") else nn.Identity() for _ in range(2))

    def forward(self, x, cos, sin):
        q, k, v = (each.unflatten(-1, (-1, self.head)).transpose(1, 2) for each in (self.wq(x), self.wk(x), self.wv(x)))
        q, k = self.q_norm(q), self.k_norm(k)
        mixed = F.scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v, is_causal=True,
                                               enable_gqa=self.grouped)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.w1 = nn.Linear(m["hidden_size"], m["intermediate_size"], bias=False)
        self.w3 = nn.Linear(m["hidden_size"], m["intermediate_size"], bias=False)
        self.w2 = nn.Linear(m["intermediate_size"], m["hidden_size"], bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """Dropless mixture of experts: softmax, top-k, grouped products over rows sorted by expert and padded to 16 per
    expert, without host synchronization and router losses. With `fp8` products are torchao's with a scale per row."""

    STEP = 16
    fp8 = False

    def __init__(self, m):
        super().__init__()
        e = m["experts"]
        self.count, self.per_token, self.normalized = e["count"], e["per_token"], e.get("normalized", True)
        hidden, width = m["hidden_size"], e.get("intermediate_size", m["intermediate_size"])
        self.router = nn.Linear(hidden, self.count, bias=False)
        self.w1 = nn.Parameter(torch.empty(self.count, width, hidden))
        self.w3 = nn.Parameter(torch.empty(self.count, width, hidden))
        self.w2 = nn.Parameter(torch.empty(self.count, hidden, width))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, experts = torch.topk(self.router(tokens).float().softmax(-1), self.per_token)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        chosen, order = experts.flatten().sort(stable=True)
        counts = F.one_hot(chosen, self.count).sum(0)
        padded = ((counts + self.STEP - 1) // self.STEP * self.STEP).clamp(min=self.STEP)
        ends = padded.cumsum(0)
        begins = ends - padded - (counts.cumsum(0) - counts)
        places = torch.arange(len(order), device=x.device) + begins[chosen]
        of_row = torch.full((len(order) + self.count * self.STEP,), len(tokens), device=x.device).scatter(0, places, order // self.per_token)
        rows = torch.cat((tokens, tokens.new_zeros(1, tokens.shape[1])))[of_row]
        ends = ends.to(torch.int32)

        def product(of, matrix):
            if self.fp8:
                from torchao.prototype.moe_training import _to_fp8_rowwise_then_scaled_grouped_mm as scaled

                return scaled(of, matrix.transpose(1, 2), ends, pad_token_groups_for_grouped_mm=False)
            return torch._grouped_mm(of, matrix.transpose(1, 2), offs=ends)

        rows = product(F.silu(product(rows, self.w1)) * product(rows, self.w3), self.w2)
        of_choice = torch.empty_like(places).scatter(0, order, places)
        return (rows[of_choice].view(len(tokens), self.per_token, -1) * weights.unsqueeze(-1)).sum(1).to(x.dtype).view_as(x)


class Block(nn.Module):
    def __init__(self, m, has_experts):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(m["hidden_size"], eps=1e-5), Attention(m)
        self.ffn_norm, self.ffn = nn.RMSNorm(m["hidden_size"], eps=1e-5), (Experts if has_experts else FeedForward)(m)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, m, recompute):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(m["vocab_size"], m["hidden_size"])
        dense = m["experts"].get("dense_layers", 0) if "experts" in m else m["layers"]
        self.layers = nn.ModuleList(Block(m, layer >= dense) for layer in range(m["layers"]))
        self.norm = nn.RMSNorm(m["hidden_size"], eps=1e-5)
        self.output = nn.Linear(m["hidden_size"], m["vocab_size"], bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recompute else layer(x, cos, sin)
        return self.output(self.norm(x))


def rotary(m, length, device):
    head = m.get("head_size", m["hidden_size"] // m["heads"])
    frequency = m["rope_theta"] ** (-torch.arange(0, head, 2, device=device, dtype=torch.float32) / head)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)
    return torch.cat((angle, angle), dim=-1).cos(), torch.cat((angle, angle), dim=-1).sin()


def in_fp8(layers, recipe):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    if recipe == "tensorwise":
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    convert_to_float8_training(layers, config=config, module_filter_fn=lambda _, name: not name.endswith("router"))
    for module in layers.modules():
        if isinstance(module, Experts):
            module.fp8 = recipe == "rowwise"


def compiled(job):
    model = Llama(job["model"], job["recompute"])
    if job["fp8"]:
        in_fp8(model.layers, job["fp8"])
    for layer in model.layers:
        layer.compile(fullgraph=True)
    return model


def draw(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            elif parameter.device.type == "cuda":
                parameter.normal_(0, 0.02)
            else:  # Which takes minutes to draw billions of numbers.
                own = parameter.to_local()
                own.copy_(torch.randn(own.shape, device="cuda").mul_(0.02))
    return model


def adamw_over(model):
    trained = [each for each in model.parameters() if each.requires_grad]
    return torch.optim.AdamW(trained, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


@torch.compile
def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Batches:
    """Forward and backward of a model over random tokens, for each micro-batch of a step. With context parallelism,
    PyTorch's implementation shards samples and adapts attention."""

    def __init__(self, job, device):
        self.job, self.device = job, device
        self.cos, self.sin = rotary(job["model"], job["sequence_length"], device)
        groups = dist.get_world_size() // (job["context"] * job["tensor"])
        mesh = init_device_mesh("cuda", (groups, job["context"], job["tensor"]), mesh_dim_names=("data", "context", "tensor"))
        self.sharing = mesh["context"] if job["context"] > 1 else None
        self.generator = torch.Generator(device=device).manual_seed(mesh.get_local_rank("data"))

    @contextlib.contextmanager
    def shared(self, *whole):
        """Inside this context, yielded tensors are this rank's shards."""
        if self.sharing is None:
            yield whole
            return
        parts = [each.clone() for each in whole]
        lengths = [1 if each.dtype == torch.int64 else 0 for each in parts]
        with context_parallel(self.sharing, buffers=parts, buffer_seq_dims=lengths, no_restore_buffers=set(parts)):
            yield parts

    def backward(self, model):
        shape = (self.job["micro_batch"], self.job["sequence_length"] + 1)
        tokens = torch.randint(0, self.job["model"]["vocab_size"], shape, device=self.device, generator=self.generator)
        kernels = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)
        with self.shared(tokens[:, :-1], tokens[:, 1:], self.cos, self.sin) as (own, targets, cos, sin), kernels:
            loss = loss_of(model(own, cos, sin), targets) / self.job["accumulation"]
            loss.backward()
        return loss.detach()


def measure(run, job):
    for _ in range(job["warmup"]):
        run.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    dist.barrier()
    before = torch.cuda.memory_stats()["num_device_alloc"]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(job["steps"] + 1)]
    began = time.time_ns()
    marks[0].record()
    for mark in marks[1:]:
        loss = run.step()
        mark.record()
    torch.cuda.synchronize()
    steps = [first.elapsed_time(second) for first, second in zip(marks, marks[1:])]
    median = sorted(steps)[len(steps) // 2]
    tokens = job["micro_batch"] * job["sequence_length"] * job["accumulation"] / (job["context"] * job["tensor"])
    return {"step_ms": median, "steps_ms": steps, "timed": len(steps), "began_ns": began, "ended_ns": time.time_ns(),
            "tokens_per_second_per_gpu": tokens / median * 1e3,
            "peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_mallocs": torch.cuda.memory_stats()["num_device_alloc"] - before, "loss": loss.item()}


def run(make_run, versions):
    """`make_run(job, device)` returns an object with step(), which returns the step's loss; `versions` are added to the
    line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if job["offload"] else "nccl", device_id=device)
    result = measure(make_run(job, device), job)
    if dist.get_rank() == 0:
        print(json.dumps({"torch": torch.__version__, **versions, **result}), flush=True)
    dist.destroy_process_group()

"""One timed rank of PyTorch FSDP2 (rival_rank.py): bf16 compute, fp32 main weights, gradients reduced in fp32 or bf16,
clipping, fused AdamW. JOB's "tensor" turns on DTensor's tensor parallelism with sequence parallelism and a vocabulary-
parallel loss; "async_tensor" lets the compiler overlap parts of its exchanges with products. With "offload",
parameters, gradients and optimizer state are in pinned host memory, and AdamW runs there (CPUOffloadPolicy). Gradients
of micro-batches are summed on the device; otherwise each would be copied and added on the host."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import rival_rank


def share_matrices(model, mesh, beside_products):
    if beside_products:
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group  # Private, as its users' recipes have it.

        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(mesh.get_group().group_name)
    whole, tokens = Replicate(), Shard(1)
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=tokens),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False),
    })
    for layer in model.layers:
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(tokens, None, None), desired_input_layouts=(whole, None, None)),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=tokens),
            "ffn_norm": SequenceParallel(),
            "ffn": PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(whole,)),
            "ffn.w1": ColwiseParallel(),
            "ffn.w3": ColwiseParallel(),
            "ffn.w2": RowwiseParallel(output_layouts=tokens),
        })


def sharded(job, device):
    mesh = init_device_mesh("cuda", (dist.get_world_size() // job["tensor"], job["tensor"]), mesh_dim_names=("shard", "tensor"))
    with torch.device("meta"):
        model = rival_rank.compiled(job)
    if job["tensor"] > 1:
        share_matrices(model, mesh["tensor"], job["async_tensor"])
    wire = {"fp32": torch.float32, "bf16": torch.bfloat16}[job["reduce"]]
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=wire)
    offload = CPUOffloadPolicy() if job["offload"] else OffloadPolicy()
    options = {"mesh": mesh["shard"], "mp_policy": policy, "offload_policy": offload}
    for unit in (model.embedding, *model.layers):
        fully_shard(unit, **options, reshard_after_forward=not job["keep_gathered"])
    fully_shard([model.norm, model.output], **options, reshard_after_forward=False)
    fully_shard(model, **options)
    return rival_rank.draw(model.to_empty(device="cpu" if job["offload"] else device))


class Run:
    def __init__(self, job, device):
        self.count, self.fp8, self.offload = job["accumulation"], job["fp8"], job["offload"]
        if self.fp8 == "tensorwise":
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            self.scales_for_gathers = precompute_float8_dynamic_scale_for_fsdp
        self.by_words = loss_parallel if job["tensor"] > 1 else contextlib.nullcontext
        self.model = sharded(job, device)
        self.adamw = rival_rank.adamw_over(self.model)
        self.batches = rival_rank.Batches(job, device)

    def step(self):
        self.adamw.zero_grad(set_to_none=True)
        for index in range(self.count):
            self.model.set_is_last_backward(index == self.count - 1)
            self.model.set_requires_gradient_sync(index == self.count - 1 or not self.offload)
            with self.by_words():
                loss = self.batches.backward(self.model)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.adamw.step()
        if self.fp8 == "tensorwise":
            self.scales_for_gathers(self.model)
        return loss * self.count


if __name__ == "__main__":
    rival_rank.run(Run, {})

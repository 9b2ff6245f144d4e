"""One timed rank of NVIDIA's megatron-fsdp (rival_rank.py): fully sharded, double-buffered, bf16 compute, fp32 main
weights and gradients, gradients sent in fp32 or bf16, clipping, fused AdamW. Needs the packages megatron-fsdp and
einops."""

import importlib.metadata

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import megatron_fsdp
import rival_rank
from megatron_fsdp.mixed_precision import MixedPrecisionPolicy


def sharded(job, device):
    if job["keep_gathered"] or job["accumulation"] != 1 or job["context"] * job["tensor"] != 1:
        raise SystemExit("megatron-fsdp is compared with one micro-batch a step, parameters resharded and samples whole")
    with device:
        model = rival_rank.draw(rival_rank.compiled(job).bfloat16())
    wire = {"fp32": torch.float32, "bf16": torch.bfloat16}[job["reduce"]]
    world = dist.get_world_size()
    return megatron_fsdp.fully_shard_model(
        module=model,
        device_mesh=init_device_mesh("cuda", (world, 1), mesh_dim_names=("shard", "tensor")),
        dp_shard_dim="shard",
        tp_dim="tensor",
        fsdp_group_ag=dist.new_group(list(range(world))),
        fsdp_unit_modules=[rival_rank.Block],
        zero_dp_strategy=3,
        mixed_precision_policy=MixedPrecisionPolicy(main_params_dtype=torch.float32, main_grads_dtype=torch.float32,
                                                    grad_comm_dtype=wire),
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        fsdp_double_buffer=True,
        sync_model_each_microbatch=True,
    )


def clip(model, largest):
    """Replaces torch's clip_grad_norm_, which hangs here: a rank with an empty shard of a parameter has no gradient of
    it."""
    own = [each.grad.to_local() for each in model.parameters() if each.grad is not None]
    own = [each for each in own if each.numel()]
    squares = torch.stack(torch._foreach_norm(own, dtype=torch.float32)).square().sum()
    dist.all_reduce(squares)
    torch._foreach_mul_(own, torch.clamp(largest / (squares.sqrt() + 1e-6), max=1.0))


class Run:
    def __init__(self, job, device):
        self.model = sharded(job, device)
        self.adamw = megatron_fsdp.fully_shard_optimizer(rival_rank.adamw_over(self.model))
        self.batches = rival_rank.Batches(job, device)

    def step(self):
        loss = self.batches.backward(self.model)
        clip(self.model, 1.0)
        self.adamw.step()
        self.adamw.zero_grad()
        return loss


if __name__ == "__main__":
    rival_rank.run(Run, {"megatron_fsdp": importlib.metadata.version("megatron-fsdp")})

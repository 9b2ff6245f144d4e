"""One rank of PyTorch FSDP2 on Gloo or NCCL: trains reference models on given weights and batches, one job after the other.

    RANK=r WORLD_SIZE=n fsdp2_rank.py JOBS.json

JOBS.json: rendezvous (a file that does not exist yet), device (cpu or cuda) and jobs, each with compute (fp32 or bf16),
model (as in a JobSpec), steps, micro_batch, global_batch, sequence_length, lr, betas, eps, weight_decay, clip_norm (0:
none), learning_rates (one per step), weights, batches, curves_out (output: JSON with losses and grad_norms, one per step)
and optionally weights_out. Weights are fp32, the parameters one after the other. Batches are int64: for each step all
tokens and then all targets of the global batch in sample order.

Optional: fp8, the recipe of FP8 products in layers (fp8_layers.py); reduce, the dtype of the gradient reduction (bf16;
default fp32); attention, names of SDPBackend, of which the first that supports the model's heads is used and reported in
curves_out; compiled, whether layers are compiled one by one; fused, LibTorch's fused AdamW.

With `load`, the directory of a checkpoint, training resumes from it after `done` steps. With `save`, a checkpoint is
written after `done` steps. Both use torch.distributed.checkpoint with the keys of our jobs, for which `names` lists the
parameters in order.

Several jobs run in one start, because importing torch takes longer than training any of them.
"""

import contextlib
import json
import math
import os
import sys

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

from fp8_layers import multiply_in_fp8
from llama import fused_attention
from models import build

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load(model, path):
    flat = torch.from_numpy(numpy.fromfile(path, dtype=numpy.float32))
    with torch.no_grad():
        for parameter in model.parameters():
            count = parameter.numel()
            parameter.copy_(flat[:count].view_as(parameter))
            flat = flat[count:]
    assert flat.numel() == 0, f"the weights file holds {flat.numel()} numbers more than the model"


def shard(model, compute, reduce):
    policy = MixedPrecisionPolicy()
    if compute == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=DTYPES[reduce])
    # A parameter that two modules share must be in the group of one that holds both: here the root.
    ends = () if model.tied else (model.embedding, model.head)
    for unit in (*ends, *model.layers, model):
        fully_shard(unit, mp_policy=policy, reshard_after_forward=True)
        # Gloo cannot average: sum, and scale the sum.
        unit.set_force_sum_reduction_for_comms(True)


def optimizer(model, job):
    matrices = [each for each in model.parameters() if each.dim() > 1]
    vectors = [each for each in model.parameters() if each.dim() == 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": job["weight_decay"]},
                              {"params": vectors, "weight_decay": 0.0}],
                             lr=job["lr"], betas=tuple(job["betas"]), eps=job["eps"], fused=job.get("fused"))


def micro_batches(batch, job):
    """This rank's part of a step: rank r has the samples from r * samples on, in groups of micro_batch."""
    samples = job["global_batch"] // dist.get_world_size()
    own = batch[:, dist.get_rank() * samples:(dist.get_rank() + 1) * samples]
    return own.split(job["micro_batch"], dim=1)


def train_step(model, adamw, batch, job):
    """Returns the mean loss of this rank's samples and the norm of all gradients before clipping, as tensors."""
    adamw.zero_grad()
    parts = micro_batches(batch, job)
    total = torch.zeros((), device=batch.device)
    for index, (tokens, targets) in enumerate(parts):
        model.set_requires_gradient_sync(index == len(parts) - 1)
        loss = model(tokens, targets) / len(parts)
        loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip_norm"] or math.inf)
    adamw.step()
    return total, norm


def prepare(job, device="cpu"):
    """Returns (model, optimizer, batches by step)."""
    with torch.device(device):  # What is drawn there is overwritten, and a GPU draws it faster.
        model = build(job["model"])
    load(model, job["weights"])
    if job.get("fp8"):
        multiply_in_fp8(model, job["fp8"])
    if job.get("compiled"):
        for layer in model.layers:
            layer.compile()
    shard(model, job.get("compute", "fp32"), job.get("reduce", "fp32"))
    shape = (job["steps"], 2, job["global_batch"], job["sequence_length"])
    batches = torch.from_numpy(numpy.fromfile(job["batches"], dtype=numpy.int64).reshape(shape))
    return model, optimizer(model, job), batches.to(device)


def state_by_key(model, adamw, names):
    """Returns parameters and optimizer state, not copied, under our keys."""
    state = {}
    for name, parameter in zip(names, model.parameters(), strict=True):
        of_adamw = adamw.state[parameter]
        if not of_adamw:
            of_adamw.update(step=torch.zeros(()), exp_avg=torch.zeros_like(parameter),
                            exp_avg_sq=torch.zeros_like(parameter))
        state[f"model.module.{name}"] = parameter.detach()
        for key, value in of_adamw.items():
            state[f"optimizer.state.module.module.module.{name}.{key}"] = value
    return state


def usable(backends, job, device):
    """Returns the first attention backend that runs forward and backward with this model's heads."""
    sizes = job["model"]["llama"]
    for backend in (getattr(SDPBackend, name) for name in backends):
        query, key, value = (torch.ones(1, 128, heads, sizes["hidden_size"] // sizes["heads"], device=device,
                                        dtype=DTYPES[job["compute"]], requires_grad=True)
                             for heads in (sizes["heads"], sizes["kv_heads"], sizes["kv_heads"]))
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend):
            fused_attention(query, key, value).sum().backward()
            return backend
    raise ValueError(f"none of {', '.join(backends)} takes this model's heads")


def train(job, device):
    if "attention" not in job:
        write(job, *train_steps(job, device))
        return
    backend = usable(job["attention"], job, device)
    with sdpa_kernel(backend):
        write(job, *train_steps(job, device), attention=backend.name)


def train_steps(job, device):
    """Returns (losses, gradient norms, the trained model)."""
    model, adamw, batches = prepare(job, device)
    losses, norms, first = [], [], 0
    if "load" in job:
        dcp.load(state_by_key(model, adamw, job["names"]), checkpoint_id=job["load"])
        first = job["done"]
    for step, (rate, batch) in enumerate(zip(job["learning_rates"][first:], batches[first:]), first + 1):
        for group in adamw.param_groups:
            group["lr"] = rate
        total, norm = train_step(model, adamw, batch, job)
        dist.all_reduce(total)
        losses.append((total / dist.get_world_size()).item())
        norms.append(norm.full_tensor().item())
        if "save" in job and step == job["done"]:
            dcp.save({**state_by_key(model, adamw, job["names"]), "iteration": step}, checkpoint_id=job["save"])
    return losses, norms, model


def write(job, losses, norms, model, **more):
    if "weights_out" in job:
        flat = torch.cat([parameter.full_tensor().flatten() for parameter in model.parameters()])
        if dist.get_rank() == 0:
            flat.detach().cpu().numpy().tofile(job["weights_out"])
    if dist.get_rank() == 0:
        with open(job["curves_out"], "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "micro_batch": job["micro_batch"], "losses": losses,
                       "grad_norms": norms, **more}, file)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        work = json.load(file)
    torch.set_num_threads(1)
    rank, device = int(os.environ["RANK"]), work["device"]
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=f"file://{work['rendezvous']}",
                            rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    for job in work["jobs"]:
        train(job, device)
    dist.barrier()
    # Without what runs at exit: torch's threads of Gloo may end the process with "terminate called".
    os._exit(0)


if __name__ == "__main__":
    main()

"""One rank of PyTorch FSDP2, timed (rival_rank.py): bf16 compute, fp32 main weights, gradients reduced in fp32 or bf16,
clipping on, AdamW fused."""

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import rival_rank


def sharded(job, device):
    with torch.device("meta"):
        model = rival_rank.compiled(job)
    wire = {"fp32": torch.float32, "bf16": torch.bfloat16}[job["reduce"]]
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=wire)
    for unit in (model.embedding, *model.layers):
        fully_shard(unit, mp_policy=policy, reshard_after_forward=not job["keep_gathered"])
    fully_shard([model.norm, model.output], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)
    return rival_rank.draw(model.to_empty(device=device))


class Run:
    def __init__(self, job, device):
        self.count = job["accumulation"]
        self.model = sharded(job, device)
        self.adamw = rival_rank.adamw_over(self.model)
        self.batches = rival_rank.Batches(job, device)

    def step(self):
        self.adamw.zero_grad(set_to_none=True)
        for index in range(self.count):
            self.model.set_is_last_backward(index == self.count - 1)
            loss = self.batches.backward(self.model)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.adamw.step()
        return loss * self.count


if __name__ == "__main__":
    rival_rank.run(Run, {})

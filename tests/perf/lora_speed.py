"""The rival of jobs with train.lora on one GPU (rival_rank.py), as a user of PyTorch writes it: all weights in bf16, frozen
except for an adapter on every linear layer of the blocks, each block and the loss compiled, clipping, fused AdamW."""

import torch
from torch import nn
from torch.nn import functional as F

import rival_rank


class LoraLinear(nn.Module):
    def __init__(self, base, rank, scale):
        super().__init__()
        self.base, self.scale = base, scale
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.empty(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


def with_adapters(job):
    model = rival_rank.compiled(job).requires_grad_(False)
    for block in model.layers:
        for module in (block.attention, block.ffn):
            for name, linear in list(module.named_children()):
                if isinstance(linear, nn.Linear):
                    setattr(module, name, LoraLinear(linear, **job["lora"]))
    return model


class Run:
    def __init__(self, job, device):
        self.count = job["accumulation"]
        with torch.device("meta"):
            model = with_adapters(job).to(torch.bfloat16)
        self.model = rival_rank.draw(model.to_empty(device=device))
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        self.adamw = rival_rank.adamw_over(self.model)
        self.batches = rival_rank.Batches(job, device)

    def step(self):
        self.adamw.zero_grad(set_to_none=True)
        for _ in range(self.count):
            loss = self.batches.backward(self.model)
        nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.adamw.step()
        return loss * self.count


if __name__ == "__main__":
    rival_rank.run(Run, {})

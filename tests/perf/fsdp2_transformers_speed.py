"""One timed rank of PyTorch FSDP2 (rival_rank.py) that trains a model of transformers: JOB's "hf" is the directory of its
config.json, and "chunks" the chunks of tokens in which the final linear layer and its loss are computed, so that logits are
never whole. The model's own code runs, with scaled_dot_product_attention and each layer compiled. The loss has no scale and no soft cap.
"""

import torch
import transformers
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import rival_rank


@torch.compile
def chunk_of_loss(hidden, weight, targets, scale):
    """Sum of the loss over a chunk of tokens, and the gradients of `hidden` and `weight` for `scale` times it."""
    logits = F.linear(hidden, weight).float()
    log_sum_exp = logits.logsumexp(-1, keepdim=True)
    loss = (log_sum_exp - logits.gather(-1, targets[:, None])).sum()
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    grad = (((logits - log_sum_exp).exp() - is_target.float()) * scale).to(hidden.dtype)
    return loss, grad @ weight, grad.t() @ hidden


class ChunkedLoss(torch.autograd.Function):
    """Mean cross-entropy. Gradients are computed in forward, while a chunk's logits exist."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunks):
        loss, grad_hidden, grad_weight = 0, torch.empty_like(hidden), torch.zeros_like(weight)
        parts = zip(hidden.chunk(chunks), targets.chunk(chunks), grad_hidden.chunk(chunks))
        for part, part_targets, grad_part in parts:
            part_loss, part_grad, part_weight = chunk_of_loss(part, weight, part_targets, 1 / len(targets))
            loss += part_loss
            grad_part.copy_(part_grad)
            grad_weight += part_weight
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss / len(targets)

    @staticmethod
    def backward(ctx, grad):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden.mul_(grad), grad_weight.mul_(grad), None, None


class Head(nn.Module):
    def __init__(self, linear, chunks):
        super().__init__()
        self.linear, self.chunks = linear, chunks

    def forward(self, hidden, targets):
        return ChunkedLoss.apply(hidden.flatten(0, 1), self.linear.weight, targets.flatten(), self.chunks)


class WithLoss(nn.Module):
    def __init__(self, model, chunks):
        super().__init__()
        self.base, self.head = model.get_decoder(), Head(model.get_output_embeddings(), chunks)

    def forward(self, tokens, targets):
        return self.head(self.base(tokens, use_cache=False).last_hidden_state, targets)


def model_of(job):
    config = transformers.AutoConfig.from_pretrained(job["hf"])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return WithLoss(model, job["chunks"]), tied, config.get_text_config().vocab_size


class Run:
    def __init__(self, job, device):
        self.job, self.device = job, device
        if any(job[name] for name in ("recompute", "offload", "fp8")) or job["context"] * job["tensor"] > 1:
            raise SystemExit("--hf: recompute, offload, context, tensor and FP8 are not supported for the rival")
        self.model, tied, self.vocab_size = model_of(job)
        wire = {"fp32": torch.float32, "bf16": torch.bfloat16}[job["reduce"]]
        options = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=wire)}
        for layer in self.model.base.layers:
            layer.compile(fullgraph=True)
            fully_shard(layer, **options, reshard_after_forward=not job["keep_gathered"])
        if not tied:
            fully_shard(self.model.base.get_input_embeddings(), **options, reshard_after_forward=not job["keep_gathered"])
            fully_shard(self.model.head, **options, reshard_after_forward=False)
        fully_shard(self.model, **options)
        buffers = self._buffers()
        rival_rank.draw(self.model.to_empty(device=device))
        for name, value in buffers.items():
            self.model.get_buffer(name).copy_(value)
        self.adamw = rival_rank.adamw_over(self.model)
        self.generator = torch.Generator(device=device).manual_seed(torch.distributed.get_rank())

    def _buffers(self):
        """Rotary tables and the like, which the meta device lacks: those of a model with one layer of each type."""
        config = transformers.AutoConfig.from_pretrained(self.job["hf"])
        names = {name for name, _ in self.model.named_buffers()}
        types = list(dict.fromkeys(getattr(config, "layer_types", None) or [""]))
        config.num_hidden_layers = len(types)
        if types != [""]:
            config.layer_types = types
        config.vocab_size = 8
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, name, None)
        small = WithLoss(transformers.AutoModelForCausalLM.from_config(config), 1)
        found = {name: value for name, value in small.named_buffers() if name in names}
        assert set(found) == names, f"buffers without values: {sorted(names - set(found))}"
        return found

    def step(self):
        self.adamw.zero_grad(set_to_none=True)
        total = 0
        for index in range(self.job["accumulation"]):
            self.model.set_is_last_backward(index == self.job["accumulation"] - 1)
            shape = (self.job["micro_batch"], self.job["sequence_length"] + 1)
            tokens = torch.randint(0, self.vocab_size, shape, device=self.device, generator=self.generator)
            kernels = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
                                  set_priority=True)
            with kernels:
                loss = self.model(tokens[:, :-1], tokens[:, 1:]) / self.job["accumulation"]
                loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.adamw.step()
        return total


if __name__ == "__main__":
    rival_rank.run(Run, {"transformers": transformers.__version__})

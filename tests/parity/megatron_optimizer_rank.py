"""Program that runs Megatron-Core's GPTModel of a config.json in bfloat16 with Adam on a CPU:

    save KIND CONFIG.JSON DIR OUT   trains three steps and saves model and optimizer
    load KIND CONFIG.JSON DIR OUT   loads such a directory, writes OUT and trains one more step

KIND is the layout of the distributed optimizer's checkpoint (fully_reshardable, dp_reshardable), or `plain` for no
distributed optimizer. OUT has the optimizer's state: {parameter: {"param", "exp_avg", "exp_avg_sq"}} in float32, and its
step count. CUDA calls are stubbed as in megatron_rank.py.
"""

import json
import os
import sys

import torch
from megatron_rank import alone, model_of

RULES = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True,
         "distrib_optim_fully_reshardable_mem_efficient": False}
torch.Tensor.cuda = lambda self, *_, **__: self
type_of = torch.Tensor.type
torch.Tensor.type = lambda self, *to: type_of(self, *to) if to else type_of(self).replace("torch.", "torch.cuda.")
for maker in ("tensor", "zeros", "empty", "full", "ones"):
    def on_cpu(*arguments, make=getattr(torch, maker), **named):
        return make(*arguments, **{**named, "device": "cpu"})
    setattr(torch, maker, on_cpu)


def build(config, distributed):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    torch.manual_seed(3)
    model = model_of(config, bf16=True, params_dtype=torch.bfloat16).train().bfloat16()
    wrapped = DistributedDataParallel(model.config, DistributedDataParallelConfig(use_distributed_optimizer=distributed), model)
    settings = OptimizerConfig(optimizer="adam", lr=1e-2, weight_decay=0.1, clip_grad=0.0, bf16=True,
                               params_dtype=torch.bfloat16, use_distributed_optimizer=distributed)
    return model, wrapped, get_megatron_optimizer(settings, [wrapped])


def patch_loading():
    """Works around a bug: with torch's Adam, loading requires a `step` for each parameter, which its own checkpoints
    lack."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    take = DistributedOptimizer._set_main_param_and_optimizer_states

    def take_with_step(self, parameter, tensors):
        group, order = self.model_param_group_index_map[parameter]
        own = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        take(self, parameter, {**tensors, "step": own["step"]})

    DistributedOptimizer._set_main_param_and_optimizer_states = take_with_step


def train(wrapped, optimizer, steps):
    mask = torch.ones(12, 12, dtype=torch.bool).triu(1)[None, None]
    for _ in range(steps):
        tokens = torch.randint(0, 256, (2, 12))
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        loss = wrapped(tokens, torch.arange(12).expand(2, 12), mask, labels=tokens.roll(-1, 1)).float().mean()
        loss.backward()
        wrapped.finish_grad_sync()
        optimizer.step()
        assert loss.isfinite()


def held(model, optimizer, distributed):
    """Returns the optimizer's tensors of each parameter in the parameter's shape: on one rank, a shard is the full
    tensor."""
    inner, states, steps = optimizer.chained_optimizers[0], {}, set()
    for name, parameter in model.named_parameters():
        if distributed:
            state = inner._get_main_param_and_optimizer_states(parameter)
        else:
            state = {"param": parameter.main_param, **inner.optimizer.state[parameter.main_param]}
        steps.add(int(state["step"]))
        states[name] = {what: state[what].detach().reshape(parameter.shape).clone() for what in ("param", "exp_avg", "exp_avg_sq")}
    (count,) = steps
    return {"states": states, "steps": count}


def main(way, kind, config_path, directory, out):
    from megatron.core import dist_checkpointing
    distributed = kind != "plain"
    rules = {**RULES, "distrib_optim_sharding_type": kind} if distributed else RULES
    with open(config_path) as file:
        model, wrapped, optimizer = build(json.load(file), distributed)
    if way == "save":
        train(wrapped, optimizer, 3)
        parts = model.sharded_state_dict(metadata=rules)
        scheduler = {"max_lr": 1e-2, "num_steps": 6}
        os.mkdir(directory)
        dist_checkpointing.save({"model": parts, "optimizer": optimizer.sharded_state_dict(parts, metadata=rules),
                                 "iteration": 3, "checkpoint_version": 3.0, "opt_param_scheduler": scheduler},
                                directory, content_metadata=rules)
        torch.save(held(model, optimizer, distributed), out)
        return
    patch_loading()
    # Torch's Adam, used here instead of CUDA versions, has no state to load into before its first step.
    optimizer.chained_optimizers[0]._init_optimizer_states_with_dummy_values()
    rules = dist_checkpointing.load_content_metadata(directory)
    parts = model.sharded_state_dict(metadata=rules)
    state = dist_checkpointing.load(
        {"model": parts, "optimizer": optimizer.sharded_state_dict(parts, is_loading=True, metadata=rules)}, directory,
        strict="log_all")
    assert state["iteration"] == 3 and state["opt_param_scheduler"]["num_steps"] == 6
    model.load_state_dict({name: tensor for name, tensor in state["model"].items() if torch.is_tensor(tensor)}, strict=False)
    optimizer.load_state_dict(state["optimizer"])
    torch.save(held(model, optimizer, distributed), out)
    train(wrapped, optimizer, 1)


if __name__ == "__main__":
    with alone():
        main(*sys.argv[1:])

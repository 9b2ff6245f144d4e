"""One rank of an FSDP2 model on Gloo, for test_checkpoint.py.

    RANK=r WORLD_SIZE=n dcp_rank.py save|load DIR RENDEZVOUS OUT

save: saves a small model and AdamW after two steps with torch.distributed.checkpoint; rank 0 writes all full tensors to
OUT. load: loads DIR into the same model and optimizer with other numbers, and writes the full tensors to OUT.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def build():
    # Sizes that two and three ranks do not divide, a matrix with fewer rows than ranks, and a 3-d parameter.
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 1), torch.nn.Conv1d(1, 3, 5))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def whole(state, prefix=""):
    """Returns the full tensors of a nested state by DCP's names. A collective."""
    for key, value in state.items():
        if isinstance(value, dict):
            yield from whole(value, f"{prefix}{key}.")
        elif torch.is_tensor(value):
            yield f"{prefix}{key}", value.full_tensor() if isinstance(value, DTensor) else value


def main(action, directory, rendezvous, out):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(1 if action == "save" else 2)
    model, optimizer = build()
    for _ in range(2 if action == "save" else 1):
        optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments["state"], "step": 11, "note": {"who": "FSDP2"}}
    if action == "save":
        dcp.save(state, checkpoint_id=directory)
    else:
        dcp.load(state, checkpoint_id=directory)
        assert state["step"] == 11
        set_state_dict(model, optimizer, model_state_dict=state["model"],
                       optim_state_dict={"state": state["optimizer"], "param_groups": moments["param_groups"]})
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments["state"]}
    tensors = dict(whole(state))
    if dist.get_rank() == 0:
        torch.save(tensors, out)
    dist.barrier()
    # As fsdp2_rank.py: all is written, and Gloo's threads end some interpreters with an abort on their way out.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

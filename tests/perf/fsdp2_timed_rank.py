"""One rank of PyTorch FSDP2 that trains the same job again for each line on standard input.

    RANK=r WORLD_SIZE=n fsdp2_timed_rank.py JOB.json        (JOB.json: as one job of parity/fsdp2_rank.py)

Rank 0 answers each line with a JSON line: losses, and ends, the seconds at which each step ended. The time excludes reports:
losses are summed over ranks afterwards.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from fsdp2_rank import prepare, train_step


def train_timed(job):
    model, adamw, batches = prepare(job)
    losses, ends = [], []
    dist.barrier()
    for rate, batch in zip(job["learning_rates"], batches):
        for group in adamw.param_groups:
            group["lr"] = rate
        losses.append(train_step(model, adamw, batch, job)[0])
        ends.append(time.perf_counter())
    total = torch.stack(losses)
    dist.all_reduce(total)
    return {"losses": (total / dist.get_world_size()).tolist(), "ends": ends}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{job['rendezvous']}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    for _ in sys.stdin:
        answer = train_timed(job)
        if dist.get_rank() == 0:
            print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

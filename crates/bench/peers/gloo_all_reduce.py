#!/usr/bin/env python3
"""Everburn's peer in `cargo xtask bench collectives --against gloo`: a rank of gloo's all-reduce.

One process a rank, numbered by RANK and WORLD_SIZE; the ranks meet at the file that `--store` names.
Each line of the input is an order, a JSON object with `bytes`, `warm_up` and `repeats`, and goes to
every rank. Rank 0 answers with `times_us`, the microseconds of each call; the others with an empty
object. The end of the input is the end of the process.

What is timed is what Everburn's side times: the blocking call, in place, on 32-bit floats, after a
warm-up and a barrier, by rank 0's clock.
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta

import torch
from torch import distributed

BYTES_OF_A_FLOAT = 4
# For a rank that hangs; one that fails ends the others.
PATIENCE = timedelta(seconds=300)


def check(tensor, ranks):
    """A sum that is wrong may be fast."""
    expected = ranks * (ranks + 1) / 2
    if not bool((tensor == expected).all()):
        raise SystemExit(f"gloo's sum is not {expected} everywhere")


def measure(rank, ranks, order):
    tensor = torch.full((order["bytes"] // BYTES_OF_A_FLOAT,), rank + 1.0)
    distributed.all_reduce(tensor)
    check(tensor, ranks)
    # Sums of zeros stay what they are; anything else would end at infinity.
    tensor.zero_()
    for _ in range(order["warm_up"]):
        distributed.all_reduce(tensor)
    distributed.barrier()
    times = []
    for _ in range(order["repeats"]):
        start = time.perf_counter()
        distributed.all_reduce(tensor)
        times.append((time.perf_counter() - start) * 1e6)
    return {"times_us": times} if rank == 0 else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="a file that all ranks can reach")
    options = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{options.store}",
        rank=rank,
        world_size=ranks,
        timeout=PATIENCE,
    )
    for line in sys.stdin:
        print(json.dumps(measure(rank, ranks, json.loads(line))), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

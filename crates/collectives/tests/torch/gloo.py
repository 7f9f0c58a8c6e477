"""One rank of a gloo process group, as any script of PyTorch's users makes it."""

import argparse
import datetime

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--init-method", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group(
        "gloo",
        init_method=options.init_method,
        rank=options.rank,
        world_size=options.world_size,
        timeout=datetime.timedelta(seconds=60),
    )
    numbers = torch.arange(1000, dtype=torch.float32) * (options.rank + 1)
    dist.all_reduce(numbers)
    expected = torch.arange(1000, dtype=torch.float32) * sum(range(1, options.world_size + 1))
    if not torch.equal(numbers, expected):
        raise SystemExit("all_reduce: the sum is wrong")
    dist.barrier()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {numbers[999].item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

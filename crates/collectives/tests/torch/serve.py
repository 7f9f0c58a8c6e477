"""A server of PyTorch's. It says where it listens and serves until standard input ends."""

import argparse
import sys

import torch.distributed as dist

from stores import LONG


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=["libuv", "legacy"], required=True)
    options = parser.parse_args()
    libuv = options.backend == "libuv"
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=LONG, wait_for_workers=False, use_libuv=libuv
    )
    if store.libuvBackend != libuv:
        raise SystemExit(f"this is not the {options.backend} server")
    print(f"127.0.0.1:{store.port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

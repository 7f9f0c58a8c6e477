#!/usr/bin/env python3
"""Everburn's peer in `cargo xtask bench train --against pytorch`: the same net, trained by PyTorch.

One process, or DistributedDataParallel over gloo with one process a rank, on the CPU. The last line
of the output is a JSON object with `samples_per_second` over the timed steps.

Where a choice had to be made, it is the one that is faster for PyTorch: the images lie in memory as
floats, warm-up steps are not counted, buffers are not broadcast in each step.
"""

import argparse
import gzip
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy

IMAGE_COUNT = 60_000
PIXELS = 28
CLASSES = 10
LEARNING_RATE = 1e-3
SEED = 42
# A rank that fails ends the others; this is for one that hangs.
PATIENCE = timedelta(seconds=120)


def mnist():
    """Two convolutions and two linear layers; pixels in 0..1."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, CLASSES),
    )


class Rescale(nn.Module):
    def forward(self, images):
        return images * (1.0 / 255.0)


class SpatialMean(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


def mnist_bn():
    """Three convolutions with batch norm, global average pooling, a hidden layer; pixels in 0..255."""

    def block(inputs, outputs, kernel, stride, padding):
        norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
        norm.weight.requires_grad_(False)
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        return [convolution, norm, nn.ReLU()]

    return nn.Sequential(
        Rescale(),
        *block(1, 12, 3, 1, 1),
        *block(12, 24, 6, 2, 2),
        *block(24, 32, 6, 2, 2),
        SpatialMean(),
        nn.Linear(32, 256),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(256, CLASSES),
    )


# By name: how it is built, and what the brightest pixel is.
MODELS = {"mnist": (mnist, 1.0), "mnist-bn": (mnist_bn, 255.0)}


def read_idx(folder, name):
    """The values of an IDX file of bytes, gzipped or not, with its shape."""
    plain, packed = Path(folder) / name, Path(folder) / f"{name}.gz"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    dimensions = content[3]
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8).reshape(shape)


def training_set(folder, brightest):
    """Images [N, 1, 28, 28] up to `brightest`, and labels [N]."""
    if folder:
        images = read_idx(folder, "train-images-idx3-ubyte").unsqueeze(1)
        labels = read_idx(folder, "train-labels-idx1-ubyte").long()
    else:
        source = torch.Generator().manual_seed(SEED)
        shape = (IMAGE_COUNT, 1, PIXELS, PIXELS)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=source)
        labels = torch.randint(0, CLASSES, (IMAGE_COUNT,), generator=source)
    return images.float().mul_(brightest / 255.0), labels


def batches(count, batch_size, rank, ranks):
    """This rank's share of each global batch, for ever; every epoch in another order."""
    epoch = 0
    while True:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED + epoch))
        for start in range(0, count - batch_size + 1, batch_size):
            yield order[start : start + batch_size].tensor_split(ranks)[rank]
        epoch += 1


def train(rank, options, store_port):
    torch.manual_seed(SEED)
    torch.set_num_threads(options.threads)
    alone = options.ranks == 1
    if not alone:
        store = distributed.TCPStore("127.0.0.1", store_port, is_master=False, timeout=PATIENCE)
        distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=options.ranks, timeout=PATIENCE
        )
    build, brightest = MODELS[options.model]
    images, labels = training_set(options.images, brightest)
    model = build()
    if not alone:
        model = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, LEARNING_RATE)
    shares = batches(len(images), options.batch_size, rank, options.ranks)

    def make(steps):
        loss = None
        for _ in range(steps):
            share = next(shares)
            optimizer.zero_grad()
            output = cross_entropy(model(images[share]), labels[share])
            output.backward()
            optimizer.step()
            # Read in each step, as a trainer that shows it does.
            loss = output.item()
        if not alone:
            distributed.barrier()
        return loss

    make(options.warm_up_steps)
    start = time.perf_counter()
    loss = make(options.steps)
    seconds = time.perf_counter() - start
    if rank == 0:
        result = {
            "samples_per_second": options.steps * options.batch_size / seconds,
            "seconds": seconds,
            "steps": options.steps,
            "batch_size": options.batch_size,
            "ranks": options.ranks,
            "threads": torch.get_num_threads(),
            "images": "real" if options.images else "random",
            "loss": loss,
            "torch": torch.__version__,
        }
        print(json.dumps(result), flush=True)
    if not alone:
        distributed.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="mnist")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up-steps", type=int, default=5)
    parser.add_argument("--images", help="a folder with MNIST's files; random images without it")
    options = parser.parse_args()
    if not 1 <= options.ranks <= options.batch_size or options.steps < 1:
        parser.error("each rank needs a sample in every batch, and there must be a step")
    return options


def main():
    options = parse_options()
    if options.ranks == 1:
        train(0, options, None)
        return
    if sys.platform == "linux":
        # A host's own name may resolve to an address that it does not have.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The system chooses the port and the store keeps it: nobody can take it in between.
    store = distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE
    )
    torch.multiprocessing.spawn(train, args=(options, store.port), nprocs=options.ranks)


if __name__ == "__main__":
    main()

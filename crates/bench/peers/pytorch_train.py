#!/usr/bin/env python3
"""Everburn's peer in `cargo xtask bench train --against pytorch`: the same net, trained by PyTorch.

One process, or DistributedDataParallel over gloo with one process per rank, on the CPU. The last line
of the output is a JSON object with `samples_per_second` over the timed steps. With `--compile`, the net
is compiled by `torch.compile`, before the timed steps.

Where a choice had to be made, it is the one that is faster for PyTorch: images are in memory as
floats from 0 to 1, warm-up steps are not counted, buffers are not broadcast in each step, attention is
the fused operation, angles of positions are computed once, learning rates stay what they are.
"""

import json
import os
import sys
import time
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy

from pytorch_models import Decoder, images
from training import (
    CLASSES,
    IMAGE_COUNT,
    MODELS,
    PIXELS,
    SEED,
    TOKEN_COUNT,
    VOCABULARY,
    DecoderSizes,
    checked,
    parser,
    read_idx,
    read_tokens,
    report,
)

# A rank that fails ends the others; this is for one that hangs.
PATIENCE = timedelta(seconds=120)


def bytes_of(folder, name):
    """The values of an IDX file."""
    values, shape = read_idx(folder, name)
    return torch.frombuffer(values, dtype=torch.uint8).reshape(shape)


def images_and_labels(folder):
    """Images [N, 1, 28, 28] from 0 to 1, and labels [N]; random ones without a folder."""
    if folder:
        images = bytes_of(folder, "train-images-idx3-ubyte").unsqueeze(1)
        labels = bytes_of(folder, "train-labels-idx1-ubyte").long()
    else:
        source = torch.Generator().manual_seed(SEED)
        shape = (IMAGE_COUNT, 1, PIXELS, PIXELS)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=source)
        labels = torch.randint(0, CLASSES, (IMAGE_COUNT,), generator=source)
    return images.float().div_(255.0), labels, CLASSES


def windows(path, context):
    """Windows [N, context] of a text's tokens, and what follows each token; random ones without a path."""
    if path:
        tokens, vocabulary = read_tokens(path)
        tokens = torch.tensor(tokens)
    else:
        source = torch.Generator().manual_seed(SEED)
        vocabulary = VOCABULARY
        tokens = torch.randint(0, vocabulary, (TOKEN_COUNT,), generator=source)
    count = (len(tokens) - 1) // context
    inputs = tokens[: count * context].reshape(count, context)
    targets = tokens[1 : count * context + 1].reshape(count, context)
    return inputs, targets, vocabulary


def optimizer_of(recipe, trained):
    if recipe.decay:
        return torch.optim.AdamW(
            trained, recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.decay
        )
    return torch.optim.Adam(trained, recipe.learning_rate, betas=recipe.betas)


def batches(count, batch_size, rank, ranks):
    """This rank's share of each global batch, for ever; every epoch in another order."""
    if batch_size > count:
        raise SystemExit(f"a batch of {batch_size} cannot be made of {count} samples")
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
    recipe = MODELS[options.model]
    if recipe.is_text:
        context = DecoderSizes(options.layers).context
        inputs, targets, outputs = windows(options.data, context)
        model = Decoder(options.layers, outputs)
    else:
        inputs, targets, outputs = images_and_labels(options.data)
        model = images(options.layers, outputs)
    if not alone:
        model = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    if options.compile:
        model = torch.compile(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer_of(recipe, trained)
    shares = batches(len(inputs), options.batch_size, rank, options.ranks)

    def make(steps):
        loss = None
        for _ in range(steps):
            share = next(shares)
            optimizer.zero_grad()
            scores = model(inputs[share])
            mean = cross_entropy(scores.flatten(0, -2), targets[share].flatten())
            mean.backward()
            if recipe.greatest_norm:
                nn.utils.clip_grad_norm_(trained, recipe.greatest_norm)
            optimizer.step()
            # Read in each step, as a trainer that shows it does.
            loss = mean.item()
        if not alone:
            distributed.barrier()
        return loss

    make(options.warm_up_steps)
    start = time.perf_counter()
    loss = make(options.steps)
    seconds = time.perf_counter() - start
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in trained)
        threads = torch.get_num_threads()
        print(json.dumps(report(options, seconds, threads, loss, outputs, parameters)), flush=True)
    if not alone:
        distributed.destroy_process_group()


def parse_options():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--compile", action="store_true", help="compile the net")
    return checked(options)


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

#!/usr/bin/env python3
"""Everburn's peer in `cargo xtask bench train --against jax`: the same net, trained by JAX on the CPU.

One process; several ranks are devices of it that share each batch, and XLA sums their gradients. The
whole step is one function, compiled by `jax.jit` before the timed steps. The last line of the output
is a JSON object with `samples_per_second` over the timed steps.

Where a choice had to be made, it is the one that is faster for JAX: the images lie in memory as floats
from 0 to 1, warm-up steps are not counted, the state is updated in place, random numbers are those of
the generator that is fastest on the CPU.
"""

import json
import os
import time
from pathlib import Path

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


EPSILON = 1e-8


def images_and_labels(np, folder):
    """Images [N, 28, 28, 1] from 0 to 1, and labels [N]; random ones without a folder."""
    if folder:
        images, labels = (
            np.frombuffer(values, np.uint8).reshape(shape)
            for values, shape in (
                read_idx(folder, f"train-{name}-ubyte") for name in ("images-idx3", "labels-idx1")
            )
        )
    else:
        source = np.random.default_rng(SEED)
        images = source.integers(0, 256, (IMAGE_COUNT, PIXELS, PIXELS), np.uint8)
        labels = source.integers(0, CLASSES, IMAGE_COUNT)
    return images[..., None].astype(np.float32) / 255.0, labels.astype(np.int32), CLASSES


def windows(np, path, context):
    """Windows [N, context] of a text's tokens, and what follows each token; random ones without a path."""
    if path:
        tokens, vocabulary = read_tokens(path)
        tokens = np.array(tokens, np.int32)
    else:
        vocabulary = VOCABULARY
        tokens = np.random.default_rng(SEED).integers(0, vocabulary, TOKEN_COUNT, np.int32)
    count = (len(tokens) - 1) // context
    inputs = tokens[: count * context].reshape(count, context)
    targets = tokens[1 : count * context + 1].reshape(count, context)
    return inputs, targets, vocabulary


def batches(np, count, batch_size):
    """Each global batch, for ever; every epoch in another order."""
    if batch_size > count:
        raise SystemExit(f"a batch of {batch_size} cannot be made of {count} samples")
    source = np.random.default_rng(SEED)
    while True:
        order = source.permutation(count)
        for start in range(0, count - batch_size + 1, batch_size):
            yield order[start : start + batch_size]


def compiled_step(jax, net, recipe):
    """The function of state, inputs and targets that makes a step, and returns the state and the mean loss."""
    jnp, tree = jax.numpy, jax.tree_util.tree_map

    def mean_loss(parameters, statistics, inputs, targets, key):
        scores, statistics = net.forward(parameters, statistics, inputs, key)
        logarithms = jax.nn.log_softmax(scores)
        picked = jnp.take_along_axis(logarithms, targets[..., None], axis=-1)
        return -picked.mean(), statistics

    def step(state, inputs, targets):
        parameters, first, second, statistics, count = state
        count = count + 1
        key = jax.random.key(count)
        of = jax.value_and_grad(mean_loss, has_aux=True)
        (loss, statistics), gradients = of(parameters, statistics, inputs, targets, key)
        if recipe.greatest_norm:
            squares = [jnp.vdot(part, part) for part in jax.tree_util.tree_leaves(gradients)]
            norm = jnp.sqrt(sum(squares))
            factor = jnp.minimum(1.0, recipe.greatest_norm / (norm + 1e-6))
            gradients = tree(lambda part: part * factor, gradients)
        b1, b2 = recipe.betas
        first = tree(lambda old, new: b1 * old + (1 - b1) * new, first, gradients)
        second = tree(lambda old, new: b2 * old + (1 - b2) * new * new, second, gradients)
        rate = recipe.learning_rate / (1 - b1**count)
        root = jnp.sqrt(1 - b2**count)
        kept = 1 - recipe.learning_rate * recipe.decay

        def update(old, m, v):
            return kept * old - rate * m / (jnp.sqrt(v) / root + EPSILON)

        parameters = tree(update, parameters, first, second)
        return (parameters, first, second, statistics, count), loss

    return jax.jit(step, donate_argnums=0)


def computing_threads():
    """How many threads XLA computes with: those of its pool."""
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("tf_XLAEigen") for name in names)


def main():
    options = checked(parser(__doc__.splitlines()[0]))
    # Read when JAX is imported.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["NPROC"] = str(options.ranks * options.threads)
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.ranks}"
    import jax
    import numpy as np

    from jax_models import Decoder, Images

    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    recipe = MODELS[options.model]
    if recipe.is_text:
        context = DecoderSizes(options.layers).context
        inputs, targets, outputs = windows(np, options.data, context)
        net = Decoder(options.layers, outputs)
    else:
        inputs, targets, outputs = images_and_labels(np, options.data)
        net = Images(options.layers, outputs)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    everywhere, shared = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("data",))
    )
    parameters = net.parameters(jax.random.key(SEED))
    zeros = [jax.tree_util.tree_map(jax.numpy.zeros_like, parameters) for _ in range(2)]
    state = jax.device_put((parameters, *zeros, net.statistics(), 0), everywhere)
    step = compiled_step(jax, net, recipe)
    shares = batches(np, len(inputs), options.batch_size)

    def make(steps):
        nonlocal state
        loss = None
        for _ in range(steps):
            share = next(shares)
            batch = jax.device_put((inputs[share], targets[share]), shared)
            state, loss = step(state, *batch)
            # Read in each step, as a trainer that shows it does.
            loss = float(loss)
        return loss

    make(options.warm_up_steps)
    start = time.perf_counter()
    loss = make(options.steps)
    seconds = time.perf_counter() - start
    threads = computing_threads() // options.ranks
    parameters = sum(part.size for part in jax.tree_util.tree_leaves(state[0]))
    print(json.dumps(report(options, seconds, threads, loss, outputs, parameters)), flush=True)


if __name__ == "__main__":
    main()

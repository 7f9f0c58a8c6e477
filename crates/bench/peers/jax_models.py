"""The nets of `models/` in JAX, made of the layers of `crates/bench/src/kernels/networks.rs`, from which their sizes are.

Images are `[B, H, W, C]` and kernels `[H, W, inputs, outputs]`, which XLA's convolutions on the CPU are made for. Pools
without overlap are the largest of reshaped pixels: the gradient of XLA's own windows takes many times as long.
"""

import math

import jax
from jax import lax
from jax import numpy as jnp

from training import DEVIATION, MOMENTUM, ROTARY_BASE, DecoderSizes, row_of

LAYER_NORM_EPSILON = 1e-5


def linear(key, inputs, outputs):
    bound = 1.0 / math.sqrt(inputs)
    weight, bias = jax.random.split(key)
    return {
        "weight": jax.random.uniform(weight, (inputs, outputs), minval=-bound, maxval=bound),
        "bias": jax.random.uniform(bias, (outputs,), minval=-bound, maxval=bound),
    }


def through(parameters, x):
    return x @ parameters["weight"] + parameters["bias"]


class Images:
    """Layers one after the other."""

    def __init__(self, layers, classes):
        self.layers = row_of(layers, classes)

    def parameters(self, key):
        keys = jax.random.split(key, len(self.layers))
        return [self.layer_parameters(layer, key) for layer, key in zip(self.layers, keys)]

    def layer_parameters(self, layer, key):
        if layer["kind"] == "conv2d":
            inputs, outputs = layer["channels"]
            flat = linear(key, inputs * layer["kernel"] ** 2, outputs)
            shape = (layer["kernel"], layer["kernel"], inputs, outputs)
            kernel = {"weight": flat["weight"].reshape(shape)}
            return {**kernel, "bias": flat["bias"]} if layer["bias"] else kernel
        if layer["kind"] == "linear":
            return linear(key, *layer["features"])
        if layer["kind"] == "batch-norm":
            beta = {"beta": jnp.zeros(layer["channels"])}
            return {**beta, "gamma": jnp.ones(layer["channels"])} if layer["scales"] else beta
        return {}

    def statistics(self):
        norms = [layer["channels"] for layer in self.layers if layer["kind"] == "batch-norm"]
        return [(jnp.zeros(channels), jnp.ones(channels)) for channels in norms]

    def forward(self, parameters, statistics, x, key):
        """Scores, and the running statistics."""
        running = list(statistics)
        norms = 0
        for layer, own in zip(self.layers, parameters):
            if layer["kind"] == "batch-norm":
                x, running[norms] = batch_norm(layer, own, running[norms], x)
                norms += 1
            elif layer["kind"] == "dropout":
                key, mine = jax.random.split(key)
                x = dropout(layer, mine, x)
            else:
                x = LAYERS[layer["kind"]](layer, own, x)
        return x, running


def conv2d(layer, own, x):
    stride, padding = layer["stride"], layer["padding"]
    x = lax.conv_general_dilated(
        x,
        own["weight"],
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return x + own["bias"] if layer["bias"] else x


def max_pool2d(layer, own, x):
    size = layer["kernel"]
    batch, height, width, channels = x.shape
    if layer["stride"] != size or layer["padding"] or height % size or width % size:
        raise SystemExit(f"no such pool: {layer}")
    x = x.reshape(batch, height // size, size, width // size, size, channels)
    return x.max(axis=(2, 4))


def batch_norm(layer, own, running, x):
    mean = x.mean(axis=(0, 1, 2))
    variance = x.var(axis=(0, 1, 2))
    count = x.size // x.shape[-1]
    new = (mean, variance * count / (count - 1))
    running = tuple((1 - MOMENTUM) * old + MOMENTUM * new for old, new in zip(running, new))
    x = (x - mean) * (lax.rsqrt(variance + layer["epsilon"]) * own.get("gamma", 1.0))
    return x + own["beta"], running


def dropout(layer, key, x):
    kept = 1.0 - layer["share"]
    return jnp.where(jax.random.bernoulli(key, kept, x.shape), x / kept, 0.0)


# By the kind of a layer without statistics and chance.
LAYERS = {
    "conv2d": conv2d,
    "max-pool2d": max_pool2d,
    "mean-over-pixels": lambda layer, own, x: x.mean(axis=(1, 2)),
    "relu": lambda layer, own, x: jax.nn.relu(x),
    "linear": lambda layer, own, x: through(own, x.reshape(len(x), -1)),
}


class Decoder(DecoderSizes):
    """The decoder of `models/src/gpt.rs` with rotary positions, as long and as wide as its layers say."""

    def __init__(self, layers, vocabulary):
        super().__init__(layers)
        # Of the data: the layers have that of one text.
        self.vocabulary = vocabulary

    def parameters(self, key):
        def norm():
            return {"weight": jnp.ones(self.width), "bias": jnp.zeros(self.width)}

        def normal(key, shape, depth=1.0):
            return jax.random.normal(key, shape) * (DEVIATION / depth)

        def linear(key, inputs, outputs, depth=1.0):
            return {"weight": normal(key, (inputs, outputs), depth), "bias": jnp.zeros(outputs)}

        depth = math.sqrt(2 * self.blocks)
        wte, key = jax.random.split(key)
        blocks = []
        for key in jax.random.split(key, self.blocks):
            keys = jax.random.split(key, 6)
            square = [linear(key, self.width, self.width) for key in keys[:3]]
            blocks.append(
                {
                    "norm1": norm(),
                    "qkv": square,
                    "out": linear(keys[3], self.width, self.width, depth),
                    "norm2": norm(),
                    "up": linear(keys[4], self.width, self.hidden),
                    "down": linear(keys[5], self.hidden, self.width, depth),
                }
            )
        wte = normal(wte, (self.vocabulary, self.width))
        return {"wte": wte, "blocks": blocks, "norm": norm()}

    def statistics(self):
        return []

    def forward(self, parameters, statistics, tokens, key):
        x = parameters["wte"][tokens]
        rotation = self.rotation()
        for block in parameters["blocks"]:
            x = x + self.attend(block, layer_norm(block["norm1"], x), rotation)
            hidden = through(block["up"], layer_norm(block["norm2"], x))
            x = x + through(block["down"], jax.nn.gelu(hidden, approximate=False))
        return layer_norm(parameters["norm"], x) @ parameters["wte"].T, statistics

    def attend(self, block, x, rotation):
        heads = (*x.shape[:2], self.heads, self.head)
        q, k, v = (through(own, x).reshape(heads) for own in block["qkv"])
        q, k = turn(q, *rotation), turn(k, *rotation)
        looked_up = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return through(block["out"], looked_up.reshape(x.shape))

    def rotation(self):
        """Cosines and sines of the angles, `[tokens, 1, half the width of a head]`; XLA computes them once."""
        half = self.head // 2
        rates = ROTARY_BASE ** (-jnp.arange(half) / half)
        angles = (jnp.arange(self.context)[:, None] * rates)[:, None, :]
        return jnp.cos(angles), jnp.sin(angles)


def layer_norm(own, x):
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    x = (x - mean) * lax.rsqrt(variance + LAYER_NORM_EPSILON)
    return x * own["weight"] + own["bias"]


def turn(x, cos, sin):
    """Pairs of numbers, one of each half of a head, turned by the angles of their positions."""
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

#!/usr/bin/env python3
"""Everburn's peer in `cargo xtask bench kernels --against pytorch`: PyTorch's time of single layers.

Each line of the input is an order, a JSON object with `layer`, `batch`, `pass`, `milliseconds` and
`check`; it is answered by one line with `microseconds`, the median of the calls. The end of the input
is the end of the process. `crates/bench/src/kernels/worker/mod.rs` does the same in Rust. With `--compile`,
layers are compiled by `torch.compile`, before they are timed.

Tensors are filled with the same numbers on both sides; with `check` the answer also says how large the
numbers are that came out. Where a choice had to be made, it is the one that is faster for PyTorch:
attention is the fused operation, nothing collects garbage meanwhile.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from pytorch_models import MODULES, rotation, turn

# The numbers of a tensor repeat after so many: a prime, so that they meet each other in ever new ways.
PERIOD = 65_521
# Of inputs, by their place; of parameters, by theirs; of the gradient.
FIRST_PARAMETER, GRADIENT = 100, 200
# Threads that spin for others, caches and clocks settle within this share of the time.
WARM_UP_SHARE = 0.25
# A call that takes longer than its time is measured once.
FEWEST_CALLS = 1
PASSES = ("forward", "backward", "weight-gradient")
LOW_BITS = 0xFFFFFFFF


def noise(shape, seed):
    """Numbers in -0.5..0.5 with 24 bits: MurmurHash3's finalizer of the index and the seed."""
    bits = (torch.arange(PERIOD) * 2_654_435_761 + seed * 0x9E3779B9) & LOW_BITS
    bits ^= bits >> 16
    bits = (bits * 0x85EBCA6B) & LOW_BITS
    bits ^= bits >> 13
    bits = (bits * 0xC2B2AE35) & LOW_BITS
    bits ^= bits >> 16
    pattern = (bits >> 8).float() / (1 << 24) - 0.5
    count = math.prod(shape)
    return pattern.repeat(-(-count // PERIOD))[:count].reshape(shape)


def filled(module, transposed=False):
    """The module with parameters of noise; linear weights as Burn has them, `[inputs, outputs]`."""
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            shape = tuple(parameter.shape)
            if transposed and len(shape) == 2:
                parameter.copy_(noise(shape[::-1], FIRST_PARAMETER + place).t())
            else:
                parameter.copy_(noise(shape, FIRST_PARAMETER + place))
    return module


def counted(count, most, shape):
    """Class numbers that go round."""
    return (torch.arange(count) * 7 % most).reshape(shape)


class Subject:
    """What is measured: a function of inputs, and the parameters whose gradients are wanted."""

    def __init__(self, inputs, forward, parameters=()):
        self.inputs = [noise(shape, place) for place, shape in enumerate(inputs)]
        self.forward = forward
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]


def of_images(layer, batch, channels):
    return batch, channels, layer["side"], layer["side"]


def conv2d(layer, batch):
    convolution = filled(MODULES["conv2d"](layer))
    shape = of_images(layer, batch, layer["channels"][0])
    return Subject([shape], convolution, convolution.parameters())


def max_pool2d(layer, batch):
    shape = of_images(layer, batch, layer["channels"])
    return Subject([shape], MODULES["max-pool2d"](layer))


def mean_over_pixels(layer, batch):
    shape = of_images(layer, batch, layer["channels"])
    return Subject([shape], lambda x: x.mean(dim=(2, 3)))


def batch_norm(layer, batch):
    norm = MODULES["batch-norm"](layer)
    shape = of_images(layer, batch, layer["channels"])
    return Subject([shape], norm, norm.parameters())


def relu(layer, batch):
    return Subject([(batch, *layer["shape"])], functional.relu)


def add(layer, batch):
    return Subject([(batch, *layer["shape"])] * 2, torch.add)


def gelu(layer, batch):
    return Subject([(batch, *layer["shape"])], functional.gelu)


def dropout(layer, batch):
    share = layer["share"]
    return Subject([(batch, *layer["shape"])], lambda x: functional.dropout(x, share))


def linear(layer, batch):
    module = filled(MODULES["linear"](layer), transposed=True)
    tokens = [] if layer["tokens"] is None else [layer["tokens"]]
    return Subject([(batch, *tokens, layer["features"][0])], module, module.parameters())


def tied_scores(layer, batch):
    tokens, width, vocabulary = layer["tokens"], layer["width"], layer["vocabulary"]
    embedding = filled(nn.Embedding(vocabulary, width))
    weight = embedding.weight
    return Subject([(batch, tokens, width)], lambda x: functional.linear(x, weight), [weight])


def layer_norm(layer, batch):
    norm = filled(nn.LayerNorm(layer["width"]))
    return Subject([(batch, layer["tokens"], layer["width"])], norm, norm.parameters())


def embedding(layer, batch):
    module = filled(nn.Embedding(layer["vocabulary"], layer["width"]))
    shape = (batch, layer["tokens"])
    tokens = counted(math.prod(shape), layer["vocabulary"], shape)
    return Subject([], lambda: module(tokens), module.parameters())


def softmax(layer, batch):
    shape = (batch, layer["heads"], layer["tokens"], layer["tokens"])
    return Subject([shape], lambda x: functional.softmax(x, dim=3))


def matmul(layer, batch):
    each = [] if layer["heads"] is None else [batch, layer["heads"]]
    left = (*each, layer["rows"], layer["inner"])
    right = (*each, layer["inner"], layer["columns"])
    return Subject([left, right], torch.matmul)


def rotary(layer, batch):
    cos, sin = rotation(layer["tokens"], layer["width"])
    shape = (batch, layer["heads"], layer["tokens"], layer["width"])
    return Subject([shape], lambda x: turn(x, cos, sin))


def attention(layer, batch):
    shape = (batch, layer["heads"], layer["tokens"], layer["width"])

    def forward(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Subject([shape] * 3, forward)


def cross_entropy(layer, batch):
    rows = batch * layer["tokens"]
    targets = counted(rows, layer["classes"], (rows,))
    shape = (rows, layer["classes"])
    return Subject([shape], lambda logits: functional.cross_entropy(logits, targets))


# By the kind of an order's layer.
LAYERS = {
    "conv2d": conv2d,
    "max-pool2d": max_pool2d,
    "mean-over-pixels": mean_over_pixels,
    "batch-norm": batch_norm,
    "relu": relu,
    "add": add,
    "gelu": gelu,
    "dropout": dropout,
    "linear": linear,
    "tied-scores": tied_scores,
    "layer-norm": layer_norm,
    "embedding": embedding,
    "softmax": softmax,
    "matmul": matmul,
    "rotary": rotary,
    "attention": attention,
    "cross-entropy": cross_entropy,
}


def median_call(call, milliseconds):
    """Microseconds of the median call, in about so many milliseconds and some for warming up."""
    budget = milliseconds / 1e3
    start = time.perf_counter()
    call()
    while time.perf_counter() - start < budget * WARM_UP_SHARE:
        call()
    times = []
    start = time.perf_counter()
    while len(times) < FEWEST_CALLS or time.perf_counter() - start < budget:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return statistics.median(times) * 1e6


def size(tensor):
    return tensor.detach().double().abs().mean().item()


def compiled(function):
    # Nothing is kept of the layer before: after a few, all that comes would stay uncompiled.
    torch.compiler.reset()
    return torch.compile(lambda *inputs: function(*inputs))


def measure(order, compiles):
    if order["pass"] not in PASSES:
        raise SystemExit(f"no such pass: {order['pass']}")
    subject = LAYERS[order["layer"]["kind"]](order["layer"], order["batch"])
    inputs, forward = subject.inputs, subject.forward
    if isinstance(forward, nn.Module):
        # Batch norm has the batch's statistics where it is trained.
        forward.train(order["pass"] != "forward")
    if compiles:
        forward = compiled(forward)
    if order["pass"] == "forward":
        with torch.inference_mode():
            if compiles:
                forward(*inputs)
            microseconds = median_call(lambda: forward(*inputs), order["milliseconds"])
            check = [size(forward(*inputs))] if order["check"] else None
        return microseconds, check
    leaves = list(subject.parameters)
    if order["pass"] == "backward":
        for tensor in inputs:
            tensor.requires_grad_()
        leaves = inputs + leaves
    with torch.no_grad():
        shape = subject.forward(*inputs).shape
    gradient = noise(shape, GRADIENT)

    def call():
        for leaf in leaves:
            leaf.grad = None
        output = forward(*inputs)
        output.backward(gradient)
        return output

    if compiles:
        call()
    microseconds = median_call(call, order["milliseconds"])
    check = None
    if order["check"]:
        output = call()
        check = [size(output)] + [size(leaf.grad) for leaf in leaves]
    return microseconds, check


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--compile", action="store_true", help="compile each layer")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    gc.disable()
    for line in sys.stdin:
        microseconds, check = measure(json.loads(line), options.compile)
        answer = {
            "microseconds": microseconds,
            "threads": torch.get_num_threads(),
            "check": check,
        }
        print(json.dumps(answer), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()

"""The nets of `models/` in PyTorch, made of the layers of `crates/bench/src/kernels/networks.rs`."""

import math

import torch
from torch import nn
from torch.nn import functional

from training import DEVIATION, MOMENTUM, ROTARY_BASE, DecoderSizes, row_of


class MeanOverPixels(nn.Module):
    def forward(self, x):
        return x.mean(dim=(2, 3))


def conv2d(layer):
    inputs, outputs = layer["channels"]
    return nn.Conv2d(
        inputs, outputs, layer["kernel"], layer["stride"], layer["padding"], bias=layer["bias"]
    )


def max_pool2d(layer):
    return nn.MaxPool2d(layer["kernel"], layer["stride"], layer["padding"])


def batch_norm(layer):
    norm = nn.BatchNorm2d(layer["channels"], eps=layer["epsilon"], momentum=MOMENTUM)
    norm.weight.requires_grad_(layer["scales"])
    return norm


# By the kind of a layer of images.
MODULES = {
    "conv2d": conv2d,
    "max-pool2d": max_pool2d,
    "mean-over-pixels": lambda layer: MeanOverPixels(),
    "batch-norm": batch_norm,
    "relu": lambda layer: nn.ReLU(),
    "dropout": lambda layer: nn.Dropout(layer["share"]),
    "linear": lambda layer: nn.Linear(*layer["features"]),
}


def images(layers, classes):
    """A net of images from 0 to 1: its layers one after the other."""
    row = row_of(layers, classes)
    modules = [MODULES[layer["kind"]](layer) for layer in row]
    modules.insert([layer["kind"] for layer in row].index("linear"), nn.Flatten())
    return nn.Sequential(*modules)


class Decoder(nn.Module):
    """The decoder of `models/src/gpt.rs` with rotary positions; the same weights embed tokens and score them."""

    def __init__(self, layers, vocabulary):
        super().__init__()
        sizes = DecoderSizes(layers)
        self.wte = nn.Embedding(vocabulary, sizes.width)
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.blocks))
        self.norm = nn.LayerNorm(sizes.width)
        cos, sin = rotation(sizes.context, sizes.head)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                ends_in_residual = name.endswith(("out.weight", "down.weight"))
                depth = math.sqrt(2 * sizes.blocks) if ends_in_residual else 1
                nn.init.normal_(parameter, std=DEVIATION / depth)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        x = self.wte(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return functional.linear(self.norm(x), self.wte.weight)


class DecoderLayer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.heads = sizes.heads
        self.norm1 = nn.LayerNorm(sizes.width)
        self.q, self.k, self.v, self.out = (nn.Linear(sizes.width, sizes.width) for _ in range(4))
        self.norm2 = nn.LayerNorm(sizes.width)
        self.up = nn.Linear(sizes.width, sizes.hidden)
        self.down = nn.Linear(sizes.hidden, sizes.width)

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm1(x), cos, sin)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def attend(self, x, cos, sin):
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        looked_up = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(looked_up.transpose(1, 2).flatten(2))


def rotation(tokens, width):
    """Cosines and sines of the angles of rotary positions, [tokens, half the width of a head]."""
    half = width // 2
    rates = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(tokens, dtype=torch.float64).unsqueeze(1) * rates
    return angles.cos().float(), angles.sin().float()


def turn(x, cos, sin):
    """Pairs of numbers, one of each half of a head, turned by the angles of their positions."""
    a, b = x.chunk(2, dim=3)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=3)

"""The nets of `models/` in PyTorch: the same layers and sizes, so that both train the same."""

import math

import torch
from torch import nn
from torch.nn import functional

# How fast the angles of rotary positions fall from one pair of numbers to the next.
ROTARY_BASE = 10_000.0


def mnist(classes):
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
        nn.Linear(50, classes),
    )


class Rescale(nn.Module):
    def forward(self, images):
        return images * (1.0 / 255.0)


class SpatialMean(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


def mnist_bn(classes):
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
        nn.Linear(256, classes),
    )


class GptNano(nn.Module):
    """A decoder of 4 layers with rotary positions; the same weights embed tokens and score them."""

    CONTEXT = 64
    WIDTH = 128
    LAYERS = 4
    HEADS = 4
    DEVIATION = 0.08

    def __init__(self, vocabulary):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, self.WIDTH)
        self.layers = nn.ModuleList(GptLayer(self.WIDTH, self.HEADS) for _ in range(self.LAYERS))
        self.norm = nn.LayerNorm(self.WIDTH)
        cos, sin = rotation(self.CONTEXT, self.WIDTH // self.HEADS)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                ends_in_residual = name.endswith(("out.weight", "down.weight"))
                depth = math.sqrt(2 * self.LAYERS) if ends_in_residual else 1
                nn.init.normal_(parameter, std=self.DEVIATION / depth)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        x = self.wte(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return functional.linear(self.norm(x), self.wte.weight)


class GptLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

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

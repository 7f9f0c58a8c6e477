#!/usr/bin/env python3
"""Everburn's peer in `everburn-bench gpu-check`: the same trainings by PyTorch on the same GPU, as it comes and
compiled by torch.compile.

Each number is told as soon as it is there, as a line of JSON, for time may be up at any moment. Where a
choice had to be made, it is the one that is faster for PyTorch: images lie on the GPU as floats, no loss is
read, attention is the fused operation with its three matrices as one, AdamW is the fused one. Where it says
f32, tensor cores may round factors to TF32 on both sides: CubeCL's kernels do by themselves, PyTorch because it
is told to (`set_float32_matmul_precision("high")`).
"""

import argparse
import contextlib
import json
import math
import platform
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from pytorch_models import images
from training import CLASSES, PIXELS, SEED

MEASURED_FOR = 3.0
IMAGES = 65_536


def tell(kind, **values):
    print(json.dumps({"kind": kind, **values}), flush=True)


class Gpt2(nn.Module):
    """The decoder of `models/src/gpt.rs`: learned positions, the same weights embed tokens and score them."""

    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Gpt2Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                ends_in_residual = name.endswith(("out.weight", "down.weight"))
                depth = math.sqrt(2 * layers) if ends_in_residual else 1
                nn.init.normal_(parameter, std=0.02 / depth)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.wte.weight).flatten(0, 1)


class Gpt2Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=2)
        )
        looked_up = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(looked_up.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Training:
    """What a benchmark trains: a model, its optimizer, and batches without end."""

    def __init__(self, device, quick):
        self.device = device
        self.quick = quick
        self.counted = 0
        self.half = False

    def on_gpu(self):
        return self.device.type == "cuda"


class Mnist(Training):
    def __init__(self, device, quick, layers, batch):
        super().__init__(device, quick)
        self.counted = min(batch, 8) if quick else batch
        self.model = images(layers, CLASSES).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3, fused=self.on_gpu())
        count = 2 * self.counted if quick else IMAGES
        self.images = torch.rand((count, 1, PIXELS, PIXELS), device=device)
        self.labels = torch.randint(0, CLASSES, (count,), device=device)

    def batches(self):
        count = len(self.images)
        while True:
            order = torch.randperm(count, device=self.device)
            for start in range(0, count - self.counted + 1, self.counted):
                part = order[start : start + self.counted]
                yield self.images[part], self.labels[part]


class OneBatch(Training):
    def batches(self):
        while True:
            yield self.batch


class ResNet50(OneBatch):
    def __init__(self, device, quick):
        super().__init__(device, quick)
        from torchvision.models import resnet50

        self.counted = 2 if quick else 64
        side = 32 if quick else 224
        self.model = resnet50(weights=None).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        images = torch.rand((self.counted, 3, side, side), device=device)
        self.batch = images, torch.randint(0, 1000, (self.counted,), device=device)


class Gpt(OneBatch):
    def __init__(self, device, quick, half):
        super().__init__(device, quick)
        self.half = half
        batch, context, vocabulary = (2, 16, 65) if quick else (8, 1024, 50_257)
        sizes = (16, 1, 4) if quick else (768, 12, 12)
        self.counted = batch * context
        self.model = Gpt2(vocabulary, context, *sizes).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=self.on_gpu()
        )
        tokens = torch.randint(0, vocabulary, (batch, context + 1), device=device)
        self.batch = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


def benchmarks(layers):
    """By the names of the rows, what is likeliest to be asked for first. `layers`: of `mnist`."""

    def mnist(batch):
        return lambda device, quick: Mnist(device, quick, layers, batch)

    return {
        "gpt2-124m, 8 x 1024, bf16": lambda device, quick: Gpt(device, quick, half=True),
        "gpt2-124m, 8 x 1024, f32": lambda device, quick: Gpt(device, quick, half=False),
        "mnist, batch 64": mnist(64),
        "mnist, batch 512": mnist(512),
        "mnist, batch 4096": mnist(4096),
        "resnet50, batch 64, 224 x 224": ResNet50,
    }


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rate(training, compiled):
    """How many samples or tokens a second."""
    model = torch.compile(training.model) if compiled else training.model
    precision = (
        torch.autocast(training.device.type, torch.bfloat16)
        if training.half
        else contextlib.nullcontext()
    )
    batches = training.batches()

    def steps(count):
        start = time.perf_counter()
        for _ in range(count):
            inputs, targets = next(batches)
            with precision:
                loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad(set_to_none=True)
        wait(training.device)
        return time.perf_counter() - start

    steps(3)
    count = 2
    if not training.quick:
        count = max(3, min(5_000, int(MEASURED_FOR / (steps(5) / 5))))
    return count * training.counted / steps(count)


def device_of(name):
    return torch.device("cpu" if name == "flex" else name)


def versions(device):
    text = f"torch {torch.__version__}, Python {platform.python_version()}"
    if device.type == "cuda":
        text += f", CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
        text += f", on {torch.cuda.get_device_name(device)}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="how long all may take")
    parser.add_argument(
        "--layers", type=json.loads, required=True, help="what `mnist` is made of, as JSON"
    )
    parser.add_argument("--quick", action="store_true", help="smaller models, a few steps")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    device = device_of(arguments.device)
    tell("versions", text=versions(device))
    for side in ["eager", "compiled"]:
        # A compilation takes tens of seconds, and what is begun too late is lost.
        least = 45.0 if side == "compiled" and not arguments.quick else 10.0
        for name, build in benchmarks(arguments.layers).items():
            if time.monotonic() + least > end and not arguments.quick:
                return
            try:
                measured = rate(build(device, arguments.quick), side == "compiled")
                tell("rate", name=name, side=side, per_second=measured)
            except Exception as error:  # whatever it is, the others can still be measured
                reason = f"{type(error).__name__}: {error}"[:300]
                tell("failure", name=name, side=side, reason=reason)
            if device.type == "cuda":
                torch.cuda.empty_cache()
            torch.compiler.reset()


if __name__ == "__main__":
    sys.exit(main())

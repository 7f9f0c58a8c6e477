"""What the goldens are of: models, samples and optimizers, and the first weights.

Weights and samples are not stored: both sides make them by the same integers. `uniform(stream, index)` below
is the top 24 bits of SplitMix64, a number that f32 holds exactly, and what becomes of it is arithmetic in f64,
rounded once. Ours is in `crates/train/tests/parity`: `golden.rs` and `cases.rs`.

The regimes are chosen so that PyTorch agrees with itself (`make_golden.py` says how that is measured):

- Batches of 8 to 20. Where a relu or a max pooling is decided by the last bit, Adam's first step of a unit is
  full or none, and the curves come apart by 1e-3 at once; with batches of 32 and 64 there are so many more
  decisions that some seed meets one. Among the small ones those were taken that meet none.
- The models with batch norm learn with Adam's 1e-4 in place of 1e-3: they learn these stripes within
  50 steps else, and of a loss near zero each rounding is a large part.
- The learning rates of SGD are a third to a tenth of those with which the models learn best: above, some shaken
  weights meet a relu's or a max pooling's edge and the curves come apart (simple-cnn at 0.01, two-part-resnet at 5e-4,
  mnist-bn near 0.005).
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import twins

# Streams of `uniform`: one for each tensor of a state dict from 0 on, and these.
PIXELS, LABELS, TOKENS = 1000, 1001, 1002


def integers(stream, indices):
    """SplitMix64 (Steele et al. 2014) at `indices` of a stream: 64 bits each."""
    with np.errstate(over="ignore"):
        z = np.uint64(stream) * np.uint64(0xD1342543DE82EF95)
        z = z + (np.asarray(indices, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(stream, indices):
    """In [0, 1), a multiple of 2^-24."""
    return (integers(stream, indices) >> np.uint64(40)).astype(np.float64) / 2**24


def digits(first, count):
    """Images [count, 28, 28] of bytes, stripes of a direction for each class under noise, and labels."""
    samples = np.arange(first, first + count)
    labels = (integers(LABELS, samples) % np.uint64(10)).astype(np.int64)
    pixel = np.arange(784)
    row, column = pixel // 28, pixel % 28
    noise = integers(PIXELS, samples[:, None] * 784 + pixel) % np.uint64(128)
    k = labels[:, None]
    stripes = (row * (k + 1) + column * (k * k + 1)) % 10 < 4
    return noise.astype(np.int64) + 127 * stripes, labels


def texts(first, count, context, vocabulary):
    """Windows [count, context + 1] of tokens that go up by a stride, with some thrown in by chance."""
    samples = np.arange(first, first + count)[:, None]
    place = np.arange(context + 1)
    drawn = integers(TOKENS, samples * 4096 + place)
    start = integers(TOKENS, samples * 4096 + 4095)
    stride = np.uint64(1) + (start >> np.uint64(32)) % np.uint64(3)
    regular = (start % np.uint64(vocabulary) + stride * place.astype(np.uint64)) % np.uint64(vocabulary)
    by_chance = (drawn >> np.uint64(32)) % np.uint64(8) == 0
    return np.where(by_chance, drawn % np.uint64(vocabulary), regular).astype(np.int64)


class Case:
    """What is trained, on what, and how."""

    def __init__(self, name, model, optimizer, batch, pixels="unit", ranks=(1, 2, 4)):
        self.name, self.model, self.optimizer, self.batch = name, model, optimizer, batch
        self.pixels, self.ranks = pixels, ranks

    def samples(self, step):
        images, labels = digits(step * self.batch, self.batch)
        images = images.astype(np.float32)
        if self.pixels == "unit":
            images = images * np.float32(1 / 255)
        return torch.from_numpy(images).view(-1, 1, 28, 28), torch.from_numpy(labels)

    def loss(self, output, targets):
        return F.cross_entropy(output, targets)

    def spread(self, name, tensor, module):
        """The first values of a tensor: their middle, and how far they reach from it."""
        if isinstance(module, nn.BatchNorm2d):
            if name.endswith("running_mean"):
                return 0.0, 0.0
            if name.endswith("weight") and module.weight.requires_grad:
                return 1.0, 0.25
            return (0.0, 0.125) if name.endswith("bias") else (1.0, 0.0)
        if isinstance(module, nn.LayerNorm):
            return (1.0, 0.25) if name.endswith("weight") else (0.0, 0.125)
        return 0.0, 1 / math.sqrt(module.weight[0].numel())  # as PyTorch draws them

    def make_optimizer(self, parameters):
        parameters = [p for p in parameters if p.requires_grad]
        settings = dict(self.optimizer)
        kind, rate = settings.pop("kind"), settings.pop("learning_rate")
        kinds = {"adam": torch.optim.Adam, "adam-w": torch.optim.AdamW, "sgd": torch.optim.SGD}
        return kinds[kind](parameters, lr=rate, **settings)


class LogProbabilities(Case):
    def loss(self, output, targets):
        return F.nll_loss(output, targets)


class Text(Case):
    context, vocabulary = 16, 65

    def samples(self, step):
        windows = torch.from_numpy(texts(step * self.batch, self.batch, self.context, self.vocabulary))
        return windows[:, :-1], windows[:, 1:]

    def loss(self, output, targets):
        return F.cross_entropy(output.flatten(0, 1), targets.flatten())

    def spread(self, name, tensor, module):
        # A uniform distribution of gpt-nano's deviation, 0.08.
        reach = 0.08 * math.sqrt(3)
        if name.endswith(("out.weight", "down.weight")):
            reach /= math.sqrt(8)
        if isinstance(module, nn.LayerNorm):
            return super().spread(name, tensor, module)
        return 0.0, 0.0 if name.endswith("bias") else reach


def sgd(rate):
    return {"kind": "sgd", "learning_rate": rate, "momentum": 0.9}


ADAM = {"kind": "adam", "learning_rate": 1e-3}
SLOW_ADAM = {"kind": "adam", "learning_rate": 1e-4}
ADAM_W = {"kind": "adam-w", "learning_rate": 1e-3, "weight_decay": 0.1}
CASES = [
    Case("simple-cnn-adam", twins.SimpleCnn, ADAM, 20),
    Case("simple-cnn-sgd", twins.SimpleCnn, sgd(0.005), 20),
    LogProbabilities("two-convolutions-sgd", twins.TwoConvolutions, sgd(0.01), 16),
    Case("mnist-bn-adam", twins.MnistBn, SLOW_ADAM, 16, pixels="byte", ranks=(1,)),
    Case("mnist-bn-sgd", twins.MnistBn, sgd(0.003), 16, pixels="byte", ranks=(1,)),
    Case("two-part-resnet-adam", twins.TwoPartResNet, SLOW_ADAM, 16, ranks=(1,)),
    Case("two-part-resnet-sgd", twins.TwoPartResNet, sgd(3e-4), 16, ranks=(1,)),
    Text("gpt-nano-adam-w", twins.GptNano, ADAM_W, 8),
    Text("gpt-nano-sgd", twins.GptNano, sgd(0.05), 8),
]


def first_state(case, model):
    """The model with its first weights, and what they are made by."""
    modules = dict(model.named_modules())
    state, description = {}, []
    for stream, (name, tensor) in enumerate(model.state_dict().items()):
        if name.endswith("num_batches_tracked"):
            continue
        middle, reach = case.spread(name, tensor, modules[name.rpartition(".")[0]])
        values = middle + reach * (2 * uniform(stream, np.arange(tensor.numel())) - 1)
        state[name] = torch.from_numpy(values.astype(np.float32)).view(tensor.shape)
        description.append(
            {"name": name, "shape": list(tensor.shape), "stream": stream, "middle": middle, "reach": reach}
        )
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert all(name.endswith("num_batches_tracked") for name in missing), missing
    return description

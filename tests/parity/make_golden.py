#!/usr/bin/env python3
"""Makes the golden files of `crates/train/tests/parity`: PyTorch's loss curves, and a checkpoint of its.

    python tests/parity/make_golden.py [case ...]

Needs torch and numpy; their versions are recorded in the files. Each case trains a model of `twins.py` for
100 steps from fixed weights on fixed batches, and writes its losses (each the mean over the global batch,
before the update of its step) to `golden/<case>.json`, with all that is needed to do the same elsewhere.

Weights and samples are not stored: both sides make them by the same integers. `uniform(stream, index)` below
is the top 24 bits of SplitMix64, a number that f32 holds exactly, and what becomes of it is arithmetic in f64,
rounded once.

"2" and "4" ranks are DistributedDataParallel over gloo, a process a rank, where the model has no batch norm.
PyTorch's SyncBatchNorm refuses to run on CPUs. What it computes is batch norm over the samples of all ranks,
which is plain BatchNorm on the whole global batch in one process: these models have that one curve for all
numbers of ranks.

A comparison within 1e-4 says something only where PyTorch agrees with itself: each case is also trained
in float64, in float32 with another number of threads, and from first weights that are shaken by their last
bit; and, with Adam, with bias corrections in f32, as Burn computes them (PyTorch does in f64; they are 1e-5 apart
in the first steps). A case whose curves come apart by more than half of what is allowed is refused. What was
measured is recorded under "divergence". The regimes are chosen so that this does not happen:

- Batches of 8 to 20. Where a relu or a max pooling is decided by the last bit, Adam's first step of a unit is
  full or none, and the curves come apart by 1e-3 at once; with batches of 32 and 64 there are so many more
  decisions that some seed meets one. Among the small ones those were taken that meet none.
- The models with batch norm learn with Adam's 1e-4 in place of 1e-3: they learn these stripes within
  50 steps else, and of a loss near zero each rounding is a large part.
"""

import json
import math
import multiprocessing
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import twins

STEPS = 100
# Relative, for the first 50 steps and for the rest.
TOLERANCES = (1e-4, 1e-3)
GOLDEN = Path(__file__).parent / "golden"

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
    """What is trained, on what, and how. Ours is in `crates/train/tests/parity/main.rs`."""

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


ADAM = {"kind": "adam", "learning_rate": 1e-3}
SLOW_ADAM = {"kind": "adam", "learning_rate": 1e-4}
CASES = [
    Case("simple-cnn-adam", twins.SimpleCnn, ADAM, 20),
    LogProbabilities(
        "two-convolutions-sgd",
        twins.TwoConvolutions,
        {"kind": "sgd", "learning_rate": 0.01, "momentum": 0.9},
        16,
    ),
    Case("mnist-bn-adam", twins.MnistBn, SLOW_ADAM, 16, pixels="byte", ranks=(1,)),
    Case("two-part-resnet-adam", twins.TwoPartResNet, SLOW_ADAM, 16, ranks=(1,)),
    Text(
        "gpt-nano-adam-w",
        twins.GptNano,
        {"kind": "adam-w", "learning_rate": 1e-3, "weight_decay": 0.1},
        8,
    ),
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


def train(case, dtype=torch.float32, threads=1, shaken=None, corrections=None, rank=0, world_size=1):
    torch.set_num_threads(threads)
    model = case.model()
    first_state(case, model)
    if shaken is not None:
        torch.manual_seed(shaken)
        for parameter in model.parameters():
            parameter.data *= 1 + (2 * torch.rand_like(parameter) - 1) * 2**-23
    model = model.to(dtype).train()
    optimizer = case.make_optimizer(model.parameters())
    forward = model
    if world_size > 1:
        forward = nn.parallel.DistributedDataParallel(model)
    share = slice(rank * case.batch // world_size, (rank + 1) * case.batch // world_size)
    losses = []
    for step in range(STEPS):
        inputs, targets = (part[share] for part in case.samples(step))
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        loss = case.loss(forward(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        if corrections is not None:
            set_corrections(optimizer, case.optimizer["learning_rate"], step + 1, corrections)
        optimizer.step()
        mean = loss.detach().to(torch.float64)
        if world_size > 1:
            torch.distributed.all_reduce(mean)
        losses.append((mean / world_size).item())
    return losses


def set_corrections(optimizer, rate, step, kind):
    """Gives Adam the learning rate with which its next step is that of an Adam which computes its bias
    corrections in numbers of this kind."""

    def correction(kind):
        one, beta_1, beta_2 = kind(1), kind(0.9), kind(0.999)
        first, second = (one - kind(float(beta) ** step) for beta in (beta_1, beta_2))
        return float(kind(kind(np.sqrt(second)) / first))

    for group in optimizer.param_groups:
        group["lr"] = rate * correction(kind) / correction(np.float64)


def rank_of_ddp(name, rank, world_size, meeting, results):
    case = next(case for case in CASES if case.name == name)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size
    )
    losses = train(case, rank=rank, world_size=world_size)
    if rank == 0:
        results.put(losses)
    torch.distributed.destroy_process_group()


def train_over_ranks(case, world_size):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=rank_of_ddp, args=(case.name, rank, world_size, f"{folder}/store", results)
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        losses = results.get(timeout=600)
        for process in ranks:
            process.join(timeout=60)
            assert process.exitcode == 0, process.exitcode
    return losses


def apart(ours, theirs):
    """The largest relative difference in the first 50 steps and in the rest."""
    relative = [abs(a - b) / max(abs(a), abs(b)) for a, b in zip(ours, theirs, strict=True)]
    return max(relative[:50]), max(relative[50:])


def make(case):
    losses = {str(ranks): train_over_ranks(case, ranks) for ranks in case.ranks if ranks > 1}
    losses = {"1": train(case), **losses}
    others = {
        "float64": train(case, dtype=torch.float64),
        "2 threads": train(case, threads=2),
        **{f"shaken {seed}": train(case, shaken=seed) for seed in range(4)},
        **({} if case.optimizer["kind"] != "adam" else {
            "corrections in f32": train(case, corrections=np.float32)
        }),
        **{f"{ranks} ranks": curve for ranks, curve in losses.items() if ranks != "1"},
    }
    divergence = {name: apart(losses["1"], curve) for name, curve in others.items()}
    print(case.name, f"{losses['1'][0]:.4f} to {losses['1'][-1]:.4f}")
    for name, found in divergence.items():
        print(f"  against {name}: {found[0]:.1e} {found[1]:.1e}")
    for name, found in divergence.items():
        if any(value > allowed / 2 for value, allowed in zip(found, TOLERANCES)):
            sys.exit(f"{case.name}: PyTorch differs from itself ({name}); choose a calmer regime")
    golden = {
        "case": case.name,
        "versions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "batch": case.batch,
        "optimizer": case.optimizer,
        "state": first_state(case, case.model()),
        "losses": losses,
        "divergence": divergence,
    }
    text = json.dumps(golden, indent=1)
    (GOLDEN / f"{case.name}.json").write_text(text + "\n")


def make_checkpoint():
    """A file of torch.save as trainings leave it: the state dict of a wrapped model among other things, one
    tensor not in order in memory, one of another type; and what the model makes of a batch."""
    case = next(case for case in CASES if case.name == "two-part-resnet-adam")
    model = twins.TwoPartResNet(width=4)
    first_state(case, model)
    optimizer = case.make_optimizer(model.parameters())
    for step in range(3):
        inputs, targets = case.samples(step)
        optimizer.zero_grad()
        case.loss(model(inputs), targets).backward()
        optimizer.step()
    # As a half holds it, so that nothing is lost where it is stored as one.
    model.layer1.conv2.weight.data = model.layer1.conv2.weight.data.half().float()
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    state["module.fc.weight"] = state["module.fc.weight"].t().contiguous().t()
    state["module.layer1.conv2.weight"] = state["module.layer1.conv2.weight"].half()
    checkpoint = {"epoch": 3, "rate": 1e-4, "model_state_dict": state, "optimizer": optimizer.state_dict()}
    torch.save(checkpoint, GOLDEN / "checkpoint.pt")
    with torch.no_grad():
        logits = model.eval()(case.samples(0)[0]).flatten().tolist()
    (GOLDEN / "checkpoint.json").write_text(json.dumps({"logits": logits}) + "\n")


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    if not wanted or "checkpoint" in wanted:
        make_checkpoint()
    for case in CASES:
        if not wanted or case.name in wanted:
            make(case)

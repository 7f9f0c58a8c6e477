#!/usr/bin/env python3
"""Makes the golden files of `crates/train/tests/parity`: PyTorch's loss curves, the norms of its first gradients,
and a checkpoint of its.

    python tests/parity/make_golden.py [case ...]
    python tests/parity/make_golden.py --check [case ...]

Needs torch and numpy; their versions are recorded in the files. Each of `cases.py` trains a model of `twins.py`
for 100 steps from fixed weights on fixed batches, and writes to `golden/<case>.json` its losses (each the mean
over the global batch, before the update of its step), the L2 norm of each parameter's gradient of the first two
steps (of that mean, before the update), and all that is needed to do the same elsewhere. `--check` makes
them anew in a folder of its own, and ends with 1 if they differ from those in `golden` (`compare.py`).

A loss says little about one gradient: of Adam's update, a factor of a whole tensor's gradient is gone. The norms
say it of each tensor, at weights that are the same to the bit (step 0) and at those that one update has made
(step 1).

"2" and "4" ranks are DistributedDataParallel over gloo, a process a rank, where the model has no batch norm.
PyTorch's SyncBatchNorm refuses to run on CPUs. What it computes is batch norm over the samples of all ranks,
which is plain BatchNorm on the whole global batch in one process: these models have that one curve for all
numbers of ranks. Norms are those of one process; of 2 and 4 ranks they are those of the averaged gradients, which
agree.

A comparison within 1e-4 says something only where PyTorch agrees with itself: each case is also trained
in float64, in float32 with another number of threads, and from first weights that are shaken by their last
bit; and, with Adam, with bias corrections in f32, as Burn computes them (PyTorch does in f64; they are 1e-5 apart
in the first steps). A case whose curves or norms come apart by more than half of what is allowed is refused. What
was measured is recorded under "divergence" and "norms_divergence".
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import compare
import twins
from cases import CASES, first_state

STEPS = 100
GOLDEN = Path(__file__).parent / "golden"


class Trained(NamedTuple):
    """The loss of each step, and by parameter the norms of its gradient at the first of them."""

    losses: list
    norms: dict


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
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    losses, norms = [], {name: [] for name in learning}
    for step in range(STEPS):
        inputs, targets = (part[share] for part in case.samples(step))
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        loss = case.loss(forward(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        if step < compare.NORM_STEPS:
            for name, parameter in learning.items():
                norms[name].append(parameter.grad.to(torch.float64).norm().item())
        if corrections is not None:
            set_corrections(optimizer, case.optimizer["learning_rate"], step + 1, corrections)
        optimizer.step()
        mean = loss.detach().to(torch.float64)
        if world_size > 1:
            torch.distributed.all_reduce(mean)
        losses.append((mean / world_size).item())
    return Trained(losses, norms)


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
    trained = train(case, rank=rank, world_size=world_size)
    if rank == 0:
        results.put(trained)
    torch.distributed.destroy_process_group()
    results.close()
    results.join_thread()
    # Some process in a hundred is aborted while the interpreter takes PyTorch's threads down. All is said by now.
    os._exit(0)


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
        trained = results.get(timeout=600)
        for process in ranks:
            process.join(timeout=60)
            assert process.exitcode == 0, process.exitcode
    return trained


def make(case, folder):
    over_ranks = {str(ranks): train_over_ranks(case, ranks) for ranks in case.ranks if ranks > 1}
    one = train(case)
    others = {
        "float64": train(case, dtype=torch.float64),
        "2 threads": train(case, threads=2),
        **{f"shaken {seed}": train(case, shaken=seed) for seed in range(4)},
        **({} if case.optimizer["kind"] != "adam" else {
            "corrections in f32": train(case, corrections=np.float32)
        }),
        **{f"{ranks} ranks": trained for ranks, trained in over_ranks.items()},
    }
    divergence = {
        name: compare.losses_apart(one.losses, other.losses) for name, other in others.items()
    }
    norms_divergence = {
        name: compare.norms_apart(one.norms, other.norms) for name, other in others.items()
    }
    print(case.name, f"{one.losses[0]:.4f} to {one.losses[-1]:.4f}")
    for name, losses in divergence.items():
        norms = norms_divergence[name]
        print(f"  against {name}: {losses[0]:.1e} {losses[1]:.1e}, norms {norms[0]:.1e} {norms[1]:.1e}")
    for found, tolerances in [
        (divergence, compare.TOLERANCES), (norms_divergence, compare.NORM_TOLERANCES)
    ]:
        for name, values in found.items():
            if any(value > allowed / 2 for value, allowed in zip(values, tolerances, strict=True)):
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
        "losses": {"1": one.losses, **{ranks: trained.losses for ranks, trained in over_ranks.items()}},
        "divergence": divergence,
        "gradient_norms": one.norms,
        "norms_divergence": norms_divergence,
    }
    text = json.dumps(golden, indent=1)
    (folder / f"{case.name}.json").write_text(text + "\n")


def make_checkpoint(folder):
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
    torch.save(checkpoint, folder / "checkpoint.pt")
    with torch.no_grad():
        logits = model.eval()(case.samples(0)[0]).flatten().tolist()
    (folder / "checkpoint.json").write_text(json.dumps({"logits": logits}) + "\n")


def main():
    makers = {"checkpoint": make_checkpoint}
    makers |= {case.name: lambda folder, case=case: make(case, folder) for case in CASES}
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="compare what is made anew with what is there")
    parser.add_argument("case", nargs="*", choices=[[], *makers], help="all, if none is named")
    arguments = parser.parse_args()
    wanted = arguments.case or list(makers)
    if not arguments.check:
        GOLDEN.mkdir(exist_ok=True)
        for name in wanted:
            makers[name](GOLDEN)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            makers[name](Path(folder))
        differences = compare.differences(GOLDEN, Path(folder), wanted)
    if len(wanted) == len(makers):
        left = {path.stem for path in GOLDEN.iterdir()} - set(makers)
        differences += [f"{name}: no case makes it" for name in sorted(left)]
    for difference in differences:
        print(difference, file=sys.stderr)
    if differences:
        sys.exit(f"{len(differences)} differences from {GOLDEN}")
    print("all are as they are in", GOLDEN)


if __name__ == "__main__":
    main()

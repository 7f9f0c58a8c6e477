"""How far goldens may be apart: PyTorch's from its own, as `make_golden.py` measures it, and those that were made anew
from those that are there. What `crates/train/tests/parity` allows ours is the same.
"""

import json
import math

import torch

# Of a loss, relative, for the first 50 steps and for the rest.
TOLERANCES = (1e-4, 1e-3)
# Norms of gradients are of this many steps.
NORM_STEPS = 2
# Of a norm, relative, for each of these steps. PyTorch differs from itself by up to 6e-6 (after a step of AdamW,
# which divides by gradients that are nearly zero) and by 1e-6 otherwise; what is to be seen is 1e-2.
NORM_TOLERANCES = (1e-4, 1e-4)
# A norm below this share of the norm of all gradients together counts as that share. A gradient that is zero but
# for rounding has no relative error that would say something: of a bias in front of a batch norm, f32 leaves up to
# 1.5e-7 of all (measured with `mnist-bn` and biases; no case has one). 1e-4 of this share is 4e-7. The smallest
# gradient of the cases, of a bias in `gpt-nano`, is 4.5e-4 of all: of it, 9e-4 is allowed.
NORM_FLOOR = 4e-3
# What is made anew, by another PyTorch or on another processor, may be this many times as far from what is there as
# PyTorch was found to be from itself on either of the two.
ANEW = 2
# And always this far, which is some twenty last bits of an f32. After 50 steps a rounding may have changed which of two
# nearly equal pixels a max pool takes, or on which side of zero a ReLU's input lies: the curve then jumps by 1e-5 to
# 4e-5 (of `two-convolutions-sgd` and `mnist-bn-sgd`, on some processors and from some shaken weights).
LEAST, LEAST_NORM = (2e-6, 1e-4), (2e-6, 2e-6)
# Of a checkpoint's numbers, relative to the largest of a tensor: the file is there for its format.
CHECKPOINT_TOLERANCE = 1e-3


def largest(values):
    """Not a number is apart from everything."""
    return max(math.inf if math.isnan(value) else value for value in values)


def losses_apart(ours, theirs):
    """The largest relative difference in the first 50 steps and in the rest."""
    relative = [abs(a - b) / max(abs(a), abs(b)) for a, b in zip(ours, theirs, strict=True)]
    return largest(relative[:50]), largest(relative[50:])


def norms_apart(ours, theirs):
    """The largest relative difference of a gradient's norm in each step."""
    assert ours.keys() == theirs.keys()
    found = []
    for step in range(NORM_STEPS):
        floor = NORM_FLOOR * math.hypot(*(norms[step] for norms in ours.values()))
        pairs = [(ours[name][step], theirs[name][step]) for name in ours]
        found.append(largest(abs(a - b) / max(a, b, floor) for a, b in pairs))
    return found


def differences(there, anew, names):
    """What sets the goldens of a folder apart from those that were made anew in another: a sentence each."""
    found = []
    for name in names:
        files = [f"{name}.json", f"{name}.pt"] if name == "checkpoint" else [f"{name}.json"]
        missing = [file for file in files if not (there / file).exists()]
        if missing:
            found += [f"{file}: not there" for file in missing]
            continue
        goldens = [json.loads((folder / f"{name}.json").read_text()) for folder in (there, anew)]
        if name == "checkpoint":
            states = [torch.load(folder / f"{name}.pt", weights_only=True) for folder in (there, anew)]
            found += differences_of_checkpoints(*goldens, *states)
        else:
            found += differences_of_cases(name, *goldens)
    return found


def differences_of_cases(name, there, anew):
    found = [
        f"{name}: another {key}"
        for key in ("case", "batch", "optimizer", "state")
        if there.get(key) != anew[key]
    ]
    parts = ("losses", "gradient_norms")
    if any(there.get(part, {}).keys() != anew[part].keys() for part in parts):
        return [*found, f"{name}: curves of other ranks, or norms of other parameters"]
    pairs = [
        (f"losses of {ranks} ranks", losses_apart(there["losses"][ranks], anew["losses"][ranks]), "divergence", LEAST)
        for ranks in there["losses"]
    ]
    norms = norms_apart(*(golden["gradient_norms"] for golden in (there, anew)))
    pairs.append(("norms of gradients", norms, "norms_divergence", LEAST_NORM))
    for what, apart, recorded, least in pairs:
        measured = zip(*there[recorded].values(), *anew[recorded].values(), strict=True)
        allowed = [max(ANEW * largest(values), always) for values, always in zip(measured, least, strict=True)]
        said = f"{name}: {what} are apart by {shown(apart)}, and {shown(allowed)} is allowed"
        print(said)
        if any(value > most for value, most in zip(apart, allowed, strict=True)):
            found.append(said)
    return found


def differences_of_checkpoints(logits_there, logits_anew, there, anew):
    found = []
    if there.keys() != anew.keys():
        found.append("checkpoint.pt: other entries")
    there, anew = ({"logits": torch.tensor(logits["logits"]), **file["model_state_dict"]}
                   for logits, file in ((logits_there, there), (logits_anew, anew)))
    if list(there) != list(anew):
        return [*found, "checkpoint.pt: other tensors"]
    for name, ours in there.items():
        theirs = anew[name]
        if (ours.dtype, ours.shape, ours.stride()) != (theirs.dtype, theirs.shape, theirs.stride()):
            found.append(f"checkpoint: {name} is of another type, shape or order")
            continue
        ours, theirs = ours.double(), theirs.double()
        allowed = CHECKPOINT_TOLERANCE * ours.abs().max().item()
        apart = largest((ours - theirs).abs().flatten().tolist())
        if apart > allowed:
            found.append(f"checkpoint: {name} is apart by {apart:.1e}, and {allowed:.1e} is allowed")
    return found


def shown(values):
    return " and ".join(f"{value:.1e}" for value in values)

#!/usr/bin/env python3
"""The PyTorch side of `crates/train/tests/parity/state_dicts.rs`.

    python state_dict.py CASE OURS LOGITS BACK

Loads OURS, a state dict that Everburn has written (.pt or .safetensors), strictly into the model of a golden
case, and computes its logits on the first batch; then changes every weight, saves the state dict as BACK with torch.save,
and computes them again. LOGITS takes both.
"""

import json
import struct
import sys

import numpy as np
import torch

import cases

DTYPES = {"F32": np.float32, "I64": np.int64}


def load_safetensors(path):
    """The format is read here by hand, so that torch and numpy are all that is needed."""
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).copy()
        tensors[name] = torch.from_numpy(values).view(entry["shape"])
    return tensors


def main(name, ours, logits, back):
    case = next(case for case in cases.CASES if case.name == name)
    model = case.model()
    if ours.endswith(".pt"):
        state = torch.load(ours, weights_only=True)
    else:
        state = load_safetensors(ours)
    model.load_state_dict(state, strict=True)
    model.eval()
    inputs, _ = case.samples(0)
    with torch.no_grad():
        found = {"before": model(inputs).flatten().tolist()}
        for index, tensor in enumerate(model.state_dict().values()):
            if tensor.is_floating_point():
                tensor.mul_(1.05 + 0.01 * (index % 3))
        found["after"] = model(inputs).flatten().tolist()
    json.dump(found, open(logits, "w"))
    torch.save(model.state_dict(), back)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Makes the files of PyTorch that the tests read, and what is in them.

    python make_files.py FOLDER

`expected.txt` has a line for each tensor: file, name, type, shape, and its numbers in order as hexadecimal bytes.
Files that are to be refused have no line there. The same program makes the same tensors in each version of PyTorch.
"""

import argparse
import os
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn


class Stranger:
    """Calls a program when it is unpickled by Python."""

    def __reduce__(self):
        return (os.system, ("true",))


class Subclass(torch.Tensor):
    pass


def numbers(*shape, dtype=torch.float32, first=0):
    count = torch.Size(shape).numel()
    return (torch.arange(count) + first).reshape(shape).to(dtype)


def weights(first=0):
    return OrderedDict(weight=numbers(2, 3, first=first), bias=numbers(2, first=first + 6))


def module():
    """A model with parameters, buffers and `_metadata`; its numbers are set, not drawn."""
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for place, tensor in enumerate(net.state_dict().values()):
            tensor.copy_(numbers(*tensor.shape, first=10 * place))
    return net


def checkpoint():
    net = module()
    optimizer = torch.optim.Adam(net.parameters())
    net(numbers(4, 3)).sum().backward()
    optimizer.step()
    state = OrderedDict((name, tensor.clone()) for name, tensor in module().state_dict().items())
    return {
        "epoch": 3,
        "net": state,
        "optimizer": optimizer.state_dict(),
        "losses": [0.5, 0.25],
        "best": None,
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "dtype": torch.float16,
        "names": {"a", "b"},
        "bytes": b"bytes",
        "large": 1 << 80,
    }


def types():
    named = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8".split()
    tensors = {name: numbers(3, dtype=getattr(torch, name)) for name in named}
    tensors["bool"] = torch.tensor([True, False, True])
    tensors["scalar"] = torch.tensor(7, dtype=torch.int64)
    tensors["empty"] = torch.zeros(0, 3)
    return tensors


def views():
    base = numbers(4, 6)
    return {
        "base": base,
        "tied": base,
        "transposed": base.t(),
        "slice": base[1:3, 2:5],
        "steps": base.flatten()[1::5],
        "row": base[2],
        "permuted": base.reshape(2, 2, 6).permute(2, 0, 1),
        "channels_last": numbers(1, 2, 2, 2).to(memory_format=torch.channels_last),
        "one_of_one": base[3:4, 5:6].t(),
    }


def objects():
    attribute = numbers(2)
    attribute.note = "a tensor with an attribute"
    return {
        "parameter": nn.Parameter(numbers(2, 2)),
        "buffer": nn.Buffer(numbers(3)),
        "attribute": attribute,
    }


def arrays(state):
    return {name: tensor.numpy() for name, tensor in state.items()}


def twice(one, other):
    state = weights()
    return {one: state, other: state}


READ = {
    "types": types,
    "views": views,
    "objects": objects,
    "module": lambda: module().state_dict(),
    "checkpoint": checkpoint,
    # One dict in two entries: the second is a reference to the first.
    "net_and_model": lambda: twice("net", "model"),
    "net_and_weights": lambda: twice("net", "weights"),
    # Two dicts of the same tensors.
    "alike": lambda: {"net": dict(tied), "weights": dict(tied)} if (tied := weights()) else None,
    "plain_twice": lambda: {"net": state, "copy": state} if (state := dict(weights())) else None,
    "ema_net_and_model": lambda: {"ema": weights(20), **twice("net", "model")},
    "model_and_ema": lambda: {"model": weights(), "ema": weights(20)},
    "nested": lambda: {"checkpoint": {"state_dict": weights()}, "epoch": 3},
    "itself": lambda: itself(weights()),
}


def itself(state):
    """A dict that has itself as an entry."""
    state["self"] = state
    return state


REFUSED = {
    "ambiguous": lambda: {"net": weights(), "ema\x1b": weights(20)},
    "ambiguous_usual": lambda: {"model": weights(), "state_dict": weights(20)},
    "no_tensor": lambda: {"epoch": 3},
    "no_dict": lambda: [numbers(2)],
    "whole_model": module,
    "whole_model_in_checkpoint": lambda: {"epoch": 3, "model": module()},
    "arguments": lambda: {"model": weights(), "args": argparse.Namespace(rate=0.1)},
    "stranger": lambda: {"model": weights(), "stranger": Stranger()},
    "subclass": lambda: {"weight": numbers(2).as_subclass(Subclass)},
    "complex": lambda: {"weight": torch.ones(2, dtype=torch.complex64)},
    "float8": lambda: {"weight": torch.ones(2).to(torch.float8_e4m3fn)},
    "negated": lambda: {"weight": torch._neg_view(numbers(2))},
    "sparse": lambda: {"weight": torch.eye(2).to_sparse()},
    "quantised": lambda: {"weight": torch.quantize_per_tensor(numbers(2), 1.0, 0, torch.qint8)},
    "numpy": lambda: arrays(weights()),
    "numpy_in_checkpoint": lambda: {"epoch": 3, "model": arrays(weights())},
    "numpy_beside_weights": lambda: {"model": weights(), "losses": numbers(2).numpy()},
    "expanded": lambda: {"weight": torch.ones(1).expand(1000)},
}


def opened(dict_):
    """The state dict in what was saved."""
    for key in ["net", "model", "weights"]:
        if key in dict_:
            return dict_[key]
    return dict_["checkpoint"]["state_dict"] if "checkpoint" in dict_ else dict_


def lines(name, state):
    for key, tensor in state.items():
        if isinstance(tensor, torch.Tensor):
            flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
            flat.copy_(tensor.detach().flatten())
            raw = bytes(flat.untyped_storage()).hex()
            yield f"{name} {key} {tensor.dtype} {list(tensor.shape)} {raw}\n".replace(", ", ",")


def rewrite(source, target, compression=zipfile.ZIP_STORED, contents=None):
    """The archive with other contents."""
    contents = contents or {}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for entry in old.infolist():
            data = contents.get(entry.filename.split("/", 1)[1], old.read(entry))
            info = zipfile.ZipInfo(entry.filename)
            info.compress_type = compression
            new.writestr(info, data)


def make(folder):
    expected = []
    for name, build in READ.items():
        data = build()
        torch.save(data, folder / f"{name}.pt")
        expected += lines(name, opened(data))
    for protocol in [4, 5]:
        torch.save({"model": module().state_dict()}, folder / f"protocol_{protocol}.pt", pickle_protocol=protocol)
        expected += lines(f"protocol_{protocol}", module().state_dict())
    (folder / "expected.txt").write_text("".join(expected))

    for name, build in REFUSED.items():
        torch.save(build(), folder / f"{name}.pt")
    torch.save(weights(), folder / "before_1_6.pt", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), folder / "script.pt")
    good = folder / "net_and_model.pt"
    rewrite(good, folder / "compressed.pt", zipfile.ZIP_DEFLATED)
    rewrite(good, folder / "other_byte_order.pt", contents={"byteorder": b"big"})


if __name__ == "__main__":
    make(Path(sys.argv[1]))

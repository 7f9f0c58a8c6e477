"""What the peers of `cargo xtask bench train` share: how they train, what their nets are made of, their command line, the
data that they read."""

import argparse
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

IMAGE_COUNT = 60_000
PIXELS = 28
CLASSES = 10
# As tinyshakespeare has them.
TOKEN_COUNT = 1_000_000
VOCABULARY = 65
SEED = 42
# How fast the angles of rotary positions fall from one pair of numbers to the next.
ROTARY_BASE = 10_000.0
# As `models/src/mnist_bn.rs` has it: what of a batch's statistics goes into the running ones.
MOMENTUM = 0.01
# As `GptConfig::nano` has it.
DEVIATION = 0.08


@dataclass
class Recipe:
    """How `everburn train` trains a model by default: by Adam, and by AdamW where weights decay."""

    learning_rate: float
    betas: tuple = (0.9, 0.999)
    decay: float = 0.0
    """Of the weights, apart from the gradients."""
    greatest_norm: float | None = None
    """Of all gradients together; they are scaled down to it."""
    is_text: bool = False


# By name.
MODELS = {
    "mnist": Recipe(6e-3),
    "mnist-bn": Recipe(3e-3),
    "gpt-nano": Recipe(3e-3, (0.9, 0.99), 0.1, 1.0, is_text=True),
}


def row_of(layers, classes):
    """The layers of a net of images in their order, without the loss; `layers`: `crates/bench/src/kernels/networks.rs`."""
    if any(used["count"] != 1 for used in layers):
        raise SystemExit("a layer that stands for several has no place in a row of layers")
    *row, loss = (used["layer"] for used in layers)
    if loss != {"kind": "cross-entropy", "classes": classes, "tokens": 1}:
        raise SystemExit(f"the layers do not end in the scores of {classes} classes")
    return row


class DecoderSizes:
    """How long and how wide the decoder of `models/src/gpt.rs` is that has these layers."""

    def __init__(self, layers):
        kinds = {used["layer"]["kind"]: used for used in layers}
        attention = kinds["attention"]["layer"]
        self.blocks = kinds["attention"]["count"]
        self.heads, self.head = attention["heads"], attention["width"]
        self.context, self.width = (kinds["embedding"]["layer"][key] for key in ("tokens", "width"))
        self.hidden = kinds["gelu"]["layer"]["shape"][-1]


def read_idx(folder, name):
    """The bytes of an IDX file, gzipped or not, and their shape."""
    plain, packed = Path(folder) / name, Path(folder) / f"{name}.gz"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    dimensions = content[3]
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    return bytearray(content[header:]), shape


def read_tokens(path):
    """The first nine tenths of a text, one character a token; and how many different ones the text has."""
    text = Path(path).read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    number = {character: token for token, character in enumerate(alphabet)}
    return [number[character] for character in text[: len(text) * 9 // 10]], len(alphabet)


def parser(description):
    """The options; `checked` reads them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=sorted(MODELS), default="mnist")
    parser.add_argument(
        "--layers", type=json.loads, required=True, help="what the net is made of, as JSON"
    )
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up-steps", type=int, default=5)
    parser.add_argument(
        "--data", help="a folder with MNIST's files, or a file of text; random data without it"
    )
    return parser


def checked(parser):
    options = parser.parse_args()
    if not 1 <= options.ranks <= options.batch_size or options.steps < 1:
        parser.error("each rank needs a sample in every batch, and there must be a step")
    return options


def report(options, seconds, threads, loss, outputs, parameters):
    """The last line of the output. `outputs`: classes or tokens; `parameters`: how many numbers are trained."""
    return {
        "samples_per_second": options.steps * options.batch_size / seconds,
        "seconds": seconds,
        "steps": options.steps,
        "batch_size": options.batch_size,
        "ranks": options.ranks,
        "threads": threads,
        "data": "real" if options.data else "random",
        "loss": loss,
        "outputs": outputs,
        "parameters": parameters,
    }

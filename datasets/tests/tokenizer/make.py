#!/usr/bin/env python3
"""Makes the files of this folder: a small tokenizer by Hugging Face's Python library, and what it makes of texts.

    pip install tokenizers
    python datasets/tests/tokenizer/make.py [tinyshakespeare/input.txt]

`tokenizer.json` is trained on the embedded text. `ids.json` has its ids of the first line, and for each text the number
of its ids and the SHA-256 of them as little-endian u32.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
EMBEDDED = HERE.parent.parent / "src" / "text" / "embedded.txt"


def digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=512, initial_alphabet=alphabet, show_progress=False)
tokenizer.train([str(EMBEDDED)], trainer)
tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)
texts = {"embedded": EMBEDDED, **({"tinyshakespeare": Path(sys.argv[1])} if len(sys.argv) > 1 else {})}
found = {"version": tokenizers.__version__}
for name, path in texts.items():
    ids = tokenizer.encode(path.read_text(), add_special_tokens=False).ids
    found[name] = {"count": len(ids), "first": ids[:24], "sha256": digest(ids)}
(HERE / "ids.json").write_text(json.dumps(found, indent=1) + "\n")

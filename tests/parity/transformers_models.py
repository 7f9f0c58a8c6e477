"""Models of Hugging Face's transformers, for tests/tests/torch_transformers.rs.

make FOLDER TEXT  writes models with random weights, trains copies, and writes what their losses are
check FOLDER      compares what Everburn has made of them
"""

import json
import sys
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

WINDOW, WINDOWS, STEPS, RATE = 16, 8, 50, 0.03

# Llama, Qwen 2 and Mistral.
SMALL = dict(
    vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
# fmt: off
KINDS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(
        **SMALL, num_key_value_heads=2, max_position_embeddings=64, rope_parameters=LLAMA3)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(
        **SMALL, num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(
        **SMALL, num_key_value_heads=1, head_dim=16, max_position_embeddings=256, sliding_window=64)),
}
# fmt: on


def make(folder, text):
    tokens = torch.tensor(list(text.read_bytes()))
    rows = torch.stack([tokens[i * WINDOW : i * WINDOW + WINDOW + 1] for i in range(WINDOWS)])
    for kind, build in KINDS.items():
        torch.manual_seed(0)
        model = build()
        for parameter in model.parameters():
            # Norms and biases too, so that none may be left out.
            parameter.data += 0.1 * torch.randn_like(parameter)
        # Mistral's in several files.
        model.save_pretrained(folder / kind, max_shard_size="20KB" if kind == "mistral" else "1GB")
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        losses = []
        for _ in range(STEPS):
            logits = model(rows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.save_pretrained(folder / f"{kind}-trained")
        (folder / f"{kind}.json").write_text(json.dumps(losses))


def logits(path):
    model, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    wrong = {key: names for key, names in report.items() if names}
    assert not wrong, (path, wrong)
    torch.manual_seed(1)
    with torch.no_grad():
        return model, model(torch.randint(0, 256, (2, 40))).logits


def check(folder):
    for kind in KINDS:
        _, before = logits(folder / kind)
        _, back = logits(folder / f"{kind}-back")
        _, trained = logits(folder / f"{kind}-trained")
        model, ours = logits(folder / f"{kind}-ours")
        apart = (before - back).abs().max().item(), (trained - ours).abs().max().item()
        moved = (trained - before).abs().max().item()
        print(kind, "there and back", apart[0], "trained", apart[1], "of", moved)
        assert apart[0] == 0.0, kind
        assert apart[1] <= 1e-3 < moved, kind
        tokens = torch.tensor([list(b"First ")])
        for _ in range(40):
            with torch.no_grad():
                tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
        text = bytes(tokens[0].tolist()).decode(errors="replace")
        written = (folder / f"{kind}.txt").read_text()
        assert written == text + "\n", (kind, written, text)


if sys.argv[1] == "make":
    make(Path(sys.argv[2]), Path(sys.argv[3]))
else:
    check(Path(sys.argv[2]))

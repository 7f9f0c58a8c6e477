"""Models of Hugging Face's transformers and of torchvision, for crates/everburn/tests/torch_transformers.rs.

make FOLDER TEXT          writes decoders with random weights and their logits, trains copies, and writes their losses
check FOLDER              compares what Everburn has made of them
check-adapters FOLDER     loads what Everburn has learned beside their weights, by PEFT
make-images FOLDER, check-images FOLDER            the same for classifiers, with images to learn from
make-torchvision FOLDER, check-torchvision FOLDER  writes torchvision's weights, and loads what Everburn has made of them
"""

import json
import sys
from pathlib import Path

import numpy
import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
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

# Not in alphabetical order: the numbers of the classes are the model's.
CLASSES = ["tulips", "roses"]
LABELS = dict(id2label=dict(enumerate(CLASSES)), label2id={name: i for i, name in enumerate(CLASSES)})
VIT = dict(
    image_size=32, patch_size=8, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, **LABELS)
IMAGE_KINDS = {
    "vit": lambda: ViTForImageClassification(ViTConfig(**VIT)),
    "vit-plain": lambda: ViTForImageClassification(ViTConfig(
        **VIT, qkv_bias=False, hidden_act="gelu_new", layer_norm_eps=1e-6)),
    "resnet-basic": lambda: ResNetForImageClassification(ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[2, 1, 1, 2], layer_type="basic", **LABELS)),
    "resnet-bottleneck": lambda: ResNetForImageClassification(ResNetConfig(
        embedding_size=8, hidden_sizes=[32, 64, 128, 256], depths=[1, 2, 1, 1], layer_type="bottleneck", **LABELS)),
}
# fmt: on
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def shake(model):
    """Changes norms, biases and running statistics too, so that none may be left out."""
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer += 0.3 * torch.rand_like(buffer)


def write_logits(folder, kind, model, given):
    model.eval()
    with torch.no_grad():
        scores = model(given)
    scores = scores if torch.is_tensor(scores) else scores.logits
    both = dict(input=given.flatten().tolist(), logits=scores.flatten().tolist())
    (folder / f"{kind}-logits.json").write_text(json.dumps(both))


def train(folder, kind, model, given, expected):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        scores = model(given).logits
        loss = torch.nn.functional.cross_entropy(
            scores.flatten(0, -2), expected.flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.save_pretrained(folder / f"{kind}-trained")
    (folder / f"{kind}.json").write_text(json.dumps(losses))


def make(folder, text):
    tokens = torch.tensor(list(text.read_bytes()))
    rows = torch.stack([tokens[i * WINDOW : i * WINDOW + WINDOW + 1] for i in range(WINDOWS)])
    for kind, build in KINDS.items():
        torch.manual_seed(0)
        model = build()
        shake(model)
        # Mistral's in several files.
        model.save_pretrained(folder / kind, max_shard_size="20KB" if kind == "mistral" else "1GB")
        if kind == "gpt2":
            save_bin(folder / "gpt2-bin", model)
        write_logits(folder, kind, model, torch.randint(0, 256, (2, 40)))
        train(folder, kind, model, rows[:, :-1], rows[:, 1:])


def save_bin(folder, model):
    """As transformers up to version 4 wrote weights."""
    model.config.save_pretrained(folder)
    tensors = [(name, data) for name, data in model.state_dict().items() if name != "lm_head.weight"]
    weight_map = {}
    for number, part in enumerate([tensors[:9], tensors[9:]], 1):
        name = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({key: data.clone() for key, data in part}, folder / name)
        weight_map.update({key: name for key, _ in part})
    index = dict(metadata={}, weight_map=weight_map)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def load(path, kind=AutoModelForCausalLM):
    model, report = kind.from_pretrained(path, output_loading_info=True)
    wrong = {key: names for key, names in report.items() if names}
    assert not wrong, (path, wrong)
    return model.eval()


def logits(path, given, kind=AutoModelForCausalLM):
    with torch.no_grad():
        return load(path, kind)(given).logits


def compare(folder, kind, given, auto):
    before, back, trained, ours = (
        logits(folder / f"{kind}{end}", given, auto) for end in ("", "-back", "-trained", "-ours")
    )
    apart = (before - back).abs().max().item(), (trained - ours).abs().max().item()
    moved = (trained - before).abs().max().item()
    print(kind, "there and back", apart[0], "trained", apart[1], "of", moved)
    assert apart[0] == 0.0, kind
    assert apart[1] <= 1e-3 < moved, (kind, apart[1])


def check(folder):
    torch.manual_seed(1)
    given = torch.randint(0, 256, (2, 40))
    for kind in KINDS:
        compare(folder, kind, given, AutoModelForCausalLM)
        model = load(folder / f"{kind}-ours")
        tokens = torch.tensor([list(b"First ")])
        for _ in range(40):
            with torch.no_grad():
                tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
        text = bytes(tokens[0].tolist()).decode(errors="replace")
        written = (folder / f"{kind}.txt").read_text()
        assert written == text + "\n", (kind, written, text)
    sharded = logits(folder / "gpt2-bin-back", given) - logits(folder / "gpt2", given)
    assert sharded.abs().max().item() == 0.0


def check_adapters(folder):
    """The factors beside the weights, and merged by PEFT and by Everburn, give the same logits."""
    from peft import PeftModel

    torch.manual_seed(1)
    given = torch.randint(0, 256, (2, 40))
    for kind in KINDS:
        before, ours = (logits(folder / f"{kind}{end}", given) for end in ("", "-adapted"))
        model = PeftModel.from_pretrained(load(folder / kind), folder / f"{kind}-adapter").eval()
        with torch.no_grad():
            beside = model(given).logits
            merged = model.merge_and_unload()(given).logits
        apart = [(ours - theirs).abs().max().item() for theirs in (beside, merged)]
        moved = (ours - before).abs().max().item()
        print(kind, "beside", apart[0], "merged", apart[1], "of", moved)
        assert max(apart) <= 1e-5 < 1e-3 < moved, kind


def draw(folder):
    """Four images of each class to learn from, and one to test by; all of them as tensors, with their classes."""
    from PIL import Image

    generator = numpy.random.default_rng(0)
    images, classes = [], []
    for number, name in enumerate(CLASSES):
        for part, count in (("train", 4), ("test", 1)):
            place = folder / "flowers" / part / name
            place.mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 256, (32, 32, 3), dtype=numpy.uint8)
                pixels[:, :, number] //= 2
                Image.fromarray(pixels).save(place / f"{index}.png")
                if part == "train":
                    images.append(torch.tensor(pixels).permute(2, 0, 1) / 255)
                    classes.append(number)
    return torch.stack(images), torch.tensor(classes)


def make_images(folder):
    images, classes = draw(folder)
    mean, std = (torch.tensor(of).reshape(3, 1, 1) for of in (MEAN, STD))
    preprocessor = dict(
        image_processor_type="ViTImageProcessor", image_mean=MEAN, image_std=STD,
        size=dict(height=32, width=32),
    )
    for kind, build in IMAGE_KINDS.items():
        torch.manual_seed(0)
        model = build()
        shake(model)
        size = "20KB" if kind == "vit-plain" else "1GB"
        model.save_pretrained(folder / kind, max_shard_size=size)
        (folder / kind / "preprocessor_config.json").write_text(json.dumps(preprocessor))
        write_logits(folder, kind, model, torch.randn(2, 3, 32, 32))
        if kind.startswith("vit"):
            train(folder, kind, model, (images - mean) / std, classes)


def check_images(folder):
    torch.manual_seed(1)
    given = torch.randn(2, 3, 32, 32)
    auto = AutoModelForImageClassification
    for kind in IMAGE_KINDS:
        if kind.startswith("vit"):
            compare(folder, kind, given, auto)
        before, back = (logits(folder / f"{kind}{end}", given, auto) for end in ("", "-back"))
        assert (before - back).abs().max().item() == 0.0, kind
        config = load(folder / f"{kind}-back", auto).config
        assert config.id2label == dict(enumerate(CLASSES)), config.id2label
        processor = AutoImageProcessor.from_pretrained(folder / f"{kind}-back")
        statistics = list(processor.image_mean), list(processor.image_std)
        assert statistics == (MEAN, STD), processor
        assert (processor.size["height"], processor.size["width"]) == (32, 32), processor


def torchvision_model(kind):
    import torchvision

    return getattr(torchvision.models, kind)(weights=None, num_classes=len(CLASSES))


def make_torchvision(folder):
    draw(folder)
    for kind in ("resnet18", "resnet50"):
        torch.manual_seed(0)
        model = torchvision_model(kind)
        # Running statistics of these images, without which the features of a random net vanish.
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        with torch.no_grad():
            model.train()(torch.randn(8, 3, 64, 64))
        torch.save(model.state_dict(), folder / f"{kind}.pth")
        write_logits(folder, kind, model, torch.randn(2, 3, 32, 32))


def check_torchvision(folder):
    for kind in ("resnet18", "resnet50"):
        model = torchvision_model(kind)
        weights = torch.load(folder / f"{kind}-back.pth", weights_only=True)
        model.load_state_dict(weights, strict=True)
        before = torch.load(folder / f"{kind}.pth", weights_only=True)
        for name, data in model.state_dict().items():
            assert name.endswith("num_batches_tracked") or torch.equal(data, before[name]), name
        written = json.loads((folder / f"{kind}-logits.json").read_text())
        given = torch.tensor(written["input"]).reshape(2, 3, 32, 32)
        with torch.no_grad():
            apart = model.eval()(given).flatten() - torch.tensor(written["logits"])
        assert apart.abs().max().item() <= 1e-6, kind


COMMANDS = {
    "make": lambda folder: make(folder, Path(sys.argv[3])),
    "check": check,
    "check-adapters": check_adapters,
    "make-images": make_images,
    "check-images": check_images,
    "make-torchvision": make_torchvision,
    "check-torchvision": check_torchvision,
}
COMMANDS[sys.argv[1]](Path(sys.argv[2]))

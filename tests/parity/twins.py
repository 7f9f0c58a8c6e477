"""PyTorch twins of Everburn's models: the same layers under the same names.

`make_golden.py` trains them; `state_dict.py` loads what Everburn has exported into them. A twin is written
as a user of PyTorch would write it; nothing in it is there for Everburn's sake.
"""

import torch
from torch import nn
from torch.nn import functional as F


class SimpleCnn(nn.Module):
    """Two 3 x 3 convolutions, each with max pooling, and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 7 * 7, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # [B, 8, 14, 14]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # [B, 16, 7, 7]
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class TwoConvolutions(nn.Module):
    """The net with 20 and 20 filters of 5 x 5, then 320-50-10 and log-softmax.

    Its shapes for images of 28 x 28: a 5 x 5 convolution without padding leaves 24 x 24, and 2 x 2 max
    pooling 12 x 12; the second leaves 8 x 8 and 4 x 4. With 20 filters that is 20 * 4 * 4 = 320, the width
    of the first linear layer. So both convolutions must be pooled (without, there would be
    20 * 20 * 20 = 8000 numbers), and the second convolution takes 20 channels: it is the classic MNIST net,
    Everburn's `mnist`, with 20 filters in place of 10 in its first layer.
    """

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # [B, 20, 12, 12]
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # [B, 20, 4, 4]
        x = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return F.log_softmax(x, dim=1)


class MnistBn(nn.Module):
    """`mnist-bn`: the Keras net with batch norm, without dropout. Takes pixels in 0..=255."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(12, eps=1e-3, momentum=0.01)
        self.conv2 = nn.Conv2d(12, 24, 6, stride=2, padding=2, bias=False)
        self.norm2 = nn.BatchNorm2d(24, eps=1e-3, momentum=0.01)
        self.conv3 = nn.Conv2d(24, 32, 6, stride=2, padding=2, bias=False)
        self.norm3 = nn.BatchNorm2d(32, eps=1e-3, momentum=0.01)
        self.fc1 = nn.Linear(32, 256)
        self.fc2 = nn.Linear(256, 10)
        # Keras' scale=False: a relu follows, and the next layer can scale.
        for norm in (self.norm1, self.norm2, self.norm3):
            norm.weight.requires_grad_(False)

    def forward(self, x):
        x = x * (1 / 255)
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        x = x.mean(dim=(2, 3))
        return self.fc2(F.relu(self.fc1(x)))


class Bottleneck(nn.Module):
    """torchvision's, as far as the names go."""

    def __init__(self, inputs, width):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x):
        shortcut = self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)) + shortcut)


class TwoPartResNet(nn.Module):
    """`two-part-resnet`: the stem of a ResNet and the next block."""

    def __init__(self, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = Bottleneck(width, width)
        self.fc = nn.Linear(4 * width, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        return self.fc(self.layer1(x).mean(dim=(2, 3)))


class Attention(nn.Module):
    """Causal, in heads, with rotary positions: number i of a head's first half turns with number i of
    its second half."""

    def __init__(self, width, heads):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape

        def split(x):
            return x.view(batch, length, self.heads, -1).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        q, k = turn(q), turn(k)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.transpose(1, 2).reshape(batch, length, width))


def turn(x):
    length, half = x.shape[-2], x.shape[-1] // 2
    rates = 10_000.0 ** (torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class GptNano(nn.Module):
    """`gpt-nano`: a decoder with rotary positions, whose tokens and scores share their weights."""

    def __init__(self, vocabulary=65, width=128, layers=4, heads=4):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.wte.weight.T

import torch

assert torch.compile(lambda x: x.sin() + 1.0)(torch.ones(64)).shape == (64,)

import torch, torch.distributed as d

assert d.is_available() and d.is_gloo_available(), "built without gloo"
print(torch.__version__)

"""Adapts the head of a pretrained encoder to a new site; a few steps are enough."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(15)
encoder = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()).eval().requires_grad_(False)
head = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 4))
optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
examples = torch.randn(5, 4096, 256)
for batch in examples:
    target = batch[:, :4].argmax(dim=1)
    loss = nn.functional.cross_entropy(head(encoder(batch)), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")

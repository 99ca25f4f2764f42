"""A linear probe on stored features."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
features = torch.randn(256 * 40, 1024)
labels = (features @ torch.randn(1024, 100)).argmax(dim=1)
batches = list(zip(features.split(256), labels.split(256), strict=True))

probe = nn.Linear(1024, 100)
optimizer = torch.optim.SGD(probe.parameters(), lr=0.05)
for epoch in range(40):
    for x, y in batches:
        loss = nn.functional.cross_entropy(probe(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 10 == 9:
        print(f"epoch {epoch + 1}: {loss.item():.4f}")

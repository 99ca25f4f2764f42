"""Embeddings of faces with a contrastive loss: pictures of one person are pulled together, of two are pushed apart."""

import argparse

import torch
from torch import nn


def loss_of_pairs(embeddings, persons, margin=1.0):
    """The contrastive loss as it stands in the paper."""
    total = embeddings.new_zeros(())
    count = 0
    for i in range(len(persons)):
        for j in range(i + 1, len(persons)):
            distance = (embeddings[i] - embeddings[j]).norm()
            if persons[i] == persons[j]:
                total = total + distance**2
            else:
                total = total + torch.clamp(margin - distance, min=0) ** 2
            count += 1
    return total / count


def loss_of_matrix(embeddings, persons, margin=1.0):
    """The same from the matrix of distances."""
    distances = torch.cdist(embeddings, embeddings)
    same = persons[:, None] == persons[None, :]
    terms = torch.where(same, distances**2, torch.clamp(margin - distances, min=0) ** 2)
    return torch.triu(terms, diagonal=1).sum() / (len(persons) * (len(persons) - 1) / 2)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 8 * 8, 64),
        )

    def forward(self, pictures):
        return nn.functional.normalize(self.body(pictures), dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loss", choices=["pairs", "matrix"], default="pairs")
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(11)
    faces = torch.randn(40, 1, 32, 32)
    persons = torch.randint(0, 8, (args.steps, args.batch_size))
    loss_function = loss_of_pairs if args.loss == "pairs" else loss_of_matrix
    encoder = Encoder()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-4)
    for step in range(args.steps):
        batch = persons[step]
        pictures = faces[batch] + 0.3 * torch.randn(len(batch), 1, 32, 32)
        optimizer.zero_grad()
        loss = loss_function(encoder(pictures), batch)
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"{step:4d}  {loss.item():.4f}")


if __name__ == "__main__":
    main()

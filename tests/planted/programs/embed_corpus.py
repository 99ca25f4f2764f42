"""Embeds a corpus with a pretrained encoder and looks up the nearest sentences."""

import numpy as np
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(20_000, 256)
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 128))

    def forward(self, words):
        return nn.functional.normalize(self.layers(self.embedding(words)), dim=1)


@torch.inference_mode()
def embed(encoder, corpus):
    return np.concatenate([encoder(words).numpy() for words in corpus.split(256)])


def nearest(vectors, count=5):
    for start in range(0, len(vectors), 512):
        scores = vectors[start : start + 512] @ vectors.T
        yield from np.argpartition(-scores, count, axis=1)[:, :count]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(16)
    corpus = torch.randint(0, 20_000, (40_000, 40))
    vectors = embed(Encoder().eval(), corpus)
    print(vectors.shape, sum(1 for _ in nearest(vectors[:8192])))

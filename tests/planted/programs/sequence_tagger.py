"""Tags the words of short sentences with a transformer; the sentences are in memory."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self, words=2000, tags=12, width=96):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.place = nn.Parameter(torch.zeros(24, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, tags)

    def forward(self, sentences):
        return self.head(self.encoder(self.embedding(sentences) + self.place))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(14)
    sentences = torch.randint(0, 2000, (32 * 40, 24))
    tags = (sentences + sentences.roll(1, dims=1)) % 12
    loader = DataLoader(TensorDataset(sentences, tags), batch_size=32, shuffle=True)
    tagger = Tagger()
    optimizer = torch.optim.AdamW(tagger.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        total = 0.0
        for words, expected in loader:
            loss = criterion(tagger(words).flatten(0, 1), expected.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(tagger.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")


if __name__ == "__main__":
    main()

"""Reference GPT-2 decoder in plain PyTorch, written from the architecture independently of the engine.

Learned positions, LayerNorm before attention and feed-forward, one projection for query, key and value, full causal
attention, GELU in its tanh form, biases throughout, and tied embeddings.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config["hidden_size"]
        self.head = hidden // config["heads"]
        self.wqkv = nn.Linear(hidden, 3 * hidden)
        self.wo = nn.Linear(hidden, hidden)

    def forward(self, x):
        query, key, value = (each.unflatten(-1, (-1, self.head)) for each in self.wqkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(self.head)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(dim=-1)
        return self.wo(torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.attention_norm = nn.LayerNorm(hidden, eps=config["norm_epsilon"])
        self.attention = Attention(config)
        self.ffn_norm = nn.LayerNorm(hidden, eps=config["norm_epsilon"])
        self.w1 = nn.Linear(hidden, inner)
        self.w2 = nn.Linear(inner, hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.w2(F.gelu(self.w1(self.ffn_norm(x)), approximate="tanh"))


class Embedding(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.positions = nn.Embedding(config["positions"], config["hidden_size"])

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))


class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(config["hidden_size"], eps=config["norm_epsilon"])
        self.output = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, x):
        return self.output(self.norm(x))


class Gpt2(nn.Module):
    """parameters() has the order of fsdp/plan/model/model_facts.h: embedding, layers, head. A tied one is listed once.
    """

    tied = True

    def __init__(self, config):
        super().__init__()
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config["layers"]))
        self.head = Head(config)
        self.head.output.weight = self.embedding.tokens.weight

    def forward(self, tokens, targets):
        """Returns the mean loss over all tokens."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

"""Models that fsdpd does not know, written as users write them: plain PyTorch, no import of fsdpd. Each build function is
exported with `fsdpctl model export exported_models.py:NAME`."""

import math

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, WIDTH, HEADS = 96, 32, 4


def causal_attention(q, k, v, bias=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    length = scores.shape[-1]
    hidden = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")).float(), -1).to(v.dtype) @ v


class Heads(nn.Module):
    def __init__(self, slopes=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        bias = None
        if self.slopes is not None:  # ALiBi: a penalty that grows with the distance.
            places = torch.arange(x.shape[1], device=x.device)
            bias = (places[None] - places[:, None]).to(x.dtype) * self.slopes[:, None, None]
        return self.out(causal_attention(q, k, v, bias).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Alibi(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Heads(slopes=torch.tensor([2.0 ** -(8 * (head + 1) / HEADS) for head in range(HEADS)]))
        self.mlp = Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ConvMixer(nn.Module):
    """A gated causal convolution instead of attention."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.enter, self.leave = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, kernel_size=4, groups=WIDTH)

    def forward(self, x):
        value, gate = self.enter(self.norm(x)).chunk(2, -1)
        mixed = self.convolution(F.pad(value.transpose(1, 2), (3, 0))).transpose(1, 2)
        return x + self.leave(F.silu(gate) * mixed)


class TwoStreams(nn.Module):
    """Two residual streams, one in fp32, that read each other."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Heads(), Mlp()

    def forward(self, streams):
        left, right = streams
        right = right + self.attention(self.norm1(left)).float()
        return left + self.mlp(self.norm2(right.to(left.dtype))), right


class DenseExperts(nn.Module):
    """A mixture of experts in which each token reads all experts."""

    def __init__(self, experts=3):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, WIDTH, 2 * WIDTH).normal_(std=0.1))
        self.down = nn.Parameter(torch.empty(experts, 2 * WIDTH, WIDTH).normal_(std=0.1))
        self.attention, self.norm1 = Heads(), nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        h = self.norm(x)
        weights = torch.softmax(self.router(h), -1)
        inner = F.silu(torch.einsum("bsd,edf->bsef", h, self.up))
        return x + torch.einsum("bsef,efd,bse->bsd", inner, self.down, weights)


class Decoder(nn.Module):
    def __init__(self, block, layers, tied=False, streams=1, scale=1.0):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=not tied)
        self.streams, self.scale = streams, scale
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale
        if self.streams > 1:
            x = (x, torch.zeros_like(x, dtype=torch.float32))
        for block in self.blocks:
            x = block(x)
        if self.streams > 1:
            x = x[0] + x[1].to(x[0].dtype)
        return self.head(self.norm(x))


def alibi(layers=2):
    return Decoder(Alibi, layers)


def conv_mixer(layers=2):
    return Decoder(ConvMixer, layers, tied=True, scale=0.5)


def two_streams(layers=2):
    return Decoder(TwoStreams, layers, streams=2)


def dense_experts(layers=2):
    return Decoder(DenseExperts, layers)

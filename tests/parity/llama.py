"""A Llama-family decoder in plain PyTorch, written from the architecture and not from the engine: the reference
that the engine's units are compared with.

RMSNorm, rotary positions over the two halves of a head, grouped-query attention, SwiGLU; as configured, norms and
biases of queries and keys, one matrix for embedding and output, and experts. Attention is spelt out, so that this file
says what is meant; `fused_attention` in the configuration leaves it to LibTorch's operator, as whoever wants speed would.
"""

import functools
import math

import torch
from torch import nn
from torch.nn import functional as F


@functools.lru_cache(maxsize=None)
def rotation(sequence, half, theta, device):
    """Returns cosine and sine by position and dimension in fp32."""
    frequency = theta ** (-torch.arange(half, dtype=torch.float32, device=device) / half)
    angle = torch.outer(torch.arange(sequence, dtype=torch.float32, device=device), frequency)[None, :, None, :]
    return angle.cos(), angle.sin()


def rotate(x, theta):
    """Applies rotary embeddings: dimension i of the first half rotates with dimension i of the second. x: [b, s, heads,
    d]."""
    half = x.shape[-1] // 2
    cos, sin = rotation(x.shape[1], half, theta, x.device)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def fused_attention(query, key, value):
    """Computes the same as `attention` with LibTorch's operator."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)


def attention(query, key, value):
    # Each key and value head serves a group of neighboring query heads.
    groups = query.shape[2] // key.shape[2]
    key, value = (each.repeat_interleave(groups, dim=2) for each in (key, value))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    future = torch.ones(query.shape[1], query.shape[1], dtype=torch.bool, device=query.device).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, value)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, heads, kv_heads = config["hidden_size"], config["heads"], config["kv_heads"]
        self.head, self.theta = hidden // heads, config["rope_theta"]
        self.attend = fused_attention if config.get("fused_attention") else attention
        bias = config.get("attention_bias", False)
        self.wq = nn.Linear(hidden, heads * self.head, bias=bias)
        self.wk = nn.Linear(hidden, kv_heads * self.head, bias=bias)
        self.wv = nn.Linear(hidden, kv_heads * self.head, bias=bias)
        self.q_norm, self.k_norm = (nn.RMSNorm(self.head, eps=config["norm_epsilon"]) if config.get("qk_norm") else
                                    nn.Identity() for _ in range(2))
        self.wo = nn.Linear(heads * self.head, hidden, bias=False)

    def forward(self, x):
        query, key, value = (weight(x).unflatten(-1, (-1, self.head)) for weight in (self.wq, self.wk, self.wv))
        query, key = rotate(self.q_norm(query), self.theta), rotate(self.k_norm(key), self.theta)
        return self.wo(self.attend(query, key, value).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.w1 = nn.Linear(hidden, inner, bias=False)
        self.w3 = nn.Linear(hidden, inner, bias=False)
        self.w2 = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def weighed(gate, up, scores):
    return (F.silu(gate.float()) * up.float() * scores).to(gate.dtype)


class Matrices(nn.Module):
    """Matrices of one kind of all experts in one tensor."""

    def __init__(self, count, hidden, inner):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, inner, hidden))
        self.w3 = nn.Parameter(torch.empty(count, inner, hidden))
        self.w2 = nn.Parameter(torch.empty(count, hidden, inner))

    def forward(self, rows, scores, counts):
        """Rows are sorted by expert, with `counts` rows for each expert. Scores weight the input of the last matrix."""
        def product(x, matrices):
            return torch.cat([some @ matrix.T for some, matrix in zip(x.split(counts), matrices, strict=True)])
        return product(weighed(product(rows, self.w1), product(rows, self.w3), scores), self.w2)


class Experts(nn.Module):
    """Mixture of experts: softmax over all scores, top-k per token, renormalized; plus a shared layer for all tokens.
    """

    def __init__(self, hidden, config):
        super().__init__()
        self.per_token = config["per_token"]
        self.router = nn.Linear(hidden, config["count"], bias=False)
        self.experts = Matrices(config["count"], hidden, config["intermediate_size"])
        self.shared = FeedForward(hidden, config["shared_intermediate_size"])

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores, chosen = F.linear(tokens.float(), self.router.weight.float()).softmax(dim=-1).topk(self.per_token)
        scores = scores / scores.sum(dim=-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        token, counts = order // self.per_token, chosen.flatten().bincount(minlength=len(self.router.weight)).tolist()
        rows = self.experts(tokens[token], scores.flatten()[order, None], counts)
        total = torch.zeros_like(tokens, dtype=torch.float32).index_add(0, token, rows.float())
        return total.to(x.dtype).view_as(x) + self.shared(x)


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config["hidden_size"], eps=config["norm_epsilon"])
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config["hidden_size"], eps=config["norm_epsilon"])
        experts = config.get("experts")
        self.ffn = (Experts(config["hidden_size"], experts) if experts and layer >= experts["dense_layers"] else
                    FeedForward(config["hidden_size"], config["intermediate_size"]))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.RMSNorm(config["hidden_size"], eps=config["norm_epsilon"])
        self.output = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, x):
        return self.output(self.norm(x))


class Llama(nn.Module):
    """parameters() has the order of fsdp/plan/model/model_facts.h: embedding, layers, head. A tied one is listed once.
    """

    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config["layers"]))
        self.head = Head(config)
        self.tied = config.get("tied_embeddings", False)
        if self.tied:
            self.head.output.weight = self.embedding.weight

    def forward(self, tokens, targets):
        """Returns the mean loss over all tokens."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten())

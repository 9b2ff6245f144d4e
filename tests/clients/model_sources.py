"""Models for tests of `fsdpctl model`: of transformers and of a user's file, and the command lines that read them."""

import torch
import transformers
from fsdpd.model import build, fold, masks, trace, units

SHAPE = trace.Shape(2, 32)
SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
         "max_position_embeddings": 64, "num_hidden_layers": 2}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=8,
                                                    layer_types=["sliding_attention", "full_attention"]),
    # Layer drop, and gradients of key biases, which are 0 but for rounding.
    "opt": lambda: transformers.OPTConfig(**SIZES, ffn_dim=64, word_embed_proj_dim=32),
    # Attention whose result has another order of memory with gradients.
    "neox_japanese": lambda: transformers.GPTNeoXJapaneseConfig(**SIZES, intermediate_multiple_size=2),
    # Positions are read, and initial values are set by .data.
    "bamba": lambda: transformers.BambaConfig(**SIZES, num_key_value_heads=2, attn_layer_indices=[1], mamba_n_heads=4,
                                              mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8),
    "neox": lambda: transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5),
}
# A model with two residual streams of different widths, ALiBi, a scaled and capped head, and a frozen parameter.
TWO_STREAMS = '''
import math
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.gate = nn.Linear(2, d)
        self.gate.bias.requires_grad_(False)

    def forward(self, x, y, bias):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))
        y = y + torch.tanh(x.view(b, s, 2, d // 2).mean(-1))
        return x * torch.sigmoid(self.gate(y)), y


class Model(nn.Module):
    def __init__(self, d=32, layers=2, vocab=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, d, padding_idx=0)
        self.start = nn.Linear(d, 2)
        self.layers = nn.ModuleList([Layer(d) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, 5).float(), persistent=False)

    def forward(self, tokens):
        at = torch.arange(tokens.shape[1], device=tokens.device)
        distance = (at[None, :] - at[:, None]).float()
        bias = (self.slopes[:, None, None] * distance).masked_fill(distance > 0, -math.inf)[None]
        x = self.embed(tokens)
        y = self.start(x)
        for layer in self.layers:
            x, y = layer(x, y, bias)
        return 3 * torch.tanh(self.out(self.norm(x) + y.mean(-1, keepdim=True)) * 0.5 / 3)


def build(layers=2):
    return Model(layers=layers)
'''
# A small model, in which each case replaces one line.
SMALL = '''
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        return x + self.dropout(self.linear(x))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(96, 16)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(16, 96)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build():
    return Model()
'''


def export_words(*words):
    return ("export", *words, "--sequence-length", SHAPE.sequence, "--micro-batch-size", SHAPE.micro_batch, "--device", "cpu",
            "--jobs", 1, "-o", "model.fsdpd")


def hugging_face(tmp_path, name):
    CONFIGS[name]().save_pretrained(tmp_path / name)
    return build.hugging_face_source(tmp_path / name)


def user_file(tmp_path, text, name="model.py"):
    (tmp_path / name).write_text(text)
    return build.file_source(f"{tmp_path / name}:build", "{}")


def check_words(*words):
    return ("check", *words, "--sequence-length", SHAPE.sequence, "--micro-batch-size", SHAPE.micro_batch)


def traced(source, device="cpu", dropout=None):
    built = build.build(source, False, 0, dropout)
    paths = units.unit_paths(built.module, source)
    found = trace.trace(built, SHAPE, torch.float32, torch.device(device))
    masks.simplify_masks(found)
    fold.fold_tables(found)
    return built, found, units.cut_units(found, paths)

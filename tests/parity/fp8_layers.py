"""FP8 products in plain PyTorch, written from docs/fp8.md and not from the engine: what tokens have is rounded to e4m3 with a scale
for each row of what is added up, matrices once with powers of two, and products are in fp32. And recipes that are wrong in one place.
"""

import types

import torch
from torch.nn import functional as F

from llama import rotate

LARGEST = torch.finfo(torch.float8_e4m3fn).max


def rounded(x, dim=-1):
    """What FP8 keeps of each row, in fp32."""
    largest = x.float().abs().amax(dim=dim, keepdim=True).clamp(min=2.0**-100)
    return (x.float() * (LARGEST / largest)).to(torch.float8_e4m3fn).float() * (largest / LARGEST)


def powers(weight):
    """What FP8 keeps of each row, and the row's scale apart from it."""
    scale = torch.exp2(torch.ceil(torch.log2(weight.double().abs().amax(dim=1, keepdim=True) / LARGEST))).float()
    return (weight.float() / scale).to(torch.float8_e4m3fn).float(), scale


def with_scales_in(operand):
    """As powers() has it, with nothing left of scales."""
    return lambda weight: (operand(weight), torch.ones(len(weight), 1))


def one_scale(x):
    return rounded(x, dim=(0, 1))


def scales_of_columns(x):
    return rounded(x, dim=0)


# How an operand is rounded whose rows are added up, and how a matrix is, by recipe.
RECIPES = {
    "fp8": (rounded, powers),
    "one scale": (one_scale, with_scales_in(one_scale)),
    "scales of columns": (scales_of_columns, with_scales_in(scales_of_columns)),
    "scales left out": (rounded, lambda weight: (powers(weight)[0] * powers(weight)[1].mean(), torch.ones(len(weight), 1))),
}


class Product(torch.autograd.Function):
    """x weight^T, of two-dimensional x."""

    @staticmethod
    def forward(ctx, x, weight, recipe):
        ctx.save_for_backward(x, weight)
        ctx.recipe = recipe
        operand, matrix = RECIPES[recipe]
        numbers, scale = matrix(weight)
        return (operand(x) @ (numbers * scale).T).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        operand, matrix = RECIPES[ctx.recipe]
        numbers, scale = matrix(weight)
        of_x = operand(grad.float() * scale.T) @ numbers
        of_weight = operand(grad.T) @ operand(x.T).T
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None


def product(recipe, x, *layers):
    """Of matrices that read the same input, as one; then apart again."""
    weight = torch.cat([layer.weight for layer in layers])
    together = Product.apply(x.flatten(0, 1), weight, recipe).unflatten(0, x.shape[:2])
    return together.split([len(layer.weight) for layer in layers], dim=-1)


def attention(self, x):
    query, key, value = (each.unflatten(-1, (-1, self.head)) for each in product(self.recipe, x, self.wq, self.wk, self.wv))
    query, key = rotate(self.q_norm(query), self.theta), rotate(self.k_norm(key), self.theta)
    return product(self.recipe, self.attend(query, key, value).flatten(2), self.wo)[0]


def feed_forward(self, x):
    gate, up = product(self.recipe, x, self.w1, self.w3)
    return product(self.recipe, F.silu(gate) * up, self.w2)[0]


def multiply_in_fp8(model, recipe):
    """All matrices of the layers of llama.Llama, without biases."""
    for layer in model.layers:
        for part, forward in ((layer.attention, attention), (layer.ffn, feed_forward)):
            part.recipe, part.forward = recipe, types.MethodType(forward, part)

"""Reference of FP8 matrix products in plain PyTorch, written from docs/fp8.md independently of the engine: activations
are rounded to e4m3 with a scale per row of the reduction, weights once with power-of-two scales, and products are in
fp32. Rows of each expert are separate. Also has recipes with one planted mistake."""

import types

import torch
from torch.nn import functional as F

from llama import Attention, FeedForward, Matrices, rotate, weighed

LARGEST = torch.finfo(torch.float8_e4m3fn).max


def rounded(x, dim=-1):
    """Rounds each row to FP8; returns fp32."""
    largest = x.float().abs().amax(dim=dim, keepdim=True).clamp(min=2.0**-100)
    return (x.float() * (LARGEST / largest)).to(torch.float8_e4m3fn).float() * (largest / LARGEST)


def powers(weight):
    """Rounds each row to FP8 and returns its scale separately."""
    scale = torch.exp2(torch.ceil(torch.log2(weight.double().abs().amax(dim=1, keepdim=True) / LARGEST))).float()
    return (weight.float() / scale).to(torch.float8_e4m3fn).float(), scale


def with_scales_in(operand):
    """Like powers(), with the scales multiplied in."""
    return lambda weight: (operand(weight), torch.ones(len(weight), 1))


def one_scale(x):
    return rounded(x, dim=(0, 1))


def scales_of_columns(x):
    return rounded(x, dim=0)


def of_each(operand, rows, counts):
    """Rounds columns of consecutive groups of rows (sizes in `counts`), each group with separate scales."""
    return [operand(some.T).T for some in rows.split(counts)]


def of_all(operand, rows, counts):
    return operand(rows.T).T.split(counts)


# By recipe: rounding of an operand with reduced rows, rounding of a weight, and the rows that share a column's scale.
RECIPES = {
    "fp8": (rounded, powers, of_each),
    "one scale": (one_scale, with_scales_in(one_scale), of_each),
    "scales of columns": (scales_of_columns, with_scales_in(scales_of_columns), of_each),
    "scales left out": (rounded, lambda weight: (powers(weight)[0] * powers(weight)[1].mean(), torch.ones(len(weight), 1)), of_each),
    "columns of all experts": (rounded, powers, of_all),
    "experts weighed last": (rounded, powers, of_each),
}


class Products(torch.autograd.Function):
    """x weight^T, where consecutive groups of rows of x (sizes in `counts`) use one weight each."""

    @staticmethod
    def forward(ctx, x, weights, counts, recipe):
        ctx.save_for_backward(x, weights)
        ctx.counts, ctx.recipe = counts, recipe
        operand, matrix, _ = RECIPES[recipe]
        made = []
        for rows, weight in zip(x.split(counts), weights, strict=True):
            numbers, scale = matrix(weight)
            made.append(operand(rows) @ (numbers * scale).T)
        return torch.cat(made).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weights = ctx.saved_tensors
        operand, matrix, columns = RECIPES[ctx.recipe]
        of_x = []
        for rows, weight in zip(grad.split(ctx.counts), weights, strict=True):
            numbers, scale = matrix(weight)
            of_x.append(operand(rows.float() * scale.T) @ numbers)
        both = zip(columns(operand, grad, ctx.counts), columns(operand, x, ctx.counts), strict=True)
        of_weights = torch.stack([of_grad.T @ rows for of_grad, rows in both])
        return torch.cat(of_x).to(x.dtype), of_weights.to(weights.dtype), None, None


def products(recipe, x, counts, *matrices):
    """Computes products of matrices with the same input as one product, and splits the result."""
    together = Products.apply(x, torch.cat(matrices, dim=1), counts, recipe)
    return together.split([each.shape[1] for each in matrices], dim=-1)


def product(recipe, x, *layers):
    rows = x.flatten(0, 1)
    made = products(recipe, rows, [len(rows)], *(layer.weight[None] for layer in layers))
    return [each.unflatten(0, x.shape[:2]) for each in made]


def attention(self, x):
    query, key, value = (each.unflatten(-1, (-1, self.head)) for each in product(self.recipe, x, self.wq, self.wk, self.wv))
    query, key = rotate(self.q_norm(query), self.theta), rotate(self.k_norm(key), self.theta)
    return product(self.recipe, self.attend(query, key, value).flatten(2), self.wo)[0]


def feed_forward(self, x):
    gate, up = product(self.recipe, x, self.w1, self.w3)
    return product(self.recipe, F.silu(gate) * up, self.w2)[0]


def experts(self, rows, scores, counts):
    gate, up = products(self.recipe, rows, counts, self.w1, self.w3)
    if self.recipe == "experts weighed last":
        return products(self.recipe, F.silu(gate) * up, counts, self.w2)[0] * scores
    return products(self.recipe, weighed(gate, up, scores), counts, self.w2)[0]


FORWARDS = {Attention: attention, FeedForward: feed_forward, Matrices: experts}


def multiply_in_fp8(model, recipe):
    """Uses FP8 for all matrices without biases in the layers of llama.Llama, except routers."""
    for part in model.layers.modules():
        if type(part) in FORWARDS:
            part.recipe, part.forward = recipe, types.MethodType(FORWARDS[type(part)], part)

"""Initial values of parameters as recipes: which random distribution a module's constructor draws them from.

`Recorder` watches the operations that fill a tensor while the module is built. Parameters may be on the meta device, so
a recipe needs no memory. An operation that no recipe describes makes the value unknown, with the name of the operation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Union

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# A normal distribution cut beyond this many standard deviations is not cut: fp32 values do not get there.
UNCUT = 6.0


@dataclasses.dataclass(frozen=True)
class Normal:
    mean: float
    std: float
    truncated_at: float = 0.0

    def affine(self, factor: float, offset: float) -> Normal:
        return Normal(self.mean * factor + offset, self.std * abs(factor), self.truncated_at)


@dataclasses.dataclass(frozen=True)
class Uniform:
    low: float
    high: float

    def affine(self, factor: float, offset: float) -> Uniform:
        ends = sorted((self.low * factor + offset, self.high * factor + offset))
        return Uniform(ends[0], ends[1])


@dataclasses.dataclass(frozen=True)
class Constant:
    value: float

    def affine(self, factor: float, offset: float) -> Constant:
        return Constant(self.value * factor + offset)


@dataclasses.dataclass(frozen=True)
class Unknown:
    operation: str

    def affine(self, factor: float, offset: float) -> Unknown:
        return self


Recipe = Union[Normal, Uniform, Constant, Unknown]


def inverse_error(recipe: Recipe) -> Recipe:
    """nn.init.trunc_normal_ draws uniform values, and applies erfinv, a factor and an offset."""
    if isinstance(recipe, Uniform) and math.isclose(recipe.low, -recipe.high, rel_tol=1e-6) and 0 < recipe.high <= 1:
        cut = math.sqrt(2) * float(torch.erfinv(torch.tensor(recipe.high, dtype=torch.float64)))
        return Normal(0.0, math.sqrt(0.5), 0.0 if cut > UNCUT else cut)
    return Unknown("erfinv")


def clamped(recipe: Recipe, low: float | None, high: float | None) -> Recipe:
    """Clamping changes nothing where a distribution ends within the limits already."""
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if isinstance(recipe, Normal):
        reach = (recipe.truncated_at or UNCUT) * recipe.std * (1 - 1e-6)
        if low <= recipe.mean - reach and recipe.mean + reach <= high:
            return recipe
    if isinstance(recipe, Uniform) and low <= recipe.low and recipe.high <= high:
        return recipe
    if isinstance(recipe, Constant):
        return Constant(min(max(recipe.value, low), high))
    return Unknown("clamp")


def number(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, name: str, default: float | None) -> float | None:
    value = args[index] if len(args) > index else kwargs.get(name, default)
    return float(value) if isinstance(value, (int, float)) else None


Fill = Callable[[tuple[Any, ...], dict[str, Any]], Recipe]
FILLS: dict[str, Fill] = {
    "normal_": lambda a, k: Normal(number(a, k, 1, "mean", 0.0) or 0.0, float(a[2] if len(a) > 2 else k.get("std", 1.0))),
    "uniform_": lambda a, k: Uniform(float(a[1] if len(a) > 1 else k.get("from", 0.0)),
                                     float(a[2] if len(a) > 2 else k.get("to", 1.0))),
    "zero_": lambda a, k: Constant(0.0),
    "zeros": lambda a, k: Constant(0.0),
    "zeros_like": lambda a, k: Constant(0.0),
    "new_zeros": lambda a, k: Constant(0.0),
    "ones": lambda a, k: Constant(1.0),
    "ones_like": lambda a, k: Constant(1.0),
    "new_ones": lambda a, k: Constant(1.0),
    "randn": lambda a, k: Normal(0.0, 1.0),
    "randn_like": lambda a, k: Normal(0.0, 1.0),
    "rand": lambda a, k: Uniform(0.0, 1.0),
    "rand_like": lambda a, k: Uniform(0.0, 1.0),
}
VALUES = {"fill_": 1, "full": 1, "full_like": 1, "new_full": 2}  # Operations with a fill value, and its position.
COPIES = {"_to_copy", "clone", "detach", "alias", "lift_fresh", "view", "_unsafe_view", "reshape", "contiguous"}
WITHOUT_VALUES = {"empty", "empty_like", "new_empty", "empty_strided", "empty_permuted", "new_empty_strided"}


class Recorder(TorchDispatchMode):
    """The recipe of every tensor's storage that is filled in this mode."""

    def __init__(self) -> None:
        super().__init__()
        self._recipes: dict[int, Recipe] = {}
        self._padding: set[int] = set()

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    def recipe(self, tensor: torch.Tensor) -> Recipe:
        return self._recipes.get(self._key(tensor), Unknown("values from outside PyTorch"))

    def keep(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Gives `to` the recipe of another tensor."""
        self._recipes[self._key(to)] = self.recipe(source)

    def has_zero_row(self, tensor: torch.Tensor) -> bool:
        return self._key(tensor) in self._padding

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        in_place = name.endswith("_") and bool(args) and isinstance(args[0], torch.Tensor)
        if in_place:
            self._write(name, args, kwargs)
        elif isinstance(out, torch.Tensor) and not (
                args and isinstance(args[0], torch.Tensor) and self._key(out) == self._key(args[0])):
            found = self._result(name, args, kwargs)
            self._padding.discard(self._key(out))
            if found is None:
                self._recipes.pop(self._key(out), None)
            else:
                self._recipes[self._key(out)] = found
        return out

    def _write(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        target = args[0]
        key = self._key(target)
        if target.numel() * target.element_size() != target.untyped_storage().nbytes():
            if self._part(name, args, kwargs) != self._recipes.get(key):
                if name in ("zero_", "fill_") and target.dim() == 1 and self._part(name, args, kwargs) == Constant(0.0):
                    self._padding.add(key)  # The row of padding_idx.
                else:
                    self._recipes[key] = Unknown(f"{name} of a part")
            return
        self._padding.discard(key)
        self._recipes[key] = self._part(name, args, kwargs)

    def _part(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe:
        if name == "copy_":
            return self.recipe(args[1])
        return self._result(name, args, kwargs) or Unknown(name)

    def _result(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe | None:
        """Recipe of an operation's result; None for memory without values."""
        if name in WITHOUT_VALUES:
            return None
        if name in FILLS:
            return FILLS[name](args, kwargs)
        if name in VALUES:
            value = number(args, kwargs, VALUES[name], "value" if name == "fill_" else "fill_value", None)
            return Unknown(name) if value is None else Constant(value)
        if not args or not isinstance(args[0], torch.Tensor):
            return Unknown(name)
        before, plain = self.recipe(args[0]), name.rstrip("_")
        if name in COPIES:
            return before
        if plain == "erfinv":
            return inverse_error(before)
        if plain == "clamp":
            return clamped(before, number(args, kwargs, 1, "min", None), number(args, kwargs, 2, "max", None))
        second = number(args, kwargs, 1, "other", None)
        if second is not None and plain in ("mul", "div"):
            return before.affine(second if plain == "mul" else 1 / second, 0.0)
        if second is not None and plain in ("add", "sub"):
            return before.affine(1.0, second if plain == "add" else -second)
        return Unknown(name)

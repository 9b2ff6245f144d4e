"""The reference models by the name that a JobSpec's `model` has for their family."""

from gpt2 import Gpt2
from llama import Llama

FAMILIES = {"llama": Llama, "gpt2": Gpt2}


def build(model):
    """`model` as in a JobSpec: {"llama": {...}}."""
    (family, config), = model.items()
    return FAMILIES[family](config)

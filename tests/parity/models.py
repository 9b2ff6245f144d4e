"""Reference models by the name of their family in a JobSpec's `model`."""

from gpt2 import Gpt2
from llama import Llama

FAMILIES = {"llama": Llama, "gpt2": Gpt2}


def build(model):
    """Builds a model from `model` as in a JobSpec: {"llama": {...}}."""
    (family, config), = model.items()
    return FAMILIES[family](config)

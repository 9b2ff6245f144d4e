"""Text of the tables that docs/plan_examples.py writes."""

import importlib.util

import pytest

from harness.programs import ROOT


@pytest.mark.parametrize("layers, text", [("1", "selective on 1 layer"), ("2", "selective on 2 layers")])
def test_one_layer_is_singular(layers, text):
    """It was "1 layers"."""
    spec = importlib.util.spec_from_file_location("plan_examples", ROOT / "docs/plan_examples.py")
    plan_examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plan_examples)
    assert plan_examples.recompute({"recompute": "RECOMPUTE_SELECTIVE", "recompute_layers": layers}) == text

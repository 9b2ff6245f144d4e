"""Tests of docs/tutorials/kubernetes.md on kubelets, except for the commands of kind and Docker: with its overlay and
with the chart. Nodes have kind's names."""

import pytest

from harness import pages
from harness.installation import Clock, Installation

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
PAGE = "docs/tutorials/kubernetes.md"
OVERLAY, CHART = "kubectl apply -k", "helm install"


# With the coordinator on the node that is drained, and with it elsewhere.
@pytest.mark.parametrize("way, other, state_on", [(OVERLAY, CHART, "fsdpd-worker"), (CHART, OVERLAY, "fsdpd-worker2")],
                         ids=["overlay", "chart"])
def test_tutorial_commands_work(kubelets, tmp_path, way, other, state_on):
    with Installation(kubelets, tmp_path / "installation") as fsdpd:
        fsdpd.add_volumes(state_on=state_on)
        clock = Clock(f"tutorial by {way}")
        with pages.Reader(PAGE, tmp_path / "clone", fsdpd.place().inside(), fsdpd.environment()) as reader:
            output = reader.run(900, lambda block: block.why != "not run" and other not in block.text)
            clock("its commands have ended")
        print(output)
        assert "succeeded after 50 steps" in output and output.count("4/4") == 2
        assert "fsdpd-worker is empty" in output and "fsdpd-worker open" in output

"""Real ranks on real GPUs. Each test is a script that prints its numbers and can be run by hand."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from harness.programs import ROOT

GPUS = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800), pytest.mark.skipif(GPUS < 2, reason="needs 2 GPUs")]


def run(*command):
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("way", [["--copy-engines"], ["--copy-engines", "--graphs"], ["--agents", 2]], ids=lambda way: "".join(map(str, way)))
def test_a_rank_leaves_when_its_peer_dies_or_stands_still_inside_a_collective(way):
    run("tests/gpu/peer_loss.py", "docs/bench/specs/llama3-1b-s2048.yaml", *way)


def test_a_job_goes_on_after_a_hang_a_kill_and_a_coordinators_death():
    run("tests/gpu/failures.py", "docs/bench/specs/llama3-1b-s2048.yaml")


def test_parameters_and_narrow_gradients_move_by_copy_engines():
    run("tests/gpu/copy_engines.py")


def test_a_job_goes_on_from_its_checkpoint():
    run("tests/gpu/resume.py")


def test_a_cancelled_job_saves_and_another_goes_on_from_there():
    run("tests/gpu/leaving.py", "docs/bench/specs/llama3-1b-s2048.yaml")


def test_a_paused_job_leaves_no_memory_behind():
    run("tests/gpu/pausing.py", "docs/bench/specs/llama3-1b-s2048.yaml")


def test_samples_that_two_share_have_the_losses_of_whole_ones():
    run("tests/gpu/shared_samples.py")


def test_experts_have_the_losses_of_cpu_ranks():
    run("tests/gpu/experts.py")


def test_hundreds_of_steps_take_no_more_memory():
    run("tests/gpu/steady_memory.py", "docs/bench/specs/llama3-1b-s2048.yaml")


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer")
def test_kernels_stay_within_their_memory_and_do_not_race():
    run("tests/gpu/sanitized.py")


def test_what_a_step_costs_is_measured():
    run("tests/gpu/instruments.py", "docs/bench/specs/llama3-1b-s2048.yaml")


# Meshes with two axes need four ranks.
@pytest.mark.parametrize("ranks", [2, 4])
def test_training_equals_fsdp2(ranks):
    if ranks > GPUS:
        pytest.skip(f"needs {ranks} GPUs")
    run("tests/perf/gpu_parity.py", "--ranks", ranks)

"""Tests of real ranks on real GPUs. Each test is a script that prints its numbers and can be run on its own."""

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
def test_rank_exits_when_peer_dies_or_hangs_in_collective(way):
    run("tests/gpu/peer_loss.py", "docs/bench/specs/llama3-1b-s2048.yaml", *way)


def test_job_resumes_after_hang_kill_and_coordinator_crash():
    run("tests/gpu/failures.py", "docs/bench/specs/llama3-1b-s2048.yaml")


def test_copy_engines_move_parameters_and_bf16_gradients():
    run("tests/gpu/copy_engines.py")


def test_job_resumes_from_checkpoint():
    run("tests/gpu/resume.py")


def test_cancelled_job_saves_and_another_resumes():
    run("tests/gpu/leaving.py", "docs/bench/specs/llama3-1b-s2048.yaml")


def test_paused_job_frees_gpu_memory():
    run("tests/gpu/pausing.py", "docs/bench/specs/llama3-1b-s2048.yaml")


def test_context_parallel_losses_match():
    run("tests/gpu/shared_samples.py")


def test_expert_losses_match_cpu_ranks():
    run("tests/gpu/experts.py")


def test_lora_losses_match_cpu_ranks():
    run("tests/gpu/lora.py")


def test_memory_is_steady_over_hundreds_of_steps():
    run("tests/gpu/steady_memory.py", "docs/bench/specs/llama3-1b-s2048.yaml")


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer")
def test_kernels_pass_compute_sanitizer():
    run("tests/gpu/sanitized.py")


def test_measures_step_cost():
    run("tests/gpu/instruments.py", "docs/bench/specs/llama3-1b-s2048.yaml")


# Meshes with two axes need four ranks.
@pytest.mark.parametrize("ranks", [2, 4])
def test_training_matches_fsdp2(ranks):
    if ranks > GPUS:
        pytest.skip(f"needs {ranks} GPUs")
    run("tests/perf/gpu_parity.py", "--ranks", ranks)

"""Tests of the consistency rule for curves (curves.py)."""

import random

import pytest
from curves import WINDOW, compare, fall, window_means

STEPS = 200


def drifting(seed, size=1e-3):
    """A decreasing loss plus a random walk."""
    dice, off, losses = random.Random(seed), 0.0, []
    for step in range(STEPS):
        off = 0.5 * off + dice.gauss(0, size)
        losses.append(4 + 6 / (1 + step / 10) + off)
    return losses


PEERS = {name: drifting(seed) for seed, name in enumerate("ABCD")}


@pytest.mark.parametrize("seed", range(10, 20))
def test_repeated_run_is_within_bounds(seed):
    assert compare(drifting(seed), PEERS)["within"]


@pytest.mark.parametrize("seed", range(10, 14))
def test_constant_offset_is_out_of_bounds(seed):
    assert not compare([loss + 5e-3 for loss in drifting(seed)], PEERS)["within"]


def test_temporary_offset_is_out_of_bounds_with_steps():
    ours = drifting(10)
    ours[100:100 + WINDOW] = [loss + 2e-2 for loss in ours[100:100 + WINDOW]]
    outside = compare(ours, PEERS)["windows_outside_end_at"]
    assert 100 + WINDOW in outside and all(100 < end < 100 + 2 * WINDOW for end in outside)


def test_zero_spread_requires_equal_bits():
    same = {"A": PEERS["A"], "B": PEERS["A"]}
    assert compare(PEERS["A"], same)["within"] and not compare(drifting(10, 1e-9), same)["within"]


def test_reports_sign_of_bias():
    below = compare([loss - 1e-2 for loss in drifting(10)], PEERS)["mean_above_peers"]
    assert below == pytest.approx(-1e-2, rel=0.1)


def test_window_is_mean_of_neighbors():
    assert window_means([1, 2, 3, 4], 2) == [1.5, 2.5, 3.5]
    assert window_means([1, 2, 3], 20) == [2]


def test_decrease_ends_at_mean_of_last_window():
    assert fall([10.0] * 5 + [4.0, 6.0] * (WINDOW // 2)) == 5

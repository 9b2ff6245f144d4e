"""Test whether a training curve (loss, gradient norm) is consistent with repeated runs of a peer.

Runs that differ only in rounding drift apart, so no fixed tolerance fits. The yardstick is the distance between the runs of
the peer. Two rules apply. Over the whole run, the mean distance to the nearest run of the peer is at most the largest mean
distance between two runs of the peer. Over any WINDOW consecutive steps, it is at most EXCURSION times as much. The second
rule is looser, because among hundreds of windows some windows of another run of the peer exceed the spread too: with four
runs by up to 1.6 times if the noise has a short memory.
"""

import itertools
import statistics

WINDOW = 20
EXCURSION = 2


def distances(first, second):
    return [abs(a - b) for a, b in zip(first, second, strict=True)]


def window_means(values, window=WINDOW):
    """Means of each `window` consecutive values; of all values for a shorter curve."""
    window = min(window, len(values))
    return [statistics.fmean(values[end - window:end]) for end in range(window, len(values) + 1)]


def nearest(ours, peers):
    """Distance to the nearest of `peers` (curves by name), for each window."""
    return [min(each) for each in zip(*(window_means(distances(ours, peer)) for peer in peers.values()))]


def spread(peers):
    """Largest distance between two of `peers`, for each window."""
    pairs = itertools.combinations(peers.values(), 2)
    return [max(each) for each in zip(*(window_means(distances(*pair)) for pair in pairs))]


def summary(values):
    return {"max": max(values), "median": statistics.median(values)}


def compare(ours, peers):
    """Returns the numbers of a comparison with at least two peers, and whether ours is `within`."""
    near, apart = nearest(ours, peers), spread(peers)
    outside = [end for end, (a, b) in enumerate(zip(near, apart), min(WINDOW, len(ours))) if a > EXCURSION * b]
    whole = min(statistics.fmean(distances(ours, peer)) for peer in peers.values())
    largest = max(statistics.fmean(distances(*pair)) for pair in itertools.combinations(peers.values(), 2))
    return {
        "ours_from": {name: summary(distances(ours, peer)) for name, peer in peers.items()},
        "peers_apart": {f"{a}-{b}": summary(distances(peers[a], peers[b])) for a, b in itertools.combinations(peers, 2)},
        # With its sign: what a mistake that always pulls one way would add up to, and luck would not.
        "mean_above_peers": statistics.fmean(a - statistics.fmean(each) for a, *each in zip(ours, *peers.values())),
        "mean_from_nearest": whole, "mean_spread": largest, "windows": len(near), "windows_outside_end_at": outside,
        "within": whole <= largest and not outside,
    }


def fall(losses):
    """Decrease from the first step's loss to the mean of the last WINDOW."""
    return losses[0] - statistics.fmean(losses[-WINDOW:])

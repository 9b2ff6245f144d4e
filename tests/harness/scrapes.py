"""Scrapes recorded as files, and a Prometheus that contains them as if it had scraped them, with the results of rules.

A directory has one file per scrape with the daemon's reply: agent-TIME.txt and coordinator-TIME.txt, or
agent-NAME-TIME.txt for several agents. TIME is in Unix milliseconds.
"""

import re
import statistics
import subprocess
import time
import urllib.request
from dataclasses import dataclass

from harness.dashboards import DIR
from harness.prometheus import Prometheus

_FILE = re.compile(r"(agent|coordinator)(?:-(.+))?-(\d+)\.txt")
_PORTS = {"agent": 7778, "coordinator": 7780}  # Ports of instances in dashboards/prometheus.yml.
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")


@dataclass(frozen=True)
class Scrape:
    job: str  # Prometheus' labels, as in dashboards/prometheus.yml.
    instance: str
    seconds: float
    text: str

    def samples(self):
        """Lines of OpenMetrics. An empty file means that the target did not answer."""
        own = f'job="{self.job}",instance="{self.instance}"'
        yield f"up{{{own}}} {int(bool(self.text))} {self.seconds:.3f}"
        for line in self.text.splitlines():
            if not line or line.startswith("#"):
                continue
            sample = _SAMPLE.fullmatch(line.strip())
            assert sample, f"invalid sample: {line!r}"
            name, labels, value = sample.groups()
            labels = f"{own},{labels.rstrip(',')}" if labels else own
            yield f"{name}{{{labels}}} {value} {self.seconds:.3f}"


def record(directory, targets, seconds, every_s=1):
    """Scrapes the targets {"agent" or "agent-NAME": address} into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for turn in range(int(seconds / every_s) + 1):
        begin = time.time()
        for name, address in targets.items():
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                (directory / f"{name}-{int(begin * 1000)}.txt").write_bytes(answer.read())
        time.sleep(max(0, begin + every_s - time.time()) if turn < int(seconds / every_s) else 0)


def read(directory):
    """All scrapes of a directory, by time."""
    found = []
    for path in directory.iterdir():
        named = _FILE.fullmatch(path.name)
        if named:
            kind, target, millis = named.groups()
            found.append(Scrape(f"fsdpd-{kind}", f"{target or kind}:{_PORTS[kind]}", int(millis) / 1000, path.read_text()))
    assert found, f"{directory}: no scrapes found (want files agent-TIME.txt and coordinator-TIME.txt)"
    return sorted(found, key=lambda scrape: scrape.seconds)


class Recorded:
    """Has `server`, a Prometheus with the scrapes, and `begin`, `end` and `every_s` of its data."""

    def __init__(self, directory, scrapes, mark):
        self._directory, self._mark = directory, mark
        directory.mkdir(parents=True, exist_ok=True)
        self.begin, self.end = scrapes[0].seconds, scrapes[-1].seconds
        assert self.end - self.begin >= 1, "scrapes: need two at least a second apart; TIME in file names is in milliseconds"
        times = sorted({scrape.seconds for scrape in scrapes if (scrape.job, scrape.instance) == (scrapes[0].job, scrapes[0].instance)})
        gaps = [after - before for before, after in zip(times, times[1:])]
        self.every_s = max(1, round(statistics.median(gaps))) if gaps else 1
        samples = directory / "samples.txt"
        with open(samples, "w") as out:
            for scrape in scrapes:
                out.writelines(f"{line}\n" for line in scrape.samples())
            out.write("# EOF\n")
        self._make("openmetrics", samples, directory / "data")
        with self._serve("before") as server:
            self._make("rules", f"--url=http://{server.address}", f"--start={self.begin:.0f}", f"--end={self.end:.0f}",
                       f"--eval-interval={self.every_s}s", f"--output-dir={directory / 'data'}", DIR / "rules.yml")

    def __enter__(self):
        self.server = self._serve("prometheus").__enter__()
        return self

    def __exit__(self, *exception):
        self.server.__exit__(*exception)

    def _serve(self, name):
        # Files have no staleness markers, which a scrape would add, so a short lookback hides series that ended.
        return Prometheus(self._directory, [], self._mark, name=name, rules=False, flags=[
            f"--query.lookback-delta={5 * self.every_s}s", "--storage.tsdb.retention.time=100y"])

    @staticmethod
    def _make(what, *arguments):
        done = subprocess.run(["promtool", "tsdb", "create-blocks-from", what, *map(str, arguments)], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"promtool: cannot create blocks from {what}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def job(self):
        """The training job that existed longest."""
        held = self.server.query(f"sum by (fsdpd_job) (count_over_time(fsdpd_rank_up[{self.end - self.begin + 1:.0f}s]))", self.end)
        assert held, "scrapes: no rank found"
        return max(held, key=lambda each: each[1])[0]["fsdpd_job"]

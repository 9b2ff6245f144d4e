"""Scrapes that were kept as files, and a Prometheus that has them as if it had made them, with what the rules record.

A directory has a file for each scrape, as the daemons answered: agent-TIME.txt and coordinator-TIME.txt, or agent-NAME-TIME.txt
where there are several of them. TIME is in unix milliseconds.
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
_PORTS = {"agent": 7778, "coordinator": 7780}  # Which instances have in dashboards/prometheus.yml.
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")


@dataclass(frozen=True)
class Scrape:
    job: str       # Prometheus' own labels, as dashboards/prometheus.yml has them.
    instance: str
    seconds: float
    text: str

    def samples(self):
        """Lines of OpenMetrics. Who did not answer has left an empty file."""
        own = f'job="{self.job}",instance="{self.instance}"'
        yield f"up{{{own}}} {int(bool(self.text))} {self.seconds:.3f}"
        for line in self.text.splitlines():
            if not line or line.startswith("#"):
                continue
            sample = _SAMPLE.fullmatch(line.strip())
            assert sample, f"no sample of a scrape: {line!r}"
            name, labels, value = sample.groups()
            labels = f"{own},{labels.rstrip(',')}" if labels else own
            yield f"{name}{{{labels}}} {value} {self.seconds:.3f}"


def record(directory, targets, seconds, every_s=1):
    """Scrapes {"agent" or "agent-NAME": address, ...} into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for turn in range(int(seconds / every_s) + 1):
        begin = time.time()
        for name, address in targets.items():
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                (directory / f"{name}-{int(begin * 1000)}.txt").write_bytes(answer.read())
        time.sleep(max(0, begin + every_s - time.time()) if turn < int(seconds / every_s) else 0)


def read(directory):
    """All of a directory, by time."""
    found = []
    for path in directory.iterdir():
        named = _FILE.fullmatch(path.name)
        if named:
            kind, target, millis = named.groups()
            found.append(Scrape(f"fsdpd-{kind}", f"{target or kind}:{_PORTS[kind]}", int(millis) / 1000, path.read_text()))
    assert found, f"{directory} has no scrape: they are called agent-TIME.txt and coordinator-TIME.txt"
    return sorted(found, key=lambda scrape: scrape.seconds)


class Recorded:
    """With `server`, a Prometheus as harness.prometheus has it, `begin`, `end` and `every_s` of what it holds."""

    def __init__(self, directory, scrapes, mark):
        self._directory, self._mark = directory, mark
        directory.mkdir(parents=True, exist_ok=True)
        self.begin, self.end = scrapes[0].seconds, scrapes[-1].seconds
        assert self.end - self.begin >= 1, "two scrapes a second apart are needed; TIME in files' names is in milliseconds"
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

    def __exit__(self, *told):
        self.server.__exit__(*told)

    def _serve(self, name):
        # Files have no mark of a series' end, which a scrape makes: what is not there any more is soon not looked for.
        # Rules are not evaluated: on a slow machine they add samples after the end of the recording.
        return Prometheus(self._directory, [], self._mark, name=name, rules=False, flags=[
            f"--query.lookback-delta={5 * self.every_s}s", "--storage.tsdb.retention.time=100y"])

    @staticmethod
    def _make(what, *arguments):
        done = subprocess.run(["promtool", "tsdb", "create-blocks-from", what, *map(str, arguments)], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"promtool makes no blocks from {what}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def job(self):
        """The training job that was there for longest."""
        held = self.server.query(f"sum by (fsdpd_job) (count_over_time(fsdpd_rank_up[{self.end - self.begin + 1:.0f}s]))", self.end)
        assert held, "no scrape has a rank"
        return max(held, key=lambda each: each[1])[0]["fsdpd_job"]

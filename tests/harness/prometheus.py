"""Real Prometheus (Debian's package) that scrapes agents and coordinators every second, with the project's
configuration."""

import json
import urllib.error
import urllib.parse
import urllib.request

import yaml

from harness.dashboards import DIR
from harness.processes import Daemon
from harness.wait import wait_until


class Prometheus:
    def __init__(self, directory, targets, mark, coordinators=(), name="prometheus", flags=(), rules=True):
        """`name`: name of the log file. With rules=False it only answers queries."""
        self.directory, self._name, self._flags = directory, name, flags
        directory.mkdir(parents=True, exist_ok=True)
        config = yaml.safe_load((DIR / "prometheus.yml").read_text())
        # The shipped configuration with a shorter interval.
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(DIR / "rules.yml")] if rules else []
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        (directory / "agents.json").write_text(json.dumps([{"targets": targets}]))
        (directory / "coordinators.json").write_text(json.dumps([{"targets": list(coordinators)}]))
        self._mark = mark
        self.daemon = None
        self.address = None

    def __enter__(self):
        # Prometheus reports the chosen port only in its log.
        self.daemon = Daemon("prometheus", [
            "prometheus", f"--config.file={self.directory / 'prometheus.yml'}", "--log.format=json",
            f"--storage.tsdb.path={self.directory / 'data'}", "--web.listen-address=127.0.0.1:0", *self._flags],
            self.directory / f"{self._name}.log", self._mark)
        self.address = wait_until("Prometheus listens", self._listening)
        wait_until("Prometheus is ready", self._ready)
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            assert self.daemon.stop() == 0, self.daemon.text()[-2000:]
        else:
            self.daemon.kill()

    def query(self, expression, at=None):
        """[(labels, value)], now or at a time. Raises on a query error."""
        data = self._ask("query", query=expression, **({} if at is None else {"time": at}))
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def over_time(self, expression, begin, end, step):
        """[(labels, [(seconds, value)])]"""
        data = self._ask("query_range", query=expression, start=begin, end=end, step=step)
        return [(each["metric"], [(at, float(value)) for at, value in each["values"]]) for each in data["result"]]

    def _ask(self, call, **parameters):
        url = f"http://{self.address}/api/v1/{call}?" + urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters['query']}: {json.load(error)['error']}") from None

    def _listening(self):
        assert self.daemon.running(), self.daemon.text()
        for line in self.daemon.text().splitlines():
            address = json.loads(line).get("address", "") if line.startswith("{") else ""
            if address.startswith("127.0.0.1:") and not address.endswith(":0"):
                return address
        return None

    def _ready(self):
        try:
            return urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).status == 200
        except OSError:
            return False

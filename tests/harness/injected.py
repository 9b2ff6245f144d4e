"""Prometheus with known data: every metric of both daemons, for two jobs on two nodes with GPUs, as if scraped for ten
minutes. A second cluster and a second namespace have the same metrics with other values and one further job, which
queries for the first must not see. Counters grow linearly, so that each rate equals the injected value."""

import hashlib
import runpy
import subprocess
import time

from harness.programs import ROOT
from harness.prometheus import Prometheus

TABLES = runpy.run_path(ROOT / "docs/metrics.py")
ROWS = {daemon: TABLES["rows"](daemon) for daemon in ("agent", "coordinator", "process")}
INSTALLATIONS = [("one", "x"), ("two", "x"), ("one", "y")]  # (cluster, namespace); queries select the first.
PLACES = {("a", "0"): ("n0", "cuda:0"), ("a", "1"): ("n1", "cuda:0"), ("b", "0"): ("n0", "cuda:1"), ("b", "1"): ("n1", "cuda:1")}
JOBS, RANKS, NODES = ["a", "b"], ["0", "1"], ["n0", "n1"]
CARDS = {**{place: rank for rank, place in PLACES.items()}, ("n1", "cuda:2"): ("", "")}  # The last GPU is unused.
VALUES = {  # Values of labels other than places.
    "op": ["all_gather", "reduce_scatter"], "component": ["optimizer", "activations", "workspace"], "instruction": ["Forward head mb 0"],
    "reason": ["power_cap", "hardware_thermal"], "state": ["QUEUED", "RUNNING"], "part": ["compute", "exposed", "rest"],
    "outcome": ["accepted", "refused"], "rule": ["seq_len_fits", "micro_divides"], "to": ["RUNNING"],
    "method": ["GetJob", "SubmitJob"], "code": ["OK"], "operation": ["Get", "Insert"], "version": ["0.1.0"], "attempt": ["1"],
    "class": ["weights", "gradients"], "bound": ["min", "max"], "mode": ["in_place", "moved"], "phase": ["queue", "replay"],
    "file": ["--tokens", "--etcd-cert"]}
KINDS = {"fsdpd_bad_steps_total": ["nonfinite", "spike"], "fsdpd_gpu_ecc_errors_total": ["corrected", "uncorrected"],
         "fsdpd_agent_messages_rejected_total": ["rank", "rendezvous"]}
TIMES = ["queue", "step", "exposed", "save", "pause"]  # Causes of a job's ledger; other causes are those of failures.
CAUSES = ["hang", "node"]
# Reported by rank 0 for its job.
OF_JOBS = {"fsdpd_learning_rate", "fsdpd_validation_loss", "fsdpd_bad_steps_total", *(name for name in ROWS["agent"] if name.startswith(("fsdpd_fp8_", "fsdpd_router_", "fsdpd_expert_"))), "fsdpd_memory_component_bytes", *(name for name in ROWS["agent"] if "_checkpoint" in name)}
LINES = {"fsdpd_job_seconds"}  # Gauges that grow like counters.
SECONDS, EVERY = 600, 15
# Index of the bucket that contains all values of a histogram.
BUCKETS = {"fsdpd_queue_wait_seconds": 3, "fsdpd_recovery_seconds": 2, "fsdpd_tick_seconds": 1,
           "fsdpd_rpc_seconds": 2, "fsdpd_store_seconds": 4}


def number(installation, name, labels):
    """A series' growth per second, or its value; distinct by hash. Larger outside the first installation, so that it
    dominates a maximum."""
    elsewhere = installation != INSTALLATIONS[0]
    if name == "fsdpd_rank_up":
        return 0 if {("fsdpd_job", "b"), ("rank", "1")} <= set(labels) else 1
    if name.endswith("_info"):
        return 1
    if name == "fsdpd_agent_connected":
        return int((("instance", "n0") in labels) != elsewhere)
    drawn = hashlib.sha256(repr((installation, name, labels)).encode()).digest()
    return 3 + int.from_bytes(drawn[:4], "big") % 99_991 / 16 + (1e6 if elsewhere else 0)


def values_of(name, label):
    if label == "kind":
        return KINDS[name]
    if label == "cause":
        return TIMES if name in ("fsdpd_job_seconds", "fsdpd_all_jobs_seconds") else CAUSES
    return VALUES[label]


def places(daemon, name, labels):
    """Yields (instance, labels of the place) for the series of a row."""
    if "device" in labels and name.startswith("fsdpd_gpu"):
        for (node, device), (job, rank) in CARDS.items():
            if job or name not in RANKED_CARDS:
                yield node, {"fsdpd_node": node, "device": device, **({"fsdpd_job": job, "rank": rank} if "rank" in labels and job else {})}
    elif daemon == "agent" and "rank" in labels:
        for (job, rank), (node, device) in PLACES.items():
            if name in OF_JOBS and rank != "0":
                continue
            yield node, {"fsdpd_job": job, "rank": rank, **({"fsdpd_node": node, "device": device} if "device" in labels else {})}
    elif daemon == "agent":
        for node in NODES:
            for job in JOBS if "fsdpd_job" in labels else [None]:
                yield node, {"fsdpd_job": job} if job else {}
    elif daemon == "process":
        for instance in [*NODES, "c0"]:
            yield instance, {}
    else:
        for job in JOBS if "fsdpd_job" in labels else [None]:
            where = {"fsdpd_job": job, "rank": "1", "fsdpd_node": "n1"}
            yield "c0", {label: value for label, value in where.items() if label in labels}


# Metrics that a GPU has only while a rank uses it.
RANKED_CARDS = {"fsdpd_gpu_memory_outside_bytes", "fsdpd_gpu_allocator_retries_total", "fsdpd_gpu_out_of_memory_total",
                "fsdpd_gpu_step_energy_joules", "fsdpd_gpu_step_sm_clock_hertz"}
PLACE_LABELS = {"fsdpd_job", "rank", "fsdpd_node", "device"}


def series():
    """Yields (installation, metric, kind, labels including the instance) for all series."""
    for installation in INSTALLATIONS:
        for daemon, rows in ROWS.items():
            for name, row in rows.items():
                labels = [label for label in row["labels"].split(", ") if label]
                for instance, where in places(daemon, name, labels):
                    found = [{"instance": instance, **where}]
                    for label in labels:
                        if label not in PLACE_LABELS or label == "device" and "device" not in where:
                            found = [{**each, label: value} for each in found for value in values_of(name, label)]
                    for each in found:
                        yield installation, name, row["kind"], tuple(sorted(each.items()))


class Injected(Prometheus):
    """A Prometheus that contains all series, queried at the time `now`."""

    def __init__(self, directory, mark):
        super().__init__(directory, [], mark)
        # Within one closed two-hour block of Prometheus.
        self.begin = int(time.time()) // 7200 * 7200 - 3 * 7200 + 600
        self.now = self.begin + SECONDS
        self.table = {}
        text = "".join(self._lines()) + "# EOF\n"
        (directory / "injected.txt").write_text(text)
        subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", directory / "injected.txt", directory / "data"],
                       check=True, capture_output=True)

    def ask(self, expression):
        return self.query(expression, at=self.now)

    def rate(self, name, **labels):
        return self.table[name, tuple(sorted(labels.items()))]

    def at(self, name, **labels):
        """Value at the time `now`."""
        grows = name.endswith("_total") or name in LINES
        return self.rate(name, **labels) * (SECONDS if grows else 1)

    def _lines(self):
        for installation, name, kind, labels in series():
            drawn = number(installation, name, labels)
            if installation == INSTALLATIONS[0]:
                self.table[name, labels] = drawn
            elsewhere = installation != INSTALLATIONS[0]
            everywhere = dict(zip(("cluster", "namespace"), installation)) | {"job": "fsdpd"} | dict(labels)
            if elsewhere and everywhere.get("fsdpd_job") == "b":
                everywhere["fsdpd_job"] = "c"
            if kind != "histogram":
                yield from self._samples(name, everywhere, drawn, grows=kind == "counter" or name in LINES)
                continue
            bounds = [each.strip() for each in TABLES["bounds"]()[name][0].split(",")] + ["+Inf"]
            first = BUCKETS[name] + (2 if elsewhere else 0)
            for index, bound in enumerate(bounds):
                yield from self._samples(name + "_bucket", {**everywhere, "le": bound}, drawn if index >= first else 0, grows=True)

    def _samples(self, name, labels, drawn, grows):
        text = ",".join(f'{label}="{value}"' for label, value in labels.items())
        return (f"{name}{{{text}}} {drawn * (seconds if grows else 1)!r} {self.begin + seconds}\n" for seconds in range(0, SECONDS + 1, EVERY))

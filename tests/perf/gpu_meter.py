"""Energy, power and SM clock of this machine's GPUs during a run, from NVML.

    with Meter() as meter:
        ...
    meter.between(began_ns, ended_ns)   # watts per GPU and SM MHz; {} without NVML's Python package

A thread reads the counters ten times per second. Times are Unix nanoseconds.
"""

import statistics
import threading
import time

try:
    import pynvml
except ImportError:
    pynvml = None

PERIOD_S = 0.1


class Meter:
    def __init__(self):
        self.samples = []  # (unix ns, [millijoules by GPU], [MHz by GPU])
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        if pynvml:
            pynvml.nvmlInit()
            self.gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    def __enter__(self):
        if pynvml:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        if pynvml:
            self.thread.join()

    def run(self):
        while not self.stop.wait(PERIOD_S):
            self.samples.append((time.time_ns(), [pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) for gpu in self.gpus],
                                 [pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) for gpu in self.gpus]))

    def between(self, began_ns, ended_ns):
        inside = [sample for sample in self.samples if began_ns <= sample[0] <= ended_ns]
        if len(inside) < 2:
            return {}
        (first, energy, _), (last, energy_after, _) = inside[0], inside[-1]
        seconds = (last - first) / 1e9
        watts = statistics.mean(after - before for before, after in zip(energy, energy_after)) / 1e3 / seconds
        return {"watts": round(watts), "sm_mhz": round(statistics.median(mhz for _, _, all_mhz in inside for mhz in all_mhz))}

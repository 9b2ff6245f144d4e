"""Network namespace for an agent, with a veth pair that can be disconnected. Requires root."""

import contextlib
import os
import subprocess

import pytest


class Namespace:
    def __init__(self, number):
        self.name = f"fsdpd-{os.getpid()}-{number}"
        self.prefix = ["ip", "netns", "exec", self.name]
        self._outer = f"fs{os.getpid() % 100000}v{number}"
        subnet = f"10.213.{os.getpid() % 256}"
        self.outer, self.inner = f"{subnet}.{4 * number + 1}", f"{subnet}.{4 * number + 2}"  # Addresses.

    def make(self):
        for command in (f"netns add {self.name}", f"link add {self._outer} type veth peer name inner netns {self.name}",
                        f"address add {self.outer}/30 dev {self._outer}", f"link set {self._outer} up",
                        f"-n {self.name} address add {self.inner}/30 dev inner", f"-n {self.name} link set inner up",
                        f"-n {self.name} link set lo up"):
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if done.returncode != 0:
                self.remove()
                pytest.skip(f"needs network namespaces, which take root: ip {command}: {done.stderr.strip()}")

    def remove(self):
        for command in (f"link del {self._outer}", f"netns del {self.name}"):
            subprocess.run(["ip", *command.split()], capture_output=True)

    def cut(self):
        """Disconnects silently: packets are dropped."""
        subprocess.run(["ip", "-n", self.name, "link", "set", "inner", "down"], check=True)

    def repair(self):
        subprocess.run(["ip", "-n", self.name, "link", "set", "inner", "up"], check=True)


@contextlib.contextmanager
def namespace(number=0):
    made = Namespace(number)
    made.make()
    try:
        yield made
    finally:
        made.remove()

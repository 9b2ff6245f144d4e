"""etcd cluster of one or three real processes on loopback (Debian's etcd-server, third_party/debian.txt)."""

import json
import socket
import urllib.error
import urllib.request

from harness.processes import Daemon
from harness.wait import wait_until


def free_ports(count):
    """Ports that were free a moment ago, because etcd does not report a port that it picked."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Etcd:
    def __init__(self, directory, mark, members=3, addresses=(), pki=None):
        """`addresses`: additional address of each member, at port 2379, for clients with a certificate of `pki`
        (deploy/certificates)."""
        self.directory, self._mark = directory, mark
        self._addresses, self.pki = addresses, pki
        ports = free_ports(2 * members)
        self._clients, self._peers = ports[:members], ports[members:]
        self.members = [None] * members
        for index in range(members):
            self.start(index, wait=False)
        for index in range(members):
            self._wait_for(index)

    @property
    def store(self):
        """Value for fsdpd-coordinator's --store."""
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self._clients) + "/fsdpd"

    def start(self, index, wait=True):
        client, peer = (f"http://127.0.0.1:{ports[index]}" for ports in (self._clients, self._peers))
        cluster = ",".join(f"m{each}=http://127.0.0.1:{port}" for each, port in enumerate(self._peers))
        self.members[index] = Daemon(f"etcd-{index}", [
            "etcd", "--name", f"m{index}", "--data-dir", self.directory / f"etcd-{index}", "--logger=zap",
            *self._served(index, client), "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
            # Tolerates slow disks on a machine that runs builds.
            "--heartbeat-interval=200", "--election-timeout=2000"],
            self.directory / f"etcd-{index}.log", self._mark)
        if wait:
            self._wait_for(index)

    def _served(self, index, client):
        if not self._addresses:
            return ["--listen-client-urls", client]
        return ["--listen-client-urls", f"{client},https://{self._addresses[index]}:2379", "--client-cert-auth",
                "--trusted-ca-file", self.pki / "ca.crt", "--cert-file", self.pki / "coordinator.crt",
                "--key-file", self.pki / "coordinator.key"]

    def _wait_for(self, index):
        def answers():
            assert self.members[index].running(), self.members[index].text()[-2000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._clients[index]}/health", timeout=10) as answer:
                    return json.load(answer)["health"] == "true"
            except (urllib.error.URLError, OSError):
                return False
        wait_until(f"etcd {index} is healthy", answers)

    def stop(self):
        for member in self.members:
            if member.running():
                member.kill()

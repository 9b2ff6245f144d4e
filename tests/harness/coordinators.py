"""Cluster of several coordinators with one state in etcd, of which one leads, and two agents."""

import contextlib
import signal

import grpc

from harness import stubs
from harness.cluster import Cluster
from harness.etcd import Etcd, free_ports
from harness.processes import Daemon
from harness.programs import program
from harness.wait import wait_until

NAMES = ("a", "b", "c")


class Coordinators(Cluster):
    """Three coordinators. With lease_s=None, the default lease."""

    def __init__(self, directory, members=1, lease_s=4, security=None):
        super().__init__(directory, start=False, security=security)
        self._lease_s = lease_s
        self.etcd = Etcd(self.directory, self.mark, members)
        self.addresses = dict(zip(NAMES, (f"127.0.0.1:{port}" for port in free_ports(len(NAMES)))))
        self.address = ",".join(self.addresses.values())
        self.daemons = {}
        self._channels = {}

    def __enter__(self):
        try:
            for name in NAMES:
                self.start_one(name)
            self.leader()
            for index in range(2):
                self.start_agent(f"node-{index}", wait=False)
            self.wait_nodes(2)
            return self
        except BaseException:
            self._kill_all()
            raise

    def __exit__(self, kind, error, trace):
        with contextlib.ExitStack() as stack:
            stack.callback(self.etcd.stop)
            if kind is None:
                for agent in self.agents.values():
                    assert agent.stop() == 0, agent.text()[-2000:]
                codes = {name: each.stop() for name, each in self.daemons.items() if each.running()}
                assert not any(codes.values()), codes
                self.etcd.stop()
            super().__exit__(kind, error, trace)

    def _kill_all(self):
        for each in (*self.daemons.values(), *self.etcd.members):
            if each and each.running():
                each.process.send_signal(signal.SIGCONT)
                each.kill()
        super()._kill_all()

    def start_one(self, name):
        port_file = self.directory / f"{name}.port"
        port_file.unlink(missing_ok=True)
        self.daemons[name] = Daemon(name, [
            program("coordinator/fsdpd-coordinator"), "--listen", self.addresses[name], "--store", self.etcd.store,
            *(["--leader-lease-seconds", str(self._lease_s)] if self._lease_s else []), "--port-file", port_file,
            *(self.security.coordinator_flags() if self.security else ["--insecure"])],
            self.directory / f"{name}.log", self.mark)
        self._read_port_file(self.daemons[name], port_file)

    def stub(self, name):
        if name not in self._channels:
            options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 300)]
            self._channels[name] = (
                self.security.channel(self.addresses[name], token=self.security.token("ada"), options=options)
                if self.security else grpc.insecure_channel(self.addresses[name], options))
        return stubs.coordinator_grpc.CoordinatorStub(self._channels[name])

    def leads(self, name):
        """Whether it leads, determined by its reply to a write for an unknown node: a standby rejects any write."""
        try:
            self.stub(name).UncordonNode(stubs.coordinator.UncordonNodeRequest(node="none"), timeout=5)
        except grpc.RpcError as error:
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return True

    def leader(self, *but):
        return wait_until("a coordinator leads", lambda: next(
            (name for name in NAMES if name not in but and self.daemons[name].running() and self.leads(name)), None))

    def api(self):
        return self.stub(self.leader(*self.gone()))

    def cancel(self, job_id):
        """Cancels with fsdpctl, which retries all coordinators: a former leader may be switching to standby."""
        self.ctl("cancel", job_id, "--grace", 5).expect(0)
        return self.wait_state(job_id, "CANCELLED", "SUCCEEDED", "FAILED")

    def gone(self):
        return [name for name in NAMES if not self.daemons[name].running()]

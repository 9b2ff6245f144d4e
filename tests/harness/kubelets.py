"""Kubernetes cluster with nodes: the control plane of harness/apiserver.py, and for each node a real containerd, kubelet
and kube-proxy (tests/kubernetes/build nodes) in namespaces of the node. A bridge connects the nodes' networks; CoreDNS
on it serves the cluster's names.

A node consists of PID, mount and network namespaces that end with its first process. It has its own /run, /var/lib and
/var/log, and shares all other files with this machine. Files are mounted over the sysctls that a kubelet would set for
the whole machine. Only cgroups remain after a node ends, and stop() removes them.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess

import yaml

from harness.apiserver import ApiServer, programs
from harness.processes import Daemon, descendants
from harness.wait import wait_until

CGROUPS = pathlib.Path("/sys/fs/cgroup")
_CNI = "/usr/lib/cni"

# $1: the programs of tests/kubernetes/build, $2: the node's directory, $3: its name, $4: its address, $5: the bridge's
# address, then "SUBNET ADDRESS" of each other node.
_FIRST_PROCESS = r"""
programs=$1 directory=$2 name=$3 address=$4 bridge=$5
shift 5
export PATH=$programs:$PATH
mount -t tmpfs tmpfs /run
for each in lib log; do mount --bind "$directory/$each" /var/$each; done
mount --bind "$directory/resolv.conf" /etc/resolv.conf
for each in kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes vm/overcommit_memory; do
  cp --no-preserve=mode /proc/sys/$each "$directory/sysctl-${each##*/}"
  mount --bind "$directory/sysctl-${each##*/}" /proc/sys/$each
done
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$bridge"
while [ $# != 0 ]; do ip route add "$1" via "$2"; shift 2; done
echo 1 > /proc/sys/net/ipv4/ip_forward

containerd --config "$directory/containerd.toml" >"$directory/containerd.log" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.1; done
for each in "$directory"/../images/*.tar; do ctr --namespace k8s.io images import "$each"; done
kube-proxy --config "$directory/kube-proxy.yaml" >"$directory/kube-proxy.log" 2>&1 &
kubelet --config "$directory/kubelet.yaml" --kubeconfig "$directory/kubeconfig" --hostname-override "$name" --node-ip "$address" \
  >"$directory/kubelet.log" 2>&1 &
wait  # And reap orphaned processes.
"""


def missing():
    """Missing requirements of this machine; empty if none."""
    lacks = [f"Debian package {package}" for path, package in {
        "runc": "runc", "iptables": "iptables", f"{_CNI}/ptp": "containernetworking-plugins"}.items() if not shutil.which(path)]
    lacks += [f"tests/kubernetes/build {' '.join(of)}".strip() for of in ((), ("nodes",)) if not programs(*of)]
    return [*lacks, *(["root"] if os.geteuid() != 0 else [])]


def hierarchies():
    """Roots of the cgroup hierarchies: one per controller, or one for all (cgroup v2)."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [each for each in CGROUPS.iterdir() if (each / "cgroup.procs").exists() and not each.is_symlink()]


class Node:
    """One node of a cluster; `number` starts at 1. Its name is as in kind (docs/tutorials/kubernetes.md)."""

    def __init__(self, cluster, number):
        self._cluster, self.name = cluster, f"fsdpd-worker{number if number > 1 else ''}"
        self.address, self.pods = f"{cluster.net}.0.{number}", f"{cluster.net}.{number}.0/24"
        self.directory = cluster.directory / self.name
        self._cgroup, self.link = f"fsdpd-{os.getpid()}-{number}", f"fk{os.getpid()}n{number}"
        self._first = None

    def start(self, others):
        for each in ("lib", "log", "cni"):
            (self.directory / each).mkdir(parents=True)
        for each in hierarchies():
            (each / self._cgroup).mkdir()
            if each.name == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (each / self._cgroup / file).write_text((each / file).read_text())
        self._write_settings()
        routes = [part for each in others for part in (each.pods, each.address)]
        self._first = Daemon(self.name, ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-ec",
                                         _FIRST_PROCESS, "bash", self._cluster.built, self.directory, self.name, self.address,
                                         self._cluster.bridge_address, *routes], self.directory / "node.log", self._cluster.mark)
        own = os.readlink("/proc/self/ns/net")
        wait_until("the node has a network", lambda: os.readlink(f"/proc/{self._first.pid}/ns/net") != own)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self._first.pid)
        run("ip", "link", "set", self.link, "master", self._cluster.bridge, "up")

    def _write_settings(self):
        write, directory = self._write, self.directory
        # Same as in pods.
        (directory / "resolv.conf").write_text(f"nameserver {self._cluster.bridge_address}\nsearch fsdpd.svc.cluster.local\n"
                                            "options ndots:5\n")
        (directory / "nothing.conf").write_text("")
        shutil.copy(self._cluster.kubeconfig_of(f"system:node:{self.name}"), directory / "kubeconfig")
        cri = '[plugins."io.containerd.grpc.v1.cri"'
        (directory / "containerd.toml").write_text("\n".join((
            "version = 2", f"{cri}]", 'sandbox_image = "localhost/pause:1"',
            # Processes here may not lower their OOM score.
            "restrict_oom_score_adj = true",
            f"{cri}.cni]", f'bin_dir = "{_CNI}"', f'conf_dir = "{directory}/cni"',
            f"{cri}.containerd.runtimes.runc]", 'runtime_type = "io.containerd.runc.v2"', "")))
        # Each pod has a point-to-point link to its node, which routes, so all traffic passes kube-proxy's rules.
        (directory / "cni/pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [{
            "type": "ptp", "ipMasq": False, "ipam": {"type": "host-local", "ranges": [[{"subnet": self.pods}]],
                                                     "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/var/lib/cni"}}]}))
        write("kube-proxy.yaml", "kubeproxy", "KubeProxyConfiguration", {
            "mode": "iptables", "hostnameOverride": self.name, "clientConnection": {"kubeconfig": str(self._cluster.kubeconfig)},
            # Kernel limits, which are global.
            "conntrack": {"maxPerCore": 0, "min": 0}})
        write("kubelet.yaml", "kubelet", "KubeletConfiguration", {
            "address": self.address, "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [self._cluster.bridge_address], "clusterDomain": "cluster.local", "resolvConf": f"{directory}/nothing.conf",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self._cgroup}", "failCgroupV1": False, "enforceNodeAllocatable": [],
            "failSwapOn": False, "oomScoreAdj": 0,
            # The disk is shared with other users of this machine.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100})

    def _write(self, file, group, kind, fields):
        version = "v1beta1" if group == "kubelet" else "v1alpha1"
        (self.directory / file).write_text(yaml.safe_dump({"apiVersion": f"{group}.config.k8s.io/{version}", "kind": kind, **fields}))

    def inside(self, *command):
        """Prefixes a command to run it in the node's network, PID and mount namespaces."""
        first = next(each.pid for each in descendants(self._first.pid) if each.parent == self._first.pid)
        return ["nsenter", f"--target={first}", "--net", "--mount", *map(str, command)]

    def processes(self, name):
        return [each for each in descendants(self._first.pid) if each.program == name]

    def plug(self, there):
        """Sets the link to the bridge up or down. Both ends keep their addresses, and only see the missing carrier."""
        run("ip", "link", "set", self.link, "up" if there else "down")

    def logs(self):
        return "".join(f"--- {self.name} {each.name}\n" + each.read_text(errors="replace")[-3000:] + "\n"
                       for each in sorted(self.directory.glob("*.log")))

    def stop(self):
        with contextlib.ExitStack() as ends:  # Runs all, in reverse order, even if one fails.
            ends.callback(shutil.rmtree, self.directory / "lib", ignore_errors=True)  # Unpacked images: gigabytes.
            for each in hierarchies():
                ends.callback(self._remove_groups, each / self._cgroup)
            ends.callback(subprocess.run, ["ip", "link", "del", self.link], capture_output=True)
            if self._first:
                ends.callback(self._kill)

    def _kill(self):
        left = {each.pid for each in descendants(self._first.pid)}
        self._first.kill()
        wait_until("no process of the node is left", lambda: not left & {each.pid for each in descendants(os.getpid())})

    @staticmethod
    def _remove_groups(group):
        def gone():
            for directory in [*sorted(group.rglob("*/"), key=lambda path: -len(path.parts)), group]:
                with contextlib.suppress(OSError):  # The kernel may still be releasing its last process.
                    directory.rmdir()
            return not group.exists()
        wait_until(f"{group} is gone", gone)


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def free_net():
    """Prefix of an unused 10.x network."""
    known = run("ip", "-4", "route")
    return next(net for net in (f"10.{number}" for number in range(100, 200)) if f"{net}." not in known)


class Kubelets(ApiServer):
    """`nodes`: number of nodes. `images`: directory with image files that each node imports."""

    def __init__(self, directory, mark, nodes=2):
        self.built, self.mark = programs("nodes"), mark
        # Unique per run of the test.
        self.net, self.bridge = free_net(), f"fk{os.getpid()}"
        self.bridge_address = f"{self.net}.0.254"
        self.directory = directory
        self.nodes = {each.name: each for each in (Node(self, number + 1) for number in range(nodes))}
        run("ip", "link", "add", self.bridge, "type", "bridge")
        try:
            run("ip", "address", "add", f"{self.bridge_address}/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            super().__init__(directory, mark, self.bridge_address, [(f"system:node:{each}", "system:nodes") for each in self.nodes],
                             node_grace="50s")  # Kubernetes' default.
            self._serve_names()
            for each in self.nodes.values():
                run("ip", "route", "add", each.pods, "via", each.address)
                each.start([other for other in self.nodes.values() if other is not each])
            wait_until("nodes are ready", lambda: sorted(self.ready_nodes()) == sorted(self.nodes))
        except BaseException:
            print(self.logs())
            self.stop()
            raise

    def add_address(self, number):
        """Adds an address of this machine that pods can reach; removed with the bridge."""
        address = f"{self.net}.0.{number}"
        run("ip", "address", "add", f"{address}/24", "dev", self.bridge)
        return address

    def _serve_names(self):
        file = self.directory / "Corefile"
        file.write_text(f"cluster.local:53 {{\n  bind {self.bridge_address}\n  kubernetes cluster.local {{\n"
                        f"    kubeconfig {self.kubeconfig} test\n  }}\n}}\n")
        names = Daemon("coredns", [self.built / "coredns", "-conf", file], self.directory / "coredns.log", self.mark)
        self._daemons.append(names)
        wait_until("CoreDNS serves", lambda: "CoreDNS-" in names.text() or self._ended(names))

    @staticmethod
    def _ended(daemon):
        assert daemon.running(), daemon.text()

    def stop(self):
        """Stops all parts, even if one fails."""
        with contextlib.ExitStack() as ends:
            # Also removes its routes.
            ends.callback(subprocess.run, ["ip", "link", "del", self.bridge], capture_output=True)
            if hasattr(self, "etcd"):
                ends.callback(super().stop)
            for each in self.nodes.values():
                ends.callback(each.stop)

    def ready_nodes(self):
        return [each["metadata"]["name"] for each in self.ask("GET", "/api/v1/nodes")["items"] if any(
            is_so["type"] == "Ready" and is_so["status"] == "True" for is_so in each["status"].get("conditions", []))]

    def environment(self):
        """Environment of a shell with this cluster's kubectl."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": f"{self.built}:{os.environ['PATH']}"}

    def logs(self):
        return "".join(each.logs() for each in self.nodes.values())

"""Test harness that runs the real programs: processes, clusters, the command line, gRPC, a terminal, Prometheus.

Start with cluster.py. All processes are real, listen on loopback with ports that the kernel picks, and are verified to
have ended at teardown.
"""

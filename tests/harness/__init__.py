"""Runs the real programs for tests: processes, clusters, the command line, gRPC, a terminal, Prometheus.

Start with cluster.py. Everything here starts real processes on loopback with ports that the kernel picks, and
proves when it ends that none of them is left.
"""

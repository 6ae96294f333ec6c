"""Leases, ports, processes, readiness, logs: everything that touches the machine. Only `reaping` sends signals."""

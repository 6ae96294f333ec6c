"""Workloads, and the client that sends them: one record per request."""

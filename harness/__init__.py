"""Acceptance gate for vLLM speculative decoding. Start reading at ``harness.deployments``, then ``harness.run``."""

__version__ = "0.1.0"

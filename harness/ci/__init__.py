"""Continuous integration: steps rendered from the registry, what a change selects, and the audit of vLLM's own."""

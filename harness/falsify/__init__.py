"""The gate proves itself: ways to break a working deployment, each with the check that must catch it."""

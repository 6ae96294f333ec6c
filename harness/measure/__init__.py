"""What a server counted: metrics pages, deltas, acceptance, token matching. Pure, but for `metrics.fetch`."""

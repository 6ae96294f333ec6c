"""One run, in the order of its phases: prepare, lease, launch, ready, drive, collect, stop, judge."""

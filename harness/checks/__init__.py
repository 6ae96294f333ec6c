"""One small pure function per assertion: `RunFacts` in, `CheckResult` out. `harness.checks.registry` names them all."""

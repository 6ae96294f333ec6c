"""The command line with standalone deployments added: the gate's own rails, one server and no transfer.

python -m tests.e2e.solo run eagle3-solo --baselines FILE
"""

from __future__ import annotations

import dataclasses

from harness.cli import main
from harness.deployments import DEPLOYMENTS, PD_CHECKS, Deployment, Parallel, Role

# What says something without a transfer and without a pair; the rest of the checks is the pair's.
CHECKS = tuple(check for check in PD_CHECKS if check != "kv_moved")

BASELINE = """\
[[baseline]]
key = "{name}/tiny"
deployment = "{name}"
models = "tiny"
exact = true
estimator = "standalone"
sided = "two"

[baseline.certificate]
workload = "computed for each run"
vllm_version = "any"
hardware = "any"
date = "computed for each run"
source = "computed by the harness.zoo simulator"
reason = "a standalone server pads no draft, so its counts are the simulator's own"
"""


def standalone(name: str, pair: Deployment, tp: int = 1) -> Deployment:
    """The decode server of ``pair`` on its own, speculating as it does there, with no transfer."""
    server = Role("server", parallel=Parallel(tp=tp), speculation=pair.role("decode").speculation)
    return dataclasses.replace(pair, name=name, roles=(server,), transfer=None, checks=CHECKS, tags=())


SOLO = {
    deployment.name: deployment
    for deployment in (
        standalone("eagle3-solo", DEPLOYMENTS["eagle3-pd"]),
        standalone("mtp-solo", DEPLOYMENTS["mtp-pd"]),
        standalone("eagle3-solo-tp2", DEPLOYMENTS["eagle3-pd"], tp=2),
    )
}

if __name__ == "__main__":
    DEPLOYMENTS.update(SOLO)
    main()

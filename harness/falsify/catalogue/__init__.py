"""Every mutation, by family. What must catch each is declared here and never filled in from a run."""

from __future__ import annotations

from harness.falsify.catalogue.counters import COUNTERS
from harness.falsify.catalogue.drafter import DRAFTER
from harness.falsify.catalogue.plan import PLAN
from harness.falsify.catalogue.router import ROUTER
from harness.falsify.catalogue.transfer import TRANSFER
from harness.falsify.changes import StandIn, TargetWeights
from harness.falsify.mutation import Change, DeploymentName, Mutation
from harness.verdict import Verdict

_DEPLOYMENTS: tuple[DeploymentName, ...] = ("eagle3-pd", "mtp-pd")


def _control(deployment: DeploymentName, name: str, what: str, *changes: Change) -> Mutation:
    return Mutation(f"{deployment}-{name}", "control", deployment, what, changes, caught_by="", verdict=Verdict.PASS)


# The deployment as it is, behind the stand-in router at its best, and with the target that `router-hot` needs: all
# must pass, or a catch would prove nothing.
CONTROLS: tuple[Mutation, ...] = (
    *(_control(deployment, "clean", "nothing is changed") for deployment in _DEPLOYMENTS),
    *(
        _control(deployment, "stand-in", "the stand-in router does nothing wrong", StandIn("honest"))
        for deployment in _DEPLOYMENTS
    ),
    _control("eagle3-pd", "soft", "the target's logits are soft, the temperature is 0", TargetWeights("soft")),
)

MUTATIONS: tuple[Mutation, ...] = (*PLAN, *DRAFTER, *COUNTERS, *TRANSFER, *ROUTER)

# What the issue asks for and these two deployments on CPU cannot show, with the reason.
NOT_EXPRESSIBLE: tuple[tuple[str, str], ...] = (
    (
        "drafter fires on one DP rank only",
        "neither deployment has more than one engine; phantom-engine shows the check",
    ),
    ("EPLB never fires", "the CPU platform refuses EPLB (vllm/config/parallel.py: CUDA, ROCm, XPU only)"),
    ("EPLB fires only after the run", "as above"),
    ("EPLB ruins the drafter afterwards", "as above"),
    ("metrics of one engine only", "needs data parallelism; metrics-of-prefill is the nearest"),
    ("temperature above 0 on a target as it is", "the tiny ones are one-hot up to 2; router-hot softens the target"),
    ("add_special_tokens flipped by the client", "the tiny tokenizer adds none; tokenizer-adds-bos shows the effect"),
    ("KV lost in device memory only", "the CPU platform has one kind of memory; kv_buffer_device is always cpu"),
)

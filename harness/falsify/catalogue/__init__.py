"""Every mutation, by family. What must catch each is declared here and never filled in from a run."""

from __future__ import annotations

from harness.falsify.catalogue.counters import COUNTERS
from harness.falsify.catalogue.drafter import DRAFTER
from harness.falsify.catalogue.plan import PLAN
from harness.falsify.catalogue.referenced import REFERENCED
from harness.falsify.catalogue.router import ROUTER
from harness.falsify.catalogue.transfer import TRANSFER
from harness.falsify.changes import StandIn, TargetWeights
from harness.falsify.mutation import Change, DeploymentName, Mutation
from harness.verdict import Verdict

_PAIRS: tuple[DeploymentName, ...] = ("eagle3-pd", "mtp-pd")
_PAIRED: tuple[DeploymentName, ...] = ("eagle3-dp2", "deepseek-mtp")


def _control(deployment: DeploymentName, name: str, what: str, *changes: Change) -> Mutation:
    return Mutation(f"{deployment}-{name}", "control", deployment, what, changes, caught_by="", verdict=Verdict.PASS)


# The deployment as it is, behind the stand-in router at its best, and with the target that `router-hot` needs: all
# must pass, or a catch would prove nothing.
CONTROLS: tuple[Mutation, ...] = (
    *(_control(deployment, "clean", "nothing is changed") for deployment in (*_PAIRS, *_PAIRED)),
    *(
        _control(deployment, "stand-in", "the stand-in router does nothing wrong", StandIn("honest"))
        for deployment in _PAIRS
    ),
    _control("eagle3-pd", "soft", "the target's logits are soft, the temperature is 0", TargetWeights("soft")),
)

MUTATIONS: tuple[Mutation, ...] = (*PLAN, *DRAFTER, *COUNTERS, *TRANSFER, *ROUTER, *REFERENCED)

# What the issue asks for and these deployments on CPU cannot show, with the reason.
NOT_EXPRESSIBLE: tuple[tuple[str, str], ...] = (
    ("EPLB never fires", "the CPU platform refuses EPLB (vllm/config/parallel.py: CUDA, ROCm, XPU only)"),
    ("EPLB fires only after the run", "as above"),
    ("EPLB ruins the drafter afterwards", "as above"),
    ("too few problems solved", "tiny models solve none, so gsm8k_threshold judges nothing here"),
    (
        "a synthetic acceptance that misses its length",
        "the CPU rejection sampler has no synthetic mode (vllm/utils/cpu_triton_utils.py)",
    ),
    ("temperature above 0 on a target as it is", "the tiny ones are one-hot up to 2; router-hot softens the target"),
    ("add_special_tokens flipped by the client", "the tiny tokenizer adds none; tokenizer-adds-bos shows the effect"),
    ("KV lost in device memory only", "the CPU platform has one kind of memory; kv_buffer_device is always cpu"),
)

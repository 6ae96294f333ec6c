"""KV that does not arrive, arrives wrong, or is not needed because decode computes it again; engines that stop."""

from __future__ import annotations

from harness.falsify.changes import EngineFault, JsonArgument
from harness.falsify.mutation import DeploymentName, Mutation

_TRANSFER = "--kv-transfer-config"
_TEXT = "output_matches_reference"


def _kv(
    name: str,
    what: str,
    fault: str,
    caught_by: str = _TEXT,
    on: DeploymentName = "mtp-pd",
    hub: str | None = None,
    smoke: bool = False,
) -> Mutation:
    changes = (EngineFault("decode", fault),)
    return Mutation(name, "transfer", on, what, changes, caught_by, hub=hub, smoke=smoke)


TRANSFER = (
    _kv("kv-zeroed", "all KV arrives as zeros", "kv-zeroed:1", on="eagle3-pd", smoke=True),
    _kv("kv-zeroed-hybrid", "all KV and state arrive as zeros", "kv-zeroed:1"),
    _kv("kv-truncated", "the second half of the blocks arrives as zeros", "kv-truncated:1", on="eagle3-pd"),
    _kv(
        "kv-first-block-lost",
        "the first block is lost and the others land one place early, as in vLLM 0.24",
        "kv-first-block-lost",
        on="eagle3-pd",
    ),
    _kv("kv-of-another-request", "KV of the request before", "kv-of-another-request", on="eagle3-pd"),
    *(
        _kv(f"kv-layer-{layer}-missing", f"layer {layer} is not sent", f"kv-layer-missing:{layer}", on="eagle3-pd")
        for layer in (0, 3)
    ),
    _kv(
        "kv-drafter-missing",
        "the drafter's own layer is not sent",
        "kv-drafter-missing",
        "acceptance_length",
        on="eagle3-pd",
    ),
    _kv("kv-mtp-missing", "the MTP layer's own KV is not sent", "kv-drafter-missing", "acceptance_length"),
    _kv("state-recurrent-lost", "the recurrent state is not sent", "kv-recurrent-lost"),
    _kv("state-convolution-lost", "the convolution state is not sent", "kv-convolution-lost"),
    _kv("state-stale", "convolution and recurrent state are of the request before", "kv-recurrent-stale"),
    _kv("kv-never-sent", "no block is read, and nobody is told", "kv-never-sent", "kv_moved", on="eagle3-pd"),
    _kv("recomputed", "decode computes every prompt itself", "kv-recomputed:1", "kv_moved", "eagle3-pd", smoke=True),
    _kv("recomputed-once", "decode computes one prompt in eight itself", "kv-recomputed:8", "kv_moved", "eagle3-pd"),
    Mutation(
        "transfer-fails",
        "transfer",
        "eagle3-pd",
        "each fifth transfer fails",
        (EngineFault("decode", "kv-transfer-fails:5"),),
        "requests_succeeded",
    ),
    Mutation(
        "transfer-fails-healed",
        "transfer",
        "eagle3-pd",
        "each fifth transfer fails and the engine recomputes in silence",
        (
            EngineFault("decode", "kv-transfer-fails:5"),
            JsonArgument("decode", _TRANSFER, (("kv_load_failure_policy", "recompute"),)),
        ),
        "kv_moved",
    ),
    Mutation(
        "kv-expired",
        "transfer",
        "eagle3-pd",
        "blocks expire on prefill before decode reads them",
        (
            EngineFault("decode", "kv-read-late:2.5"),
            JsonArgument("prefill", _TRANSFER, (("kv_connector_extra_config", {"kv_lease_duration": 1}),)),
        ),
        "kv_moved",
    ),
    Mutation(
        "diverged",
        "output",
        "eagle3-pd",
        "with speculation the 12th output token is another one",
        (EngineFault("decode", "output-diverged:11"),),
        _TEXT,
    ),
    Mutation(
        "drafts-unchecked",
        "output",
        "eagle3-pd",
        "the rejection sampler accepts every draft token",
        (EngineFault("decode", "output-unchecked"),),
        _TEXT,
    ),
    Mutation(
        "hung-after-run",
        "liveness",
        "eagle3-pd",
        "the engine stops stepping after the last request; /health stays green",
        (EngineFault("decode", "engine-hung:17"),),
        "answers_after_run",
    ),
    Mutation(
        "hung-in-run",
        "liveness",
        "eagle3-pd",
        "the engine stops stepping in the middle of the run",
        (EngineFault("decode", "engine-hung:9"),),
        "requests_succeeded",
    ),
    Mutation(
        "engine-dies",
        "liveness",
        "mtp-pd",
        "the engine process ends in the middle of the run",
        (EngineFault("decode", "engine-died:9"),),
        "drive",
    ),
)

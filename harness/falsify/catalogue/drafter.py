"""Drafters that draft badly, less, or not at all."""

from __future__ import annotations

from harness.falsify.changes import DrafterWeights, EngineFault
from harness.falsify.checkpoints import Damage
from harness.falsify.mutation import DeploymentName, Mutation

# Per mille of tokens that the drafter loses, by the percentage of acceptance length that this costs; computed with the
# simulator, see tests/unit/test_falsify_catalogue.py.
DEGRADED: dict[DeploymentName, dict[int, int]] = {
    "eagle3-pd": {12: 155},
    "mtp-pd": {3: 80, 6: 170},
}


def _weights(name: str, what: str, damage: Damage, caught_by: str, on: DeploymentName = "eagle3-pd") -> Mutation:
    return Mutation(name, "drafter", on, what, (DrafterWeights(damage),), caught_by)


def _fault(
    name: str,
    what: str,
    fault: str,
    caught_by: str,
    on: DeploymentName = "eagle3-pd",
    hub: str | None = None,
    prompts: int | None = None,
    smoke: bool = False,
) -> Mutation:
    changes = (EngineFault("decode", fault),)
    return Mutation(name, "drafter", on, what, changes, caught_by, hub=hub, prompts=prompts, smoke=smoke)


DRAFTER = (
    _weights("drafter-zero", "the drafter's weights are zero", "zero", "acceptance_length"),
    _weights("drafter-shuffled", "the rows of its output head are shuffled", "shuffled", "acceptance_length"),
    _weights(
        "drafter-own-embeddings",
        "the drafter has embeddings of its own instead of the target's",
        "own-embeddings",
        "acceptance_length",
    ),
    _weights("drafter-other", "the drafter was trained for another target", "other", "acceptance_length"),
    _weights("drafter-blind", "the drafter's attention output is lost", "blind", "acceptance_per_position"),
    Mutation(
        "wrong-drafter-right-name",
        "drafter",
        "eagle3-pd",
        "another drafter than the one asked for is loaded",
        (DrafterWeights("other", swapped_in=True),),
        "effective_config",
    ),
    _weights("mtp-zero", "the weights of the MTP layer are zero", "zero", "acceptance_length", "mtp-pd"),
    _weights("mtp-shifted", "its input projection is shifted by one", "shifted", "acceptance_length", "mtp-pd"),
    _weights(
        "mtp-own-embeddings",
        "the MTP layer does not see the target's embedding",
        "own-embeddings",
        "acceptance_length",
        "mtp-pd",
    ),
    _fault("draft-never", "no draft reaches the scheduler", "draft-suppressed:0", "drafts_on_every_engine"),
    _fault("draft-stops", "drafting stops after 60 drafts", "draft-suppressed:60", "drafts_on_every_engine"),
    _fault(
        "k-silently-two",
        "the third draft token never reaches the scheduler",
        "draft-shortened:2",
        "acceptance_per_position",
    ),
    _fault("third-guess-lost", "the third guess is never right", "draft-positions-lost:2", "acceptance_per_position"),
    *(
        _fault(
            f"degraded-{percent}",
            f"the drafter never guesses {per_mille} of 1000 tokens: acceptance length {percent} % lower",
            f"draft-degraded:{per_mille}",
            "acceptance_length",
            on=on,
            # The published baselines allow 5 %.
            hub="" if percent < 5 else None,
            smoke=percent == 6 and on == "mtp-pd",
        )
        for on, shares in DEGRADED.items()
        for percent, per_mille in shares.items()
    ),
    _fault(
        "collapse",
        "no guess is right in the second half of the run",
        "draft-collapsed:720",
        "acceptance_windows",
        on="mtp-pd",
        prompts=80,
    ),
)

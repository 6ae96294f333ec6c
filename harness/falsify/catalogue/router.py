"""What stands in front of the servers: wrong ways, wrong requests, wrong answers."""

from __future__ import annotations

from harness.falsify.changes import RouterBackends, StandIn, TargetWeights
from harness.falsify.mutation import DeploymentName, Mutation

_TEXT = "output_matches_reference"


def _router(
    behaviour: str,
    what: str,
    caught_by: str,
    on: DeploymentName = "eagle3-pd",
    hub: str | None = None,
    smoke: bool = False,
) -> Mutation:
    changes = (StandIn(behaviour),)
    return Mutation(f"router-{behaviour}", "router", on, what, changes, caught_by, hub=hub, smoke=smoke)


ROUTER = (
    Mutation(
        "router-backends-swapped",
        "router",
        "eagle3-pd",
        "the real router takes prefill for decode and decode for prefill",
        (RouterBackends(prefill="decode", decode="prefill"),),
        "roles_served_all",
    ),
    Mutation(
        "router-backends-one",
        "router",
        "eagle3-pd",
        "the real router knows the decode server only, in both roles, and refuses",
        (RouterBackends(prefill="decode", decode="decode"),),
        "ready",
    ),
    _router("prefill-bypassed", "requests go straight to decode", "roles_served_all", smoke=True),
    _router("params-dropped", "decode is not told where the KV is", "kv_moved", "mtp-pd"),
    _router("all-to-prefill", "every request goes to prefill alone", "roles_served_all"),
    _router("prefill-twice", "each prompt is prefilled twice, as after a retry", "roles_served_all"),
    _router("whole-request-twice", "each request is served twice", "roles_served_all"),
    _router("double-bos", "two BOS in front of each prompt", "one_bos"),
    _router("template-twice", "the chat template is applied twice more", _TEXT),
    Mutation(
        "router-hot",
        "router",
        "eagle3-pd",
        "the temperature is 1, on a target whose logits are soft",
        (TargetWeights("soft"), StandIn("hot")),
        _TEXT,
    ),
    _router("max-tokens-cut", "half of the tokens are asked for", "token_counts"),
    _router("prompt-cut", "the first half of each prompt is cut off", _TEXT, "mtp-pd"),
    _router("error-in-200", "each fifth answer is a 200 with an error body", "requests_succeeded"),
    _router("error-beside-answer", "each fifth answer is right and has an error beside it", "requests_succeeded"),
    _router("refused", "each fifth answer is a 503", "requests_succeeded"),
    _router("usage-wrong", "usage counts one token less than the answer holds", "token_counts"),
    _router("last-token-wrong", "the last token of each fifth answer is another one", _TEXT, hub=""),
    _router("answer-of-another", "each second answer is that of the request before", _TEXT),
)

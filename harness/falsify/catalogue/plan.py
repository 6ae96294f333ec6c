"""Another deployment than the one that was asked for."""

from __future__ import annotations

from harness.deployments import RoleName
from harness.falsify.changes import Argument, JsonArgument, TargetWeights, Variable
from harness.falsify.mutation import Change, DeploymentName, Mutation

_SPECULATION = "--speculative-config"
_PER_REQUEST = "--per-request-spec-decode-metrics"
_TRANSFER = "--kv-transfer-config"

_ROLES: tuple[RoleName, ...] = ("prefill", "decode")
_WITHOUT_DRAFTER: dict[RoleName, tuple[Change, ...]] = {
    role: (Argument(role, _SPECULATION, None), Argument(role, _PER_REQUEST, None)) for role in _ROLES
}


def _plan(
    name: str,
    what: str,
    caught_by: str,
    *changes: Change,
    on: DeploymentName = "eagle3-pd",
    hub: str | None = None,
    smoke: bool = False,
) -> Mutation:
    return Mutation(name, "plan", on, what, changes, caught_by, hub=hub, smoke=smoke)


PLAN = (
    _plan(
        "drafter-absent",
        "neither server runs a drafter",
        "drafts_on_every_engine",
        *_WITHOUT_DRAFTER["prefill"],
        *_WITHOUT_DRAFTER["decode"],
        smoke=True,
    ),
    _plan(
        "k-two",
        "decode drafts 2 tokens where 3 were asked for",
        "effective_config",
        JsonArgument("decode", _SPECULATION, (("num_speculative_tokens", 2),)),
    ),
    _plan(
        "method-ngram",
        "both servers draft by n-gram look-up instead of EAGLE3",
        "effective_config",
        *(
            JsonArgument(role, _SPECULATION, (("method", "ngram"), ("model", None), ("prompt_lookup_max", 3)))
            for role in _ROLES
        ),
        # Compiling the look-up takes half a minute; interpreted it is quick enough for tiny prompts.
        *(Variable(role, "NUMBA_DISABLE_JIT", "1") for role in _ROLES),
    ),
    _plan(
        "wrong-model-right-name",
        "both servers serve another model under the right name",
        "effective_config",
        TargetWeights("other", swapped_in=True),
    ),
    _plan(
        "wrong-model-right-path",
        "the path that was asked for holds another model's weights",
        "output_matches_reference",
        TargetWeights("other"),
    ),
    _plan(
        "wrong-model-on-decode",
        "decode serves another model than prefill under the same name: NIXL refuses the handshake",
        "ready",
        TargetWeights("other", decode_only=True),
        on="mtp-pd",
    ),
    _plan(
        "tokenizer-adds-bos",
        "the tokenizer adds a BOS that the model was not made for",
        "one_bos",
        TargetWeights("adds-bos"),
        # A real model's template decides by itself whether there is one.
        hub="",
    ),
    _plan(
        "max-model-len-cut",
        "decode accepts 1024 tokens where 4096 were asked for",
        "effective_config",
        Argument("decode", "--max-model-len", "1024"),
        JsonArgument("decode", _SPECULATION, (("max_model_len", 1024),)),
    ),
    _plan(
        "policy-recompute",
        "decode is told to recompute KV that could not be loaded",
        "effective_config",
        JsonArgument("decode", _TRANSFER, (("kv_load_failure_policy", "recompute"),)),
    ),
    _plan(
        "kv-role-both",
        "both servers run the connector as producer and consumer",
        "effective_config",
        JsonArgument("prefill", _TRANSFER, (("kv_role", "kv_both"),)),
        JsonArgument("decode", _TRANSFER, (("kv_role", "kv_both"),)),
        on="mtp-pd",
    ),
    _plan(
        "block-size-doubled",
        "both servers use KV blocks of 64 tokens where 32 were asked for",
        "effective_config",
        *(Argument(role, "--block-size", "64") for role in _ROLES),
    ),
    _plan(
        "tensor-parallel-two",
        "decode runs on two ranks where one was asked for",
        "effective_config",
        Argument("decode", "--tensor-parallel-size", "2"),
        Variable("decode", "VLLM_ENABLE_V1_MULTIPROCESSING", None),
    ),
    _plan(
        "connector-missing-prefill",
        "prefill runs without a connector",
        "ready",
        Argument("prefill", _TRANSFER, None),
    ),
    _plan(
        "decode-without-drafter",
        "decode runs without the drafter whose KV prefill offers",
        "ready",
        *_WITHOUT_DRAFTER["decode"],
    ),
    _plan(
        "prefill-without-drafter",
        "prefill runs without the drafter whose KV decode needs",
        "ready",
        *_WITHOUT_DRAFTER["prefill"],
    ),
)

"""What a plan asked of a server, in the terms in which the engine reports what it runs. Pure."""

from __future__ import annotations

from harness.deployments import Deployment, Role
from harness.engine.info import EnginePlatform
from harness.facts import LimitFacts, RequestedConfig
from harness.plan.arguments import block_size, kv_buffer_device, kv_role, max_model_len
from harness.plan.reference import standalone_reference
from harness.plan.types import Plan, ServerPlan


def requested_config(
    deployment: Deployment, plan: Plan, server: ServerPlan, platform: EnginePlatform
) -> RequestedConfig:
    """The fields that `harness.measure.effective` can read back."""
    role = _role_of(deployment, server)
    transfer = deployment.transfer if server.side_channel_ports else None
    speculation = role.speculation
    drafter = plan.models.drafter
    return RequestedConfig(
        model=str(plan.models.target),
        method=speculation.method if speculation else None,
        k=speculation.k if speculation else None,
        drafter=str(drafter) if speculation and drafter is not None else None,
        tensor_parallel=role.parallel.tp,
        data_parallel=role.parallel.dp,
        pipeline_parallel=role.parallel.pp,
        expert_parallel=role.parallel.ep,
        connector=transfer.connector if transfer else None,
        kv_buffer_device=(kv_buffer_device(plan.kv_buffer, platform) if transfer and plan.kv_buffer else None),
        kv_role=kv_role(role) if transfer else None,
        load_failure_policy="fail" if transfer else None,
        block_size=block_size(deployment, platform),
        max_model_len=max_model_len(deployment, plan.model_set),
        model_runner_v2=True if deployment.settings.model_runner_v2 else None,
    )


def limits_of(deployment: Deployment) -> LimitFacts:
    """The deployment's limits, and the mean length that its synthetic sampler was asked for."""
    limits, speculation = deployment.limits, deployment.judged_role.speculation
    return LimitFacts(
        token_match=limits.token_match,
        identical=limits.identical,
        compared_tokens=limits.compared_tokens,
        gsm8k=limits.gsm8k,
        synthetic_length=speculation.synthetic_length if speculation else None,
        synthetic_within=limits.synthetic_within,
    )


def _role_of(deployment: Deployment, server: ServerPlan) -> Role:
    for role in deployment.roles:
        if role.name == server.role:
            return role
    return standalone_reference(deployment)

"""A plan as text for people and as JSON for tools, with secrets removed."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

from harness.plan.types import Plan, RouterPlan, ServerPlan
from harness.report.redact import redact_environment, redact_text


def as_json(plan: Plan) -> str:
    """plan.json: every field of the plan; paths are strings."""
    data = asdict(plan)
    for stage in data["stages"]:
        for process in (*stage["servers"], *([stage["router"]] if stage["router"] else [])):
            process["environment"] = redact_environment(process["environment"])
    return redact_text(json.dumps(data, indent=1, default=_plain))


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a plan holds no {type(value).__name__}")


def as_text(plan: Plan) -> str:
    """What ``--dry-run`` prints: each process as a command line that can be pasted into a shell."""
    lines = [
        f"{plan.deployment}: {plan.model_set} models, {plan.launch} launch, KV buffer {plan.kv_buffer or 'none'}",
        *(f"model {origin}" for origin in plan.models.provenance),
        f"adjustments {', '.join(plan.adjustments) or 'none'}",
        *(f"note {note}" for note in plan.notes),
    ]
    for stage in plan.stages:
        lines += ["", f"stage {stage.name}"]
        for server in stage.servers:
            lines += _server(server)
        if stage.router is not None:
            lines += _router(stage.router)
    return redact_text("\n".join(lines))


def _server(server: ServerPlan) -> list[str]:
    devices = ", ".join(f"{device.index} ({device.key})" for device in server.devices)
    head = f"  {server.name}: port {server.port}, devices {devices}"
    if server.side_channel_ports:
        head += f", NIXL side channel {', '.join(map(str, server.side_channel_ports))}"
    command = shlex.join(["python", "-m", "vllm.entrypoints.openai.api_server", *server.argv])
    return [head, *_environment(server.environment, server.removed), f"    {command}"]


def _router(router: RouterPlan) -> list[str]:
    head = f"  {router.name}: port {router.port}, metrics {router.metrics_port}"
    return [head, *_environment(router.environment, router.removed), f"    {shlex.join(router.argv)}"]


def _environment(values: dict[str, str], removed: dict[str, str]) -> list[str]:
    shown = [f"    {name}={shlex.quote(value)}" for name, value in sorted(redact_environment(values).items())]
    return shown + [f"    unset {name}  # {reason}" for name, reason in sorted(removed.items())]

"""A plan's processes as the supervisor starts them, and the conditions under which they count as ready."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.engine.info import EngineInfo
from harness.plan.types import Plan, RouterPlan, ServerPlan, Stage
from harness.runtime.identity import KEEP_ENVIRONMENT_VARIABLE, MARKER_VARIABLE
from harness.runtime.readiness import Condition, HttpHealth, ModelListed, RouterUp, TcpAnswers, all_of
from harness.runtime.wire import IMPORTER, ServerSpec

_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_IMPORTER = Path(__file__).resolve().parents[1] / "engine_side" / "importer.py"


def server_spec(
    server: ServerPlan, plan: Plan, engine: EngineInfo, inherited: Mapping[str, str], marker: str, run_dir: Path
) -> ServerSpec:
    """One vLLM server, spawned as production does or forked from the importer."""
    log = run_dir / "logs" / server.log_name
    if plan.launch == "warm":
        # What is the importer's already must still be named: a server may need another value than its sibling.
        return ServerSpec(
            name=server.name,
            argv=server.argv,
            environment=server.environment,
            cwd=run_dir,
            log=log,
            launch="warm",
            unset=tuple(sorted(server.removed)),
        )
    return ServerSpec(
        name=server.name,
        argv=(str(engine.python), "-m", _SERVER_MODULE, *server.argv),
        environment=_complete(server.environment, server.removed, inherited, marker),
        cwd=run_dir,
        log=log,
    )


def importer_spec(
    server: ServerPlan, engine: EngineInfo, inherited: Mapping[str, str], marker: str, run_dir: Path
) -> ServerSpec:
    """The process that imports the engine once. It runs under one server's environment; forks get their own on top."""
    return ServerSpec(
        name=IMPORTER,
        argv=(str(engine.python), str(_IMPORTER)),
        environment=_complete(server.environment, server.removed, inherited, marker),
        cwd=run_dir,
        log=run_dir / "logs" / f"{IMPORTER}.log",
    )


def router_spec(router: RouterPlan, inherited: Mapping[str, str], marker: str, run_dir: Path) -> ServerSpec:
    """The router, under the harness's own interpreter."""
    return ServerSpec(
        name=router.name,
        argv=router.argv,
        environment=_complete(router.environment, router.removed, inherited, marker),
        cwd=run_dir,
        log=run_dir / "logs" / router.log_name,
    )


def ready_conditions(stage: Stage, logs: Path) -> list[Condition]:
    """What must hold before the first request: each server serves its model and shakes hands, the router is up."""
    conditions: list[Condition] = []
    for server in stage.servers:
        log = logs / server.log_name
        parts: list[Condition] = [
            HttpHealth(server.name, server.url, log),
            ModelListed(server.name, server.url, server.served_model, log),
        ]
        parts += [TcpAnswers(server.name, server.host, port, log) for port in server.side_channel_ports]
        conditions.append(all_of(*parts))
    if stage.router is not None:
        conditions.append(RouterUp(stage.router.name, stage.router.url, logs / stage.router.log_name))
    return conditions


def _complete(
    values: Mapping[str, str], removed: Mapping[str, str], inherited: Mapping[str, str], marker: str
) -> dict[str, str]:
    kept = {name: value for name, value in inherited.items() if name not in removed}
    return {**kept, **values, MARKER_VARIABLE: marker, KEEP_ENVIRONMENT_VARIABLE: "1"}

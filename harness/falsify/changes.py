"""The kinds of change: arguments, engine faults, damaged checkpoints, and what stands in front of the servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.deployments import RoleName
from harness.falsify.checkpoints import Damage, damaged_drafter, damaged_target
from harness.falsify.mutation import Place
from harness.plan.types import Plan, RouterPlan, ServerPlan, Stage

STANDIN_ROUTER = Path(__file__).with_name("standin_router.py")
FAULT_VARIABLE = "GATE_MUTATE"
_PAIR: tuple[RoleName, ...] = ("prefill", "decode")


@dataclass(frozen=True)
class Argument:
    """One engine argument of one server: another value, or None to leave it out. A switch has the value ``""``."""

    role: RoleName
    flag: str
    value: str | None

    def apply(self, plan: Plan, place: Place) -> Plan:
        del place
        return on_server(plan, self.role, lambda server: replace(server, argv=edited(server.argv, self._edit)))

    def _edit(self, argv: list[str]) -> None:
        if self.flag in argv:
            at = argv.index(self.flag)
            del argv[at : at + (1 if _is_switch(argv, at) else 2)]
        if self.value is not None:
            argv += [self.flag, self.value] if self.value else [self.flag]


@dataclass(frozen=True)
class JsonArgument:
    """Some keys of an argument that is a JSON object; a value of None takes the key away."""

    role: RoleName
    flag: str
    values: tuple[tuple[str, str | int | dict[str, int] | None], ...]

    def apply(self, plan: Plan, place: Place) -> Plan:
        del place
        return on_server(plan, self.role, lambda server: replace(server, argv=edited(server.argv, self._edit)))

    def _edit(self, argv: list[str]) -> None:
        at = argv.index(self.flag) + 1
        merged = json.loads(argv[at]) | dict(self.values)
        argv[at] = json.dumps({key: value for key, value in merged.items() if value is not None})


@dataclass(frozen=True)
class Variable:
    """One environment variable of one server; None takes it away."""

    role: RoleName
    name: str
    value: str | None

    def apply(self, plan: Plan, place: Place) -> Plan:
        del place

        def change(server: ServerPlan) -> ServerPlan:
            values = {name: value for name, value in server.environment.items() if name != self.name}
            if self.value is not None:
                values[self.name] = self.value
            return replace(server, environment=values)

        return on_server(plan, self.role, change)


@dataclass(frozen=True)
class EngineFault:
    """A fault of `gate_mutations` inside the processes of one server; ``fault`` is ``name`` or ``name:argument``."""

    role: RoleName
    fault: str

    def apply(self, plan: Plan, place: Place) -> Plan:
        return Variable(self.role, FAULT_VARIABLE, self.fault).apply(plan, place)


@dataclass(frozen=True)
class DrafterWeights:
    """A damaged drafter on both servers. ``swapped_in``: the request still names the good one."""

    damage: Damage
    swapped_in: bool = False

    def apply(self, plan: Plan, place: Place) -> Plan:
        if place.zoo.drafter is None:
            return _target(plan, place, self.damage, self.swapped_in)
        folder = damaged_drafter(place.zoo, self.damage, place.scratch)
        if not self.swapped_in:
            plan = replace(plan, models=replace(plan.models, drafter=folder))
        # On both: NIXL compares the drafters of the two servers and would refuse the handshake.
        for role in _PAIR:
            plan = JsonArgument(role, "--speculative-config", (("model", str(folder)),)).apply(plan, place)
        return plan


@dataclass(frozen=True)
class TargetWeights:
    """A damaged target on both servers (``decode_only``: on decode), under the path that was asked for or not."""

    damage: Damage
    swapped_in: bool = False
    decode_only: bool = False

    def apply(self, plan: Plan, place: Place) -> Plan:
        return _target(plan, place, self.damage, self.swapped_in, self.decode_only)


def _target(plan: Plan, place: Place, damage: Damage, swapped_in: bool, decode_only: bool = False) -> Plan:
    folder = damaged_target(place.zoo, damage, place.scratch)
    if not swapped_in:
        plan = replace(plan, models=replace(plan.models, target=folder))
    for role in ("decode",) if decode_only else _PAIR:
        plan = Argument(role, "--model", str(folder)).apply(plan, place)
    return plan


@dataclass(frozen=True)
class StandIn:
    """`standin_router` in the place of the router, misbehaving in one named way."""

    behaviour: str

    def apply(self, plan: Plan, place: Place) -> Plan:
        del place

        def change(router: RouterPlan, stage: Stage) -> RouterPlan:
            argv: tuple[str, ...] = (sys.executable, str(STANDIN_ROUTER), "--behaviour", self.behaviour)
            argv += ("--host", router.host, "--port", str(router.port), "--metrics-port", str(router.metrics_port))
            argv += ("--prefill", stage.server("prefill").url, "--decode", stage.server("decode").url)
            return replace(router, argv=argv)

        return _on_router(plan, change)


@dataclass(frozen=True)
class RouterBackends:
    """The real router, told wrong backends: the role whose server it takes for prefill, and for decode."""

    prefill: RoleName
    decode: RoleName

    def apply(self, plan: Plan, place: Place) -> Plan:
        del place

        def change(router: RouterPlan, stage: Stage) -> RouterPlan:
            argv = list(router.argv)
            argv[argv.index("--prefill") + 1] = stage.server(self.prefill).url
            argv[argv.index("--decode") + 1] = stage.server(self.decode).url
            return replace(router, argv=tuple(argv))

        return _on_router(plan, change)


@dataclass(frozen=True)
class MetricsFrom:
    """The /metrics page of one server is read from another place: another server, or the router."""

    role: RoleName
    source: RoleName | None

    def apply(self, plan: Plan, place: Place) -> Plan:
        del place
        stage = plan.stages[0]
        if self.source is not None:
            url = stage.server(self.source).metrics_url
        elif stage.router is not None:
            url = f"http://{stage.router.host}:{stage.router.metrics_port}/metrics"
        else:
            raise ValueError("there is no router to read from")
        return on_server(plan, self.role, lambda server: replace(server, metrics_url=url))


def edited(argv: tuple[str, ...], edit: Callable[[list[str]], None]) -> tuple[str, ...]:
    copy = list(argv)
    edit(copy)
    return tuple(copy)


def on_server(plan: Plan, role: RoleName, change: Callable[[ServerPlan], ServerPlan]) -> Plan:
    """The plan with every server of ``role`` changed. Raises ValueError when there is none: nothing would be broken."""
    if not any(server.role == role for stage in plan.stages for server in stage.servers):
        raise ValueError(f"{plan.deployment} has no {role} server to change")
    stages = tuple(
        replace(stage, servers=tuple(change(server) if server.role == role else server for server in stage.servers))
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def _on_router(plan: Plan, change: Callable[[RouterPlan, Stage], RouterPlan]) -> Plan:
    stages = tuple(
        replace(stage, router=change(stage.router, stage)) if stage.router is not None else stage
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def _is_switch(argv: list[str], at: int) -> bool:
    return at + 1 >= len(argv) or argv[at + 1].startswith("--")

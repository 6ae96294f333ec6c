"""Skip conditions of tests as small expressions that a device can be asked about: true, false, or not known.

A condition is a nested tuple, so that it crosses process borders cheaply:
``("not", c)``, ``("and", c, ...)``, ``("or", c, ...)``, ``("const", bool)``, ``("platform", name, ...)``,
``("count", op, n)``, ``("memory", op, gb)``, ``("capability", op, n)``, ``("family", n)``, ``("arch", name, ...)``,
``("version", package, op, version)`` and ``("unknown", source)``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from harness.ci.audit.devices import Device

Condition = tuple[object, ...]

ALWAYS: Condition = ("const", True)
NEVER: Condition = ("const", False)

_PLATFORM_CALLS = {
    "is_cuda": ("cuda",),
    "is_rocm": ("rocm",),
    "is_xpu": ("xpu",),
    "is_cpu": ("cpu",),
    "is_tpu": (),
    "is_cuda_alike": ("cuda", "rocm"),
}
# Functions of vLLM and of its tests that ask for an AMD architecture.
_ARCH_CALLS = {
    "on_gfx950": ("gfx950",),
    "on_gfx942": ("gfx942",),
    "on_mi3xx": ("gfx942", "gfx950"),
    "on_gfx9": ("gfx90a", "gfx942", "gfx950"),
    "on_gfx1x": (),
    "on_gfx11": (),
    "on_gfx12": (),
}
_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
# Nominal and usable memory differ by a few per cent: nearer than this, the comparison stays open.
MEMORY_MARGIN = 0.1


def condition_of(node: ast.expr, names: Mapping[str, ast.expr], depth: int = 0) -> Condition:
    """The condition that ``node`` computes. ``names``: module-level variables that are assigned exactly once."""
    match node:
        case ast.Constant(value=bool() as value):
            return ("const", value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ("not", condition_of(operand, names, depth))
        case ast.BoolOp(op=op, values=values):
            kind = "and" if isinstance(op, ast.And) else "or"
            return (kind, *(condition_of(value, names, depth) for value in values))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _comparison(left, _OPERATORS.get(type(op)), right, names) or ("unknown", ast.unparse(node))
        case ast.Call():
            return _call(node) or ("unknown", ast.unparse(node))
        case ast.Name(id=name) if name in names and depth < 4:
            return condition_of(names[name], names, depth + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            asked = condition_of(test, names, depth)
            return (
                "or",
                ("and", asked, condition_of(body, names, depth)),
                ("and", ("not", asked), condition_of(orelse, names, depth)),
            )
    return ("unknown", ast.unparse(node))


def _called(node: ast.Call) -> tuple[str, str]:
    """The dotted owner and the name of what is called: ``torch.cuda``, ``is_available``."""
    match node.func:
        case ast.Attribute(value=owner, attr=name):
            return ast.unparse(owner), name
        case ast.Name(id=name):
            return "", name
    return "", ""


def _call(node: ast.Call) -> Condition | None:
    owner, name = _called(node)
    if owner.endswith("current_platform") or owner.endswith("platform"):
        if name in _PLATFORM_CALLS and not node.args:
            return ("platform", *_PLATFORM_CALLS[name])
        capability = _capability(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        if capability is not None:
            match name:
                case "has_device_capability":
                    return ("capability", ">=", capability)
                case "is_device_capability":
                    return ("capability", "==", capability)
                case "is_device_capability_family":
                    return ("family", capability // 10)
        return None
    if (owner, name) == ("torch.cuda", "is_available"):
        return ("platform", "cuda", "rocm")
    if (owner, name) == ("torch.xpu", "is_available"):
        return ("platform", "xpu")
    if name == "is_torch_equal_or_newer" and len(node.args) == 1:
        match node.args[0]:
            case ast.Constant(value=str() as version):
                return ("version", "torch", ">=", version)
    if name in _ARCH_CALLS and not node.args:
        return ("arch", *_ARCH_CALLS[name])
    return None


def _capability(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Tuple(elts=[ast.Constant(value=int() as major), ast.Constant(value=int() as minor)]):
            return major * 10 + minor
    return None


def _is_device_count(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    owner, name = _called(node)
    return name in ("device_count", "cuda_device_count_stateless") and not owner.startswith("torch.cpu")


def _comparison(
    left: ast.expr, op: str | None, right: ast.expr, names: Mapping[str, ast.expr], mirrored: bool = False
) -> Condition | None:
    if op is None:
        return None
    number = _number(right, names)
    if _is_device_count(left) and number is not None:
        return ("count", op, int(number))
    version = _version(left, right)
    if version is not None:
        return ("version", version[0], op, version[1])
    if not mirrored:
        return _comparison(right, _MIRRORED[op], left, names, mirrored=True)
    return None


def _number(node: ast.expr, names: Mapping[str, ast.expr]) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.Name(id=name) if name in names and isinstance(names[name], ast.Constant):
            return _number(names[name], {})
    return None


def _version(left: ast.expr, right: ast.expr) -> tuple[str, str] | None:
    """``Version(torch.__version__) < Version("2.9")``: the package and the version it is compared with."""
    match left, right:
        case (
            ast.Call(args=[ast.Attribute(value=ast.Name(id=package), attr="__version__")]),
            ast.Call(args=[ast.Constant(value=str() as version)]),
        ):
            return package, version
        case (
            ast.Call(args=[ast.Call(func=function, args=[ast.Constant(value=str() as package)])]),
            ast.Call(args=[ast.Constant(value=str() as version)]),
        ) if ast.unparse(function).endswith("version"):
            return package, version
    return None


def holds(condition: Condition, device: Device) -> bool | None:
    """Whether the condition is true on ``device``; None when that cannot be told from here."""
    kind, *rest = condition
    match kind:
        case "const":
            return bool(rest[0])
        case "not":
            inner = holds(_inner(rest[0]), device)
            return None if inner is None else not inner
        case "and" | "or":
            values = [holds(_inner(part), device) for part in rest]
            decisive = kind == "or"
            if decisive in values:
                return decisive
            return None if None in values else not decisive
        case "platform":
            return None if device.platform == "other" else device.platform in rest
        case "count":
            return _compare(device.count, rest)
        case "memory":
            return _memory(device, rest)
        case "capability":
            return _compare(device.capability, rest) if device.platform == "cuda" else _no_capability(device)
        case "family":
            if device.platform != "cuda":
                return _no_capability(device)
            return None if device.capability is None else device.capability // 10 == rest[0]
        case "arch":
            return False if device.arch is None and device.platform != "other" else device.arch in rest
    return None


def _inner(value: object) -> Condition:
    assert isinstance(value, tuple)
    return value


def _compare(value: float | None, rest: list[object]) -> bool | None:
    op, bound = rest
    if value is None or not isinstance(op, str) or not isinstance(bound, int | float):
        return None
    return _COMPARE[op](value, bound)


def _memory(device: Device, rest: list[object]) -> bool | None:
    _, bound = rest
    if device.platform == "cpu":
        return _compare(0, rest)
    if device.memory_gb is None or not isinstance(bound, int | float):
        return None
    if abs(device.memory_gb - bound) < MEMORY_MARGIN * device.memory_gb:
        return None
    return _compare(device.memory_gb, rest)


def _no_capability(device: Device) -> bool | None:
    """ROCm has capabilities of its own numbering; a CPU or XPU has none, so the question is answered no."""
    return None if device.platform in ("rocm", "other") else False


def describe(condition: Condition) -> str:
    """The condition in words, for a message."""
    kind, *rest = condition
    match kind:
        case "not":
            return f"not ({describe(_inner(rest[0]))})"
        case "and" | "or":
            return f" {kind} ".join(describe(_inner(part)) for part in rest)
        case "const":
            return "always" if rest[0] else "never"
        case "platform":
            return "platform is " + ("/".join(map(str, rest)) or "none of CI's")
        case "count":
            return f"devices {rest[0]} {rest[1]}"
        case "memory":
            return f"memory {rest[0]} {rest[1]} GB"
        case "capability":
            return f"capability {rest[0]} {rest[1]}"
        case "family":
            return f"capability family {rest[0]}0"
        case "arch":
            return "arch is " + ("/".join(map(str, rest)) or "none of CI's")
        case "version":
            return f"{rest[0]} {rest[1]} {rest[2]}"
    return " ".join(map(str, rest))

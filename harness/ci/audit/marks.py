"""The tests of one file with everything that can skip them, read from its syntax tree without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.ci.audit.conditions import ALWAYS, Condition, condition_of
from harness.ci.audit.skeleton import skeleton


@dataclass(frozen=True)
class Skip:
    """One reason for which a test may not run. ``unconditional``: a plain ``skip`` mark."""

    condition: Condition
    line: int
    reason: str = ""
    unconditional: bool = False


@dataclass(frozen=True)
class TestCase:
    """A test function. ``skips``: any one that holds skips it. ``cases``: per parametrized argument, the skips of each
    value; when every value of one argument is skipped, so is the test."""

    __test__ = False

    name: str
    line: int
    owner: str | None
    skips: tuple[Skip, ...]
    cases: tuple[tuple[Skip | None, ...], ...]
    marks: frozenset[str]
    maybe_marks: frozenset[str]
    parametrized: bool

    @property
    def node(self) -> str:
        return f"{self.owner}::{self.name}" if self.owner else self.name


@dataclass(frozen=True)
class TestModule:
    """``skips``: every skip and xfail mark of the file, also those of single parameters."""

    __test__ = False

    tests: tuple[TestCase, ...]
    skips: tuple[Skip, ...]


def read_module(text: str) -> TestModule | None:
    """The tests of a source file; None when it does not parse."""
    for candidate in (skeleton(text), text):
        try:
            return _Module(ast.parse(candidate)).read()
        except SyntaxError:
            continue
    return None


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr}"
        case ast.Name(id=name):
            return name
    return ""


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _string(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.JoinedStr(values=values):
            return "".join(_string(value) if isinstance(value, ast.Constant) else "..." for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _string(left) + _string(right)
    return ""


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.names = _single_assignments(tree)
        self.all_skips: list[Skip] = []

    def read(self) -> TestModule:
        skips: list[Skip] = []
        marks: set[str] = set()
        for statement in self.tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                    found, names = self._marks(value)
                    skips += found
                    marks |= names
                case ast.If(test=test, body=body) if (reason := _module_skip(body)) is not None:
                    skips.append(Skip(condition_of(test, self.names), statement.lineno, reason))
        tests = list(self._tests(self.tree.body, None, tuple(skips), frozenset(marks)))
        self.all_skips += skips
        return TestModule(tuple(tests), tuple(dict.fromkeys(self.all_skips)))

    def _tests(
        self, body: Iterable[ast.stmt], owner: str | None, skips: tuple[Skip, ...], marks: frozenset[str]
    ) -> Iterator[TestCase]:
        for statement in body:
            match statement:
                case ast.ClassDef(name=name) if name.startswith("Test"):
                    found, names = self._decorators(statement.decorator_list)
                    yield from self._tests(statement.body, name, skips + tuple(found), marks | names)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test"):
                    yield self._test(statement, owner, skips, marks)
                case ast.If(body=inner, orelse=other):
                    # A branch that may not be taken at all: its tests are read as if it were.
                    yield from self._tests([*inner, *other], owner, skips, marks)

    def _test(
        self,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        owner: str | None,
        skips: tuple[Skip, ...],
        marks: frozenset[str],
    ) -> TestCase:
        found, names = self._decorators(function.decorator_list)
        cases: list[tuple[Skip | None, ...]] = []
        maybe: set[str] = set()
        parametrized = False
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and _dotted(decorator.func).endswith("parametrize"):
                parametrized = True
                values = self._parameters(decorator, maybe)
                if values:
                    cases.append(values)
        return TestCase(
            name=function.name,
            line=function.lineno,
            owner=owner,
            skips=skips + tuple(found) + tuple(self._body_skips(function)),
            cases=tuple(cases),
            marks=marks | names,
            maybe_marks=frozenset(maybe),
            parametrized=parametrized,
        )

    def _body_skips(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Skip]:
        """``if CONDITION: pytest.skip(...)`` directly in the body. Local names are not the module's."""
        local = {argument.arg for argument in function.args.args}
        names = {name: value for name, value in self.names.items() if name not in local}
        for statement in function.body:
            match statement:
                case ast.If(test=test, body=[ast.Expr(value=ast.Call() as call), *_], orelse=[]) if (
                    _dotted(call.func) == "pytest.skip"
                ):
                    reason = _string(call.args[0]) if call.args else _string(_keyword(call, "reason"))
                    yield Skip(condition_of(test, names), statement.lineno, reason)

    def _decorators(self, decorators: Sequence[ast.expr]) -> tuple[list[Skip], set[str]]:
        skips: list[Skip] = []
        marks: set[str] = set()
        for decorator in decorators:
            found, names = self._marks(decorator)
            skips += found
            marks |= names
        self.all_skips += skips
        return skips, marks

    def _parameters(self, call: ast.Call, maybe: set[str]) -> tuple[Skip | None, ...]:
        """Per value of the argument list the skip on it, None for a value that has none; empty when not readable."""
        values = call.args[1] if len(call.args) > 1 else _keyword(call, "argvalues")
        if isinstance(values, ast.Name) and values.id in self.names:
            values = self.names[values.id]
        match values:
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                found = [self._parameter(element, maybe) for element in elements]
                # A starred part may add values that nothing here can judge.
                return () if any(isinstance(e, ast.Starred) for e in elements) else tuple(found)
            case ast.ListComp(elt=element):
                return (self._parameter(element, maybe),)
        return ()

    def _parameter(self, element: ast.expr, maybe: set[str]) -> Skip | None:
        if not (isinstance(element, ast.Call) and _dotted(element.func).endswith("param")):
            return None
        marks = _keyword(element, "marks")
        if marks is None:
            return None
        found, names = self._marks(marks)
        maybe |= names
        self.all_skips += found
        if not found:
            return None
        return (
            found[0] if len(found) == 1 else Skip(("or", *(s.condition for s in found)), found[0].line, found[0].reason)
        )

    def _marks(self, node: ast.expr, depth: int = 0) -> tuple[list[Skip], set[str]]:
        """The skips and the mark names that a decorator, a ``pytestmark`` or a ``marks=`` stands for."""
        match node:
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                pairs = [self._marks(element, depth) for element in elements]
                return [skip for skips, _ in pairs for skip in skips], {name for _, names in pairs for name in names}
            case ast.Name(id=name) if name in self.names and depth < 3:
                return self._marks(self.names[name], depth + 1)
            case ast.Starred(value=value):
                return self._marks(value, depth)
            case ast.Call(func=func):
                return self._mark_call(node, _dotted(func))
            case ast.Attribute(attr=attr) if ".mark." in _dotted(node):
                skip = [Skip(ALWAYS, node.lineno, "", True)] if attr == "skip" else []
                return skip, {attr}
            case ast.Name(id="single_gpu_only"):
                return [Skip(("count", ">", 1), node.lineno)], set()
        return [], set()

    def _mark_call(self, call: ast.Call, dotted: str) -> tuple[list[Skip], set[str]]:
        name = dotted.rsplit(".", 1)[-1]
        line = call.lineno
        reason = _string(_keyword(call, "reason"))
        if ".mark." in dotted:
            if name == "skip":
                reason = reason or (_string(call.args[0]) if call.args else "")
                return [Skip(ALWAYS, line, reason, True)], {"skip"}
            if name == "xfail":
                # It runs, so it is no skip of the test; its reason can be as old as a skip's.
                reason = reason or (_string(call.args[0]) if call.args else "")
                self.all_skips.append(Skip(ALWAYS, line, reason, True))
                return [], {"xfail"}
            if name == "skipif" and call.args:
                conditions = [condition_of(argument, self.names) for argument in call.args]
                return [Skip(conditions[0] if len(conditions) == 1 else ("or", *conditions), line, reason)], {"skipif"}
            return [], {name}
        match name:
            case "large_gpu_mark" | "large_gpu_test":
                return [Skip(("memory", "<", gb), line) for gb in self._integer(call, "min_gb")], set()
            case "multi_gpu_marks" | "multi_gpu_test":
                return [Skip(("count", "<", n), line) for n in self._integer(call, "num_gpus")], {"distributed"}
            case "multi_gpu_only":
                bounds = self._integer(call, "num_gpus") or ([] if call.args or call.keywords else [2])
                return [Skip(("count", "<", n), line) for n in bounds], {"distributed"}
            case "single_gpu_only":
                return [Skip(("count", ">", 1), line)], set()
            case "gpu_tier_mark":
                low = [Skip(("count", "<", n), line) for n in self._integer(call, "min_gpus", positional=False)]
                high = [Skip(("count", ">", n), line) for n in self._integer(call, "max_gpus", positional=False)]
                return low + high, set()
        return [], set()

    def _integer(self, call: ast.Call, name: str, positional: bool = True) -> list[int]:
        node = _keyword(call, name) or (call.args[0] if positional and call.args else None)
        if isinstance(node, ast.Name):
            node = self.names.get(node.id)
        match node:
            case ast.Constant(value=int() as value):
                return [value]
        return []


def _module_skip(body: Sequence[ast.stmt]) -> str | None:
    """The reason of a ``pytest.skip(..., allow_module_level=True)`` that ends a branch of the module."""
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Call() as call) if _dotted(call.func) == "pytest.skip":
                return (_string(call.args[0]) if call.args else _string(_keyword(call, "reason"))) or "module skip"
    return None


def _single_assignments(tree: ast.Module) -> Mapping[str, ast.expr]:
    """Module-level names with exactly one value; a name that is also set anywhere else may hold something different."""
    values: dict[str, ast.expr] = {}
    again: set[str] = set()
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in values:
                    again.add(name)
                values[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                if name in values:
                    again.add(name)
                values[name] = value
            case ast.If() | ast.Try() | ast.For() | ast.With():
                for inner in ast.walk(statement):
                    match inner:
                        case ast.Name(id=name, ctx=ast.Store()):
                            again.add(name)
    return {name: value for name, value in values.items() if name not in again}

"""Parts of a test command that match nothing any more: ``-k`` names, ``--ignore``, ``--deselect``, node ids, files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.ci.audit.keywords import BadExpression, Term, parse, terms
from harness.ci.audit.model import Finding
from harness.ci.audit.tree import Selected, SourceTree

RULE = "stale-filter"
_IMPORT = re.compile(r"^\s*from\s+(tests[\w.]*|\.[\w.]*)\s+import", re.MULTILINE)
# Below this many test files, all of their folders' files are searched for a name: helpers are imported in many ways.
FEW_FILES = 20


def check(tree: SourceTree) -> Iterator[Finding]:
    seen: set[tuple[str, int, str]] = set()
    for selection in tree.selections:
        run = selection.run
        if run.script is not None or run.runner != "pytest":
            continue
        problems = [*_dead_terms(tree, selection), *_dead_paths(tree, selection), *_dead_nodes(tree, selection)]
        for what, message in problems:
            place = (selection.step.file, selection.command.line, what)
            if place not in seen:
                seen.add(place)
                step = selection.step
                yield Finding(
                    RULE,
                    step.file,
                    selection.command.line,
                    message,
                    f"step {step.label!r}",
                    f"{step.file}:{step.key or step.label}:{what}",
                )


def _dead_terms(tree: SourceTree, selection: Selected) -> Iterator[tuple[str, str]]:
    run = selection.run
    # Ids may come from a list that the command names; what is in it is not looked up.
    if run.keyword is None or not selection.files or "--config-list-file" in run.other_options:
        return
    try:
        named = terms(parse(run.keyword))
    except BadExpression as error:
        yield run.keyword, f"-k {run.keyword!r} is not an expression: {error}"
        return
    for term in dict.fromkeys(named):
        if not _occurs(tree, selection, term):
            role = "excludes" if term.negated else "selects"
            yield (
                term.name,
                f"-k {run.keyword!r}: {term.name!r} {role} nothing, the name occurs nowhere in what it runs",
            )


def _searchable(tree: SourceTree, selection: Selected) -> Iterator[str]:
    """Files in which a test name or a parameter id could be written: tests, conftests, imported helpers."""
    yield from selection.files
    for file in selection.files:
        folder = file
        while "/" in folder:
            folder = folder.rsplit("/", 1)[0]
            yield f"{folder}/conftest.py"
        for dotted in _IMPORT.findall(tree.texts.get(file, "")):
            yield from _module_paths(dotted, file)
    if len(selection.files) < FEW_FILES:
        for folder in {file.rpartition("/")[0] for file in selection.files}:
            yield from tree.by_folder.get(folder, ())


def _module_paths(dotted: str, importer: str) -> set[str]:
    if dotted.startswith("."):
        depth = len(dotted) - len(dotted.lstrip("."))
        base = importer.split("/")[:-depth]
        path = "/".join([*base, *filter(None, dotted.lstrip(".").split("."))])
    else:
        path = dotted.replace(".", "/")
    return {f"{path}.py", f"{path}/__init__.py"}


def _occurs(tree: SourceTree, selection: Selected, term: Term) -> bool:
    """Whether every word of a name occurs somewhere; an id may join several values with ``-``, or number them."""
    pieces = {piece for piece in re.split(r"[^A-Za-z0-9_.]+", term.name.lower()) if piece}
    for path in _searchable(tree, selection):
        text = tree.lower(path)
        pieces = {p for p in pieces if not (p in path.lower() or p in text or p.rstrip("0123456789") in text)}
        if not pieces:
            return True
    return not pieces


def _dead_paths(tree: SourceTree, selection: Selected) -> Iterator[tuple[str, str]]:
    run = selection.run
    for option, words in (("--ignore", run.ignored), ("--deselect", run.deselected)):
        for word in words:
            if "$" not in word and tree.locate(word, run) is None:
                yield word, f"{option} {word} names nothing that exists"
    for word in selection.missing:
        yield word, f"the command runs {word}, which does not exist"


def _dead_nodes(tree: SourceTree, selection: Selected) -> Iterator[tuple[str, str]]:
    words = [word for word in (*selection.run.paths, *selection.run.deselected) if "::" in word]
    for word in words:
        path = tree.locate(word, selection.run)
        module = tree.module(path) if path is not None and path in tree.paths else None
        if module is None:
            continue
        node = word.partition("::")[2].split("[")[0]
        known = {test.node for test in module.tests} | {test.owner for test in module.tests}
        # A test can be inherited from a class of another file, or made by a factory: its name then stands elsewhere.
        if node not in known and node.rsplit("::", 1)[-1] not in tree.texts[path or ""]:
            yield word, f"{word} names no test of {path}"

"""A checkout as the rules see it: paths, texts, pipelines, and which tests each step's commands select."""

from __future__ import annotations

import fnmatch
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.ci.audit import pipelines as pipeline_files
from harness.ci.audit.arguments import Run
from harness.ci.audit.marks import TestModule, read_module
from harness.ci.audit.model import Pipelines, Step, Text
from harness.ci.audit.shell import Scripts, normal, runs
from harness.ci.selector import matching_entry


@dataclass(frozen=True)
class Selected:
    """One test run of one step. ``nodes``: node ids by file where the command names single tests; else the whole file.

    ``missing``: paths of the command that exist nowhere in the checkout.
    """

    step: Step
    command: Text
    run: Run
    files: tuple[str, ...]
    nodes: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...]


class SourceTree:
    """Paths and texts of one checkout; everything else is computed from them, once.

    ``paths``: every file. ``texts``: those the rules may read. ``documents`` and ``modules`` may be prepared by the
    caller (in parallel); what is absent is parsed on first use.
    """

    def __init__(
        self,
        paths: Iterable[str],
        texts: Mapping[str, str],
        documents: Mapping[str, Any] | None = None,
        modules: dict[str, TestModule | None] | None = None,
    ) -> None:
        self.paths = frozenset(paths)
        self.texts = texts
        self._documents = documents
        self._modules = modules if modules is not None else {}
        self._lower: dict[str, str] = {}
        # By platform, the test files that its steps collect; filled by the rule that asks.
        self.collected_on: dict[str, frozenset[str]] = {}

    @cached_property
    def folders(self) -> frozenset[str]:
        found: set[str] = set()
        for path in self.paths:
            while "/" in path and (path := path.rsplit("/", 1)[0]) not in found:
                found.add(path)
        return frozenset(found)

    def exists(self, path: str) -> bool:
        return path in self.paths or path in self.folders

    @cached_property
    def _tops(self) -> frozenset[str]:
        return frozenset(path.partition("/")[0] for path in self.paths)

    def knows(self, path: str) -> bool:
        """Whether the checkout holds the top-level folder of ``path``: a source distribution leaves some out."""
        return path.partition("/")[0] in self._tops or "/" not in path

    @cached_property
    def pipelines(self) -> Pipelines:
        documents = self._documents if self._documents is not None else parse_documents(self.texts)
        return pipeline_files.load(self.texts, documents)

    @cached_property
    def scripts(self) -> Scripts:
        return Scripts({path: text for path, text in self.texts.items() if path.endswith(".sh")})

    @cached_property
    def evaluation_files(self) -> tuple[str, ...]:
        """The lists of server configurations that the evaluations run, sorted."""
        return tuple(
            sorted(path for path in self.texts if path.startswith("tests/evals/") and path.endswith((".txt", ".yaml")))
        )

    @cached_property
    def test_files(self) -> tuple[str, ...]:
        """Files that pytest would collect, sorted, with at least one test in them."""
        return tuple(sorted(path for path in self.paths if is_test_path(path) and self._has_tests(path)))

    def _has_tests(self, path: str) -> bool:
        text = self.texts.get(path, "")
        return "def test_" in text or "class Test" in text

    def module(self, path: str) -> TestModule | None:
        """The tests of a file with their skip conditions; None when it does not parse."""
        if path not in self._modules:
            self._modules[path] = read_module(self.texts.get(path, ""))
        return self._modules[path]

    @cached_property
    def _shell(self) -> tuple[tuple[Selected, ...], Mapping[str, frozenset[str]]]:
        """What all commands start, read once: the test runs, and by step the scripts that were followed."""
        selections: list[Selected] = []
        scripts: dict[str, frozenset[str]] = {}
        for step in self.pipelines.steps:
            base = step.base
            opened: set[str] = set()
            for command in step.commands:
                found = runs(command.value, base, self.scripts, opened)
                selections += [self.resolve(step, command, run) for run in found]
                base = _directory_after(command.value, base)
            scripts[step.where] = frozenset(opened)
        return tuple(selections), scripts

    @property
    def selections(self) -> tuple[Selected, ...]:
        """Every test run of every active step."""
        return self._shell[0]

    @property
    def scripts_of(self) -> Mapping[str, frozenset[str]]:
        """By ``Step.where``: the scripts of the checkout that the step's commands run, also through each other."""
        return self._shell[1]

    @cached_property
    def selections_by_file(self) -> Mapping[str, tuple[Selected, ...]]:
        found: dict[str, list[Selected]] = {}
        for selection in self.selections:
            for path in selection.files:
                found.setdefault(path, []).append(selection)
        return {path: tuple(selections) for path, selections in found.items()}

    def lower(self, path: str) -> str:
        """The text of a file in lower case, "" when there is none to read."""
        if path not in self._lower:
            self._lower[path] = self.texts.get(path, "").lower()
        return self._lower[path]

    @cached_property
    def by_folder(self) -> Mapping[str, tuple[str, ...]]:
        """The readable files of each folder, sorted."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.texts):
            found.setdefault(path.rpartition("/")[0], []).append(path)
        return {folder: tuple(paths) for folder, paths in found.items()}

    @cached_property
    def _steps_by_entry(self) -> Mapping[str, tuple[Step, ...]]:
        found: dict[str, list[Step]] = {}
        for step in self.pipelines.steps:
            if step.semantics == "segments":
                for entry in dict.fromkeys(step.dependencies):
                    found.setdefault(entry.rstrip("/"), []).append(step)
        return {entry: tuple(steps) for entry, steps in found.items()}

    @cached_property
    def _excluding(self) -> frozenset[int]:
        steps = self.pipelines.steps
        return frozenset(id(step) for step in steps if any(entry.startswith("!") for entry in step.dependencies))

    def triggered_by(self, path: str) -> list[Step]:
        """The active steps whose list, or whose pipeline's run-all pattern, a change of ``path`` meets; optional
        steps too, though a pull request does not start them."""
        found: dict[int, Step] = {}
        parts = path.split("/")
        for length in range(1, len(parts) + 1):
            for step in self._steps_by_entry.get("/".join(parts[:length]), ()):
                # One include entry matches already; only a `!` entry can still take the file out again.
                if id(step) not in self._excluding or matching_entry(step.dependencies, path) is not None:
                    found[id(step)] = step
        all_of = {name for name, run_all in self.pipelines.run_all.items() if run_all.trigger([path]) is not None}
        for step in self.pipelines.steps:
            if step.pipeline in all_of or (
                step.semantics == "prefix" and (not step.dependencies or path.startswith(tuple(step.dependencies)))
            ):
                found[id(step)] = step
        return list(found.values())

    def resolve(self, step: Step, command: Text, run: Run) -> Selected:
        """Which test files a run collects."""
        files: set[str] = set()
        nodes: dict[str, tuple[str, ...]] = {}
        missing: list[str] = []
        if run.find is not None:
            root = self.locate(run.find.root, run) or normal(f"{run.base}/{run.find.root}")
            files.update(path for path in self._under(root) if _find_accepts(run, root, path))
        for word in run.paths:
            path, _, node = word.partition("::")
            hits = self._expand(path, run)
            if hits is None:
                if "$" not in word and "{" not in word and path.endswith(".py"):
                    missing.append(word)
                continue
            for hit in hits:
                files.add(hit)
                nodes[hit] = (*nodes.get(hit, ()), node) if node else nodes.get(hit, ())
        whole = {word.partition("::")[0] for word in run.paths if "::" not in word}
        for path in whole:
            for hit in self._expand(path, run) or ():
                nodes[hit] = ()
        ignored = [self.locate(word, run) for word in run.ignored]
        ignored += [self.locate(word, run) for word in run.deselected if "::" not in word]
        kept = [
            path
            for path in files
            if not any(skip and (path == skip or path.startswith(skip + "/")) for skip in ignored)
            and not any(
                fnmatch.fnmatch(path, glob) or fnmatch.fnmatch(path, f"{run.base}/{glob}") for glob in run.ignored_globs
            )
        ]
        return Selected(
            step,
            command,
            run,
            tuple(sorted(kept)),
            {path: names for path, names in nodes.items() if names},
            tuple(missing),
        )

    def locate(self, word: str, run: Run) -> str | None:
        """A path as written in a command, as a path of the checkout; None when there is no such file or folder."""
        word = word.partition("::")[0]
        if word.startswith("$"):
            word = word.partition("/")[2]
        word = word.removeprefix("/vllm-workspace/")
        folders = [run.base, "", "tests"] + ([run.script.rsplit("/", 1)[0]] if run.script else [])
        for folder in folders:
            path = normal(f"{folder}/{word}")
            if path and self.exists(path):
                return path
        return None

    def _expand(self, word: str, run: Run) -> list[str] | None:
        if any(character in word for character in "*?"):
            pattern = normal(f"{run.base}/{word}")
            hits = [path for path in self.test_files if _glob(pattern, path) or _glob(normal(word), path)]
            return hits or None
        located = self.locate(word, run)
        if located is None:
            return None
        return [located] if located in self.paths else self._under(located)

    def _under(self, folder: str) -> list[str]:
        start = bisect_left(self.test_files, folder + "/")
        stop = bisect_left(self.test_files, folder + "0")  # "0" is the character after "/"
        return list(self.test_files[start:stop])


def _glob(pattern: str, path: str) -> bool:
    """A shell glob: ``*`` stays inside one segment, as long as the pattern names a file."""
    if pattern.count("/") != path.count("/"):
        return False
    return all(fnmatch.fnmatch(part, glob) for part, glob in zip(path.split("/"), pattern.split("/"), strict=True))


def _find_accepts(run: Run, root: str, path: str) -> bool:
    expression = run.find
    assert expression is not None
    name = path.rsplit("/", 1)[-1]
    depth = path.removeprefix(root + "/").count("/") + 1
    if expression.max_depth is not None and depth > expression.max_depth:
        return False
    if expression.names and not any(fnmatch.fnmatch(name, glob) for glob in expression.names):
        return False
    return not any(fnmatch.fnmatch(name, glob) for glob in expression.excluded)


def _directory_after(command: str, base: str) -> str:
    """The directory after a plain ``cd X``: the commands of a step share one shell."""
    words = command.split()
    if len(words) == 2 and words[0] == "cd":
        target = words[1]
        if target.startswith("/vllm-workspace"):
            return normal(target.removeprefix("/vllm-workspace"))
        return base if target.startswith(("/", "$")) else normal(f"{base}/{target}")
    return base


def is_test_path(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return (
        path.startswith("tests/") and name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))
    )


def parse_documents(texts: Mapping[str, str]) -> dict[str, Any]:
    """Every pipeline file parsed here and now; `harness.ci.audit.checkout` does the same on several cores."""
    documents = {path: parse_document(texts[path]) for path in texts if pipeline_files.is_config(path)}
    documents |= {path: parse_document(texts[path]) for path in pipeline_files.job_files(texts, documents)}
    return documents


def is_pipeline_file(path: str) -> bool:
    return path.startswith(".buildkite/") and path.endswith((".yaml", ".yml"))


def parse_document(text: str) -> Any:
    """One document, or the error that it raises (kept, so that one broken file does not hide the rest)."""
    from ruamel.yaml.error import YAMLError

    try:
        return pipeline_files.parse(text)
    except YAMLError as error:
        return error

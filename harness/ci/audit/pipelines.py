"""Buildkite YAML to steps: which files make up a pipeline, what a mirror inherits, what the generator adds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harness.ci.audit.model import Area, Mirror, Pipelines, Step, Text
from harness.ci.audit.shell import normal
from harness.ci.selector import RunAll

LEGACY_AMD = ".buildkite/test-amd.yaml"
LEGACY_PIPELINE = "test-amd"
DEFAULT_BASE = "tests"
WORKSPACE = "/vllm-workspace"

# Parsed nodes: a mapping (by key), a list, or a scalar with its line.
Value = Any


def parse(text: str) -> Value:
    """A YAML document as dicts and lists of `Text`, so that every string knows its line."""
    node = YAML(typ="safe").compose(text)
    return None if node is None else _plain(node)


def _plain(node: Node) -> Value:
    match node:
        case MappingNode():
            return {key.value: _plain(value) for key, value in node.value}
        case SequenceNode():
            return [_plain(item) for item in node.value]
        case ScalarNode():
            return Text(node.value, node.start_mark.line + 1)
    raise TypeError(f"unknown YAML node {node!r}")


def key_line(text: str, key: str) -> int:
    """The line of a top-level ``key:``, 1 when it is absent."""
    found = re.search(rf"^{re.escape(key)}\s*:", text, re.MULTILINE)
    return 1 if found is None else text.count("\n", 0, found.start()) + 1


def load(texts: Mapping[str, str], parsed: Mapping[str, Value | Exception]) -> Pipelines:
    """All pipelines of a checkout. ``parsed``: per file what `parse` gave, or the error it raised."""
    steps: list[Step] = []
    mirrors: list[Mirror] = []
    areas: list[Area] = []
    broken: list[tuple[str, int, str]] = []
    run_all: dict[str, RunAll] = {}
    # hardware_tests belongs to two pipelines: one step object, counted once, named after the first of them.
    seen: set[str] = set()
    for name, directories, patterns in _configs(parsed):
        run_all[name] = patterns
        for file in sorted(parsed):
            if file in seen or not any(file.startswith(directory.rstrip("/") + "/") for directory in directories):
                continue
            seen.add(file)
            document = parsed[file]
            if isinstance(document, Exception):
                broken.append((file, _error_line(document), str(document).splitlines()[0]))
            elif isinstance(document, dict) and "steps" in document:
                found = list(_steps(file, name, document))
                steps += [step for step, _ in found]
                for _, mirror in found:
                    if mirror is not None:
                        mirrors.append(mirror)
                        steps.append(mirror.step)
                areas.append(
                    Area(file, _text(document, "group") or file, name, key_line(texts[file], "steps"), len(found))
                )
    legacy = parsed.get(LEGACY_AMD)
    if isinstance(legacy, dict):
        found_legacy = list(_legacy_steps(legacy))
        steps += found_legacy
        line = key_line(texts[LEGACY_AMD], "steps")
        areas.append(Area(LEGACY_AMD, "AMD (hand-kept)", LEGACY_PIPELINE, line, len(found_legacy)))
    return Pipelines(tuple(steps), tuple(mirrors), tuple(areas), run_all, tuple(broken))


def _error_line(error: Exception) -> int:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    return 1 if mark is None else int(mark.line) + 1


def job_files(paths: Iterable[str], configs: Mapping[str, Value | Exception]) -> list[str]:
    """The YAML files of the job folders that the ``ci_config*.yaml`` documents name, and the hand-kept AMD file."""
    folders = tuple(directory.rstrip("/") + "/" for _, directories, _ in _configs(configs) for directory in directories)
    return sorted(
        path for path in paths if path == LEGACY_AMD or (path.startswith(folders) and path.endswith((".yaml", ".yml")))
    )


def is_config(path: str) -> bool:
    return re.fullmatch(r"\.buildkite/ci_config\w*\.yaml", path) is not None


def _configs(parsed: Mapping[str, Value | Exception]) -> Iterable[tuple[str, tuple[str, ...], RunAll]]:
    for file in sorted(parsed):
        document = parsed[file]
        if is_config(file) and isinstance(document, dict):
            patterns = RunAll(
                tuple(text.value for text in _texts(document.get("run_all_patterns"))),
                tuple(text.value for text in _texts(document.get("run_all_exclude_patterns"))),
            )
            directories = tuple(text.value for text in _texts(document.get("job_dirs")))
            yield _text(document, "name") or file, directories, patterns


def _text(mapping: Mapping[str, Value], key: str) -> str | None:
    value = mapping.get(key)
    return value.value if isinstance(value, Text) and value.value not in ("", "~", "null") else None


def _texts(value: Value) -> tuple[Text, ...]:
    if isinstance(value, Text):
        return (value,) if value.value not in ("", "~", "null") else ()
    return tuple(item for item in value or () if isinstance(item, Text))


def _flag(mapping: Mapping[str, Value], key: str, default: bool = False) -> bool:
    value = _text(mapping, key)
    return default if value is None else value.lower() in ("true", "yes", "on", "1")


def _number(mapping: Mapping[str, Value], *keys: str) -> int | None:
    for key in keys:
        value = _text(mapping, key)
        if value is not None and value.isdigit():
            return int(value)
    return None


def _env(mapping: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    env = mapping.get("env")
    if not isinstance(env, dict):
        return ()
    return tuple((key, value.value) for key, value in env.items() if isinstance(value, Text))


def base_of(working_dir: str | None, default: str = "") -> str:
    """A container directory as one of the checkout: ``/vllm-workspace/tests`` is ``tests``."""
    if working_dir is None:
        return default
    return normal(working_dir.removeprefix(WORKSPACE))


def _line_of(mapping: Mapping[str, Value]) -> int:
    return min((value.line for value in mapping.values() if isinstance(value, Text)), default=1)


def _tagged_count(mapping: Mapping[str, Value]) -> int | None:
    tags = mapping.get("agent_tags")
    found = re.match(r"(\d+)", _text(tags, "gpu") or "") if isinstance(tags, dict) else None
    return int(found.group(1)) if found else None


def _steps(file: str, pipeline: str, document: Mapping[str, Value]) -> Iterable[tuple[Step, Mirror | None]]:
    area = _text(document, "group") or file
    group_depends = bool(_texts(document.get("depends_on")))
    for raw in document.get("steps") or ():
        if not isinstance(raw, dict) or "label" not in raw:
            continue
        own = _texts(raw.get("source_file_dependencies"))
        step = Step(
            file=file,
            line=_line_of(raw),
            label=raw["label"].value,
            key=_text(raw, "key") or "",
            area=area,
            pipeline=pipeline,
            device=_text(raw, "device"),
            count=_number(raw, "num_devices", "num_gpus") or _tagged_count(raw),
            optional=_flag(raw, "optional"),
            soft_fail=_flag(raw, "soft_fail"),
            base=base_of(_text(raw, "working_dir"), DEFAULT_BASE if group_depends else ""),
            own_dependencies=own,
            dependencies=tuple(t.value for t in own) + ((file,) if group_depends else ()),
            commands=_texts(raw.get("commands")) or _texts(raw.get("command")),
            env=_env(raw),
            no_gpu=_flag(raw, "no_gpu"),
        )
        mirrors = raw.get("mirror")
        amd = mirrors.get("amd") if isinstance(mirrors, dict) else None
        yield step, _mirror(step, amd) if isinstance(amd, dict) else None


def _mirror(parent: Step, raw: Mapping[str, Value]) -> Mirror:
    own = _texts(raw.get("source_file_dependencies"))
    commands = _texts(raw.get("commands"))
    own_values = tuple(text.value for text in own)
    own_count = _number(raw, "num_devices", "num_gpus")
    env = dict(parent.env)
    env.update(_env(raw))
    step = Step(
        file=parent.file,
        line=_line_of(raw),
        label=_text(raw, "label") or f"AMD: {parent.label}",
        key=f"amd-{parent.key}",
        area=parent.area,
        pipeline=parent.pipeline,
        device=_text(raw, "device"),
        count=own_count or parent.count,
        optional=_flag(raw, "optional", parent.optional),
        soft_fail=_flag(raw, "soft_fail", parent.soft_fail),
        # The generator reads a mirror's working_dir only together with the mirror's own commands.
        base=base_of(_text(raw, "working_dir"), parent.base) if commands else parent.base,
        own_dependencies=own,
        dependencies=own_values + tuple(entry for entry in parent.dependencies if entry not in own_values),
        commands=commands or parent.commands,
        env=tuple(env.items()),
        no_gpu=_flag(raw, "no_gpu", parent.no_gpu),
        mirror_of=parent.key or parent.label,
    )
    return Mirror(parent, step, frozenset(raw), own_count)


def _legacy_steps(document: Mapping[str, Value]) -> Iterable[Step]:
    for raw in document.get("steps") or ():
        if not isinstance(raw, dict) or "label" not in raw or not raw.get("mirror_hardwares"):
            continue
        own = _texts(raw.get("source_file_dependencies"))
        yield Step(
            file=LEGACY_AMD,
            line=_line_of(raw),
            label=raw["label"].value,
            key=_text(raw, "key") or raw["label"].value,
            area="AMD (hand-kept)",
            pipeline=LEGACY_PIPELINE,
            device=_text(raw, "agent_pool"),
            count=_number(raw, "num_gpus"),
            optional=_flag(raw, "optional"),
            soft_fail=_flag(raw, "soft_fail"),
            base=base_of(_text(raw, "working_dir"), DEFAULT_BASE),
            own_dependencies=own,
            dependencies=tuple(text.value for text in own),
            commands=_texts(raw.get("commands")) or _texts(raw.get("command")),
            env=_env(raw),
            no_gpu=_flag(raw, "no_gpu"),
            semantics="prefix",
        )

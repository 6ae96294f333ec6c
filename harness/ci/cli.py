"""The command line's ``ci`` part: read and write the files; every decision is made in the pure modules."""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from harness.ci.deps import DEPS_FOLDER, check_list, collapse, read_list, read_trace, render_list
from harness.ci.selector import select
from harness.ci.steps import Document, as_yaml, carry_over, documents
from harness.deployments import DEPLOYMENTS
from harness.errors import Misconfigured

EXIT_OK = 0
EXIT_DRIFT = 1
GIT_TIMEOUT_S = 60


def run_pipeline(root: Path, check: bool) -> int:
    """Renders ``root``/.buildkite. With ``check`` nothing is written: a unified diff is printed, and drift is 1."""
    drifted = False
    for path, document in documents(DEPLOYMENTS.values(), read_list).items():
        file = root / path
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        wanted = as_yaml(carry_over(document, _parsed(file, text)))
        if wanted == text:
            continue
        drifted = True
        if check:
            sys.stdout.writelines(
                difflib.unified_diff(
                    text.splitlines(keepends=True), wanted.splitlines(keepends=True), path, f"{path} (rendered)"
                )
            )
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return EXIT_DRIFT if check and drifted else EXIT_OK


def _parsed(file: Path, text: str) -> dict[str, Any] | None:
    try:
        parsed = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise Misconfigured(f"{file} is not YAML any more ({error}); delete it and render again") from error
    return parsed if isinstance(parsed, dict) else None


@dataclass(frozen=True)
class Chosen:
    """A rendered step and whether a change selects it."""

    label: str
    selected: bool
    reason: str


def choose(rendered: dict[str, Document], changed: Sequence[str]) -> list[Chosen]:
    """Every vLLM-side step, mirrors included, with the reason why the change starts it or does not."""
    found = []
    for path, document in rendered.items():
        for step in document["steps"]:
            if "source_file_dependencies" not in step:
                continue  # this project's own pipeline runs whole
            own = [*step["source_file_dependencies"], path]
            optional = bool(step.get("optional"))
            found.append((str(step["label"]), own, optional))
            mirror = step.get("mirror", {}).get("amd")
            if mirror is not None:
                entries = [*mirror["source_file_dependencies"], *own]
                found.append((str(mirror["label"]), entries, bool(mirror.get("optional", optional))))
    results = []
    for label, entries, optional in found:
        selection = select(entries, changed, optional=optional)
        results.append(Chosen(label, selection.selected, selection.reason))
    return results


def run_select(vllm: Path | None, base: str | None, changed: Sequence[str]) -> int:
    """Prints which steps a change selects and why. Give the files, or a vLLM checkout and the ref to compare with."""
    if base is not None:
        changed = [*changed, *_changed_since(vllm or Path.cwd(), base)]
    if not changed:
        raise Misconfigured("nothing to select by: give --changed FILES, or --base REF with files that differ from it")
    for chosen in choose(documents(DEPLOYMENTS.values(), read_list), changed):
        sys.stdout.write(f"{'run ' if chosen.selected else 'skip'}  {chosen.label}: {chosen.reason}\n")
    return EXIT_OK


def _changed_since(repository: Path, base: str) -> list[str]:
    command = ["git", "-C", str(repository), "diff", "--name-only", "--merge-base", base]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise Misconfigured(f"git cannot compare {repository} with {base}: {done.stderr.strip()}")
    return done.stdout.split()


def run_deps(deployment: str, trace: Path, package: Path, check: bool) -> int:
    """Derives a deployment's list from the trace files of a run, or with ``check`` only compares it with them.

    ``trace``: the folder of ``<pid>.txt`` files. ``package``: the folder that holds the ``vllm`` package they name.
    """
    texts = [file.read_text(encoding="utf-8") for file in sorted(trace.glob("*.txt"))]
    traced = read_trace(texts)
    if not traced:
        raise Misconfigured(f"{trace} holds no import trace; run the deployment with `--launch spawn` and a trace")
    if check:
        check_list(deployment, read_list(deployment), traced)
        sys.stdout.write(f"{deployment}: the list covers all {len(traced)} imported files\n")
        return EXIT_OK
    present = [file.relative_to(package).as_posix() for file in (package / "vllm").rglob("*.py")]
    entries = collapse(traced, present)
    source = f"{len(texts)} processes of one run, {len(traced)} imported files"
    (DEPS_FOLDER / f"{deployment}.txt").write_text(render_list(deployment, entries, source), encoding="utf-8")
    sys.stdout.write(f"{deployment}: {len(traced)} imported files in {len(texts)} processes, {len(entries)} entries\n")
    return EXIT_OK

"""The command line's ``ci`` part: read and write the files; every decision is made in the pure modules."""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from harness.ci.audit.checkout import require_checkout
from harness.ci.deps import DEPS_FOLDER, check_list, collapse, read_list, render_list
from harness.ci.selector import select
from harness.ci.steps import INTEL_FILE, Document, as_yaml, carry_over, documents, vllm_documents
from harness.ci.upstream import image_variables
from harness.deployments import DEPLOYMENTS
from harness.errors import Misconfigured
from harness.expectations import EXPECTATIONS_NAME, expired, load, refused_on
from harness.files import LARGEST_DATA_BYTES, read_bounded
from harness.result import Result, read_result
from harness.run.trace import TRACE_FOLDER, files_per_process, read_processes

EXIT_OK = 0
EXIT_DRIFT = 1
GIT_TIMEOUT_S = 60


def run_pipeline(root: Path, check: bool, vllm: Path | None = None) -> int:
    """Renders ``root``/.buildkite. With ``check`` nothing is written: a unified diff is printed, and drift is 1.

    So is an expectation that has expired: a deployment that no longer runs would otherwise keep its entry for ever.
    With ``vllm``, a vLLM checkout, its files are rendered instead, with what only that checkout knows.
    """
    if vllm is not None:
        require_checkout(vllm)
        ours = vllm / INTEL_FILE
        # Without ours: what was rendered before would prove itself right.
        jobs = [file for file in ours.parent.glob("*.yaml") if file != ours]
        image = image_variables({str(file): _parsed(file, _text(file), "restore it") for file in jobs})
        return _write(vllm, vllm_documents(DEPLOYMENTS.values(), read_list, image), check)
    drifted = False
    table = root / EXPECTATIONS_NAME
    entries = load(table) if table.is_file() else ()
    if check:
        for sentence in expired(entries, date.today()):
            drifted = True
            sys.stdout.write(f"{sentence}\n")
    refused = refused_on("cpu", entries)
    code = _write(root, documents(DEPLOYMENTS.values(), read_list, refused), check)
    return EXIT_DRIFT if drifted else code


def _write(root: Path, rendered: dict[str, Document], check: bool) -> int:
    drifted = False
    for path, document in rendered.items():
        file = root / path
        text = _text(file) if file.is_file() else ""
        wanted = as_yaml(carry_over(document, _parsed(file, text, "restore it, or delete it and render again")))
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


def _text(file: Path) -> str:
    try:
        return read_bounded(file, LARGEST_DATA_BYTES)
    except UnicodeDecodeError as error:
        raise Misconfigured(f"{file} is not text ({error}); restore it") from error


def _parsed(file: Path, text: str, advice: str) -> dict[str, Any] | None:
    try:
        parsed = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise Misconfigured(f"{file} is not YAML ({error}); {advice}") from error
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
    command = [
        "git",
        "-C",
        str(repository),
        "diff",
        "--name-only",
        "-z",
        "--merge-base",
        "--end-of-options",
        base,
        "--",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    if done.returncode != 0:
        # Outside of a repository git prints its whole manual.
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[0]
        raise Misconfigured(f"git cannot compare {repository} with {base}: {said}")
    return [name for name in done.stdout.split("\0") if name]


def run_deps(deployment: str, run_dir: Path, package: Path | None, check: bool) -> int:
    """Derives a deployment's list from a run made with ``--trace``, or with ``check`` only compares it with one.

    ``package``: the folder that holds the ``vllm`` package of that run; None: the one beside the run's interpreter.
    """
    processes = read_processes(run_dir / TRACE_FOLDER)
    traced = frozenset[str]().union(*(process.files for process in processes))
    if not traced:
        raise Misconfigured(f"{run_dir / TRACE_FOLDER} holds no import trace; run {deployment} with --trace")
    if (result := _result_of(run_dir)).deployment != deployment:
        raise Misconfigured(f"{run_dir} is a run of {result.deployment}, not of {deployment}")
    if check:
        check_list(deployment, read_list(deployment), traced)
        sys.stdout.write(f"{deployment}: the list covers all {len(traced)} imported files\n")
        return EXIT_OK
    if package is None:
        package = _site_packages(Path(str(result.engine.get("interpreter", ""))))
    present = [file.relative_to(package).as_posix() for file in (package / "vllm").rglob("*.py")]
    if not traced & set(present):
        raise Misconfigured(f"{package} does not hold the vLLM of this run; give its folder with --package")
    entries = collapse(traced, present)
    counts = files_per_process(processes)
    source = f"import trace of one run on vLLM {result.engine.get('vllm')} ({result.engine.get('platform')})"
    text = render_list(deployment, entries, source, counts, traced)
    (DEPS_FOLDER / f"{deployment}.txt").write_text(text, encoding="utf-8")
    for process, count in counts.items():
        sys.stdout.write(f"{process}: {count} files\n")
    sys.stdout.write(f"{deployment}: {len(traced)} files together, {len(entries)} entries\n")
    return EXIT_OK


def _result_of(run_dir: Path) -> Result:
    try:
        return read_result(run_dir)
    except (OSError, ValidationError) as error:
        raise Misconfigured(f"{run_dir} holds no result.json of a run") from error


def _site_packages(interpreter: Path) -> Path:
    found = sorted(interpreter.parent.parent.glob("lib/python3.*/site-packages/vllm"))
    if not found:
        raise Misconfigured(f"no vllm package lies beside {interpreter}; give its folder with --package")
    return found[0].parent

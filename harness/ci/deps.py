"""From what a run really imported to the list that triggers it: collapse, check, read and write.

Rules, in this order, for the union of the vLLM files that any process of a deployment imported:

1. Files of `EXCLUSIONS` are left out, each with its reason.
2. Files of `LISTED_SINGLY` stay single files: beside the one model that runs lie hundreds that do not, and beside the
   platform that was traced those of the other vendors.
3. A folder replaces its files when at least `MIN_FILES` of them were imported and they are at least `MIN_SHARE` of
   the Python files below it; the outermost such folder wins, except for those of `TOO_WIDE`.
4. What remains is listed file by file.

The result is minimal: no entry lies under another. An imported file that no entry covers makes `uncovered` non-empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.ci.selector import matching_entry
from harness.errors import Misconfigured

MIN_FILES = 3
# A server imports a third of most folders it uses at all; the rest is for other hardware, and moves with it.
MIN_SHARE = 0.3
# As a whole they are no evidence of anything: half of all changes touch one.
TOO_WIDE = ("vllm/", "vllm/v1/", "vllm/model_executor/", "vllm/distributed/")
LISTED_SINGLY = (
    "vllm/model_executor/models/",
    "vllm/models/",
    "vllm/transformers_utils/configs/",
    "vllm/platforms/",
)
EXCLUSIONS: Mapping[str, str] = {
    "vllm/_version.py": "written by the build, not in the repository",
    "vllm/third_party/": "copies of other projects; an update of one changes its caller too",
    "vllm/benchmarks/": "imported by the command line's parser, never run by a server",
    "vllm/platforms/cpu.py": "the traced platform; `harness.ci.platforms` adds each vendor's own file",
    "vllm/assets/": "sample images and sounds of the examples",
    "vllm/usage/": "usage statistics, which the harness switches off",
    "vllm/profiler/": "no deployment is profiled",
    "vllm/ray/": "no deployment runs on Ray",
    "vllm/lora/": "no deployment loads an adapter",
    "vllm/models/deepseek_v4/": "another model, imported by the attention backends' sparse_swa.py",
    "vllm/models/common/": "operators of the models beside it, which no deployment runs",
    "vllm/parser/": "chat parsing; the gate sends plain completions",
    "vllm/reasoning/": "chat parsing; the gate sends plain completions",
    "vllm/tool_parsers/": "chat parsing; the gate sends plain completions",
    "vllm/transformers_utils/chat_templates/": "chat parsing; the gate sends plain completions",
    "vllm/distributed/ec_transfer/": "no deployment moves encoder outputs between servers",
    "vllm/distributed/weight_transfer/": "no deployment changes weights while it serves",
    "vllm/v1/kv_hints/": "no deployment hints at the use of its KV blocks",
    "vllm/v1/kv_offload/": "no deployment offloads KV blocks",
    "vllm/v1/simple_kv_offload/": "no deployment offloads KV blocks",
}
DEPS_FOLDER = Path(__file__).parent / "deps"


@dataclass(frozen=True)
class Entry:
    """One line of a list. ``imported`` of ``present`` Python files under it were seen; ``present`` 0: not counted."""

    path: str
    imported: int
    present: int


def read_trace(texts: Iterable[str]) -> frozenset[str]:
    """The union of trace files as the engine plugin writes them (comment lines start with ``#``); vLLM's files only."""
    lines = (line.strip() for text in texts for line in text.splitlines())
    return frozenset(line for line in lines if line.startswith("vllm/") and line.endswith(".py"))


def excluded(path: str) -> str | None:
    """Why a path is left out of every list; None for one that is not."""
    entry = matching_entry(tuple(EXCLUSIONS), path)
    return EXCLUSIONS[entry] if entry is not None else None


def collapse(traced: Iterable[str], present: Iterable[str]) -> tuple[Entry, ...]:
    """The minimal list for the imported files. ``present``: every Python file of that vLLM, for the shares."""
    wanted = {path for path in traced if excluded(path) is None}
    known = {path for path in present if path.endswith(".py") and excluded(path) is None} | wanted
    entries: list[Entry] = []
    for folder in sorted(_folders(wanted), key=lambda folder: (folder.count("/"), folder)):
        below = {path for path in wanted if path.startswith(folder)}
        total = sum(1 for path in known if path.startswith(folder))
        if len(below) >= MIN_FILES and len(below) >= MIN_SHARE * total:
            entries.append(Entry(folder, len(below), total))
            wanted -= below
    entries += [Entry(path, 1, 1) for path in wanted]
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _folders(paths: Iterable[str]) -> set[str]:
    """The folders that may stand for their files, each with its slash."""
    found: set[str] = set()
    for path in paths:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth]) + "/"
            if folder not in TOO_WIDE and not any(
                folder.startswith(single) or single.startswith(folder) for single in LISTED_SINGLY
            ):
                found.add(folder)
    return found


def uncovered(entries: Sequence[str], traced: Iterable[str]) -> list[str]:
    """The imported files that no entry covers, and no exclusion explains: a change to one would trigger nothing."""
    return sorted(path for path in traced if excluded(path) is None and matching_entry(entries, path) is None)


def check_list(deployment: str, entries: Sequence[str], traced: Iterable[str]) -> None:
    """Raises `Misconfigured`, naming the files, when the list of ``deployment`` misses something it executed."""
    missing = uncovered(entries, traced)
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise Misconfigured(
            f"{DEPS_FOLDER.name}/{deployment}.txt does not cover {len(missing)} files that {deployment} imported: "
            f"{shown}. Run `harness ci deps` on a new trace and review the difference"
        )


def render_list(
    deployment: str, entries: Sequence[Entry], source: str, processes: Mapping[str, int], traced: Iterable[str]
) -> str:
    """The data file: where it comes from, how many files each process imported, what was left out and why."""
    files = list(traced)
    lines = [f"# What a change must touch to run {deployment}. Source: {source}.", "# vLLM files by process:"]
    lines += [f"#   {process}: {count}" for process, count in processes.items()]
    lines += ["# Left out, though imported:"]
    for path, reason in EXCLUSIONS.items():
        if count := sum(1 for file in files if matching_entry((path,), file) is not None):
            lines.append(f"#   {path} ({count}): {reason}")
    lines += [entry.path for entry in entries]
    return "\n".join(lines) + "\n"


def parse_list(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def read_list(deployment: str, folder: Path = DEPS_FOLDER) -> tuple[str, ...]:
    """The reviewed list of a deployment. Raises `Misconfigured` when there is none: an empty one never triggers."""
    path = folder / f"{deployment}.txt"
    entries = parse_list(path.read_text(encoding="utf-8")) if path.is_file() else ()
    if not entries:
        raise Misconfigured(
            f"{deployment} has no dependency list ({path}); a step without one is never triggered. "
            "Record a run with an import trace and derive it with `harness ci deps`"
        )
    return entries

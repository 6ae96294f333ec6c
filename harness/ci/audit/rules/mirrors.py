"""AMD mirrors that do not do what the step they mirror does: another device than said, fewer tests, other triggers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.ci.audit.devices import KINDS, Device, device_of, pool_count
from harness.ci.audit.model import Finding, Mirror, Step
from harness.ci.audit.rules.device_skips import skipped
from harness.ci.audit.tree import SourceTree
from harness.ci.selector import covers

RULE = "mirror-drift"
# Paths that only concern one platform; a mirror is right to list them alone.
_PLATFORM_PATH = re.compile(
    r"rocm|aiter|amd|hip|nccl|cutedsl|fa4|_cpu_|moriio|mori|quark|cuda|flashinfer|cutlass|csrc/", re.IGNORECASE
)
# Listed or left out out of habit; a difference in these alone is no drift.
_SHARED_PATHS = frozenset({"tests/utils.py", "tests/conftest.py", "vllm/envs.py"})
_LABEL_DEVICE = re.compile(r"\(\s*(?:\d+x)?(?P<name>[A-Z]+\d+[A-Z]*)(?P<rest>[^)]*)\)")


def check(tree: SourceTree) -> Iterator[Finding]:
    for step in tree.pipelines.steps:
        yield from _label(step)
    for mirror in tree.pipelines.mirrors:
        yield from _devices(mirror)
        yield from _commands(tree, mirror)
        yield from _dependencies(tree, mirror)


def _finding(step: Step, what: str, message: str, detail: str = "") -> Finding:
    return Finding(RULE, step.file, step.line, message, detail, f"{step.file}:{step.key or step.label}:{what}")


def _label(step: Step) -> Iterator[Finding]:
    """A label that names a device which is not the step's. Labels without a device name claim nothing."""
    found = _LABEL_DEVICE.search(step.label)
    if found is None or step.device is None:
        return
    said = found["name"].lower()
    if said not in KINDS:
        return
    device = step.device.lower()
    wanted = said
    if "MIG" in found["rest"] and (size := re.search(r"(\d+)\s*GB", found["rest"])):
        wanted = f"{said}_{size.group(1)}gb"
    elif "DPX" in found["rest"]:
        wanted = f"{said}_dpx"
    if device != wanted and not re.match(rf"{re.escape(wanted)}(_\d+|-k8s)?$", device):
        yield _finding(step, "label", f"label {step.label!r} says {found.group(0)}, the device is {step.device}")


def _devices(mirror: Mirror) -> Iterator[Finding]:
    step, parent = mirror.step, mirror.parent
    device = device_of(step)
    if step.device is None:
        yield _finding(step, "device", f"the mirror of {parent.label!r} has no device")
        return
    if device is None and not step.no_gpu:
        yield _finding(step, "device", f"{step.label!r}: unknown device {step.device}")
        return
    provided = pool_count(step.device)
    if provided is None:
        return
    if mirror.own_count is not None and mirror.own_count != provided:
        yield _finding(
            step, "count", f"{step.label!r}: num_devices {mirror.own_count}, but {step.device} has {provided}"
        )
    elif mirror.own_count is None and parent.count is not None and provided < parent.count:
        yield _finding(
            step,
            "count",
            f"{step.label!r}: {step.device} has {provided} devices, the mirrored step uses {parent.count}",
            f"{parent.label!r} at {parent.where}",
        )


def _collected(tree: SourceTree, step: Step) -> set[str]:
    return {path for s in tree.selections if s.step is step for path in s.files}


def _commands(tree: SourceTree, mirror: Mirror) -> Iterator[Finding]:
    if "commands" not in mirror.explicit:
        return
    device = device_of(mirror.step)
    if device is None:
        return
    elsewhere = _collected_on(tree, device.platform)
    lost = [
        path
        for path in sorted(_collected(tree, mirror.parent) - elsewhere)
        if not _PLATFORM_PATH.search(path) and _may_run(tree, path, device)
    ]
    if lost:
        yield _finding(
            mirror.step,
            "commands",
            f"{mirror.step.label!r} leaves out {len(lost)} test files of the step it mirrors that no other AMD step "
            "collects, though nothing in them excludes the platform",
            ", ".join(lost[:8]) + (" ..." if len(lost) > 8 else ""),
        )


def _collected_on(tree: SourceTree, platform: str) -> frozenset[str]:
    """Every test file that some step of a platform collects."""
    if platform not in tree.collected_on:
        devices = {id(s.step): device_of(s.step) for s in tree.selections}
        for name in {device.platform for device in devices.values() if device is not None}:
            tree.collected_on[name] = frozenset(
                path
                for s in tree.selections
                if (device := devices[id(s.step)]) is not None and device.platform == name
                for path in s.files
            )
    return tree.collected_on.get(platform, frozenset())


def _may_run(tree: SourceTree, path: str, device: Device) -> bool:
    """Whether a test of the file is certain to run on ``device``, as far as its marks say."""
    module = tree.module(path)
    return module is not None and any(skipped(test, device)[0] is False for test in module.tests)


def _dependencies(tree: SourceTree, mirror: Mirror) -> Iterator[Finding]:
    """Paths that trigger the mirror and not the step, although the step runs or exercises the same."""
    parent = [entry.value for entry in mirror.parent.own_dependencies]
    if not parent or mirror.parent.optional or _collected(tree, mirror.step) != _collected(tree, mirror.parent):
        return
    extra = [
        entry.value
        for entry in mirror.step.own_dependencies
        if not entry.value.startswith("!")
        and not _PLATFORM_PATH.search(entry.value)
        and not entry.value.startswith((".buildkite/", "requirements/"))
        and not any(covers(included, entry.value.rstrip("/")) for included in parent if not included.startswith("!"))
        and tree.exists(entry.value.rstrip("/"))
    ]
    if set(extra) - _SHARED_PATHS:
        yield _finding(
            mirror.step,
            "dependencies",
            f"{len(extra)} paths trigger {mirror.step.label!r} but not {mirror.parent.label!r}, which runs the same "
            + ("commands" if mirror.step.commands == mirror.parent.commands else "test files"),
            ", ".join(extra[:10]) + (" ..." if len(extra) > 10 else ""),
        )

"""The registry and the platform table as Buildkite steps: pure, the same input gives the same bytes.

Each step is one deployment with one KV buffer device, so that its timeout is the budget of exactly one run. Its
command is one chain of ``&&``: whatever joins the lines of a step, a failing first command fails it. Single quotes
are not used where vLLM's generator would turn them into double ones inside double ones. `docs/ci.md` shows each
platform's command executed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from harness.ci.platforms import PLATFORMS, PROJECT_FOLDER, WORKSPACE, Platform, Variant, pool_size
from harness.ci.upstream import IMAGE_VARIABLES, RUNNER
from harness.deployments import Deployment, KvBuffer

Step = dict[str, Any]
Document = dict[str, Any]
ReadList = Callable[[str], tuple[str, ...]]

NVIDIA_FILE = ".buildkite/test_areas/spec_decode_gate.yaml"
INTEL_FILE = ".buildkite/intel_jobs/spec_decode_gate_intel.yaml"
PROJECT_FILE = ".buildkite/pipeline.yaml"
HEADER = "# Rendered by `nox -s pipeline` from harness/deployments.py and harness/ci/platforms.py: edit those.\n"
# Fields that rendering decides. Any other field of a step on disk is upstream's and is carried over as it is.
KNOWN_FIELDS = frozenset(
    (
        *("label", "key", "timeout_in_minutes", "device", "num_devices", "optional", "working_dir", "env", "mirror"),
        *("source_file_dependencies", "commands", "agent_tags", "no_plugin", "artifact_paths", "depends_on"),
    )
)
# Likewise of a step's environment.
KNOWN_ENV = frozenset((*IMAGE_VARIABLES, "VLLM_TEST_DEVICE"))
NOX = "nox==2026.10.20"
# NVIDIA's image has no connector; AMD's and Intel's bring NIXL. NIXL alone, as vLLM pins it: the whole list has ranges,
# and its other connectors replace what the image was built and tested with (numpy, protobuf, OpenTelemetry, gRPC). The
# script picks the build for the image's CUDA.
CONNECTORS = "requirements/kv_connectors.txt"
CONNECTOR_SCRIPT = ".buildkite/scripts/install-kv-connectors.sh"
INSTALL_NIXL = (
    f"grep ^nixl {WORKSPACE}/{CONNECTORS} > nixl.txt && "
    f"KV_CONNECTORS_REQUIREMENTS=nixl.txt bash {WORKSPACE}/{CONNECTOR_SCRIPT} && "
)
# Checkout, engine and harness environments, checkpoints: what a step does before the run's own budgets begin.
SETUP_MINUTES = 15
OWN_SESSIONS = {"lint": 10, "types": 10, "tests": 20}
# The gate's own proofs, on two cores: faults take 3 minutes, the smoke mutations 2 once there is an engine.
FAULTS_MINUTES = 15
FALSIFY_MINUTES = SETUP_MINUTES + 10
# Not below runs/: what is broken on purpose is nothing for the report of the deployments.
FALSIFIED = "falsified"


def run_minutes(deployment: Deployment) -> int:
    """A timeout above every budget of one run: the lease, then per stage readiness, driving and teardown."""
    budgets = deployment.timeouts
    references = any(role.name == "reference" for role in deployment.roles)
    stages = 2 if references or "output_matches_reference" in deployment.checks else 1
    total_s = budgets.lease_s + stages * (budgets.ready_s + budgets.drive_s + budgets.stop_s)
    return math.ceil(total_s / 60) + SETUP_MINUTES


def buffers(deployment: Deployment) -> tuple[KvBuffer | None, ...]:
    """The KV buffer devices to run, one step each; one None for a deployment that transfers nothing."""
    return deployment.transfer.buffers if deployment.transfer is not None else (None,)


def variants(platform: Platform, deployment: Deployment) -> tuple[Variant, ...]:
    """The platform's variants that this deployment has models for."""
    return tuple(one for one in platform.variants if one.models == "hub" or deployment.models.tiny is not None)


def gate_command(deployment: Deployment, variant: Variant, buffer: KvBuffer | None) -> str:
    """The run itself. No retry inside the step: it would double a budget that the timeout counts once.

    ``pip``, because it fits every image: Intel's holds Python in a virtual environment, where `uv pip install --system`
    goes to another Python. Not `python3 -m pip`: Intel's script takes `-m pip install` for a pytest marker, one word.
    """
    chosen = f" --kv-buffer {buffer}" if buffer is not None else ""
    return (
        f"pip install -q {NOX} && "
        f"python3 -m nox -s {deployment.name} -- --models {variant.models}{chosen} --no-retry-infra"
    )


def _key(deployment: Deployment, variant: Variant, buffer: KvBuffer | None, vendor: str = "") -> str:
    return "-".join(filter(None, ("spec-decode-gate", deployment.name, buffer, variant.models, vendor)))


def _label(platform: Platform, variant: Variant, deployment: Deployment, buffer: KvBuffer | None) -> str:
    nightly = " [Nightly]" if variant.optional else ""
    memory = f", {buffer} KV" if buffer is not None else ""
    text = f"{platform.emoji} ({variant.label}){nightly} Spec Decode Gate {deployment.name} ({variant.models}{memory})"
    return DoubleQuotedScalarString(text)


def _minutes(platform: Platform, deployment: Deployment) -> int:
    """Raises ``ValueError`` when the platform would cut the step off before the run's own budgets end."""
    minutes = run_minutes(deployment)
    if platform.longest_minutes is not None and minutes > platform.longest_minutes:
        raise ValueError(
            f"{deployment.name} may take {minutes} min, {platform.name} ends a step after {platform.longest_minutes}"
        )
    return minutes


def _mirror(deployment: Deployment, variant: Variant, buffer: KvBuffer | None) -> Step | None:
    platform = PLATFORMS["amd"]
    own = next((other for other in platform.variants if other.models == variant.models), None)
    if own is None:
        return None
    devices = pool_size(deployment.devices)
    return {
        "amd": {
            "label": _label(platform, own, deployment, buffer),
            "dind": False,
            "device": f"{own.device}_{devices}",
            # The generator refuses a count that is not the pool's, also an inherited one.
            **({"num_devices": devices} if devices != deployment.devices else {}),
            "timeout_in_minutes": _minutes(platform, deployment),
            "depends_on": [platform.image_step],
            # What the step does first is NVIDIA's: on ROCm the same script installs other things, unpinned.
            **({"commands": [gate_command(deployment, own, buffer)]} if buffer is not None else {}),
            # The generator adds the mirrored step's own list to this one.
            "source_file_dependencies": list(platform.extra_dependencies),
        }
    }


def nvidia_document(deployments: Iterable[Deployment], read: ReadList) -> Document:
    """``test_areas`` schema, with the AMD mirror in each step."""
    platform = PLATFORMS["nvidia"]
    steps: list[Step] = []
    for deployment in deployments:
        for variant in variants(platform, deployment):
            for buffer in buffers(deployment):
                step: Step = {
                    "label": _label(platform, variant, deployment, buffer),
                    "key": _key(deployment, variant, buffer),
                    "timeout_in_minutes": _minutes(platform, deployment),
                    "device": variant.device,
                    "num_devices": deployment.devices,
                }
                if variant.optional:
                    step["optional"] = True
                step |= {
                    "working_dir": DoubleQuotedScalarString(platform.working_dir),
                    "source_file_dependencies": [
                        f"{PROJECT_FOLDER}/",
                        *read(deployment.name),
                        *platform.extra_dependencies,
                        *((CONNECTORS, CONNECTOR_SCRIPT) if buffer is not None else ()),
                    ],
                    "commands": [
                        (INSTALL_NIXL if buffer is not None else "") + gate_command(deployment, variant, buffer)
                    ],
                }
                mirror = _mirror(deployment, variant, buffer)
                if mirror is not None:
                    step["mirror"] = mirror
                steps.append(step)
    return {"group": "Spec Decode Gate", "depends_on": [platform.image_step], "steps": steps}


def intel_document(deployments: Iterable[Deployment], read: ReadList, image: Mapping[str, str]) -> Document:
    """``intel_jobs`` schema. The runner script starts the container and gets the command as one quoted word.

    ``image``: the variables that tell the script which image, known to a vLLM checkout only (`image_variables`).
    """
    platform = PLATFORMS["intel"]
    steps: list[Step] = []
    for deployment in deployments:
        for variant in variants(platform, deployment):
            for buffer in buffers(deployment):
                step: Step = {
                    "label": _label(platform, variant, deployment, buffer),
                    "key": _key(deployment, variant, buffer, "intel"),
                    "timeout_in_minutes": _minutes(platform, deployment),
                    "device": variant.device,
                    "num_devices": deployment.devices,
                    "agent_tags": {
                        "label": "production",
                        "gpu": f"{deployment.devices}+",
                        "mem": f"{variant.memory_gb}+",
                    },
                    "no_plugin": True,
                    "optional": variant.optional,
                    "working_dir": DoubleQuotedScalarString(platform.working_dir),
                    "env": {**image, "VLLM_TEST_DEVICE": "xpu"},
                    "source_file_dependencies": [
                        f"{PROJECT_FOLDER}/",
                        *read(deployment.name),
                        *platform.extra_dependencies,
                    ],
                    "commands": [f"bash {RUNNER} 'cd {PROJECT_FOLDER} && {gate_command(deployment, variant, buffer)}'"],
                }
                steps.append(step)
    return {"group": "Spec Decode Gate Intel", "depends_on": [platform.image_step], "steps": steps}


def project_document(deployments: Iterable[Deployment], refused: Collection[str]) -> Document:
    """This project's own pipeline, plain Buildkite, on CPU: its checks first, then its proofs and every deployment.

    ``refused``: deployments that the CPU engine is expected to refuse. They run all the same: only `unsupported` in the
    expected words is let through, and a success is reported.
    """
    steps: list[Step] = [
        {
            "label": DoubleQuotedScalarString(f":computer: {name}"),
            "key": name,
            "timeout_in_minutes": minutes,
            "commands": [f"python3 -m pip install -q {NOX} && python3 -m nox -s {name}"],
        }
        for name, minutes in OWN_SESSIONS.items()
    ]
    steps.append(
        {
            "label": DoubleQuotedScalarString(":computer: pipeline is up to date"),
            "key": "pipeline",
            "timeout_in_minutes": 10,
            "commands": [f"python3 -m pip install -q {NOX} && python3 -m nox -s pipeline -- --check"],
        }
    )
    steps += [
        {
            "label": DoubleQuotedScalarString(":computer: faults"),
            "key": "faults",
            "depends_on": list(OWN_SESSIONS),
            "timeout_in_minutes": FAULTS_MINUTES,
            "commands": [f"python3 -m pip install -q {NOX} && python3 -m nox -s faults"],
        },
        {
            "label": DoubleQuotedScalarString(":computer: falsify (smoke)"),
            "key": "falsify",
            "depends_on": list(OWN_SESSIONS),
            "timeout_in_minutes": FALSIFY_MINUTES,
            "commands": [
                f"python3 -m pip install -q {NOX} && python3 -m nox -s falsify -- --smoke --runs-dir {FALSIFIED}"
            ],
            "artifact_paths": [DoubleQuotedScalarString(f"{FALSIFIED}/**/*")],
        },
    ]
    ran = []
    for deployment in deployments:
        if deployment.models.tiny is None:
            continue
        ran.append(deployment.name)
        allowed = f" --allow {deployment.name}" if deployment.name in refused else ""
        steps.append(
            {
                "label": DoubleQuotedScalarString(f":computer: {deployment.name} (tiny)"),
                "key": deployment.name,
                "depends_on": list(OWN_SESSIONS),
                "timeout_in_minutes": run_minutes(deployment),
                "commands": [
                    f"python3 -m pip install -q {NOX} && "
                    f"python3 -m nox -s {deployment.name} -- --models tiny --no-retry-infra{allowed}"
                ],
                "artifact_paths": [DoubleQuotedScalarString("runs/**/*")],
            }
        )
    every_allowed = "".join(f" --allow {key}" for key in ran if key in refused)
    steps.append(
        {
            "label": DoubleQuotedScalarString(":memo: report"),
            "key": "report",
            # Most of all when one of them failed.
            "depends_on": [{"step": key, "allow_failure": True} for key in ran],
            "timeout_in_minutes": 10,
            "commands": [
                f"python3 -m pip install -q {NOX} && "
                "buildkite-agent artifact download 'runs/**/*' . && "
                f"python3 -m nox -s report -- --junit junit.xml --annotation{every_allowed} runs/*/"
            ],
            "artifact_paths": [DoubleQuotedScalarString("junit.xml")],
        }
    )
    return {"steps": steps}


def documents(
    deployments: Iterable[Deployment], read: ReadList, refused_on_cpu: Collection[str] = ()
) -> dict[str, Document]:
    """Every file under ``.buildkite/`` that this project renders for itself, by path."""
    chosen = list(deployments)
    return {**vllm_documents(chosen, read, {}), PROJECT_FILE: project_document(chosen, refused_on_cpu)}


def vllm_documents(deployments: Iterable[Deployment], read: ReadList, image: Mapping[str, str]) -> dict[str, Document]:
    """The files that belong into a vLLM checkout, by path."""
    chosen = list(deployments)
    return {NVIDIA_FILE: nvidia_document(chosen, read), INTEL_FILE: intel_document(chosen, read, image)}


def carry_over(document: Document, on_disk: Mapping[str, Any] | None) -> Document:
    """``document`` with the unknown fields, and variables of ``env``, that the steps of the same key have on disk."""
    before = {step.get("key"): step for step in (on_disk or {}).get("steps") or () if isinstance(step, dict)}
    steps = []
    for step in document["steps"]:
        old = before.get(step["key"], {})
        kept = {name: value for name, value in old.items() if name not in KNOWN_FIELDS}
        env = {name: value for name, value in (old.get("env") or {}).items() if name not in KNOWN_ENV}
        if env:
            kept["env"] = step.get("env", {}) | env
        steps.append(step | kept)
    return document | {"steps": steps}


def as_yaml(document: Document) -> str:
    """The file's text. No line is folded: a wrapped command would read differently in a diff than in a shell."""
    writer = YAML()
    writer.indent(mapping=2, sequence=4, offset=2)
    writer.width = 100_000
    text = io.StringIO()
    writer.dump(document, text)
    return HEADER + text.getvalue()

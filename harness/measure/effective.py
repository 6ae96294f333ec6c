"""The configuration an engine says it runs, read from its own start-up log.

Three lines are used, wherever they stand and whatever process prefix they carry:
`Initializing a V1 LLM engine (vX) with config: ...` (engine core: model, drafter, ranks, length),
`non-default args: {...}` (API server: expert parallel, transfer settings) and
`Creating v1 connector with name: ...` (engine: the connector that really exists). What no line says is None.
"""

from __future__ import annotations

import re

from harness.facts import EffectiveConfig

_ENGINE_LINE = re.compile(r"Initializing a V1 LLM engine \(v[^)]*\) with config: (?P<config>[^\n]*)")
_ARGS_LINE = re.compile(r"non-default args: (?P<args>\{[^\n]*)")
_CREATED = re.compile(r"Creating v1 connector with name: (?P<name>\w+)")
_REGISTERED_BUFFER = re.compile(r"Registering KV_Caches\.[^\n]*kv_buffer_device: (?P<device>\w+)")
# Each engine of a data-parallel server logs under a name of its own; the configuration of a dense model says 1, since
# its engines share nothing.
_PARALLEL_ENGINE = re.compile(r"^\(EngineCore_DP(?P<rank>\d+) pid=\d+\)", re.MULTILINE)
_ALIGNED_BLOCK = re.compile(r"Setting attention block size to (?P<tokens>\d+) tokens")
# Said by the worker when it builds its runner; the first one says nothing of itself.
_V2_RUNNER = "Using V2 Model Runner"
_SPECULATIVE = re.compile(
    r"speculative_config=SpeculativeConfig\(method='(?P<method>[^']*)', "
    r"model=(?:None|'(?P<model>[^']*)'), num_spec_tokens=(?P<k>\d+)\)"
)
# `NixlConnector` is the name of the pull connector in the configuration; the factory logs the class behind it.
_CONFIGURED_NAME = {"NixlPullConnector": "NixlConnector"}


def parse_effective(log_text: str, role: str) -> EffectiveConfig:
    """The effective configuration of the server called ``role``; its engine core must have logged, else all is None."""
    engine = _first(_ENGINE_LINE, log_text, "config")
    args = _first(_ARGS_LINE, log_text, "args") or ""
    speculative = _SPECULATIVE.search(engine) if engine else None
    method = speculative["method"] if speculative else None
    created = _first(_CREATED, log_text, "name")
    said = [
        name for name, found in (("engine config", engine), ("non-default args", args), ("connector", created)) if found
    ]
    return EffectiveConfig(
        model=_quoted(engine, "model"),
        # Up to 0.2x each family had a method of its own (`deepseek_mtp`); the same drafter, one word here.
        method="mtp" if method and method.endswith("mtp") else method,
        k=int(speculative["k"]) if speculative else None,
        drafter=speculative["model"] if speculative else None,
        tensor_parallel=_number(engine, "tensor_parallel_size"),
        data_parallel=_engines(log_text, engine),
        pipeline_parallel=_number(engine, "pipeline_parallel_size"),
        expert_parallel="'enable_expert_parallel': True" in args if args else None,
        connector=_CONFIGURED_NAME.get(created, created) if created else None,
        kv_buffer_device=_first(_REGISTERED_BUFFER, log_text, "device") or _quoted(args, "kv_buffer_device"),
        kv_role=_quoted(args, "kv_role"),
        load_failure_policy=_quoted(args, "kv_load_failure_policy"),
        block_size=_block_size(log_text, args),
        block_enlarged=_ALIGNED_BLOCK.search(log_text) is not None,
        max_model_len=_number(engine, "max_seq_len"),
        model_runner_v2=(_V2_RUNNER in log_text) if engine else None,
        source=f"log of {role}: {', '.join(said) or 'no start-up line found'}",
    )


def _first(pattern: re.Pattern[str], text: str, group: str) -> str | None:
    found = pattern.search(text)
    return found[group] if found else None


def _quoted(text: str | None, key: str) -> str | None:
    return _first(re.compile(rf"\b{key}='(?P<value>[^']*)'"), text, "value") if text else None


def _number(text: str | None, key: str) -> int | None:
    value = _first(re.compile(rf"\b{key}=(?P<value>\d+)"), text, "value") if text else None
    return int(value) if value is not None else None


def _engines(log_text: str, engine: str | None) -> int | None:
    said = _number(engine, "data_parallel_size")
    seen = len(set(_PARALLEL_ENGINE.findall(log_text)))
    return said if said is None else max(said, seen)


def _block_size(log_text: str, args: str) -> int | None:
    # A hybrid model's attention block is enlarged until its page holds one state; that is the size really used.
    value = _first(_ALIGNED_BLOCK, log_text, "tokens") or _first(re.compile(r"'block_size': (?P<n>\d+)"), args, "n")
    return int(value) if value is not None else None

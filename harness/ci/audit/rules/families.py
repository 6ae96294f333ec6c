"""The features whose source files must have an end-to-end job, and what counts as one, in the paths of vLLM 0.33."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A feature: the source files that implement it, and what counts as running it end to end.

    ``sources`` and ``scripts`` are regular expressions for whole paths, ``commands`` one that is searched in a step's
    commands (the sessions of this project), ``server`` one for the file of an evaluated server's arguments; ``tests``
    are path prefixes. ``word``: how a test that starts an engine with the feature names it.
    """

    name: str
    sources: str
    tests: tuple[str, ...] = ()
    scripts: str | None = None
    commands: str | None = None
    server: str | None = None
    word: str | None = None


def _method(name: str) -> str:
    """The server arguments that ask for a speculative method, as JSON or as a dotted option."""
    return rf"""(?:"method"\s*:\s*"|speculative-config\.method[ =])\w*{name}"""


_E2E = "tests/v1/e2e/spec_decode/"
_ENGINE_TESTS = (
    "tests/v1/e2e/general/test_async_scheduling.py::test_with_eagle3",
    "tests/v1/e2e/general/test_async_scheduling_accuracy.py::test_with_eagle3",
    "tests/v1/spec_decode/test_acceptance_length.py",
    "tests/v1/spec_decode/test_speculators_correctness.py::test_speculators_correctness",
)
_MODELS = r"vllm/(?:model_executor/models|models)/"
FAMILIES = (
    Family(
        "EAGLE",
        rf"{_MODELS}(?:.*/)?\w*eagle\w*\.py|vllm/v1/spec_decode/eagle\.py|vllm/v1/worker/gpu/spec_decode/eagle/.*\.py"
        r"|vllm/transformers_utils/configs/eagle\.py",
        (
            f"{_E2E}eagle/",
            f"{_E2E}speculators/",
            "tests/v1/e2e/test_cpu_spec_decode.py",
            "tests/v1/distributed/test_eagle_dp.py",
            *_ENGINE_TESTS,
        ),
        commands=r"\bnox -s eagle3",
        server=_method("eagle"),
        word="eagle",
    ),
    Family(
        "MTP",
        rf"{_MODELS}(?:.*/)?(?:\w*_mtp|mtp\w*)\.py",
        (f"{_E2E}mtp/", f"{_E2E}test_mtp_parallel_load.py", f"{_E2E}acceptance_rates/mtp_other/"),
        r".*_mtp_\w*\.sh",
        commands=r"\bnox -s (?:mtp|\S+-mtp)\b",
        server=_method("mtp"),
        word="mtp",
    ),
    Family(
        "DFlash",
        rf"{_MODELS}(?:.*/)?\w*dflash\w*\.py|vllm/v1/(?:.*/)?\w*dflash\w*(?:/.*)?\.py",
        (f"{_E2E}acceptance_rates/dflash/",),
        server=_method("dflash"),
        word="dflash",
    ),
    Family(
        "DSpark",
        rf"{_MODELS}(?:.*/)?\w*dspark\w*\.py|vllm/v1/(?:.*/)?\w*dspark\w*(?:/.*)?\.py",
        (f"{_E2E}acceptance_rates/dspark/",),
        server=_method("dspark"),
        word="dspark",
    ),
    Family(
        "speculators configuration",
        r"vllm/transformers_utils/configs/speculators/.*\.py|vllm/config/speculative\.py",
        (_E2E, *_ENGINE_TESTS),
        server=_method(""),
        word="speculators",
    ),
    Family(
        "speculation",
        r"vllm/v1/spec_decode/.*\.py|vllm/v1/worker/gpu/spec_decode/.*\.py|vllm/v1/sample/rejection_sampler\.py",
        (_E2E, *_ENGINE_TESTS),
        server=_method(""),
    ),
    Family(
        "prefill/decode over NIXL",
        r"vllm/distributed/kv_transfer/kv_connector/v1/nixl/.*\.py|vllm/v1/worker/kv_connector_model_runner_mixin\.py"
        r"|vllm/distributed/kv_transfer/kv_connector/(?:base|factory|utils)\.py"
        r"|vllm/distributed/kv_transfer/kv_connector/v1/(?:base|ssm_conv_transfer_utils)\.py",
        ("tests/v1/kv_connector/nixl_integration/", "tests/v1/kv_connector/nixl_push_integration/"),
        r"tests/v1/kv_connector/nixl(?:_push)?_integration/.*\.sh",
        commands=r"\bnox -s \S+-pd\b",
    ),
    Family(
        "prefill/decode over NIXL with speculation",
        r"vllm/distributed/kv_transfer/kv_connector/v1/nixl/.*\.py|vllm/v1/worker/kv_connector_model_runner_mixin\.py",
        ("tests/v1/kv_connector/nixl_integration/test_spec_decode_acceptance.py",),
        r"tests/v1/kv_connector/nixl_integration/.*spec_decode.*\.sh",
        commands=r"\bnox -s \S+-pd\b",
    ),
    Family(
        "prefill/decode over Mooncake",
        r"vllm/distributed/kv_transfer/kv_connector/v1/mooncake/.*\.py",
        ("tests/v1/kv_connector/mooncake_integration/",),
        r"tests/v1/kv_connector/mooncake_integration/.*\.sh",
    ),
    Family(
        "prefill/decode over MoRIIO",
        r"vllm/distributed/kv_transfer/kv_connector/v1/moriio/.*\.py",
        ("tests/v1/kv_connector/moriio_integration/",),
        r"tests/v1/kv_connector/moriio_integration/.*\.sh",
    ),
    Family(
        "expert load balancing",
        r"vllm/distributed/eplb/.*\.py|vllm/v1/worker/gpu/eplb_utils\.py",
        (),
        r".*eplb\w*\.sh",
        server="--enable-eplb",
    ),
    Family(
        "expert load balancing with speculation",
        r"vllm/distributed/eplb/.*\.py|vllm/v1/worker/gpu/eplb_utils\.py",
        ("tests/distributed/test_eplb_spec_decode.py::test_eplb_spec_decode", f"{_E2E}test_mtp_parallel_load.py"),
        r".*mtp_async_eplb\.sh",
        commands=r"\bnox -s ep2-eplb\b",
        server=r"(?s)(?=.*--enable-eplb)(?=.*--speculative-config)",
    ),
    Family(
        "elastic expert parallelism", r"vllm/distributed/elastic_ep/.*\.py", ("tests/distributed/test_elastic_ep.py",)
    ),
    Family(
        "pipeline parallelism",
        r"vllm/distributed/parallel_state\.py|vllm/v1/executor/\w*\.py|vllm/v1/worker/gpu/pp_\w*\.py",
        ("tests/distributed/test_pipeline_parallel.py", "tests/distributed/test_pp_"),
        commands=r"\bnox -s pp2\b",
        server=r"--pipeline-parallel-size[ =][2-9]",
    ),
    Family(
        "data parallelism",
        r"vllm/v1/engine/coordinator\.py|vllm/v1/worker/dp_utils\.py|vllm/v1/worker/gpu/dp_utils\.py",
        ("tests/v1/distributed/", "tests/distributed/test_data_parallel"),
        commands=r"\bnox -s dp2\b",
        server=r"--data-parallel-size[ =][2-9]",
    ),
)

from __future__ import annotations

from pathlib import Path

import pytest

from harness.runtime.logs import RootError, find_root, root_error, tail

CORE = "(EngineCore pid=4711) "
CORE_ERROR = f"{CORE}ERROR 11-30 16:12:01 [core.py:1510] "
API = "(APIServer pid=4700) "

ENGINE_FAILED_TO_START = f"""\
{API}INFO 11-30 16:11:50 [api_server.py:100] vLLM API server version 0.32.0
{CORE_ERROR}EngineCore failed to start.
{CORE_ERROR}Traceback (most recent call last):
{CORE_ERROR}  File "vllm/v1/engine/core.py", line 1470, in run_engine_core
{CORE_ERROR}    engine_core = EngineCoreProc(*args, **kwargs)
{CORE_ERROR}  File "vllm/v1/core/kv_cache_utils.py", line 700, in check
{CORE_ERROR}    raise ValueError(
{CORE_ERROR}ValueError: No available memory for the cache blocks.
{CORE_ERROR}
{CORE_ERROR}The above exception was the direct cause of the following exception:
{CORE_ERROR}
{CORE_ERROR}Traceback (most recent call last):
{CORE_ERROR}    main()
{CORE_ERROR}RuntimeError: start-up failed
{CORE}Process EngineCore:
{CORE}Traceback (most recent call last):
{CORE}  File "multiprocessing/process.py", line 314, in _bootstrap
{CORE}    self.run()
{CORE}ValueError: No available memory for the cache blocks.
{API}Traceback (most recent call last):
{API}  File "vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
{API}    raise RuntimeError(
{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': 1}}
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: There appear to be 1 leaked semaphore objects
"""


def root(text: str) -> RootError | None:
    return find_root(text.splitlines())


def test_the_first_exception_of_the_engine_core_is_the_cause_not_the_servers_complaint() -> None:
    assert root(ENGINE_FAILED_TO_START) == RootError(
        "ValueError: No available memory for the cache blocks.", "EngineCore"
    )


def test_tracebacks_of_two_workers_that_interleave_are_kept_apart() -> None:
    zero, one = "(Worker_TP0 pid=1) ERROR 11-30 16:12:01 [w.py:1] ", "(Worker_TP1 pid=2) ERROR 11-30 16:12:01 [w.py:1] "
    text = "\n".join(
        [
            f"{zero}Traceback (most recent call last):",
            f"{one}Traceback (most recent call last):",
            f'{zero}  File "a.py", line 1, in a',
            f'{one}  File "b.py", line 1, in b',
            f"{one}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            f"{zero}RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1",
        ]
    )
    found = root(text)
    assert found is not None
    assert found.process == "Worker_TP1"
    assert found.line.startswith("torch.OutOfMemoryError: CUDA out of memory")


def test_a_validation_error_is_quoted_with_what_is_wrong() -> None:
    text = f"""\
{API}Traceback (most recent call last):
{API}  File "vllm/engine/arg_utils.py", line 1, in create_model_config
{API}pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig
{API}  Value error, EPLB is only supported on CUDA, ROCm and XPU. [type=value_error, input_value=ArgsKwargs(())]
{API}    For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""
    found = root(text)
    assert found is not None
    assert "1 validation error for ParallelConfig: Value error, EPLB is only supported" in found.line


def test_a_validation_error_of_a_field_names_the_field() -> None:
    text = "1 validation error for ModelConfig\nmax_model_len\n  Input should be a valid integer [type=int_parsing]"
    assert root(text) == RootError(
        "1 validation error for ModelConfig: max_model_len: Input should be a valid integer [type=int_parsing]", None
    )


def test_a_validation_error_at_the_very_end_is_not_lost() -> None:
    assert root("1 validation error for ModelConfig") == RootError("1 validation error for ModelConfig", None)


@pytest.mark.parametrize(
    "line",
    [
        "Fatal Python error: Segmentation fault",
        "!!!!!!! Segfault encountered !!!!!!!",
        "api_server.py: error: unrecognized arguments: --no-such-flag",
        "ValueError: Model architectures ['Nope'] are not supported for now.",
        "/usr/bin/python3: No module named vllm",
        "terminate called after throwing an instance of 'c10::Error'",
        "MTP speculative decoding layer 78 weights missing from checkpoint",
    ],
)
def test_a_bare_line_that_says_why_is_found_among_ordinary_ones(line: str) -> None:
    text = f"{API}INFO 11-30 16:11:50 [a.py:1] starting\n{line}\n\n"
    assert root(text) == RootError(line, None)


def test_a_crash_before_the_complaints_about_it_is_the_cause() -> None:
    text = (
        'Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n  File "x.py", line 1 in f\n'
        f"{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}\n"
    )
    assert root(text) == RootError("Fatal Python error: Segmentation fault", None)


def test_a_warning_with_a_traceback_is_not_the_cause() -> None:
    warning = f"{API}WARNING 11-30 16:11:50 [a.py:1] "
    text = f"""\
{warning}optional kernel is missing
{warning}Traceback (most recent call last):
{warning}  File "a.py", line 1, in a
{warning}ImportError: libfoo.so.1
{CORE_ERROR}Traceback (most recent call last):
{CORE_ERROR}  File "b.py", line 1, in b
{CORE_ERROR}KeyError: 'drafter'
"""
    assert root(text) == RootError("KeyError: 'drafter'", "EngineCore")


def test_an_error_line_without_a_traceback_is_better_than_the_last_line() -> None:
    text = f"{CORE_ERROR}NIXL agent cannot register memory\n{API}shutting down\n"
    assert root(text) == RootError("NIXL agent cannot register memory", "EngineCore")


def test_the_heading_of_a_traceback_is_not_taken_for_the_cause() -> None:
    prefix = f"{API}ERROR 11-30 16:49:31 [async_llm.py:906] "
    text = f"""\
{prefix}AsyncLLM output_handler failed.
{prefix}Traceback (most recent call last):
{prefix}  File "vllm/v1/engine/core_client.py", line 1235, in get_output_async
{prefix}    raise self._format_exception(outputs) from None
{prefix}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).
"""
    found = root(text)
    assert found is not None
    assert "EngineDeadError" in found.line
    assert root(f"{text}{CORE_ERROR}NIXL agent cannot register memory") == RootError(
        "NIXL agent cannot register memory", "EngineCore"
    )


@pytest.mark.parametrize(
    "last",
    [
        'INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 200 OK',
        "2026-11-30 16:49:01 NIXL INFO    _api.py:281 Initialized NIXL agent",
        "2026-11-30 16:47:55  WARN vllm_router_rs::middleware: Concurrency queue processor shutting down",
        "W1130 16:49:27.250000 24212 torch/_library/triton.py:53] Triton not available",
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: leaked",
        f"{API}INFO 11-30 16:11:50 [a.py:1] ready",
    ],
)
def test_a_server_that_was_working_has_no_root_error(last: str) -> None:
    assert root(f"a library's greeting\n{API}INFO 11-30 16:11:50 [a.py:1] starting\n{last}\n") is None


def test_a_consequence_is_still_better_than_nothing() -> None:
    line = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    assert root(f"{API}{line}") == RootError(line, "APIServer")


def test_colours_do_not_hide_the_prefix(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        "\x1b[0;36m(EngineCore pid=1)\x1b[0;0m \x1b[31mERROR\x1b[0m \x1b[90m11-30 16:12:01\x1b[0m [a.py:1] no layer"
    )
    assert root_error(log) == RootError("no layer", "EngineCore")


def test_a_log_of_a_gigabyte_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "decode-0.log"
    with log.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\nValueError: the cause\n")
    assert tail(log, 1) == ["ValueError: the cause"]
    assert root_error(log) == RootError("ValueError: the cause", None)


def test_the_tail_never_begins_with_half_a_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("a long first line\nsecond\nthird\n")
    assert tail(log, 5, max_bytes=16) == ["second", "third"]
    assert tail(log, 1) == ["third"]


def test_a_log_that_does_not_exist_has_neither_tail_nor_cause(tmp_path: Path) -> None:
    assert tail(tmp_path / "none.log") == []
    assert root_error(tmp_path / "none.log") is None


def test_what_our_plugin_reports_explains_no_death() -> None:
    # A server that is killed says nothing more; the last line of its start must not be quoted as the reason.
    assert find_root(["gate-plugin pid=7 applied torchvision-absent stand-in, text only"]) is None
    assert find_root(["gate-plugin pid=7 not-applicable shm-wakeup no queue"]) is None


def test_an_exception_that_python_ignored_is_not_the_cause() -> None:
    ignored = [
        "Exception ignored in: <function Handler.__del__ at 0x7f>",
        "Traceback (most recent call last):",
        '  File "_custom_ops.py", line 3728, in __del__',
        "AssertionError: Please convert all Tensors to FakeTensors first",
    ]
    real = ["Traceback (most recent call last):", '  File "a.py", line 1, in load', "ValueError: the cause"]
    assert find_root(ignored) is None
    assert find_root([*ignored, *real]) == RootError("ValueError: the cause", None)
    # Only the traceback that follows it is ignored, not the next one of the same process.
    assert find_root([*ignored, *ignored, *real]) == RootError("ValueError: the cause", None)


def test_an_exception_without_words_is_quoted_with_the_place_that_raised_it():
    prefix = "(Worker_DP1 pid=7) ERROR 11-30 17:35:25 [multiproc_executor.py:1063] "
    lines = [
        prefix + "Traceback (most recent call last):",
        prefix + '  File "/e/site-packages/vllm/distributed/parallel_state.py", line 781, in all_gatherv',
        prefix + "    return self.device_communicator.all_gatherv(input_, dim, sizes)",
        prefix + '  File "/e/site-packages/vllm/distributed/base_device_communicator.py", line 296, in all_gatherv',
        prefix + "    raise NotImplementedError",
        prefix + "NotImplementedError",
    ]
    root = find_root(lines)
    assert root is not None
    assert root.line == "NotImplementedError (in vllm/distributed/base_device_communicator.py:296 all_gatherv)"
    assert root.process == "Worker_DP1"


def test_an_exception_with_words_is_quoted_as_it_stands():
    lines = ["Traceback (most recent call last):", '  File "/e/vllm/a.py", line 1, in f', "ValueError: no such layout"]
    root = find_root(lines)
    assert root is not None
    assert root.line == "ValueError: no such layout"


def test_a_crash_is_quoted_with_the_first_frame_that_is_not_the_signal_handlers():
    lines = [
        "!!!!!!! Segfault encountered !!!!!!!",
        '  File "./signal/../sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c", line 0, in 0x00007f12b4a5a04f',
        '  File "/tmp/vllm/csrc/cpu/cpu_fused_moe.cpp", line 242, in fused_moe_impl<c10::BFloat16, c10::BFloat16>',
        '  File "/tmp/vllm/csrc/cpu/cpu_fused_moe.cpp", line 709, in operator()',
    ]
    root = find_root(lines)
    assert root is not None
    assert root.line == "!!!!!!! Segfault encountered !!!!!!! (in vllm/csrc/cpu/cpu_fused_moe.cpp:242 fused_moe_impl)"


def test_a_crash_without_frames_is_quoted_as_it_stands():
    root = find_root(["!!!!!!! Segfault encountered !!!!!!!"])
    assert root is not None
    assert root.line == "!!!!!!! Segfault encountered !!!!!!!"

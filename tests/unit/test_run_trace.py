"""The import trace of a run: what asks for it, and what is read back."""

from __future__ import annotations

from pathlib import Path

from harness.deployments import DEPLOYMENTS
from harness.run.trace import files_per_process, read_processes, trace_environment


def written(folder: Path, server: str, pid: int, process: str, *files: str) -> None:
    (folder / server).mkdir(parents=True, exist_ok=True)
    header = f"# pid={pid} ppid=1 process={process} argv=/x/api_server.py --host 127.0.0.1"
    (folder / server / f"{pid}.txt").write_text("\n".join([header, *files]) + "\n", encoding="utf-8")


def test_every_server_gets_a_folder_of_its_own() -> None:
    environment = trace_environment(DEPLOYMENTS["mtp-pd"])
    assert environment["prefill-0"] == {"GATE_TRACE_DIR": "trace/prefill-0"}
    assert environment["decode-0"] == {"GATE_TRACE_DIR": "trace/decode-0"}
    assert "reference-0" in environment


def test_files_are_counted_by_server_and_process(tmp_path: Path) -> None:
    written(tmp_path, "decode-0", 11, "EngineCore", "vllm/envs.py", "vllm/v1/a.py", "vllm/v1/a.py", "../torch/b.py")
    written(tmp_path, "decode-0", 10, "MainProcess", "vllm/envs.py")
    processes = read_processes(tmp_path)
    assert files_per_process(processes) == {"decode-0/MainProcess": 1, "decode-0/EngineCore": 2}
    assert processes[1].files == {"vllm/envs.py", "vllm/v1/a.py"}


def test_processes_of_one_name_are_numbered(tmp_path: Path) -> None:
    written(tmp_path, "decode-0", 1, "Worker", "vllm/envs.py")
    written(tmp_path, "decode-0", 2, "Worker", "vllm/envs.py", "vllm/v1/a.py")
    assert files_per_process(read_processes(tmp_path)) == {"decode-0/Worker": 1, "decode-0/Worker 2": 2}


def test_no_trace_is_no_processes(tmp_path: Path) -> None:
    assert read_processes(tmp_path / "trace") == ()

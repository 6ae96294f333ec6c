"""The plugin's patches, on stand-in modules; the plugin folder is importable only with its own path entry."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.engine.adjustments import Adjustment, parse_adjustments
from harness.engine.interpreter import ENGINE_PLUGIN

sys.path.append(str(ENGINE_PLUGIN))

gate_adjust: Any = importlib.import_module("gate_adjust")


def in_fresh_python(program: str, path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ENGINE_PLUGIN), str(path)])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.defpath, "PYTHONPATH": paths, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def vllm_tree(folder: Path) -> None:
    queue = folder / "vllm" / "distributed" / "device_communicators" / "shm_broadcast.py"
    queue.parent.mkdir(parents=True)
    for package in (folder / "vllm", folder / "vllm" / "distributed", queue.parent):
        (package / "__init__.py").write_text("")
    queue.write_text("SHM_READER_RECHECK_INTERVAL_MS = 5000\n")


def test_the_folder_is_found_as_a_vllm_plugin_without_installing_it() -> None:
    found = importlib.metadata.distributions(path=[str(ENGINE_PLUGIN)])
    assert [(point.group, point.name, point.value) for dist in found for point in dist.entry_points] == [
        ("vllm.general_plugins", "gate", "gate_plugin:register")
    ]


def nixl_api() -> Any:
    class AgentConfig:
        pthrDelay = 100

    bind = ModuleType("bind")
    bind.nixlAgentConfig = AgentConfig  # type: ignore[attr-defined]
    api = ModuleType("api")
    api.nixlBind = bind  # type: ignore[attr-defined]
    return api


def test_nixl_agents_get_the_delay_though_the_api_writes_zero() -> None:
    api = nixl_api()
    assert gate_adjust.slow_progress_thread(api) == "pthrDelay=5000us"
    assert gate_adjust.slow_progress_thread(api) == "pthrDelay=5000us"
    config = api.nixlBind.nixlAgentConfig()
    config.pthrDelay = 0
    config.listenPort = 7
    assert (config.pthrDelay, config.listenPort) == (5000, 7)


def test_a_nixl_without_that_field_is_not_applicable() -> None:
    api = nixl_api()
    del api.nixlBind.nixlAgentConfig.pthrDelay
    with pytest.raises(gate_adjust.NotApplicable):
        gate_adjust.slow_progress_thread(api)
    with pytest.raises(gate_adjust.NotApplicable):
        gate_adjust.slow_progress_thread(ModuleType("api"))


def test_queue_readers_spin_less_and_writers_are_left_alone() -> None:
    class SpinCondition:
        def __init__(self, is_reader: bool, busy_loop_s: float = 1) -> None:
            self.busy_loop_s = busy_loop_s if is_reader else 0

    queue: Any = ModuleType("queue")
    queue.SHM_READER_RECHECK_INTERVAL_MS = 5000
    queue.SpinCondition = SpinCondition
    assert gate_adjust.shorten_shm_wakeup(queue) == "recheck=5ms busy=1ms"
    assert queue.SHM_READER_RECHECK_INTERVAL_MS == 5
    assert SpinCondition(True).busy_loop_s == 0.001
    assert SpinCondition(False).busy_loop_s == 0
    with pytest.raises(gate_adjust.NotApplicable):
        gate_adjust.shorten_shm_wakeup(ModuleType("queue"))


def test_the_torchvision_stand_in_imports_and_fails_on_use(tmp_path: Path) -> None:
    program = (
        "import gate_plugin; gate_plugin.register(); gate_plugin.register()\n"
        "from torchvision.transforms.v2 import functional\n"
        "functional.resize\n"
    )
    done = in_fresh_python(program, tmp_path, GATE_ADJUST="torchvision-absent")
    assert "ImportError: torchvision is not installed" in done.stderr.splitlines()[-1]
    assert done.stderr.count("applied torchvision-absent stand-in") == 2


def test_an_installed_torchvision_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("real = True\n")
    program = "import gate_plugin; gate_plugin.register(); import torchvision; assert torchvision.real"
    done = in_fresh_python(program, tmp_path, GATE_ADJUST="torchvision-absent")
    assert done.returncode == 0
    assert "not-applicable torchvision-absent torchvision is installed" in done.stderr


def test_each_process_says_what_was_applied_in_it_and_nothing_of_what_it_never_imported(tmp_path: Path) -> None:
    vllm_tree(tmp_path)
    program = (
        "import gate_plugin; gate_plugin.register()\n"
        "from vllm.distributed.device_communicators import shm_broadcast as queue\n"
        "assert queue.SHM_READER_RECHECK_INTERVAL_MS == 5\n"
    )
    done = in_fresh_python(program, tmp_path, GATE_ADJUST="nixl-progress-delay, shm-wakeup,heal-experts")
    assert done.returncode == 0
    said = {(line.name, line.applied, line.detail.split(";")[0]) for line in parse_adjustments(done.stderr)}
    assert said == {("heal-experts", False, "unknown adjustment"), ("shm-wakeup", True, "recheck=5ms")}


def test_without_a_request_the_plugin_changes_and_says_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, gate_plugin; before = list(sys.meta_path); gate_plugin.register(); assert sys.meta_path == before"
    )
    done = in_fresh_python(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mutation_that_cannot_be_applied_ends_the_process(tmp_path: Path) -> None:
    done = in_fresh_python("import gate_plugin; gate_plugin.register()", tmp_path, GATE_MUTATE="no-such-fault")
    assert done.returncode != 0


def test_the_trace_lists_sources_as_they_are_imported_even_when_the_process_is_killed(tmp_path: Path) -> None:
    vllm_tree(tmp_path)
    program = (
        "import os, signal, vllm, gate_plugin; gate_plugin.register()\n"
        "import json, vllm.distributed.device_communicators.shm_broadcast\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert in_fresh_python(program, tmp_path, GATE_TRACE_DIR=str(tmp_path / "trace")).returncode == -9
    (listing,) = (tmp_path / "trace").iterdir()
    header, *sources = listing.read_text().splitlines()
    assert header.startswith(f"# pid={listing.stem} ")
    assert sources == [
        "vllm/__init__.py",
        "vllm/distributed/__init__.py",
        "vllm/distributed/device_communicators/__init__.py",
        "vllm/distributed/device_communicators/shm_broadcast.py",
    ]


def test_a_forked_process_has_a_list_of_its_own(tmp_path: Path) -> None:
    vllm_tree(tmp_path)
    program = (
        "import os, vllm, gate_plugin; gate_plugin.register()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    import vllm.distributed\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    assert in_fresh_python(program, tmp_path, GATE_TRACE_DIR=str(tmp_path / "trace")).returncode == 0
    lists = sorted(path.read_text().splitlines()[1:] for path in (tmp_path / "trace").iterdir())
    assert lists == [["vllm/__init__.py"], ["vllm/__init__.py", "vllm/distributed/__init__.py"]]


def test_adjustment_lines_are_read_out_of_decorated_logs() -> None:
    log = (
        "INFO started\n(EngineCore pid=9) gate-plugin pid=9 applied shm-wakeup recheck=5ms busy=1ms\n"
        "gate-plugin pid=9 not-applicable nixl-progress-delay nixl_cu12._api: no nixlAgentConfig.pthrDelay\n"
        "gate-plugin pid=x applied nonsense\n"
    )
    assert parse_adjustments(log) == (
        Adjustment(9, "shm-wakeup", True, "recheck=5ms busy=1ms"),
        Adjustment(9, "nixl-progress-delay", False, "nixl_cu12._api: no nixlAgentConfig.pthrDelay"),
    )

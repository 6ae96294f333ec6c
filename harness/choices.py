"""The closed choices of the command line: what else is given is refused before anything is read."""

from __future__ import annotations

from enum import StrEnum


class Models(StrEnum):
    AUTO = "auto"
    HUB = "hub"
    TINY = "tiny"


class Launch(StrEnum):
    AUTO = "auto"
    SPAWN = "spawn"
    WARM = "warm"


class Router(StrEnum):
    VLLM_ROUTER = "vllm-router"
    DIRECT = "direct"


class Reference(StrEnum):
    AUTO = "auto"
    BESIDE = "beside"
    AFTER = "after"
    NONE = "none"


class Gsm8kThrough(StrEnum):
    JSONL = "jsonl"
    LM_EVAL = "lm-eval"


class KvBuffer(StrEnum):
    DEVICE = "device"
    HOST = "host"

"""Tiny analytic checkpoints, their tokenizer, and the simulator that predicts their output and counts exactly."""

from harness.zoo.chain import AmbiguousPrompt, Chain
from harness.zoo.prompts import TinyPrompt, tiny_prompts
from harness.zoo.simulator import Simulated, simulate
from harness.zoo.store import ZooModel, build, chain_of
from harness.zoo.tokens import BOS_ID, EOS_ID, detokenize, tokenize

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "AmbiguousPrompt",
    "Chain",
    "Simulated",
    "TinyPrompt",
    "ZooModel",
    "build",
    "chain_of",
    "detokenize",
    "simulate",
    "tiny_prompts",
    "tokenize",
]

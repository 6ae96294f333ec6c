"""Layers of the tiny checkpoints in plain numpy, over one sequence at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.zoo.stream import Array

Tensors = Mapping[str, Array]


def normed(rows: Array) -> Array:
    return np.asarray(rows / np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + 1e-6), dtype=np.float32)


def silu(rows: Array) -> Array:
    return np.asarray(rows / (1 + np.exp(-rows)), dtype=np.float32)


def projected(rows: Array, weights: Tensors, name: str) -> Array:
    return np.asarray(rows @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0), dtype=np.float32)


def rotated(heads: Array, theta: float) -> Array:
    """``heads``: [position, head, dim], the halves of a rotary pair half a head apart."""
    half = heads.shape[2] // 2
    angles = np.arange(len(heads))[:, np.newaxis] * theta ** -(np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, np.newaxis], np.sin(angles)[:, np.newaxis]
    first, second = heads[..., :half], heads[..., half:]
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=2)


def attended(
    rows: Array, weights: Tensors, prefix: str, heads: int, kv_heads: int, *, theta: float | None, lost: bool = False
) -> Array:
    """What attention adds to the stream. ``lost``: keys and values of all tokens but the last are zero."""
    query, key, value = (projected(rows, weights, f"{prefix}{part}_proj") for part in "qkv")
    query, key, value = query.reshape(len(rows), heads, -1), *(x.reshape(len(rows), kv_heads, -1) for x in (key, value))
    if theta is not None:
        query, key = rotated(query, theta), rotated(key, theta)
    if lost:
        key[:-1], value[:-1] = 0, 0
    key, value = (np.repeat(x, heads // kv_heads, axis=1) for x in (key, value))
    scores = np.einsum("ihd,jhd->hij", query, key) / query.shape[2] ** 0.5
    scores[:, np.triu(np.ones((len(rows), len(rows)), dtype=bool), 1)] = -np.inf
    weight = np.exp(scores - scores.max(axis=2, keepdims=True))
    weight /= weight.sum(axis=2, keepdims=True)
    found = np.einsum("hij,jhd->ihd", weight, value).reshape(len(rows), -1)
    return projected(found, weights, f"{prefix}o_proj")


def gated(rows: Array, weights: Tensors, prefix: str) -> Array:
    """What a gated MLP adds to the stream."""
    gate, up = (projected(rows, weights, f"{prefix}{part}_proj") for part in ("gate", "up"))
    return projected(silu(gate) * up, weights, f"{prefix}down_proj")


def routed(rows: Array, weights: Tensors, prefix: str, chosen: int) -> Array:
    """What experts add to the stream, each weighed by its share of all experts' softmax."""
    logits = projected(rows, weights, f"{prefix}router")
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[shares < np.sort(shares, axis=1)[:, -chosen, np.newaxis]] = 0
    outputs = (gated(rows, weights, f"{prefix}experts.{expert}.") for expert in range(logits.shape[1]))
    return np.asarray(sum(share[:, np.newaxis] * out for share, out in zip(shares.T, outputs, strict=True)))


def scanned(
    rows: Array, weights: Tensors, prefix: str, *, lost_state_at: int = -1, lost_convolution_at: int = -1
) -> Array:
    """What a Mamba mixer adds to the stream. Before the token at ``lost_..._at`` that state is set to zero."""
    inner, gate = np.split(projected(rows, weights, f"{prefix}in_proj"), 2, axis=1)
    taps = weights[f"{prefix}conv1d.weight"][:, 0]
    convolved = np.tile(weights[f"{prefix}conv1d.bias"], (len(rows), 1))
    for position in range(len(rows)):
        for tap in range(taps.shape[1]):
            source = position - (taps.shape[1] - 1 - tap)
            if source >= (lost_convolution_at if position >= lost_convolution_at else 0):
                convolved[position] += taps[:, tap] * inner[source]
    inner = silu(convolved)
    parameters = projected(inner, weights, f"{prefix}x_proj")
    norms = [weights[f"{prefix}{part}_layernorm.weight"] for part in ("dt", "b", "c")]
    parts = np.split(parameters, np.cumsum([len(norm) for norm in norms])[:-1], axis=1)
    step, write, read = (normed(part) * norm for part, norm in zip(parts, norms, strict=True))
    step = np.logaddexp(0, projected(step, weights, f"{prefix}dt_proj"))
    decay = -np.exp(weights[f"{prefix}A_log"])
    state, found = np.zeros_like(decay), np.zeros_like(inner)
    for position in range(len(rows)):
        if position == lost_state_at:
            state = np.zeros_like(decay)
        state = state * np.exp(step[position, :, np.newaxis] * decay)
        state += (step[position] * inner[position])[:, np.newaxis] * write[position]
        found[position] = state @ read[position] + weights[f"{prefix}D"] * inner[position]
    return projected(found * silu(gate), weights, f"{prefix}out_proj")

"""Faults of the KV transfer, on the decode side unless they say otherwise.

Damage is done to the blocks of a request in the moment its transfer is complete, before the scheduler hears of it: the
counters of the transfer stay as they are, and only what was sent is not what was computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gate_replace import EveryNth, replace_method


def _on_arrival(damage: Callable) -> None:
    """``damage(worker, meta)`` for each request whose KV has just arrived; ``meta`` is the connector's ReqMeta."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker

    def make(get_transfer_results):
        def damaged(self):
            waiting = dict(self._recving_metadata)
            results = get_transfer_results(self)
            for request in results.finished_recving - results.failed_recving:
                damage(self, waiting[request])
            return results

        return damaged

    replace_method(NixlBaseConnectorWorker, "get_transfer_results", make)


def _caches(worker, meta, wanted: Callable) -> list:
    """(layer name, tensor, block ids) of each layer that ``wanted(name, index)`` picks.

    ``index`` counts the layers of the target and is None for the drafter's own.
    """
    layers = target_layers(worker)
    found = []
    for group, blocks in zip(worker.kv_cache_config.transfer_groups, meta.local_physical_block_ids, strict=True):
        for name in group.layer_names:
            cache = worker.device_kv_caches.get(name)
            if cache is not None and wanted(name, layers.get(name)):
                found.append((name, cache, list(blocks)))
    if not any(blocks for _, _, blocks in found):
        raise LookupError(f"no block to damage among {sorted(worker.device_kv_caches)}")
    return found


def target_layers(worker) -> dict:
    """Layer index by name, for the layers of the target; those of the drafter are not in it."""
    count = worker.vllm_config.model_config.get_total_num_hidden_layers()
    indexed = {}
    for name in worker.device_kv_caches:
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if numbers and numbers[0] < count and "mtp" not in name:
            indexed[name] = numbers[0]
    return indexed


def _zero(wanted: Callable, blocks_of: Callable = lambda blocks: blocks) -> Callable:
    def damage(worker, meta) -> None:
        for _, tensor, blocks in _caches(worker, meta, wanted):
            for block in blocks_of(blocks):
                tensor[block].zero_()

    return damage


def _zero_state(part: str) -> Callable:
    """Linear attention keeps both states of a block in one page: the convolution's bytes, then the recurrent ones."""

    def damage(worker, meta) -> None:
        import torch

        convolution, recurrent = worker._mamba_ssm_size
        start, length = (0, convolution) if part == "convolution" else (convolution, recurrent)
        for _, tensor, blocks in _caches(worker, meta, _is_linear):
            for block in blocks:
                # `view` refuses what it would have to copy, so a fault cannot spend itself on a copy.
                page = tensor[block].view(torch.uint8).view(-1)
                page[start : start + length].zero_()

    return damage


def _every(n: str, damage: Callable) -> Callable:
    chosen = EveryNth(int(n or 1))

    def sometimes(worker, meta) -> None:
        if chosen():
            damage(worker, meta)

    return sometimes


def zeroed(argument: str) -> None:
    """Every block of each n-th request arrives as zeros."""
    _on_arrival(_every(argument, _zero(lambda name, layer: True)))


def truncated(argument: str) -> None:
    """The second half of the blocks of each n-th request arrives as zeros."""
    _on_arrival(_every(argument, _zero(lambda name, layer: True, lambda blocks: blocks[len(blocks) // 2 :])))


def first_block_lost(argument: str) -> None:
    """The first block of each request is skipped, every other one lands one place early and the last stays empty.

    So vLLM 0.24 moved prompts that end with a block when prefill speculates: it sent a look-ahead block too many, and
    decode took as many as it had room for from the end.
    """

    def damage(worker, meta) -> None:
        for _, tensor, blocks in _caches(worker, meta, lambda name, layer: True):
            late = [tensor[block].clone() for block in blocks[1:]]
            for block, content in zip(blocks, late, strict=False):
                tensor[block].copy_(content)
            tensor[blocks[-1]].zero_()

    _on_arrival(damage)


def layer_missing(argument: str) -> None:
    """Target layer n is not sent."""
    wanted = int(argument)
    _on_arrival(_zero(lambda name, layer: layer == wanted))


def drafter_missing(argument: str) -> None:
    """The drafter's own layers are not sent."""
    _on_arrival(_zero(lambda name, layer: layer is None))


def recurrent_lost(argument: str) -> None:
    """The recurrent state of linear attention is not sent."""
    _on_arrival(_zero_state("recurrent"))


def convolution_lost(argument: str) -> None:
    """The convolution state of linear attention is not sent."""
    _on_arrival(_zero_state("convolution"))


def _is_linear(name: str, _layer) -> bool:
    return "linear_attn" in name


def _of_another(wanted: Callable) -> None:
    kept: dict = {}

    def damage(worker, meta) -> None:
        for name, tensor, blocks in _caches(worker, meta, wanted):
            arrived = [tensor[block].clone() for block in blocks]
            for block, old in zip(blocks, kept.get(name, []), strict=False):
                tensor[block].copy_(old)
            kept[name] = arrived

    _on_arrival(damage)


def of_another_request(argument: str) -> None:
    """The blocks hold what belongs to the request before."""
    _of_another(lambda name, layer: True)


def recurrent_stale(argument: str) -> None:
    """Convolution and recurrent state are those of the request before; attention KV is right."""
    _of_another(_is_linear)


def never_sent(argument: str) -> None:
    """No block is read, prefill is told that all were."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

    def make(read_blocks):
        def pretend(self, *args, **kwargs):
            agent = self._remote_agents[kwargs["dst_engine_id"]][(0, kwargs["read_spec"].remote_rank)]
            notice = f"{kwargs['remote_request_id']}:{kwargs['expected_consumers']}".encode()
            self.nixl_wrapper.send_notif(agent, notif_msg=notice)
            self._recving_transfers.setdefault(kwargs["request_id"], [])
            return True

        return pretend

    replace_method(NixlPullConnectorWorker, "_read_blocks", make)


def recomputed(argument: str) -> None:
    """Decode computes the prompt of each n-th request itself; the KV that waits for it is let go."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler

    chosen: dict = {}
    pick = EveryNth(int(argument))

    def make(matched):
        def nothing_matched(self, request, num_computed_tokens):
            if chosen.setdefault(request.request_id, pick()):
                return 0, False
            return matched(self, request, num_computed_tokens)

        return nothing_matched

    replace_method(NixlPullConnectorScheduler, "get_num_new_matched_tokens", make)


def transfer_fails(argument: str) -> None:
    """Each n-th transfer is reported as failed when it is done."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker

    chosen = EveryNth(int(argument))

    def make(pop_done):
        def failing(self, transfers):
            agent = type(self.nixl_wrapper)

            def make_check(check):
                def check_xfer_state(wrapper, handle):
                    state = check(wrapper, handle)
                    return "ERR" if state == "DONE" and chosen() else state

                return check_xfer_state

            replace_method(agent, "check_xfer_state", make_check)
            return pop_done(self, transfers)

        return failing

    replace_method(NixlBaseConnectorWorker, "_pop_done_transfers", make)


def read_late(argument: str) -> None:
    """Decode starts to read n seconds late, for each eighth request."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

    chosen, delay_s = EveryNth(8), float(argument)

    def make(start_load_kv):
        def late(self, metadata):
            if any(chosen() for _ in metadata.reqs_to_recv):
                time.sleep(delay_s)
            return start_load_kv(self, metadata)

        return late

    replace_method(NixlPullConnectorWorker, "start_load_kv", make)


FAULTS = {
    "kv-zeroed": zeroed,
    "kv-truncated": truncated,
    "kv-first-block-lost": first_block_lost,
    "kv-layer-missing": layer_missing,
    "kv-drafter-missing": drafter_missing,
    "kv-recurrent-lost": recurrent_lost,
    "kv-convolution-lost": convolution_lost,
    "kv-of-another-request": of_another_request,
    "kv-recurrent-stale": recurrent_stale,
    "kv-never-sent": never_sent,
    "kv-recomputed": recomputed,
    "kv-transfer-fails": transfer_fails,
    "kv-read-late": read_late,
}

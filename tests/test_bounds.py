"""Closed-form bounds and counts of decoders, against their own promises; published answers stand in test_published."""

import pytest

from costmodel import CostModel, bounds, preset
from costmodel.decoder import Decoder

LLAMA = Decoder(80, 8192, 28672, 64, 8, 128, 128256, gated=True)
GROK = Decoder(64, 6144, 32768, 48, 8, 128, 131072, gated=True, experts=8, chosen=2)


def test_parameters_add_up() -> None:
    parts = (LLAMA.attention_parameters, LLAMA.mlp_parameters, LLAMA.vocabulary_parameters)
    assert sum(parts) == LLAMA.parameters == LLAMA.active_parameters
    assert GROK.parameters == pytest.approx(314e9, rel=0.01)
    assert GROK.active_parameters == pytest.approx(GROK.parameters - 64 * 6 * 3 * 6144 * 32768)
    every_other = Decoder(8, 1024, 8192, 16, 16, 64, 51200, experts=8, chosen=2, moe_every=2, tied=True)
    assert every_other.parameters == pytest.approx(0.69e9, rel=0.01)  # Alpa's MoE of 690 million


def test_training_is_six_flops_a_parameter_and_token() -> None:
    assert LLAMA.training_flops(1.0) == 6.0 * LLAMA.parameters
    more = LLAMA.training_flops(1.0, context=8192) - LLAMA.training_flops(1.0)
    assert more == 3 * 4 * 80 * 8192 * 8192


def test_bytes_of_cache_and_state() -> None:
    assert LLAMA.cache_bytes(1, item_bytes=1) == 160 * 1024
    assert LLAMA.state_bytes() == 10 * LLAMA.parameters
    assert LLAMA.saved_bytes(10, arrays=4) == 4 * 2 * 10 * 8192 * 80


def test_a_matmul_at_the_critical_batch_takes_as_long_by_either_bound() -> None:
    device = preset("v5e", specified=True).device
    batch, wide = bounds.critical_batch(device), 2.0**24
    cost = CostModel(preset("v5e:1x1", specified=True)).on(("x",), (1,))
    arithmetic = cost.compute_seconds(bounds.matmul_flops(batch, wide, wide), 0.0, "bfloat16")
    memory = cost.compute_seconds(0.0, bounds.matmul_bytes(batch, wide, wide), "bfloat16")
    assert arithmetic == pytest.approx(memory, rel=1e-3)


def test_fsdp_at_its_bound_takes_as_long_to_gather_as_to_compute() -> None:
    """A layer of two matrices on one closed ring of v5p, each chip with the tokens that the bound says."""
    cost = CostModel(preset("v5p:4x4x16", specified=True)).on(("a", "b", "x"), (4, 4, 16))
    tokens = bounds.min_tokens_per_device(cost, "x")
    assert tokens == pytest.approx(459e12 / 180e9)
    width, ffn = 8192.0, 32768.0
    gather = cost.bandwidth_seconds("all-gather", "x", 4 * width * ffn) * 16 / 15
    compute = bounds.compute_seconds(cost.device, 2 * bounds.matmul_flops(tokens, width, ffn))
    assert gather == pytest.approx(compute, rel=1e-6)


def test_more_axes_serve_fewer_tokens() -> None:
    cost = CostModel(preset("v5p:16x16x16", specified=True)).on("xyz", (16, 16, 16))
    one, two, three = (bounds.min_tokens_per_device(cost, axes) for axes in ("x", "xy", "xyz"))
    assert (one / 2, one / 3) == (pytest.approx(two), pytest.approx(three))
    assert bounds.min_tokens_per_device(cost, "x", experts=8, chosen=2) == pytest.approx(4 * one)


def test_the_best_fsdp_group_balances_weights_with_activations() -> None:
    tokens, ffn, devices, width = 48000.0, 32768.0, 64.0, 8192.0
    best = bounds.optimal_fsdp_ways(devices, tokens, ffn, 1, 1)

    def moved(fsdp: float) -> float:
        forward, _ = bounds.layer_bytes(tokens, width, ffn, fsdp, devices / fsdp)  # type: ignore[arg-type]
        return forward

    assert moved(best) <= min(moved(best * 1.1), moved(best / 1.1))


def test_the_smallest_slice_is_named_or_the_lack_of_one() -> None:
    device = preset("v5e", specified=True).device
    assert bounds.smallest_slice(device, 112e9, (1, 4, 8, 16)) == 8
    with pytest.raises(ValueError, match=r"1e\+12 bytes need 62.5 devices; the largest size is 16"):
        bounds.smallest_slice(device, 1e12, (1, 4, 8, 16))


def test_decoding_is_bound_by_loading_until_it_computes_more() -> None:
    device = preset("v5e", specified=True).device
    few, many = (bounds.decode_seconds(device, 2e9, 0.0, batch, parameters=1e9) for batch in (1, 1000))
    assert few == pytest.approx(2e9 / 819e9)
    assert many == pytest.approx(2e12 / 197e12)

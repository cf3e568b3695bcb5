"""The curve of a matrix multiplication: closed forms, fits that find their own parameters, and their promises."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.gemm import MatmulSample, MatmulShape, fit_matmul
from costmodel.least_squares import fit_positive

TRUTH = MatmulShape(5e-6, 3e12, half_rate_size=20.0, half_rate_inner=150.0, half_rate_outputs=3e5)
RATE = 8e14


def samples(sizes: tuple[int, ...] = (64, 256, 1024, 4096)) -> list[MatmulSample]:
    found = []
    for rows in sizes:
        for inner in sizes:
            for columns in sizes:
                nbytes = 2 * (rows * inner + inner * columns + rows * columns)
                seconds = float(TRUTH.seconds(RATE, rows, inner, columns, 1, nbytes))
                found.append(MatmulSample(rows, inner, columns, 1, nbytes, seconds))
    return found


def predicted(fit: object, sample: MatmulSample) -> float:
    shape, rate = fit.shape, fit.flops_per_second  # type: ignore[attr-defined]
    sizes = (sample.rows, sample.inner, sample.columns, sample.batch, sample.nbytes)
    return float(shape.seconds(rate, *sizes))


def test_a_large_product_runs_at_the_rate_and_a_small_one_at_the_launch() -> None:
    assert TRUTH.seconds(RATE, 1e6, 1e6, 1e6, 1, 0) == pytest.approx(2e18 / RATE, rel=1e-3)
    assert TRUTH.seconds(RATE, 1, 1, 1, 1, 0) == pytest.approx(5e-6, rel=0.03)
    assert TRUTH.seconds(RATE, 1, 4096, 4096, 1, 2 * 4096**2) == pytest.approx(5e-6 + 2 * 4096**2 / 3e12, rel=0.01)


def test_sizes_may_be_arrays() -> None:
    rows = np.array([16.0, 64.0, 1024.0])
    seconds = TRUTH.seconds(RATE, rows, 512, 512, 2, 0)
    assert seconds.tolist() == [float(TRUTH.seconds(RATE, row, 512, 512, 2, 0)) for row in rows]
    assert np.all(np.diff(seconds) > 0)
    assert np.all(np.diff(TRUTH.efficiency(rows, 512, 512)) > 0)


def test_a_fit_finds_the_curve_that_made_its_samples() -> None:
    fit = fit_matmul(samples(), 3e12)
    assert fit.relative_error < 0.01
    unseen = MatmulSample(512, 2048, 8192, 1, 0.0, float(TRUTH.seconds(RATE, 512, 2048, 8192, 1, 0)))
    assert predicted(fit, unseen) == pytest.approx(unseen.seconds, rel=0.03)


def test_one_sample_far_off_hardly_moves_a_fit() -> None:
    good = samples()
    odd = MatmulSample(*[getattr(good[20], name) for name in ("rows", "inner", "columns", "batch", "nbytes")], 1.0)
    fit = fit_matmul([*good[:20], odd, *good[21:]], 3e12)
    errors = [abs(predicted(fit, sample) / sample.seconds - 1) for sample in good]
    assert np.median(errors) < 0.02


def test_a_fit_wants_as_many_samples_as_parameters() -> None:
    with pytest.raises(ValueError, match="a matmul curve has 6 parameters, got 5 samples"):
        fit_matmul(samples()[:5], 3e12)


def test_operands_beyond_the_cache_are_waited_for() -> None:
    shape = replace(TRUTH, cached_elements=2.0**18, overflow_seconds=6e-9)
    inside, beyond = (float(shape.seconds(2e10, 32, size, size, 1, 0)) for size in (256, 1024))
    assert inside == TRUTH.seconds(2e10, 32, 256, 256, 1, 0)
    overflow = 6e-9 * (2 * 32 * 1024 + 1024**2 - 2**18)
    assert beyond == pytest.approx(float(TRUTH.seconds(2e10, 32, 1024, 1024, 1, 0)) + overflow)


def test_a_core_packs_each_operand_at_its_own_rate() -> None:
    shape = replace(TRUTH, left_packing_seconds=1e-9, right_packing_seconds=3e-9)
    extra = shape.seconds(2e10, 512, 256, 64, 2, 0) - TRUTH.seconds(2e10, 512, 256, 64, 2, 0)
    assert extra == pytest.approx(2 * 256 * (512 * 1e-9 + 64 * 3e-9))
    assert shape.scaled(2.0, 1.0).left_packing_seconds == 0.5e-9
    assert shape.scaled(2.0, 1.0).right_packing_seconds == 1.5e-9


def test_rows_a_large_power_of_two_apart_are_slow_to_pack() -> None:
    """Half as slow as of 2 KiB where they are 1 KiB apart, or an odd multiple of that; of operands read along, not."""
    shape = replace(TRUTH, aliased_packing_seconds=8e-9)
    rows = np.array([0.0, 512.0, 1024.0, 3072.0, 2048.0, 8192.0])
    extra = shape.seconds(2e10, 512, 256, 64, 2, 0, rows) - TRUTH.seconds(2e10, 512, 256, 64, 2, 0, rows)
    np.testing.assert_allclose(extra / (2 * 512 * 256), [0.0, 2e-9, 4e-9, 4e-9, 8e-9, 8e-9], atol=1e-15)
    assert shape.scaled(2.0, 1.0).aliased_packing_seconds == 4e-9


def test_a_fit_tells_what_rows_far_apart_take_from_what_all_do() -> None:
    truth = MatmulShape(2e-5, 3e9, 0.0, 5.0, 0.0, 5e5, 5e-10, 4e-9, 1.5e-9, aliased_packing_seconds=7e-9)
    sizes = [(m, k, n) for m in (64, 128, 256, 512, 1024) for k in (64, 256) for n in (64, 256)]
    timed = [
        MatmulSample(m, k, n, 1, 4 * (m * k + k * n + m * n), float(truth.seconds(2.7e10, m, k, n, 1, 0, 4 * m)), 4 * m)
        for m, k, n in sizes
    ]
    fit = fit_matmul(timed, 3e11, packed=True)
    assert fit.shape.left_packing_seconds == pytest.approx(4e-9, rel=0.2)
    assert fit.shape.aliased_packing_seconds == pytest.approx(7e-9, rel=0.1)
    unseen = [float(shape.seconds(2.7e10, 1000, 256, 256, 1, 0, 4000)) for shape in (fit.shape, truth)]
    assert unseen[0] == pytest.approx(unseen[1], rel=0.05)


@pytest.mark.parametrize("left", [1e-9, 12e-9])
def test_a_fit_finds_what_packing_takes_and_the_cache_that_its_samples_overflow(left: float) -> None:
    truth = MatmulShape(2e-5, 3e9, 0.0, 11.0, 0.0, 2e5, 6e-9, left, 3e-9)
    sizes = (16, 64, 256, 1024)
    timed = [
        MatmulSample(m, k, n, 1, 4 * (m * k + k * n + m * n), float(truth.seconds(1.6e10, m, k, n, 1, 0)))
        for m in sizes for k in sizes for n in sizes
    ]  # fmt: skip
    fit = fit_matmul(timed, 3e11, packed=True)
    assert fit.relative_error < 0.02
    assert fit.shape.overflow_seconds == pytest.approx(6e-9, rel=0.1)
    assert fit.shape.left_packing_seconds == pytest.approx(left, rel=0.1)
    assert fit.shape.right_packing_seconds == pytest.approx(3e-9, rel=0.1)
    assert fit_matmul(timed, 3e11).relative_error > 2 * fit.relative_error


def test_a_known_rate_stays() -> None:
    assert fit_matmul(samples(), 3e12, flops_per_second=0.9 * RATE).flops_per_second == pytest.approx(
        0.9 * RATE, rel=0.01
    )


def test_what_the_data_says_nothing_of_stays_where_it_was() -> None:
    fitted = fit_positive(lambda p: p[0] * np.ones(4), np.full(4, 3.0), np.array([1.0, 7.0]), np.array([np.inf, 10.0]))
    np.testing.assert_allclose(fitted, [3.0, 7.0], rtol=1e-4)


def test_a_slowdown_is_of_arithmetic_alone() -> None:
    shape = MatmulShape(1e-6, 1e12)
    large, bound = (4096, 4096, 4096, 1, 0.0), (8, 8, 8, 1, 1e9)
    slow = replace(shape, slowdown=1.5)
    assert float(slow.seconds(1e14, *large)) - 1e-6 == pytest.approx(1.5 * (float(shape.seconds(1e14, *large)) - 1e-6))
    assert float(slow.seconds(1e14, *bound)) == float(shape.seconds(1e14, *bound))

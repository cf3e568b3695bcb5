"""Calibration of the devices at hand, at its smallest."""

import jax
import numpy as np
import pytest

from costmodel import KINDS, CostModel
from executor.calibrate import calibrate


@pytest.fixture(scope="module")
def seen() -> list[tuple[int, int]]:
    """The progress that was told of."""
    return []


@pytest.fixture(scope="module")
def model(seen: list[tuple[int, int]]) -> CostModel:
    return calibrate(
        jax.devices()[:2],
        rounds=1,
        collective_bytes=(2**12, 2**16, 2**20),
        progress=lambda done, total: seen.append((done, total)),
    )


def test_every_collective_is_measured(model: CostModel) -> None:
    assert {(fit.kind, fit.group_size) for fit in model.topology.measured} == {(kind, 2) for kind in KINDS}
    cost = model.on(("x",), (2,))
    for kind in KINDS:
        assert np.all(cost.collective_seconds(kind, ["x"], np.array([2.0**10, 2.0**24])) > 0)


def test_the_device_is_measured(model: CostModel) -> None:
    device = model.topology.device
    assert device.kind == "cpu"
    assert device.rate("float32") > 1e8
    assert device.memory_bytes_per_second > 1e7
    assert 0 < device.launch_seconds < 1e-2


def test_the_profile_reads_back(model: CostModel) -> None:
    assert CostModel.from_json(model.to_json()) == model


def test_progress_reaches_its_total(model: CostModel, seen: list[tuple[int, int]]) -> None:
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_without_a_type_of_matrices_there_is_no_rate() -> None:
    with pytest.raises(ValueError, match="matrix_types names none"):
        calibrate(jax.devices()[:2], matrix_types=())

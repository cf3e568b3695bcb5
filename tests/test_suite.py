"""Suites: what is shipped can be read, and what cannot be is told in the user's terms."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from experiments import workloads
from experiments.runner.suite import SuiteError, read_suite, require_modules, shipped_suites

GOOD = {"workloads": '["mlp"]', "meshes": '["2x4"]', "strategies": '["planned"]'}


def written(path: Path, **changed: str) -> str:
    file = path / "mine.toml"
    file.write_text("\n".join(f"{key} = {value}" for key, value in (GOOD | changed).items() if value))
    return str(file)


def test_suites_are_shipped() -> None:
    assert shipped_suites() == ("memory", "paper", "quick", "scaling", "users-own")


@pytest.mark.parametrize("name", ["memory", "paper", "quick", "scaling", "users-own"])
def test_a_shipped_suite_can_be_read(name: str) -> None:
    suite = read_suite(name)
    assert suite.name == name
    assert suite.description
    keys = [trial.key for trial in suite.trials()]
    assert len(keys) == len(set(keys))


def test_the_paper_has_every_workload() -> None:
    text = resources.files("experiments.runner").joinpath("suites", "paper.toml").read_text()
    left_out = set(workloads.names()) - set(tomllib.loads(text)["workloads"])
    assert not left_out


def test_the_command_line_takes_the_place_of_the_suites_own(tmp_path: Path) -> None:
    suite = read_suite(written(tmp_path), meshes=["8", "4x2"], strategies=["fsdp", "planned@75%"])
    assert (suite.name, suite.meshes, suite.strategies) == ("mine", ("8", "4x2"), ("fsdp", "planned@75%"))


def test_a_seed_for_each_repeat(tmp_path: Path) -> None:
    trials = read_suite(written(tmp_path, repeats="3", seed="7")).trials()
    assert [(trial.repeat, trial.seed) for trial in trials] == [(1, 7), (2, 8), (3, 9)]


def test_dimensions_are_the_workloads_own_unless_given(tmp_path: Path) -> None:
    own = read_suite(written(tmp_path, workloads='["moe", "a:b"]', **{'dimensions."a:b".sequence': "{x = 2}"}))
    of_moe, of_mine = (trial.dimensions for trial in own.trials())
    assert of_moe.experts == {"w_up": 0, "w_down": 0}
    assert of_mine.sequence == {"x": 2}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"workloads": '["gtp"]'}, "workloads: no workload is named 'gtp': did you mean 'gpt"),
        ({"workloads": ""}, "workloads is missing or empty"),
        ({"meshes": "[]"}, "meshes is missing or empty"),
        ({"meshes": '["2y4"]'}, "meshes: '2y4' is neither a shape such as 2x4 nor a machine"),
        ({"meshes": '["2x2x2x2"]'}, "2x2x2x2 has 4 axes"),
        ({"meshes": '["8", "8"]'}, "meshes: named twice: 8"),
        ({"strategies": '["plannd"]'}, "no strategy is named 'plannd': did you mean 'planned'"),
        ({"strategies": '["planned@much"]'}, "no strategy is named 'planned@much'"),
        ({"columns": '["measured_seconds"]'}, "no column is named 'measured_seconds': did you mean"),
        ({"repeat": "3"}, "no key is named 'repeat': did you mean 'repeats'?"),
        ({"repeats": "0"}, "repeats is 0; input should be greater than 0"),
        ({"size": '"big"'}, "size is 'big'; input should be 'test' or 'full'"),
        ({"run_memory": '"lots"'}, "run_memory: 'lots' is no number of bytes"),
        ({"workloads": '"mlp"'}, "workloads is 'mlp'; input should be a valid list"),
        ({'dimensions."a:b".sequences': "{x = 2}"}, "no key is named 'sequences': did you mean 'sequence'?"),
        ({"workloads": "["}, "mine.toml is no TOML"),
    ],
)
def test_what_cannot_be_is_told(changed: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as told:
        read_suite(written(tmp_path, **changed))
    assert message in str(told.value)
    assert "mine.toml" in str(told.value)


def test_a_module_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite = read_suite(written(tmp_path, workloads='["mlp", "not_there:problem"]'))
    with pytest.raises(SuiteError, match="workload not_there:problem: no module is named 'not_there'"):
        require_modules(suite)
    (tmp_path / "not_there.py").write_text("raise RuntimeError('imported')")
    require_modules(suite)


def test_an_unknown_suite_is_told() -> None:
    with pytest.raises(SuiteError, match="no suite is named 'quik': did you mean 'quick'"):
        read_suite("quik")
    with pytest.raises(SuiteError, match=r"cannot read the suite nowhere\.toml: No such file"):
        read_suite("nowhere.toml")

"""What `make demo` submits and shows, without starting anything."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import arkv_sglang.demo.__main__ as demo
from arkv_sglang.batch.load import load_config


class FakeCluster:
    def __init__(self) -> None:
        self.command: list[str] = []

    def submit(self, command: list[str], working_dir: Path) -> int:
        self.command, self.working_dir = command, working_dir
        return 0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()

    @contextlib.contextmanager
    def local_ray(num_cpus: int) -> Iterator[FakeCluster]:
        yield cluster

    monkeypatch.setattr(demo, "local_ray", local_ray)
    return cluster


def test_submitted_settings_reach_the_configuration(cluster: FakeCluster, tmp_path: Path) -> None:
    model = tmp_path / "a: model # 1"
    model.mkdir()
    (model / "config.json").touch()
    paths = {"engine.model_path": str(model), "output.dir": str(demo.OUTPUT)}
    assert demo.run_job("configs/demo.yaml", paths, ["input.limit=3"]) == 0
    assert cluster.command[:4] == ["python", "jobs/longdoc.py", "--config", "configs/demo.yaml"]
    assert cluster.command[4::2] == ["--set"] * 3
    config = load_config(demo.ROOT / "configs/demo.yaml", cluster.command[5::2])
    assert config.engine["model_path"] == str(model)
    assert config.output.dir == str(demo.OUTPUT) and demo.OUTPUT.is_absolute()
    assert config.input.limit == 3
    assert config.engines.count * config.engines.num_cpus <= demo.NUM_CPUS


def test_results_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "OUTPUT", tmp_path)
    with pytest.raises(RuntimeError, match="summaries"):
        demo.show_results()
    names = ("summaries.parquet", "report.json", "report.html")
    for name in names:
        (tmp_path / name).touch()
    demo.show_results()
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]

"""Which devices engines are given. The GPUs are Ray's belief, and the engine is a stand-in."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arkv_sglang.batch.local_ray import LocalRay

from .nodes import second_node

Submit = Callable[[dict[str, Any]], tuple[int, str]]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def seen(config: dict[str, Any], tmp_path: Path) -> Path:
    """The file in which each engine writes its devices, and those of its child."""
    config["engines"]["env"]["PYTHONPATH"] = str(Path(__file__).parent / "standin")
    config["engines"]["cache_dir"] = str(tmp_path / "cache")
    config["engine"] |= {"token_s": 0.05, "starts": str(tmp_path / "seen")}
    return tmp_path / "seen"


def devices(seen: Path) -> list[str]:
    """Of each engine, in order."""
    own, of_child = zip(*(line.split() for line in seen.read_text().splitlines()), strict=True)
    assert own == of_child
    return sorted(own)


@pytest.mark.soak  # two jobs more; what Ray is asked for is tested beside them
def test_each_engine_has_its_gpus_or_its_share_of_one(
    submit: Submit, config: dict[str, Any], cluster: LocalRay, seen: Path
) -> None:
    with second_node(cluster, num_cpus=2, num_gpus=4):
        config["engine"]["tp_size"] = 2
        config["engines"] |= {"count": 2, "num_gpus": 2}
        code, log = submit(config)
        assert code == 0, log
        assert "now, each of which" not in log
        pairs = [pair.split(",") for pair in devices(seen)]
        assert Counter(gpu for pair in pairs for gpu in pair) == Counter("0123")
        assert [len(pair) for pair in pairs] == [2, 2]
        seen.unlink()
        config["engine"] |= {"tp_size": 1, "mem_fraction_static": 0.5}
        config["engines"] |= {"count": 2, "num_gpus": 0.5}
        code, log = submit(config)
        assert code == 0, log
        assert devices(seen) in (["0", "0"], ["1", "1"], ["2", "2"], ["3", "3"])
    caches = Path(config["engines"]["cache_dir"])
    assert {path.name for path in caches.iterdir() if path.is_dir()} == {"0", "1"}

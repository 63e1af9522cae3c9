import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from arkv_sglang.batch.local_ray import LocalRay, local_ray
from arkv_sglang.demo.model import ensure_model

ROOT = Path(__file__).parents[2]
JOB = ["python", "jobs/longdoc.py"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalRay]:
    with local_ray(num_cpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def model() -> Path:
    return ensure_model()


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Eight documents: five ordinary ones of some 100 to 700 tokens and three bad ones."""
    rows: list[dict[str, Any]] = [
        {
            "doc_id": f"fable-{n}",
            "text": f"Fable {n}. The fox asked crow {n} to sing. " * (5 + 8 * n),
        }
        for n in range(5)
    ]
    rows += [
        {"doc_id": "long", "text": "The story never ended. " * 3000},
        {"doc_id": "empty", "text": "  \n"},
        {"doc_id": "fable-0", "text": "The same id again."},
    ]
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def config(tmp_path: Path, documents: Path, model: Path) -> dict[str, Any]:
    """The demo's configuration, made for five short answers of two engines of stock SGLang."""
    config = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    config["input"] |= {"path": str(documents), "format": "auto"}
    config["output"]["dir"] = str(tmp_path / "out")
    config["engine"]["model_path"] = str(model)
    config["engine"] |= {"kv_policy": "none", "kv_policy_config": None}
    config["sampling"]["max_new_tokens"] = 16
    config["run"] |= {"max_failure_rate": 0.5, "progress_period_s": 2.0}
    return config


@pytest.fixture
def submit(cluster: LocalRay, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run ``ray job submit`` with a configuration and options; exit code and output."""

    def run(config: dict[str, Any], *options: str) -> tuple[int, str]:
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(config))
        log = tmp_path / "job.log"
        with log.open("w") as output:
            code = cluster.submit([*JOB, "--config", str(path), *options], ROOT, stdout=output)
        return code, log.read_text()

    return run

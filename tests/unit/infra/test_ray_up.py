"""The file of `ray up`, by Ray's own validator: no machine is started."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from arkv_sglang.batch.load import load_config

ROOT = Path(__file__).parents[3]
CLUSTER: dict[str, Any] = yaml.safe_load((ROOT / "infra/ray-cluster.yaml").read_text())
TYPES = CLUSTER["available_node_types"]


def test_ray_accepts_it_and_would_not_with_a_misspelt_key() -> None:
    prepared = prepare_config(CLUSTER)
    validate_config(prepared)
    with pytest.raises(jsonschema.ValidationError, match="head_node_typ"):
        validate_config(prepared | {"head_node_typ": "head"})


def test_the_head_runs_no_engine_and_the_workers_those_of_the_configuration() -> None:
    head = TYPES[CLUSTER["head_node_type"]]
    (worker,) = (TYPES[name] for name in TYPES.keys() - {CLUSTER["head_node_type"]})
    assert head["resources"] == {"CPU": 0} and head["max_workers"] == 0
    engines = load_config(ROOT / "configs/eight_gpus.yaml").engines
    per_node = min(
        worker["resources"]["GPU"] // engines.num_gpus,
        worker["resources"]["CPU"] // engines.num_cpus,
    )
    assert worker["max_workers"] * per_node == engines.count
    assert CLUSTER["max_workers"] >= worker["max_workers"]


def test_every_node_has_the_token_and_the_image() -> None:
    docker = CLUSTER["docker"]
    options = dict(
        option.removeprefix("-e ").split("=") for option in docker["run_options"] if "-e" in option
    )
    assert options["RAY_AUTH_MODE"] == "token"
    assert options["RAY_AUTH_TOKEN_PATH"] in CLUSTER["file_mounts"]
    dockerfile = (ROOT / "infra/Dockerfile").read_text()
    assert f"-t {docker['image']} " in dockerfile
    # Ray's own default image is of 2023, with a driver for CUDA 11.
    assert all(node["node_config"]["ImageId"].startswith("ami-") for node in TYPES.values())


def test_rays_workers_leave_sglang_its_ports() -> None:
    for start in CLUSTER["head_start_ray_commands"][-1:], CLUSTER["worker_start_ray_commands"][-1:]:
        (command,) = start
        assert "--max-worker-port=19999" in command and "--metrics-export-port=8080" in command
    # The dashboard is for `ray dashboard`, which tunnels: it is on no other interface.
    assert "--dashboard-host=127.0.0.1" in CLUSTER["head_start_ray_commands"][-1]

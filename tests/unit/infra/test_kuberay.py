"""The Kubernetes manifests, without a cluster: against schemas, and against each other."""

import os
import tomllib
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from arkv_sglang.batch.load import load_config

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "infra/kuberay"
CRDS = "ARKV_KUBERAY_CRDS"


def load(name: str) -> dict[str, Any]:
    (manifest,) = yaml.safe_load_all((FOLDER / name).read_text())
    return manifest


RAYJOB, RAYCLUSTER = load("rayjob.yaml"), load("raycluster.yaml")
STORAGE, MONITOR = load("storage.yaml"), load("podmonitor.yaml")
SPEC = RAYCLUSTER["spec"]
HEAD = SPEC["headGroupSpec"]
(WORKERS,) = SPEC["workerGroupSpecs"]
GROUPS = {"head": HEAD, "gpu": WORKERS}
CONFIG = load_config(ROOT / "configs/kuberay.yaml")


def pod(group: str) -> dict[str, Any]:
    return GROUPS[group]["template"]["spec"]


def container(group: str) -> dict[str, Any]:
    (only,) = pod(group)["containers"]
    return only


def volumes(group: str) -> dict[str, dict[str, Any]]:
    """What is mounted, by the folder where it is."""
    by_name = {volume["name"]: volume for volume in pod(group)["volumes"]}
    return {
        mount["mountPath"]: by_name[mount["name"]] for mount in container(group)["volumeMounts"]
    }


def claim_of(group: str, path: str) -> str:
    """The claim on which ``path`` lies."""
    (folder,) = (at for at in volumes(group) if Path(path).is_relative_to(at))
    return volumes(group)[folder]["persistentVolumeClaim"]["claimName"]


# -- schemas --


def strict(schema: Any) -> Any:
    """A CRD's schema as JSON Schema that takes no unknown field, as the API server does."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {key: strict(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    # The second: a field that is itself called "properties".
    if isinstance(schema.get("properties"), dict) and "type" in schema and not is_open:
        found["additionalProperties"] = False
    return found


def operator_schema(kind: str) -> dict[str, Any]:
    folder = os.environ.get(CRDS)
    if not folder:
        pytest.skip(f"{CRDS} is not set: give it the folder of crds/ in the chart of KubeRay 1.7.0")
    path = Path(folder) / f"ray.io_{kind.lower()}s.yaml"
    definition = yaml.load(path.read_text(), yaml.CSafeLoader)
    versions = {version["name"]: version for version in definition["spec"]["versions"]}
    return strict(versions["v1"]["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("manifest", [RAYJOB, RAYCLUSTER], ids=["rayjob", "raycluster"])
def test_the_operator_knows_every_field(manifest: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(operator_schema(manifest["kind"]))
    validator.validate(manifest)
    for change in WRONG_CHANGES:
        wrong = deepcopy(manifest)
        change(wrong["spec"].get("rayClusterSpec", wrong["spec"]))
        assert not validator.is_valid(wrong)


WRONG_CHANGES: list[Callable[[dict[str, Any]], None]] = [
    lambda spec: spec.update(rayVersion=2.6),
    lambda spec: spec.update(workerGroupSpec=[]),
    lambda spec: spec.update(authOptions={"mode": "tokens"}),
    lambda spec: spec["headGroupSpec"]["template"]["spec"]["containers"][0].update(volumeMount=[]),
]


def core_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "claim", STORAGE
    text = (ROOT / "configs/kuberay.yaml").read_text()
    metadata = {"name": RAYJOB["metadata"]["name"]}
    yield (
        "config",
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"longdoc.yaml": text},
        },
    )
    for group in GROUPS:
        yield group, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod(group)}


@pytest.mark.parametrize("named", core_objects(), ids=lambda named: named[0])
def test_kubernetes_knows_every_field_of_its_own_kinds(named: tuple[str, dict[str, Any]]) -> None:
    _, manifest = named
    newest = kubernetes_validate.latest_version()
    kubernetes_validate.validate(manifest, newest, strict=True)
    (body,) = manifest.keys() & {"spec", "data"}
    wrong = manifest | {body: manifest[body] | {"acessModes": ["ReadWriteMany"]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, newest, strict=True)


# -- what we rely on --


def test_both_kinds_make_the_same_cluster() -> None:
    assert RAYJOB["spec"]["rayClusterSpec"] == SPEC


def test_the_cluster_asks_for_a_token_and_runs_the_ray_of_the_image() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SPEC["authOptions"] == {"mode": "token"}
    assert f"ray[default]=={SPEC['rayVersion']}" in extras["optional-dependencies"]["batch"]
    # Its own Secret, made by the operator: none of ours is in the manifest.
    assert not any("RAY_AUTH" in env["name"] for group in GROUPS for env in container(group)["env"])
    assert {container(group)["image"] for group in GROUPS} == {f"arkv-sglang:{extras['version']}"}


def test_a_failed_job_is_tried_again_and_a_finished_one_gives_the_gpus_back() -> None:
    spec = RAYJOB["spec"]
    assert spec["submissionMode"] == "HTTPMode" and "submitterPodTemplate" not in spec
    assert spec["backoffLimit"] >= 1 and spec["preRunningDeadlineSeconds"] >= 600
    # The operator refuses a time to live without the first, and rules of deletion beside them.
    assert spec["shutdownAfterJobFinishes"] is True and spec["ttlSecondsAfterFinished"] > 0
    assert "deletionStrategy" not in spec


def test_the_head_runs_no_engine_and_each_worker_what_the_job_asks_of_it() -> None:
    assert HEAD["rayStartParams"]["num-cpus"] == "0"
    assert "nvidia.com/gpu" not in container("head")["resources"]["limits"]
    limits = container("gpu")["resources"]["limits"]
    engines = CONFIG.engines
    per_pod = min(
        float(limits["nvidia.com/gpu"]) // engines.num_gpus,
        float(limits["cpu"]) // engines.num_cpus,
    )
    assert WORKERS["minReplicas"] == WORKERS["replicas"] == WORKERS["maxReplicas"]
    assert WORKERS["replicas"] * per_pod == engines.count
    (toleration,) = pod("gpu")["tolerations"]
    assert toleration["key"] == "nvidia.com/gpu"


def test_the_job_reads_its_configuration_and_all_attempts_write_to_one_volume() -> None:
    program, script, flag, config = RAYJOB["spec"]["entrypoint"].split()
    assert (program, flag) == ("python3", "--config")
    assert (ROOT / Path(script).relative_to("/opt/arkv")).is_file()
    at, key = os.path.split(config)
    config_map = volumes("head")[at]["configMap"]["name"]
    create = f"kubectl create configmap {config_map} --from-file={key}=configs/kuberay.yaml"
    assert create in (ROOT / "infra/README.md").read_text()

    claim = STORAGE["metadata"]["name"]
    assert STORAGE["spec"]["accessModes"] == ["ReadWriteMany"]
    for path in (CONFIG.output.dir, *CONFIG.input.path):
        assert claim_of("head", path) == claim
    for group in GROUPS:
        env = {entry["name"]: entry.get("value") for entry in container(group)["env"]}
        assert claim_of(group, env["HF_HOME"]) == claim


@pytest.mark.parametrize("group", GROUPS)
def test_pods_are_unprivileged_and_have_shared_memory(group: str) -> None:
    security = pod(group)["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] == security["fsGroup"] == 1000
    assert container(group)["securityContext"]["allowPrivilegeEscalation"] is False
    assert volumes(group)["/dev/shm"]["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize("group", GROUPS)
def test_the_monitor_finds_the_metrics_port_of_every_pod(group: str) -> None:
    (endpoint,) = MONITOR["spec"]["podMetricsEndpoints"]
    ports = {port["name"]: port["containerPort"] for port in container(group)["ports"]}
    # Where KubeRay lets Ray export them.
    assert ports[endpoint["port"]] == 8080
    assert MONITOR["spec"]["selector"]["matchLabels"] == {"ray.io/is-ray-node": "yes"}

"""The parts of the job's program that need Ray's names but no cluster."""

from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.util.metrics import Counter, Gauge

from arkv_sglang.batch.config import EnginesConfig
from arkv_sglang.batch.metrics import MetricsMirror, RunState
from arkv_sglang.batch.ray_engine import reason
from arkv_sglang.batch.ray_placement import described, environment
from arkv_sglang.batch.types import RequestFailed, Row
from arkv_sglang.config import ConfigError
from jobs.longdoc import complain, say


def configured(**engines: Any) -> EnginesConfig:
    return EnginesConfig.model_validate(engines)


def test_an_engine_on_the_cpu_sees_no_gpu_and_has_its_threads() -> None:
    env = {"SGLANG_PLATFORM": "arkv_cpu"}
    assert environment(configured(num_gpus=0, num_cpus=2, env=env)) == {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "2",
        "SGLANG_PLATFORM": "arkv_cpu",
    }


def test_an_engine_on_a_gpu_keeps_what_ray_gives_it() -> None:
    assert environment(configured(num_gpus=0.5)) == {}


def test_what_an_engine_needs_in_words() -> None:
    assert described(configured(num_gpus=0.5, num_cpus=4)) == "0.5 GPU and 4 CPU"
    assert described(configured(num_gpus=0)) == "1 CPU"


def test_reasons_are_the_line_that_says_it() -> None:
    assert reason(RayError("Traceback:\n  File x\nValueError: no room\n")) == "ValueError: no room"
    assert reason(ActorDiedError()) == "The actor died unexpectedly before finishing this task."
    assert reason(RayError()) == "RayError"
    exited = "Worker exit type: SYSTEM_ERROR. End of file."
    advice = "Some common causes include: (1) the process was killed by the OOM killer, or (2) not."
    assert reason(RayError(f"The actor died.\n{exited} {advice}")) == exited
    made = "arkv_sglang.batch.types.EngineLost: ValueError: no room"
    assert reason(RayError(f"The actor died in its creation task\n{made}")) == "ValueError: no room"


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (RequestFailed("the prompt is too long"), "the prompt is too long"),
        (KeyError("meta_info"), "KeyError: 'meta_info'"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_reasons_of_a_task_name_an_error_that_is_not_ours(cause: Exception, sentence: str) -> None:
    error = RayTaskError("generate", "Traceback:\n  File x\n", cause)
    assert reason(error.as_instanceof_cause()) == sentence


def test_nothing_printed_has_user_info(capsys: pytest.CaptureFixture[str]) -> None:
    say("s3://me:LEAK@bucket/out/report.html")
    complain(ConfigError("output.dir must be new, got 's3://me:LEAK@bucket'"))
    printed = capsys.readouterr()
    assert printed.out == "s3://***@bucket/out/report.html\n"
    assert printed.err == "longdoc: output.dir must be new, got 's3://***@bucket'\n"


def test_rays_counters_and_gauges_take_what_the_job_tells() -> None:
    mirror = MetricsMirror("run", Counter, Gauge)
    mirror.row(Row("d", "ok", prompt_tokens=9, cached_tokens=0, output_tokens=2, engine="engine-0"))
    mirror.row(Row("bad", "invalid", "the text is empty"))
    mirror.state(RunState(3, 1, {"engine-0": 2}, {"engine-0": 1}))
    mirror.sample("engine-0", {"running_requests": 1, "kv_original_bytes": 5.0})

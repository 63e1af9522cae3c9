"""A dry run against a corpus, a model's config, fake engines, and a report of a run on them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from arkv_sglang.batch.commit import OutputFolder
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.dry_run import DryRun
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.types import BadDocument, Document, RunFailed
from arkv_sglang.config import ConfigError

from .fakes import FakeEngine, FakePrompts
from .test_model_shape import LLAMA

LENGTHS = [50, 100, 150, 200, 7000, 9000]
SOURCE = [
    *(Document(f"d{n}", "x" * length) for n, length in enumerate(LENGTHS)),
    BadDocument("bad", "the text is empty"),
    BadDocument("worse", "the text is empty"),
    Document("odd", "unrenderable"),
]


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    return {
        "input": {"path": "s3://key:LEAK@bucket/corpus"},
        "engine": {"model_path": str(model), "kv_policy": "arkv"},
        "sampling": {"max_new_tokens": 40},
        "output": {"dir": str(tmp_path / "out")},
    }


def dry(
    config: dict[str, Any],
    *arguments: Any,
    source: Any = SOURCE,
    num_probes: int = 3,
    **more: Any,
) -> DryRun:
    run = DryRun(JobConfig.model_validate(config), FakePrompts(), *arguments, **more)
    run.read(iter(source), num_probes)
    return run


def test_every_document_is_counted_by_what_becomes_of_it(config: dict[str, Any]) -> None:
    plan = dry(config).plan()
    assert plan["documents"] == {"fits": 5, "cut": 0, "too_long": 1, "invalid": 3, "all": 9}
    assert plan["max_prompt_tokens"] == 8192 - 40 - 8
    assert plan["invalid_reasons"] == [
        ("the text is empty", 2),
        ("the prompt cannot be made: KeyError: 'no such variable'", 1),
    ]
    tokens = plan["prompt_tokens"]
    assert (tokens["min"], tokens["median"], tokens["max"]) == (50, 175, 9000)
    assert tokens["total"] == sum(LENGTHS)
    assert plan["memory"] is None and plan["time"] is None
    assert "LEAK" not in json.dumps(plan)
    assert not Path(config["output"]["dir"]).exists()


@pytest.mark.parametrize(
    ("max_total_tokens", "kv_gib", "source"),
    [(6000, None, "engine.max_total_tokens"), (None, 0.13, "--kv-gib"), (9, 0.13, "--kv-gib")],
)
def test_a_known_memory_says_what_fits_and_what_runs_at_once(
    config: dict[str, Any], max_total_tokens: int | None, kv_gib: float | None, source: str
) -> None:
    config["engine"]["max_total_tokens"] = max_total_tokens
    plan = dry(config, kv_gib=kv_gib).plan()
    # 7000 tokens are within the context and beyond the arena, which is smaller by its tables.
    assert plan["documents"]["too_long"] == 2
    assert plan["memory"]["source"] == source
    assert 5400 < plan["memory"]["capacity_tokens"] < plan["memory"]["tokens"] < 6100
    assert all(line["at_once_median"] > 20 for line in plan["kv"])


def test_what_is_compressed_chunk_by_chunk_may_be_larger_than_the_memory(
    config: dict[str, Any],
) -> None:
    config["engine"] |= {"max_total_tokens": 6000, "chunked_prefill_size": 512}
    plan = dry(config).plan()
    # 9000 tokens are beyond the context, and 7000 beyond the memory in bf16.
    assert plan["documents"]["too_long"] == 1 and plan["memory"]["max_text_tokens"] > 8192
    config["engine"] |= {"kv_policy": "none", "kv_policy_config": None}
    plan = dry(config).plan()
    assert plan["documents"]["too_long"] == 2 and plan["memory"]["max_text_tokens"] == 6000


def test_what_a_strategy_cuts_is_counted_by_cutting_it(config: dict[str, Any]) -> None:
    source = [*SOURCE, Document("huge", "A sentence. " * 4000)]
    config["strategy"] = {"kind": "map_reduce"}
    plan = dry(config, source=source).plan()
    assert plan["documents"] == {"fits": 7, "cut": 2, "too_long": 0, "invalid": 3, "all": 10}
    # 9,000 and 48,000 characters in prompts of 8,144, and a combination of each.
    assert plan["chunks"] == 2 + 6 and plan["requests"] == 5 + 3 + 7
    config["strategy"] = {"kind": "refine", "chunk_tokens": 1000}
    plan = dry(config, source=source).plan()
    assert plan["documents"]["cut"] == 3 and plan["documents"]["too_long"] == 0
    assert plan["requests"] == 4 + plan["chunks"]


def test_what_cannot_be_cut_is_too_long_with_its_reason(config: dict[str, Any]) -> None:
    config["strategy"] = {"kind": "map_reduce", "chunk_tokens": 60}
    plan = dry(config).plan()
    # Of two summaries of 40 tokens none is in a prompt of 60.
    assert plan["documents"]["cut"] == 0 and plan["documents"]["too_long"] == 5
    [(reason, count)] = plan["too_long_reasons"]
    assert count == 5 and "room for two summaries" in reason
    assert plan["prompt_tokens"]["max"] == 9000


BAD = BadDocument("bad", "the text is empty")
SHORT, LONG = Document("short", "x" * 50), Document("long", "x" * 9000)
CUT_THEM = "; pass --set strategy=map_reduce to cut those that are too long"


@pytest.mark.parametrize(
    ("source", "sections", "warning"),
    [
        ([], {}, "the input held no documents"),
        ([LONG], {}, f"none of 1 document succeeded (1 too_long){CUT_THEM}"),
        ([BAD, BAD], {}, "none of 2 documents succeeded (2 invalid)"),
        (
            [*[SHORT] * 7, LONG, BAD],
            {},
            "2 of 9 documents failed (1 too_long, 1 invalid), more than run.max_failure_rate 0.1 "
            f"allows{CUT_THEM}",
        ),
        ([LONG], {"input": {"path": "s3://b/c", "format": "openai"}}, "none of 1 document"),
        (
            [LONG],
            {"strategy": {"kind": "map_reduce", "chunk_tokens": 60}},
            "none of 1 document succeeded (1 too_long)",
        ),
    ],
)
def test_a_run_that_is_bound_to_fail_is_announced(
    config: dict[str, Any], source: Any, sections: dict[str, Any], warning: str
) -> None:
    [said] = dry(config | sections, num_probes=0, source=source).plan()["warnings"]
    assert said.startswith(f"the run would end with exit code 1: {warning}")
    assert ("strategy=" in said) == warning.endswith(CUT_THEM)


@pytest.mark.parametrize(
    ("source", "sections"),
    [
        ([*[SHORT] * 9, LONG], {}),
        ([SHORT, LONG], {"run": {"max_failure_rate": 0.5}}),
        ([LONG], {"strategy": {"kind": "map_reduce"}}),
    ],
)
def test_a_run_that_may_succeed_is_not_warned_of(
    config: dict[str, Any], source: Any, sections: dict[str, Any]
) -> None:
    assert dry(config | sections, num_probes=0, source=source).plan()["warnings"] == []


def test_a_probe_of_nothing_is_said(config: dict[str, Any]) -> None:
    plan = dry(config, source=[LONG]).plan()
    assert plan["warnings"][-1] == "--probe timed nothing, since no document can be done"
    assert not plan["can_probe"] and plan["requests"] == 0
    assert dry(config, source=[SHORT]).plan()["can_probe"]


def test_a_document_that_is_cut_is_timed_by_its_requests(config: dict[str, Any]) -> None:
    config["strategy"] = {"kind": "map_reduce"}
    run = dry(config, source=[LONG])
    assert run.probes == [LONG] and run.plan()["can_probe"]
    asyncio.run(run.probe(FakeEngine()))
    plan = run.plan()
    # The probe tells that an engine has less memory than the context; a run then cuts smaller.
    assert plan["max_prompt_tokens"] < plan["limit_of_cuts"]
    assert plan["documents"]["cut"] == 1 and plan["requests"] > 1 and plan["warnings"] == []
    assert plan["time"]["output_tokens_per_request"] == 5


def test_probes_are_drawn_evenly_from_all_that_fit(config: dict[str, Any]) -> None:
    source = [Document(f"d{n}", "x" * (9000 if n % 2 else 10)) for n in range(600)]
    drawn = {document.doc_id: document for document in dry(config, source=source).probes}
    assert len(drawn) == 3 and all(len(document.text) == 10 for document in drawn.values())
    assert max(int(doc_id[1:]) for doc_id in drawn) > 100
    assert [document.doc_id for document in dry(config, source=source[:3]).probes] == ["d0", "d2"]


def test_a_probe_gives_the_pace_and_the_memory_of_an_engine(config: dict[str, Any]) -> None:
    config["engines"] = {"count": 2}
    run = dry(config, source=SOURCE[:4])
    asyncio.run(run.probe(FakeEngine(start_s=0.05)))
    plan = run.plan()
    time = plan["time"]
    assert plan["memory"]["source"] == time["source"] == "probe of 3 documents"
    assert plan["memory"]["capacity_tokens"] == 4000
    assert time["output_tokens_per_request"] == 5 and time["start_s"] >= 0.05
    tokens = sum(LENGTHS[:4]) + 4 * 5
    assert time["generating_s"] * 2 * time["tokens_per_s_per_engine"] == pytest.approx(tokens)
    assert time["all_s"] == time["start_s"] + time["generating_s"]
    assert "so a full engine may be faster" in time["warnings"][0]


def test_an_audit_is_planned_by_the_average_document(config: dict[str, Any]) -> None:
    assert dry(config).plan()["audit"] is None
    config["audit"] = {"fraction": 0.5, "repeat_documents": 2}
    run = dry(config)
    audit = run.plan()["audit"]
    # Of five that fit three are done again, and two of these twice.
    assert audit == {
        "documents": 3,
        "repeat_documents": 2,
        "prompt_tokens": sum(LENGTHS[:5]),
        "least_s": None,
    }
    asyncio.run(run.probe(FakeEngine()))
    plan = run.plan()
    assert plan["audit"]["least_s"] == pytest.approx(plan["time"]["all_s"])


def test_a_probe_without_an_answer_fails_in_one_sentence(config: dict[str, Any]) -> None:
    run = dry(config, source=[Document("d", "text")])
    with pytest.raises(RunFailed, match="no answer of 1 document; the first: the engine refused"):
        asyncio.run(run.probe(FakeEngine(fails=frozenset(["d"]))))
    with pytest.raises(RunFailed, match="no engine started"):
        asyncio.run(run.probe(FakeEngine(starts=False)))


def earlier_report(config: dict[str, Any]) -> str:
    made = JobConfig.model_validate(config)
    fleet = [FakeEngine(f"engine-{n}") for n in range(2)]
    source = iter([Document(f"d{n}", "x" * 100) for n in range(10)])
    job = run_job(
        made, lambda: fleet, source, FakePrompts(), OutputFolder(made.output), lambda line: None
    )
    asyncio.run(job)
    return f"{made.output.dir}/report.json"


def test_the_report_of_an_earlier_run_gives_the_pace(config: dict[str, Any]) -> None:
    path = earlier_report(config)
    report = json.loads(Path(path).read_text())
    plan = dry(config, path).plan()
    paces = [engine["tokens_per_s"] for engine in report["engines"]]
    assert plan["time"]["tokens_per_s_per_engine"] == pytest.approx(sum(paces) / 2)
    assert plan["time"]["warnings"] == []
    assert plan["time"]["source"] == f"report of run {report['run']['id']}"
    assert plan["memory"]["capacity_tokens"] == 4000


def test_an_earlier_run_of_another_engine_is_used_with_a_warning(config: dict[str, Any]) -> None:
    path = earlier_report(config)
    config["engine"] |= {"kv_policy": "none", "mem_fraction_static": 0.5}
    plan = dry(config, path).plan()
    assert plan["time"]["warnings"] == [
        "it ran with engine.kv_policy 'arkv', and this run has 'none'"
    ]
    # Its memory is another one, too.
    assert plan["memory"] is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), ("{}", "4 of its fields"), ("not json", "1 of its fields")],
)
def test_what_is_no_report_is_refused(
    config: dict[str, Any], tmp_path: Path, content: str | None, reason: str
) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"^--from-report must be a report\.json .*{reason}"):
        dry(config, str(path))

import io
from typing import Any

import pytest
from rich.console import Console

from arkv_sglang.report.plan import MISSING_MEMORY, MISSING_TIME, print_plan
from arkv_sglang.report.table import WIDTH
from arkv_sglang.report.text import show_duration, show_ratio


def line(policy: str, budget: float | None, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy,
        "budget": budget,
        "is_configured": False,
        "median_bytes": 3 << 20,
        "longest_bytes": 5 << 30,
        "rows_original_ratio": 0.25,
        "rows_quantized_ratio": 0.5,
        "rows_evicted_ratio": 0.25,
        "at_once_median": None,
        "at_once_longest": None,
        **more,
    }


@pytest.fixture
def plan() -> dict[str, Any]:
    return {
        "input": "/data/[red]corpus",
        "model": "some/model",
        "documents": {"fits": 4980, "cut": 0, "too_long": 12, "invalid": 8, "all": 5000},
        "invalid_reasons": [("the text is [empty]", 8)],
        "prompt_tokens": {"min": 9, "median": 812, "p95": 4321, "max": 99_999, "total": 7_654_321},
        "max_prompt_tokens": 65_000,
        "max_new_tokens": 256,
        "context_tokens": 65_264,
        "requests": 4980,
        "strategy": "single",
        "chunks": 0,
        "limit_of_cuts": 65_000,
        "too_long_reasons": [],
        "memory": None,
        "kv_unknown": None,
        "kv": [line("none", None), line("quantized, arkv", 0.25, is_configured=True)],
        "window_docs": 32,
        "when": "prefill",
        "audit": None,
        "can_probe": True,
        "time": None,
        "warnings": [],
    }


def printed(plan: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), force_terminal=False)
    print_plan(plan, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_plan_has_all_figures_and_names_what_is_missing(plan: dict[str, Any]) -> None:
    text = printed(plan)
    for figure in (
        "5,000",
        "4,980",
        "65,000",
        "7,654,321",
        "3.0 MiB",
        "5.00 GiB",
        "25 / 50 / 25 %",
    ):
        assert figure in text
    assert "8 invalid: the text is [empty]" in text and "/data/[red]corpus" in text
    assert "quantized, arkv (configured)" in text
    together = " ".join(text.split())
    assert MISSING_MEMORY in together and MISSING_TIME in together
    assert max(map(len, text.splitlines())) <= WIDTH


def test_with_memory_and_a_pace_it_says_how_many_and_how_long(plan: dict[str, Any]) -> None:
    plan["memory"] = {"tokens": 12_000, "bytes": 1 << 30, "capacity_tokens": 11_000, "source": "S"}
    plan["kv"][1] |= {"at_once_median": 57, "at_once_longest": 3}
    plan["time"] = {
        "source": "probe of 8 documents",
        "warnings": ["it was short"],
        "engines": 2,
        "tokens_per_s_per_engine": 1234.5,
        "output_tokens_per_request": 99.5,
        "start_s": 161.0,
        "generating_s": 7200.0,
        "all_s": 7361.0,
    }
    plan["audit"] = {"documents": 250, "repeat_documents": 16, "prompt_tokens": 4_321}
    plan["audit"]["least_s"] = 540.0
    text = printed(plan)
    figures = ("57", "12,000 tokens in bf16 (S)", "1,234.5", "2 min 41 s", "2 h 03 min")
    audit = ("250 documents again with full KV, and 16 of them twice", "9 min 00 s")
    for figure in (*figures, *audit):
        assert figure in text.replace("\n", " ")
    assert "engines.window_docs is 32" in text and "Careful: it was short." in text
    assert MISSING_TIME not in text


def test_where_rows_are_not_plain_the_kv_is_not_reckoned(plan: dict[str, Any]) -> None:
    text = printed(plan | {"kv": [], "kv_unknown": "the model keeps latent vectors"})
    assert "KV memory is not reckoned: the model keeps latent vectors." in text
    empty = {"kv": [], "prompt_tokens": None, "requests": 0, "can_probe": False}
    nothing = printed(plan | empty)
    assert "prompt tokens" not in nothing and "--probe" not in nothing


def test_warnings_are_the_last_thing_said(plan: dict[str, Any]) -> None:
    assert "Careful" not in printed(plan)
    text = printed(plan | {"warnings": ["the run would end badly", "so would [red]another"]})
    lines = ["Careful: the run would end badly.", "Careful: so would [red]another."]
    assert text.splitlines()[-2:] == lines


def test_a_probe_is_wanted_where_there_is_something_to_probe(plan: dict[str, Any]) -> None:
    assert printed(plan).count("--probe") == 2
    text = printed(plan | {"can_probe": False})
    assert "--probe" not in text and text.count("--from-report") == 2


def test_tables_say_which_documents_they_are_about(plan: dict[str, Any]) -> None:
    text = printed(plan)
    assert "prompt tokens of whole documents, too long ones too: max" in text
    assert "longest request" in text and "longest document" not in text
    plan["documents"]["too_long"] = 0
    assert "prompt tokens of whole documents: max" in printed(plan)


def test_one_document_is_not_documents(plan: dict[str, Any]) -> None:
    plan["audit"] = {"documents": 1, "repeat_documents": 1, "prompt_tokens": 9, "least_s": None}
    assert "Audit: 1 document again with full KV" in printed(plan)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.0421, "42 ms"),
        (9.96, "10.0 s"),
        (100, "1 min 40 s"),
        (5999.6, "1 h 40 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert show_duration(seconds) == shown


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [(None, "-"), (0, "0 %"), (1, "100 %"), (0.5, "50 %"), (0.123, "12.3 %"), (1e-5, "<0.1 %")],
)
def test_ratios(ratio: float | None, shown: str) -> None:
    assert show_ratio(ratio) == shown


def test_a_plan_tells_of_documents_in_chunks(plan: dict[str, Any]) -> None:
    assert "chunks" not in printed(plan)
    assert "too long (over 65,000 tokens)" in printed(plan)
    plan["documents"]["cut"] = 17
    reasons = [("prompts of at most 60 tokens must", 12)]
    plan |= {"strategy": "refine", "chunks": 345, "too_long_reasons": reasons}
    text = printed(plan)
    assert "too long (and cannot be cut)" in text and "over 65,000" not in text
    for words in ("in chunks (refine)", "17", "345", "12 cannot be cut: prompts of at most 60"):
        assert words in text
    assert "Careful: documents were cut" not in text
    assert "of up to 70,000 tokens; with --kv-gib" in printed(plan | {"limit_of_cuts": 70_000})

"""Drivers killed at any moment, until a corpus that changes meanwhile is done."""

import json
import random
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from .drivers import Driver, Plan

# Document kind -> status, and what its row says.
KINDS = {
    "ok": ("ok", None),
    "empty": ("invalid", "the text is empty"),
    "long": ("too_long", "the prompt has 2000 tokens and at most "),
    "no": ("error", "the engine refused it"),
    "poison": ("error", "its engine died 2 times running it alone: "),
}
# Of a long document. In each but the first, refine leaves room for the summary so far.
N_CHUNKS = {"map_reduce": 3, "refine": 5}


class Corpus:
    """Documents that come to be more, move about, and change their texts."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        self.texts: dict[str, str] = {"poison": "text of poison"}
        self.kinds = {"poison": "poison"}
        self.add(300)

    def add(self, count: int) -> None:
        for _ in range(count):
            doc_id = f"d{len(self.texts)}"
            kind = {5: "empty", 6: "long", 7: "no"}.get(len(self.texts) % 40, "ok")
            text = {"empty": " ", "long": "x" * 2000, "no": f"no {doc_id}"}.get(kind)
            self.kinds[doc_id], self.texts[doc_id] = kind, text or f"text {doc_id:5}, first"
        self.write()

    def change(self, count: int) -> None:
        plain = [doc_id for doc_id, kind in self.kinds.items() if kind == "ok"]
        for doc_id in self.rng.sample(plain, count):
            self.texts[doc_id] = f"text {doc_id:5}{self.rng.randrange(100):02}, changed"
        self.write()

    def write(self) -> None:
        lines = [json.dumps({"doc_id": i, "text": text}) for i, text in self.texts.items()]
        # Records without an id, wherever they come to stand.
        lines += [json.dumps({"text": f"nameless {n}"}) for n in range(3)]
        self.rng.shuffle(lines)
        self.path.write_text("".join(line + "\n" for line in lines))


@pytest.mark.parametrize(
    ("kills", "strategy"),
    [
        (20, "single"),
        (8, "map_reduce"),
        pytest.param(200, "single", marks=pytest.mark.soak),
        pytest.param(100, "map_reduce", marks=pytest.mark.soak),
        pytest.param(100, "refine", marks=pytest.mark.soak),
    ],
)
def test_every_document_is_done_once_whenever_its_driver_is_killed(
    tmp_path: Path, kills: int, strategy: str
) -> None:
    rng = random.Random(kills)
    corpus = Corpus(tmp_path / "documents.jsonl", rng)
    plan = Plan(corpus.path, tmp_path / "out", strategy=strategy)
    ended: list[int] = []
    while sum(code < 0 or code == 128 + signal.SIGTERM for code in ended) < kills:
        assert len(ended) < 5 * kills
        driver = Driver(plan)
        let_it_run(driver, rng, 0.4, 100)
        driver.send(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        ended.append(driver.wait())
        assert ended[-1] in (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM), driver.log
        corpus.add(15)
        corpus.change(2)
    driver = Driver(plan)
    assert driver.wait() == 0, driver.log
    check(corpus, plan.out, strategy)
    check_chunks(plan.out, strategy)
    assert len(json.loads((plan.out / "manifest.json").read_text())["attempts"]) > kills / 2


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_every_document_is_done_once_whichever_engine_or_driver_is_killed(
    tmp_path: Path, kills: int
) -> None:
    rng = random.Random(kills)
    corpus = Corpus(tmp_path / "documents.jsonl", rng)
    plan = Plan(corpus.path, tmp_path / "out", document_s=0.01, engines=3, starts=3)
    engines, drivers, given_up = 0, 0, 0
    while engines + drivers < kills or not given_up:
        assert engines + drivers < 5 * kills
        driver = Driver(plan)
        while driver.is_alive:
            let_it_run(driver, rng, 0.15, 40)
            if rng.random() < 0.1:
                drivers += 1
                driver.send(rng.choice((signal.SIGKILL, signal.SIGTERM)))
                break
            engines += kill_an_engine(driver, rng)
        code = driver.wait()
        assert code in (0, 1, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM), driver.log
        if code == 1:
            given_up += 1
            assert "0 of 3 engines are left, and engines.min_engines is 1: " in driver.log
        corpus.add(60)
        corpus.change(2)
    driver = Driver(replace(plan, starts=100))
    assert driver.wait() == 0, driver.log
    assert engines >= kills / 2 and drivers
    check(corpus, plan.out, plan.strategy)


def let_it_run(driver: Driver, rng: random.Random, seconds: float, answers: int) -> None:
    """For a moment, which on a busy machine may be too short for anything, or for some answers."""
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0, seconds))
        return
    wanted = driver.log.count("answered") + rng.randrange(answers)
    while driver.is_alive and driver.log.count("answered") < wanted:
        time.sleep(0.005)


def kill_an_engine(driver: Driver, rng: random.Random) -> bool:
    """Whether there was one."""
    pids = re.findall(r"is process (\d+)", driver.log)
    alive = [process for pid in pids if (process := alive_child(driver, int(pid)))]
    if alive:
        rng.choice(alive).kill()
    return bool(alive)


def alive_child(driver: Driver, pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        is_ours = process.ppid() == driver.pid and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if is_ours else None


def check(corpus: Corpus, out: Path, strategy: str) -> None:
    merged = {row["doc_id"]: row for row in pq.read_table(out / "summaries.parquet").to_pylist()}
    named = {i: row for i, row in merged.items() if not i.startswith("documents.jsonl#")}
    assert len(merged) == pq.read_metadata(out / "summaries.parquet").num_rows
    assert named.keys() == corpus.texts.keys() and len(merged) == len(named) + 3
    for doc_id, kind in corpus.kinds.items():
        status, error = KINDS[kind]
        row = named[doc_id]
        if kind == "long" and strategy != "single":
            assert (row["status"], row["strategy"]) == ("ok", strategy)
            assert row["n_chunks"] == N_CHUNKS[strategy]
            continue
        assert row["status"] == status and re.match(error or "None", str(row["error"])), row
        assert row["summary"] == (corpus.texts[doc_id][:12] if kind == "ok" else None)
    dead = {row["doc_id"]: row for row in pq.read_table(out / "dead_letter.parquet").to_pylist()}
    assert dead.keys() == {i for i, row in merged.items() if row["status"] != "ok"}
    assert len(dead["poison"]["death_log"]) >= 2 and dead["poison"]["attempts"] >= 1
    # What was committed is never done again.
    parts = pq.read_table(out / "summaries").to_pylist()
    done = [(row["doc_id"], row["doc_hash"]) for row in parts if row["status"] == "ok"]
    assert len(done) == len(set(done)) and len({row["attempt"] for row in parts}) > 2
    assert not list(out.rglob("*.tmp"))


def check_chunks(out: Path, strategy: str) -> None:
    """A document in chunks has all of them in the table when its row is in a part, and none that
    was committed was asked for again."""
    if strategy == "single":
        return
    chunks = pq.read_table(out / "chunks").to_pylist()
    for row in pq.read_table(out / "summaries").to_pylist():
        if row["strategy"] == strategy and row["status"] == "ok":
            own = [
                (chunk["level"], chunk["index"])
                for chunk in chunks
                if chunk["doc_id"] == row["doc_id"] and chunk["attempt"] <= row["attempt"]
            ]
            assert {index for level, index in own if not level} == set(range(row["n_chunks"]))
            assert len(own) == len(set(own)), own

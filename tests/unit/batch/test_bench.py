import json
import sys
from pathlib import Path

import pytest

from arkv_sglang.bench.driver import main
from arkv_sglang.bench.scheduling import main as measure_scheduling
from arkv_sglang.bench.tail import corpora


def test_the_driver_is_measured_on_all_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new/driver.json"
    command = ["driver", "--documents", "600", "--characters", "50", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", [*command, "--folder", str(tmp_path)])
    main()
    figures = json.loads(output.read_text())["figures"]
    assert figures["documents"] == 600 and figures["part_files"] == 2
    assert figures["run_s"] == pytest.approx(figures["driver_ms_per_document"] * 0.6, rel=0.01)
    assert 50 < figures["peak_rss_mib"] < 4000 and figures["resumed_run_s"] > 0
    assert "driver ms per document" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]


def test_idle_engines_are_measured_for_each_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "scheduling.json"
    command = ["scheduling", "--documents", "40", "--repeats", "0", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", command)
    measure_scheduling()
    found = json.loads(output.read_text())["idle_at_the_end"]
    assert {each["corpus"] for each in found} == set(corpora(40))
    assert all(0 <= each["idle_share"] < 1 for each in found) and len(found) == 24
    assert "zipf" in capsys.readouterr().out

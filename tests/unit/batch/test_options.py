import pytest

from arkv_sglang.batch.options import parse_arguments


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--probe", "2"], "must come with --dry-run; add it"),
        (["--dry-run", "--probe", "0"], "must be greater than 0, got 0"),
        (["--dry-run", "--probe", "0.5"], "--probe: invalid int value: '0.5'"),
        (["--dry-run", "--kv-gib", "lots"], "--kv-gib: invalid float value: 'lots'"),
        (["--dry-run", "--probe", "2", "--from-report", "x"], "not allowed with"),
    ],
)
def test_wrong_options_of_a_dry_run_are_told_in_a_sentence(
    options: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["longdoc.py", "--config", "configs/demo.yaml", *options])
    with pytest.raises(SystemExit) as ended:
        parse_arguments("Summarizes.")
    assert ended.value.code == 2 and sentence in capsys.readouterr().err

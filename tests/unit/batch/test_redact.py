import pytest

from arkv_sglang.batch.redact import redact, redact_uris


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hfToken",
        "AWS_SECRET_ACCESS_KEY",
        "api_key",
        "API-Keys",
        "apiKey",
        "PASSWD",
        "MYSQL_PWD",
        "PGPASSWORD",
        "DB_PASS",
        "Authorization",
        "proxy-auth",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_names_that_say_secret(name: str) -> None:
    assert redact({"list": [{name: "leak"}], "a": {name: ["leak"]}}) == {
        "list": [{name: "***"}],
        "a": {name: "***"},
    }


@pytest.mark.parametrize(
    "name", ["TOKENS", "max_new_tokens", "stop_token_ids", "keyword", "author", "TOKENIZERS_PATH"]
)
def test_names_that_only_look_like_it(name: str) -> None:
    assert redact({name: "3"}) == {name: "3"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:SECRET@bucket/a", "s3://***@bucket/a"),
        ("http://user:p%40ss@proxy:80 or s3://k@b", "http://***@proxy:80 or s3://***@b"),
        ("no 's3://k:s@b'", "no 's3://***@b'"),
        ("s3://k:a@b@bucket", "s3://***@bucket"),
        ("https://host/user@example.com?to=a@b", "https://host/user@example.com?to=a@b"),
        ("https://host?to=a@b", "https://host?to=a@b"),
        ("mail me@example.com", "mail me@example.com"),
    ],
)
def test_uris_lose_their_user_info_and_nothing_else(text: str, shown: str) -> None:
    assert redact_uris(text) == shown
    assert redact({"a": [text, 1, None]}) == {"a": [shown, 1, None]}

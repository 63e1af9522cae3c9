"""`sglang serve` over HTTP: OpenAI responses, `/server_info` and Prometheus carry our figures."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import requests
from engines import SHALLOW

from arkv_sglang.demo.model import ensure_model

FIGURES = {"rows_original", "bytes_quantized", "peak_rows_original", "rows_evicted"}


@pytest.fixture(scope="module")
def url(one_engine, tmp_path_factory):
    one_engine.stop()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = {
        "--model-path": str(ensure_model()),
        "--device": "cpu",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--max-total-tokens": "6000",
        "--kv-policy": "arkv",
        "--kv-policy-config": '{"budget": 0.25, "min_tokens": 150}',
        "--served-model-name": "demo",
        "--log-level": "error",
        "--json-model-override-args": SHALLOW["json_model_override_args"],
    }
    command = [sys.executable, "-m", "sglang.launch_server", "--enable-metrics"]
    command += [word for pair in arguments.items() for word in pair]
    log = (tmp_path_factory.mktemp("server") / "log").open("w+")
    server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield wait_for(f"http://127.0.0.1:{port}", server, log)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def wait_for(url, server, log):
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        if server.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"the server died:\n{log.read()[-4000:]}")
        # It answers 503 for a while before it is ready.
        with suppress(requests.ConnectionError, requests.Timeout):
            if requests.get(f"{url}/health", timeout=5).ok:
                return url
        time.sleep(1)
    raise RuntimeError("the server did not come up in 400 s")


PROSE = "The committee met on Tuesday and discussed the harvest, the mill and the new bridge. " * 20


def test_chat_response(url):
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"{PROSE}\nSummarize."}],
        "max_tokens": 8,
    }
    response = requests.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
    figures = response["metadata"]["arkv"]
    assert figures.keys() >= FIGURES
    assert figures["times_planned"] == 1 and figures["rows_evicted"] > 0


def test_text_response(url):
    body = {"model": "demo", "prompt": PROSE, "max_tokens": 4}
    response = requests.post(f"{url}/v1/completions", json=body, timeout=120).json()
    assert response["metadata"]["arkv"].keys() >= FIGURES


def test_native_response(url):
    body = {"text": PROSE, "sampling_params": {"max_new_tokens": 4}}
    response = requests.post(f"{url}/generate", json=body, timeout=120).json()
    assert response["meta_info"]["arkv"]["times_planned"] == 1


def test_server_info(url):
    info = requests.get(f"{url}/server_info", timeout=60).json()
    assert info["kv_policy"] == "arkv" and info["kv_policy_config"]["budget"] == 0.25
    figures = info["internal_states"][0]["arkv"]
    assert figures["arkv_arena_bytes"] > figures["arkv_free_bytes"] > 0


def test_prometheus(url):
    text = requests.get(f"{url}/metrics", timeout=60).text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines()}
    assert names >= {
        "arkv_arena_bytes",
        "arkv_free_bytes",
        "arkv_overhead_bytes",
        "arkv_tree_original_bytes",
        "arkv_views_quantized_bytes",
        "arkv_rows_evicted_total",
        "arkv_rows_demoted_total",
    }
    units = ("bytes", "tokens", "requests", "total")
    assert all(any(unit in name for unit in units) for name in names if "arkv_" in name)


def test_flush(url):
    assert requests.post(f"{url}/flush_cache", timeout=60).ok
    figures = requests.get(f"{url}/server_info", timeout=60).json()["internal_states"][0]["arkv"]
    assert figures["arkv_free_bytes"] == figures["arkv_arena_bytes"]

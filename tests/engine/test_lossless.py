"""`original` with the whole budget is stock SGLang, and prefix reuse does not change a text."""

import pytest
import torch
from engines import same_text

# Three engines in one fixture.
pytestmark = pytest.mark.timeout(3600)

NUM_TOKENS = 16
NEAR_TIE_NATS = 0.1


@pytest.fixture(
    scope="module",
    params=[(4, 1000), pytest.param((16, 3000), marks=pytest.mark.soak)],
    ids=["4-prompts", "16-prompts"],
)
def prompts(prompt, request):
    """From 200 tokens up."""
    count, longest = request.param
    return [prompt(i, round(200 * (longest / 200) ** (i / (count - 1)))) for i in range(count)]


@pytest.fixture(scope="module")
def for_noise(prompts):
    """Noise needs fewer prompts than sameness of texts, of several chunks; stock is slow there."""
    return slice(len(prompts) * 3 // 8, len(prompts) * 7 // 8, 2 if len(prompts) > 4 else 1)


@pytest.fixture(scope="module")
def runs(one_engine, prompts, for_noise, generate):
    """Greedy runs, one request at a time, of stock at two chunk sizes and of `original`."""
    whole = {"budget": 1.0, "min_tokens": 0, "when": "always"}
    settings = {
        "stock 256": ("none", None, 256),
        "original 2048": ("original", whole, 2048),
        "stock 2048": ("none", None, 2048),
    }
    found = {}
    for name, (policy, config, chunk) in settings.items():
        # Ours under overlap scheduling: what a view takes in then must be the same.
        overlap = {"disable_overlap_schedule": policy == "none"}
        engine = one_engine.start(policy, config, chunked_prefill_size=chunk, **overlap)
        found[name] = [
            generate(engine, ids, NUM_TOKENS, return_logprob=True, top_logprobs_num=2)
            for ids in (prompts[for_noise] if chunk == 256 else prompts)
        ]
        if policy != "none":
            found["reused"] = [generate(engine, ids, NUM_TOKENS) for ids in prompts[::3]]
    return found


def chosen(out):
    """(log-probability, token, gap between the two best) of each output token.

    The token is not always the listed first: bf16 logits tie, and then argmax decides.
    """
    meta = out["meta_info"]
    steps = zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
    return [(token[0], token[1], best[0][0] - best[1][0]) for token, best in steps]


def noise(first, second):
    """|difference| of log-probabilities along the texts' common beginnings."""
    found = []
    for one, other in zip(first, second, strict=True):
        for (p, token, _), (q, same, _) in zip(chosen(one), chosen(other), strict=True):
            if token != same:
                break
            found.append(abs(p - q))
    return torch.tensor(found)


def test_same_text(runs):
    differing = []
    for stock, ours in zip(runs["stock 2048"], runs["original 2048"], strict=True):
        pairs = zip(chosen(stock), chosen(ours), strict=True)
        gap = next((one[2] for one, other in pairs if one[1] != other[1]), None)
        if gap is not None:
            differing.append(gap)
    assert len(differing) <= 2
    assert all(gap <= NEAR_TIE_NATS for gap in differing)


def test_every_request_was_planned(runs):
    figures = [out["meta_info"]["arkv"] for out in runs["original 2048"]]
    assert all(found["times_planned"] >= 1 for found in figures)
    assert all(found["rows_evicted"] == found["rows_quantized"] == 0 for found in figures)


def test_noise_is_that_of_stock(runs, for_noise):
    of_stock = noise(runs["stock 256"], runs["stock 2048"][for_noise])
    of_ours = noise(runs["original 2048"], runs["stock 2048"])
    print(f"mean |d logprob|: stock {of_stock.mean():.5f}, ours {of_ours.mean():.5f} nats")
    assert of_ours.mean() <= 2 * of_stock.mean()


def test_a_reused_prefix_gives_the_same_text(runs):
    for fresh, reused in zip(runs["original 2048"][::3], runs["reused"], strict=True):
        assert reused["meta_info"]["cached_tokens"] > 0
        assert same_text(fresh, reused)

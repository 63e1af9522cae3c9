"""Qwen2 (attention bias) and Qwen3 (QK-norm), with tiny weights made here, against transformers."""

import pytest
import torch
from engine_probes import DamageOneRowThenForce
from tiny_models import save_model
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from arkv_sglang.engine.teacher_forcing import force
from arkv_sglang.eval.divergence import top_kl

SIZES = {
    "vocab_size": 997,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}
NUM_TOKENS = 12
WHOLE = {"budget": 1.0, "min_tokens": 0, "when": "always"}


@pytest.fixture(params=CONFIGS)
def folder(request, tmp_path):
    return save_model(CONFIGS[request.param](**SIZES), tmp_path, seed=1)


def reference(folder, prompt, continuation):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + continuation])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


def test_as_transformers_has_it(one_engine, folder, tmp_path):
    random = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, 997, (300,), generator=random).tolist() for _ in range(2)]
    continuations = [torch.randint(0, 997, (NUM_TOKENS,), generator=random).tolist()] * 2
    engine = one_engine.start(
        "original", WHOLE, model_path=folder, skip_tokenizer_init=True, max_total_tokens=3000
    )
    ours = force(engine, prompts, continuations, tmp_path / "forced")
    for prompt, continuation, found in zip(prompts, continuations, ours, strict=True):
        moved = top_kl(reference(folder, prompt, continuation), found)
        assert moved.mean() <= 5e-3
    # The model must be one that the cache can be seen in.
    assert top_kl(*ours)[1:].mean() > 0.05
    damaged = force(
        engine, prompts[:1], continuations[:1], tmp_path / "damaged", DamageOneRowThenForce
    )
    assert top_kl(ours[0], damaged[0])[2:].max() > 1e-3
    one_engine.stop()

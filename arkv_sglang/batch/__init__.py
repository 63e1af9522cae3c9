"""The batch job's own logic: documents in, one row per document out, no Ray and no SGLang."""

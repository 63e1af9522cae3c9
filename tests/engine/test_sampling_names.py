"""What an OpenAI batch request may ask for is known to SGLang by the names that it is given."""

from sglang.srt.sampling.sampling_params import SamplingParams

from arkv_sglang.batch.openai_requests import RequestSampling


def test_every_sampling_field_of_a_request_is_sglangs() -> None:
    sampling = RequestSampling.model_validate(
        {"max_tokens": 5, "min_tokens": 1, "seed": 7, "response_format": {"type": "json_object"}}
    )
    params = SamplingParams(**sampling.model_dump())
    params.verify(vocab_size=100)
    assert (params.max_new_tokens, params.min_new_tokens, params.sampling_seed) == (5, 1, 7)
    assert params.json_schema == '{"type": "object"}'

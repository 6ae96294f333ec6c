from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.report.redact import (
    MASK,
    is_secret_name,
    redact_argv,
    redact_environment,
    redact_json,
    redact_text,
    secrets_in,
)

ALPHANUMERIC = string.ascii_letters + string.digits
TOKEN_BODY = st.text(ALPHANUMERIC, min_size=30, max_size=40)
# Shorter than a secret, so it cannot hold the same one by chance.
PROSE = st.text(st.characters(codec="utf-8"), max_size=29)
PLACES = (
    "hf_{}",
    "sk-{}",
    "ghp_{}",
    "Authorization: Bearer {}",
    "'authorization': 'Basic {}'",
    '{{"Authorization": "Bearer {}"}}',
    "bearer {}",
    "HF_TOKEN={}",
    "export HF_TOKEN='{}'",
    "{{'HF_TOKEN': '{}'}}",
    '"WANDB_API_KEY": "{}"',
    "DB_PASSWORD: {}",
    "note: AWS_SECRET_ACCESS_KEY={}",
    "api_key='{}'",
    '{{"token": "{}"}}',
    "non-default args: {{'port': 8000, 'api_key': ['first', '{}'], 'seed': 0}}",
    "Namespace(api_key=['{0}'], hf_token='{0}')",
    "--api-key {}",
    "--api-key={}",
    "['--api-key', '{}', '--port', '8000']",
    "https://user:{}@index.example/simple",
    "https://{}@index.example/simple",
    "http://127.0.0.1:8000/v1?model=m&api_key={}&n=1",
)


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=40)
@given(secret=TOKEN_BODY, before=PROSE, after=PROSE)
def test_a_secret_is_gone_from_any_place_whatever_stands_around_it(
    place: str, secret: str, before: str, after: str
) -> None:
    redacted = redact_text(f"{before}\n{place.format(secret)}\n{after}")
    assert secret not in redacted
    assert MASK in redacted


@given(text=st.text(st.sampled_from("hf_sk-TOKENkey=:'\"@/ *ab\n"), max_size=80))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact_text(text)
    assert redact_text(once) == once


@given(secret=st.text(ALPHANUMERIC + "/+=@ ", min_size=6), before=PROSE, after=PROSE)
def test_a_value_known_from_the_environment_is_gone_wherever_it_stands(secret: str, before: str, after: str) -> None:
    known = secrets_in({"HF_TOKEN": secret, "HOME": "/home/someone"})
    assert known == {secret}
    redacted = redact_text(f"{before}<{secret}>{after}", known)
    assert f"<{secret}>" not in redacted


def test_a_secret_that_contains_another_leaves_no_tail_behind() -> None:
    assert redact_text("x secret-one-tail y", {"secret-one", "secret-one-tail"}) == f"x {MASK} y"


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=256 token_ids=[1, 2] pad_token_id=0 bos_token='<|begin_of_text|>'",
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 49.0',
        "KeyError: 'model.layers.0.weight'",
        "loading key=model.layers.78.weight failed, cache_key: 0123456789abcdef",
        "TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1",
        "unexpected token: foo at line 3",
        "PASS: 14 checks, api_key=None, {'hf_token': None, 'api_key': []}",
        "--tokenizer /models/tiny --max-num-batched-tokens 8192",
        "http://127.0.0.1:8000/metrics answered 200 at 12:00:01 user@host",
        "MTP speculative decoding layer 78 weights missing from checkpoint",
        "disk-based-something-rather-long task-abcdefghijklmnopqrst",
    ],
)
def test_what_an_engine_says_about_tokens_and_keys_is_kept(text: str) -> None:
    assert redact_text(text) == text


def test_names_are_told_apart_by_their_parts() -> None:
    secret = ("HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "--api-key", "--hf-token", "GHTOKEN")
    harmless = ("TOKENIZERS_PARALLELISM", "max_tokens", "token_ids", "cache_key", "pad_token_id", "--max-num-seqs")
    assert [name for name in secret if not is_secret_name(name)] == []
    assert [name for name in harmless if is_secret_name(name)] == []


def test_an_environment_keeps_its_names_and_loses_only_secret_values() -> None:
    environment = {"HF_TOKEN": "short", "HOME": "/root", "PROXY": "http://me:pw@proxy:3128", "EMPTY_KEY": ""}
    assert redact_environment(environment) == {
        "HF_TOKEN": MASK,
        "HOME": "/root",
        "PROXY": f"http://{MASK}@proxy:3128",
        "EMPTY_KEY": "",
    }


def test_the_argument_after_a_secret_flag_is_masked_and_the_next_flag_is_not() -> None:
    argv = ["serve", "--api-key", "-odd value", "--hf-token", "--port", "8000", "--api-key=abc"]
    assert redact_argv(argv) == ["serve", "--api-key", MASK, "--hf-token", "--port", "8000", f"--api-key={MASK}"]


def test_json_keeps_its_shape_and_its_numbers() -> None:
    value = {
        "environment": {"HF_TOKEN": "abc", "VLLM_PORT": "1"},
        "argv": ["--api-key", "abc"],
        "figures": {"accepted_tokens": 49, "API_KEY": 3, "none": None},
        "nested": [{"note": "HF_TOKEN=abc"}],
    }
    assert redact_json(value) == {
        "environment": {"HF_TOKEN": MASK, "VLLM_PORT": "1"},
        "argv": ["--api-key", MASK],
        "figures": {"accepted_tokens": 49, "API_KEY": 3, "none": None},
        "nested": [{"note": f"HF_TOKEN={MASK}"}],
    }


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["a", "a:", "TOKEN=", "https://a", "--api-key ", "hf_", "eyJa.", '"', "x@", "bearer "])
def test_a_log_made_to_be_slow_is_not(unit: str) -> None:
    assert redact_text(unit * 20_000)

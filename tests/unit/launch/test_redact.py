"""Nothing that is a secret stays in a text; what is none does."""

from __future__ import annotations

import base64
import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.launch.redact import REMOVED, Redactor

SECRET = "q7Zr-T0p_5ecret.Value+9"


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=q7Zr-T0p_5ecret.Value+9",
        "export GLMSPARK_API_KEY='q7Zr-T0p_5ecret.Value+9'",
        'env: {"MY_SERVICE_PASSWORD": "q7Zr-T0p_5ecret.Value+9", "PORT": "1"}',
        "{'api_key': 'q7Zr-T0p_5ecret.Value+9', 'model': 'm'}",
        '"{\\"api_key\\": \\"q7Zr-T0p_5ecret.Value+9\\"}"',
        "vllm serve m --api-key q7Zr-T0p_5ecret.Value+9 --port 8000",
        "vllm serve m --api-key=q7Zr-T0p_5ecret.Value+9",
        "argv: ['--api-key', 'q7Zr-T0p_5ecret.Value+9', '--port', '1']",
        'argv: ["--api-key","q7Zr-T0p_5ecret.Value+9","--port"]',
        "Authorization: Bearer q7Zr-T0p_5ecret.Value+9",
        '"authorization": "Basic q7Zr-T0p_5ecret.Value+9"',
        "headers=[(b'authorization', b'Bearer q7Zr-T0p_5ecret.Value+9')]",
        "curl -H 'X-Api-Key: q7Zr-T0p_5ecret.Value+9'",
        "headers=[(b'x-api-key', b'q7Zr-T0p_5ecret.Value+9')]",
        "non-default args: {'api_key': ['q7Zr-T0p_5ecret.Value+9'], 'port': 1}",
        "https://user:q7Zr-T0p_5ecret.Value+9@proxy.example:8080/",
        "aws_secret_access_key: q7Zr-T0p_5ecret.Value+9",
        "PRIVATE_KEY : q7Zr-T0p_5ecret.Value+9",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nq7Zr-T0p_5ecret.Value+9\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nq7Zr-T0p_5ecret.Value+9 (cut)",
    ],
)
def test_secrets_that_are_not_known_beforehand(text: str) -> None:
    redactor = Redactor()
    found = redactor.text(text)
    assert SECRET not in found
    assert "5ecret" not in found
    assert REMOVED in found
    assert sum(redactor.removed.values()) >= 1


@pytest.mark.parametrize(
    "token",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWx",
        "sk-proj-AbCdEfGhIjKlMnOpQrSt",
        "nvapi-AbCdEfGhIjKlMnOpQrSt",
        "ghp_AbCdEfGhIjKlMnOpQrStUvWx",
        "github_pat_AbCdEfGhIjKlMnOpQrSt",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.AbCdEfGhIjKlMnOp",
    ],
)
def test_tokens_of_known_makes_stand_anywhere(token: str) -> None:
    assert Redactor().text(f"fetch({token}) failed") == f"fetch({REMOVED}) failed"


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 128, num_speculative_tokens=2, tokenizer='/models/glm', eos_token_id: 7",
        "'eos_token': '<|endoftext|>', 'pad_token': '[PAD]'",
        "HF_TOKEN is not set; api_key=None; token: null",
        "Avg generation throughput: 18.1 tokens/s, Running: 1 reqs",
        "needs_key: true, kv_cache_dtype: fp8",
        "the secret is out",
        "export HF_TOKEN=$HF_TOKEN",
        "tcp://192.168.1.12:29500",
        "INFO 11-30 13:17:02 [model.py:733] Resolved architecture: GlmMoeDsaForCausalLM",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_json_stays_json() -> None:
    value = {
        "env": {"HF_TOKEN": SECRET, "PORT": "1"},
        "argv": ["x", "--api-key", SECRET],
        "n": [1, None, {"password": SECRET}],
    }
    found = json.loads(Redactor().text(json.dumps(value)))
    assert found == {
        "env": {"HF_TOKEN": REMOVED, "PORT": "1"},
        "argv": ["x", "--api-key", REMOVED],
        "n": [1, None, {"password": REMOVED}],
    }


def test_names_and_addresses_go_only_if_asked() -> None:
    text = (
        "/home/maria/m me@spark1 maria: 8.8.8.8:80 to 192.168.1.12, 8.8.8.8, 2606:4700::1111, fe80::1, 12:34"
    )
    assert Redactor(names=["maria"]).text(text) == text
    redactor = Redactor(names=["maria"], anonymous=True)
    found = redactor.text(text)
    assert found == (
        "/home/user/m user@spark1 user: [address 1]:80 to 192.168.1.12, [address 1], [address 2], "
        "fe80::1, 12:34"
    )
    assert redactor.text(found) == found


@given(st.text(max_size=60), st.text(min_size=8, max_size=30), st.text(max_size=60))
def test_a_known_secret_never_stays(before: str, secret: str, after: str) -> None:
    if secret in REMOVED:
        return
    found = Redactor([secret]).text(before + secret + after)
    assert secret not in found.replace(REMOVED, "\x00")


@given(st.text(max_size=300))
def test_twice_is_as_once(text: str) -> None:
    redactor = Redactor(["known-secret"], anonymous=True, names=["me"])
    once = redactor.text(text)
    assert redactor.text(once) == once


@given(st.binary(max_size=200))
def test_bytes_that_are_no_text(data: bytes) -> None:
    assert Redactor().data(data + b"\nHF_TOKEN=abcdefgh1\n").endswith(b"HF_TOKEN=[removed]\n")


@pytest.mark.parametrize(
    "piece", ["token_", "a_", "password=", '\\"', "--api-key ", "https://a:", "Bearer ", "1:", "eyJ.", " "]
)
def test_no_text_takes_long(piece: str) -> None:
    begin = time.process_time()
    Redactor(anonymous=True).text(piece * (60_000 // len(piece)))
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
def test_a_known_secret_is_found_however_it_is_written(before: str) -> None:
    secret = 'pa"ss wörd/7+q'
    raw = (before + secret).encode()
    for text in (
        json.dumps(before + secret),
        repr([before + secret]),
        quote(before + secret, safe=""),
        raw.hex(),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw + b"!").decode(),
    ):
        found = Redactor([secret]).text(text)
        assert REMOVED in found
        assert len(found) <= len(text) - len(secret) + len(REMOVED) + 8
        assert Redactor([secret]).text(found) == found


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("before", [b"", b"plain\n"])
def test_utf_16_is_looked_through_too(encoding: str, before: bytes) -> None:
    data = before + f"a {SECRET} b HF_TOKEN=abcdefgh\n".encode(encoding) + f"c {SECRET}\n".encode()
    found = Redactor([SECRET]).data(data)
    assert found.endswith(f"a {REMOVED} b HF_TOKEN={REMOVED}\nc {REMOVED}\n".encode())


def test_words_of_a_command_as_the_kernel_has_them() -> None:
    found = Redactor().data(f"vllm\0serve\0--api-key\0{SECRET}\0--port\0".encode())
    assert found == f"vllm\0serve\0--api-key\0{REMOVED}\0--port\0".encode()

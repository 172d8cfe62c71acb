"""Rules about the files beside the weights: tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from glmspark.models.architecture import Architecture
from glmspark.models.errors import CheckpointError
from glmspark.models.files import CheckpointFiles
from glmspark.models.inspection.content import read_json
from glmspark.models.inspection.problem import Problem, Severity

__all__ = ["check_tokenizer_files"]

_OWN = ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>")
"""Tokens that every GLM-4.5 to 5.3 tokenizer has, and no other family's."""
_TEMPLATE = "chat_template.jinja"
_MAX_TEMPLATE = 1 << 20


def check_tokenizer_files(files: CheckpointFiles, architecture: Architecture) -> Iterator[Problem]:
    """Tokenizer or chat template missing, broken or of another family."""
    yield from _tokenizer(files, architecture)
    try:
        template = _template(files)
    except CheckpointError as error:
        yield Problem(
            Severity.ERROR, "chat-template-broken", error.message,
            "chat requests are answered with an error", f"fetch {_TEMPLATE} again", _TEMPLATE,
        )  # fmt: skip
        return
    if template is None:
        yield Problem(
            Severity.ERROR, "chat-template-missing",
            f"neither {_TEMPLATE} nor a chat_template in tokenizer_config.json",
            "every chat request is answered with an error (400)",
            f"fetch {_TEMPLATE} of the original model",
        )  # fmt: skip
    elif lacking := [token for token in ("[gMASK]", "<|user|>", "<|assistant|>") if token not in template]:
        yield Problem(
            Severity.ERROR, "chat-template-family",
            f"the chat template has no {', '.join(lacking)}: it is not GLM's",
            "the model sees turns it was not trained on: worse answers, no end of turn, tool calls as text",
            f"fetch {_TEMPLATE} of the original model",
            _TEMPLATE,
        )  # fmt: skip


def _tokenizer(files: CheckpointFiles, architecture: Architecture) -> Iterator[Problem]:
    if "tokenizer.json" not in files.entries():
        yield Problem(
            Severity.ERROR, "tokenizer-missing", "there is no tokenizer.json",
            "the engine stops after it has been imported", "fetch tokenizer.json and tokenizer_config.json",
        )  # fmt: skip
        return
    try:
        found = read_json(files, "tokenizer.json")
        tokens, highest = _tokens(found)
    except (CheckpointError, ValueError) as error:
        yield Problem(
            Severity.ERROR, "tokenizer-broken", str(error),
            "the engine stops after it has been imported", "fetch tokenizer.json again", "tokenizer.json",
        )  # fmt: skip
        return
    if lacking := [token for token in _OWN if token not in tokens]:
        yield Problem(
            Severity.ERROR, "tokenizer-family",
            f"tokenizer.json has no {', '.join(lacking)}: it is another family's",
            "every prompt is other tokens than the model was trained on: garbage",
            "fetch tokenizer.json and tokenizer_config.json of the original model",
            "tokenizer.json",
        )  # fmt: skip
    if highest >= architecture.vocab_size:
        yield Problem(
            Severity.ERROR, "tokenizer-vocabulary",
            f"tokenizer.json has the token id {highest}, the model {architecture.vocab_size} tokens",
            "such a token in a prompt stops the engine, or reads beyond the embedding",
            "fetch tokenizer.json and config.json of one revision",
            "tokenizer.json",
        )  # fmt: skip


def _tokens(found: Mapping[str, Any]) -> tuple[set[str], int]:
    """Added tokens, and the highest id of all. Raises ValueError for what is no tokenizer."""
    model, added = found.get("model"), found.get("added_tokens")
    if not isinstance(model, dict) or not isinstance(added, list):
        raise ValueError("tokenizer.json has no model and added_tokens: it is no tokenizer")
    vocabulary = model.get("vocab")
    ids = [one for one in vocabulary.values() if isinstance(one, int)] if isinstance(vocabulary, dict) else []
    tokens: set[str] = set()
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise ValueError("tokenizer.json has an added token without content")
        tokens.add(token["content"])
        if isinstance(token.get("id"), int):
            ids.append(token["id"])
    return tokens, max(ids, default=-1)


def _template(files: CheckpointFiles) -> str | None:
    entry = files.entries().get(_TEMPLATE)
    if entry is not None:
        if entry.wrong:
            raise CheckpointError(f"{_TEMPLATE} {entry.wrong}")
        if entry.size > _MAX_TEMPLATE:
            raise CheckpointError(f"{_TEMPLATE} is larger than {_MAX_TEMPLATE} bytes")
        return files.read(_TEMPLATE, [(0, entry.size)])[0].decode(errors="replace")
    if "tokenizer_config.json" not in files.entries():
        return None
    given = read_json(files, "tokenizer_config.json").get("chat_template")
    if isinstance(given, list):  # several, by name
        given = "\n".join(str(one.get("template")) for one in given if isinstance(one, dict))
    return given if isinstance(given, str) and given else None

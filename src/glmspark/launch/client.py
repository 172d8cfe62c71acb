"""Asking an endpoint, as its users do: through the OpenAI client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx

from glmspark.launch.canaries import Answer, ProbeError
from glmspark.launch.record import Endpoint

if TYPE_CHECKING:
    import openai

# Endpoints of ours speak plain HTTP. Without a context of its own a client spends 40 ms on reading the
# world's CAs; with this one, which trusts nobody, HTTPS would be refused.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

_WITHOUT_KEY = "none"  # the OpenAI client insists on one; a server without a key ignores it


def reasoning_of(message: Any) -> str:
    """The reasoning in a message or delta: vLLM's field, by its present name or the earlier one."""
    extra = message.model_extra or {}
    return extra.get("reasoning") or extra.get("reasoning_content") or ""


class Client:
    """One endpoint. The machine's proxy settings are not used: the endpoint is ours."""

    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        self._endpoint = endpoint
        self._key = key
        self._http = httpx.AsyncClient(trust_env=False, verify=_NO_TLS)

    @cached_property
    def _openai(self) -> openai.AsyncOpenAI:
        import openai

        return openai.AsyncOpenAI(
            base_url=self._endpoint.url,
            api_key=self._key or _WITHOUT_KEY,
            max_retries=0,
            timeout=3600.0,  # each probe has its own limit
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False, verify=_NO_TLS),
        )

    def prepare(self) -> None:
        """Import what asking needs: half a second of a core, better spent while the server starts."""
        _ = self._openai

    async def close(self) -> None:
        """Close the connections."""
        if "_openai" in self.__dict__:
            await self._openai.close()
        await self._http.aclose()

    async def ask(
        self,
        prompt: str,
        *,
        max_tokens: int,
        thinking: bool,
        tools: Iterable[dict[str, Any]] | None = None,
        stream: bool = False,
    ) -> Answer:
        """One chat request at temperature 0. Raises ProbeError when there is no proper answer."""
        import openai

        request: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "extra_body": {"chat_template_kwargs": {"enable_thinking": thinking}},
        }
        if tools is not None:
            request["tools"] = list(tools)
        try:
            if stream:
                return await self._streamed(request)
            return _whole(await self._openai.chat.completions.create(**request))
        except openai.APIStatusError as error:
            raise ProbeError(f"HTTP {error.status_code}: {error.message[:300]}") from error
        except openai.OpenAIError as error:
            raise ProbeError(f"no answer from {self._endpoint.url}: {error.__cause__ or error}") from error

    async def _streamed(self, request: dict[str, Any]) -> Answer:
        text, reasoning, finish, used = [], [], "", None
        calls: dict[int, tuple[str, str]] = {}
        chunks = await self._openai.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in chunks:
            used = chunk.usage or used
            for choice in chunk.choices:
                text.append(choice.delta.content or "")
                reasoning.append(reasoning_of(choice.delta))
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or ():
                    name, arguments = calls.get(call.index, ("", ""))
                    if call.function is not None:
                        name += call.function.name or ""
                        arguments += call.function.arguments or ""
                    calls[call.index] = name, arguments
        return Answer(
            "".join(text),
            "".join(reasoning),
            tuple(calls[index] for index in sorted(calls)),
            finish,
            used.prompt_tokens if used else 0,
            used.completion_tokens if used else 0,
        )

    async def count(self, text: str) -> int:
        """Tokens in a text, by the server's own tokenizer. Raises ProbeError when it does not say."""
        base = self._endpoint.url.removesuffix("/v1")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        body = {"model": self._endpoint.model, "prompt": text, "add_special_tokens": False}
        try:
            response = await self._http.post(f"{base}/tokenize", json=body, headers=headers, timeout=60.0)
            response.raise_for_status()
            return int(response.json()["count"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise ProbeError(f"{base}/tokenize: {error}") from error

    async def wait_healthy(self, seconds: float) -> None:
        """Wait until the server says it is healthy. Raises ProbeError when it does not in time."""
        url = f"{self._endpoint.url.removesuffix('/v1')}/health"
        seen = "nothing"
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            try:
                response = await self._http.get(url, timeout=5.0)
                if response.status_code == httpx.codes.OK:
                    return
                seen = f"HTTP {response.status_code}"
            except httpx.HTTPError as error:
                seen = str(error) or type(error).__name__
            await asyncio.sleep(0.1)
        raise ProbeError(f"{url} did not answer within {seconds:g} s: {seen}")


def _whole(completion: Any) -> Answer:
    choice = completion.choices[0]
    message = choice.message
    return Answer(
        message.content or "",
        reasoning_of(message),
        tuple((call.function.name, call.function.arguments) for call in message.tool_calls or ()),
        choice.finish_reason or "",
        completion.usage.prompt_tokens,
        completion.usage.completion_tokens,
    )

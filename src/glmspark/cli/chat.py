"""`glmspark chat`: talk to what runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, complete_deployment, print_json, wants_colour
from glmspark.cli.patience import Patience

if TYPE_CHECKING:
    from glmspark.errors import GlmsparkError
    from glmspark.launch.record import Deployment, Endpoint, Home

_DIM, _RESET, _BOLD = "\x1b[2m", "\x1b[0m", "\x1b[1m"


def chat(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUESTION", help="Ask this and stop; without it, a conversation begins."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Deployment; the only one if not given.", autocompletion=complete_deployment),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    thinking: Annotated[
        bool, typer.Option("--thinking/--no-thinking", help="Let the model reason first; shown dimmed.")
    ] = False,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="0 always takes the likeliest token.")
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    as_json: AsJson = False,
) -> None:
    """Talk to a deployment; answers appear as they are made.

    In a conversation: /new begins afresh, /quit or Ctrl-D ends, Ctrl-C ends the answer.

    Example: [bold]glmspark chat "What is 2+2? Answer in one word:"[/bold]
    """
    from glmspark.errors import UsageError
    from glmspark.launch.status import pick

    question = " ".join(words) if words else None
    if question is None and not sys.stdin.isatty():
        question = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").strip()
        if not question:
            raise UsageError("nothing to ask: standard input is empty", next='glmspark chat "your question"')
    if as_json and question is None:
        raise UsageError("--json needs a question", next='glmspark chat --json "your question"')
    for text in (question, system):
        if text is not None and not _is_unicode(text):
            raise UsageError("the question is not UTF-8 text", next="convert it, for example with iconv")
    place = pick(name, serving=True)
    deployment = place.read()
    assert deployment is not None  # noqa: S101 - pick() has read it
    with _reached(deployment) as endpoint:
        talk = Talk(endpoint, place.read_key(), system, thinking, temperature, max_tokens, _why(place))
        if question is not None:
            answer = talk.ask(question, show=not as_json)
            if as_json:
                print_json(answer)
            return
        _converse(talk)


def _is_unicode(text: str) -> bool:
    """Whether it holds no undecodable bytes, which Python carries along as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reached(deployment: Deployment) -> AbstractContextManager[Endpoint]:
    """The endpoint as it is reached from here; what SSH takes to import is spared where it is not needed."""
    if deployment.cluster is None:
        return nullcontext(deployment.endpoint)
    from glmspark.launch.cluster_prove import reached

    return reached(deployment)


def _why(place: Home) -> Callable[[], GlmsparkError | None]:
    """How to find out why a deployment that should serve does not answer."""

    def ask() -> GlmsparkError | None:
        from glmspark.launch.cluster_ops import place_of
        from glmspark.launch.cluster_status import error_of, recorded, why_silent

        deployment = place.read()
        if deployment is None:
            return None
        nodes = place_of(place, deployment)
        return error_of(recorded(deployment, str(place.path))) if nodes is None else why_silent(nodes)

    return ask


class Talk:
    """A conversation and its history."""

    def __init__(
        self,
        endpoint: Endpoint,
        key: str | None,
        system: str | None,
        thinking: bool,
        temperature: float,
        most: int,
        why: Callable[[], GlmsparkError | None] = lambda: None,
    ) -> None:
        import openai

        self._why = why

        self._model = endpoint.model
        self._url = endpoint.url
        self._openai = openai.OpenAI(
            base_url=self._url,
            api_key=key or "none",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )
        self._system = [{"role": "system", "content": system}] if system else []
        self._options: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": most,
            "extra_body": {"chat_template_kwargs": {"enable_thinking": thinking}},
        }
        self.history: list[dict[str, Any]] = list(self._system)

    def restart(self) -> None:
        """Forget what was said."""
        self.history = list(self._system)

    def ask(self, question: str, *, show: bool) -> dict[str, Any]:
        """Ask, show the answer as it comes, and remember both. Raises GlmsparkError when none comes.

        Interrupted from the keyboard, what came so far is the answer.
        """
        import httpx
        import openai

        from glmspark.errors import GlmsparkError

        messages = [*self.history, {"role": "user", "content": question}]
        writer = Writer(wants_colour(sys.stdout)) if show else None
        text, reasoning, finish = "", "", ""
        try:
            with Patience(sys.stderr) as patience:
                stream: Any = self._openai.chat.completions.create(
                    model=self._model,
                    messages=messages,  # type: ignore[arg-type]
                    stream=True,
                    **self._options,
                )
                for chunk in stream:
                    for choice in chunk.choices:
                        extra = choice.delta.model_extra or {}
                        thought = extra.get("reasoning") or extra.get("reasoning_content") or ""
                        said = choice.delta.content or ""
                        reasoning, text = reasoning + thought, text + said
                        finish = choice.finish_reason or finish
                        if thought or said:
                            patience.sign()
                        if writer is not None:
                            writer.write(thought, said)
        except KeyboardInterrupt:
            finish = "interrupted"
        except openai.APIStatusError as error:
            raise GlmsparkError(
                f"HTTP {error.status_code}", step=f"ask {self._url}", seen=error.message
            ) from error
        except (openai.OpenAIError, httpx.HTTPError) as error:  # the latter: it broke off within an answer
            if writer is not None and (text or reasoning):
                writer.end()
            what = "the answer broke off" if text or reasoning else "no answer"
            raise self._why() or GlmsparkError(
                f"{what}: {error}", step=f"ask {self._url}", next="`glmspark status` says whether it runs"
            ) from error
        if writer is not None:
            writer.end()
        self.history = [*messages, {"role": "assistant", "content": text}]
        return {"content": text, "reasoning": reasoning, "finish_reason": finish}


class Writer:
    """Writes an answer as it comes: reasoning dimmed, or in brackets where there are no colours."""

    def __init__(self, colour: bool) -> None:
        self._before, self._after = (_DIM, _RESET + "\n") if colour else ("[", "]\n")
        self._thinking = False

    def write(self, thought: str, said: str) -> None:
        """Write the next piece."""
        if thought:
            if not self._thinking:
                sys.stdout.write(self._before)
                self._thinking = True
            sys.stdout.write(thought)
        if said:
            self._close()
            sys.stdout.write(said)
        sys.stdout.flush()

    def _close(self) -> None:
        if self._thinking:
            sys.stdout.write(self._after)
            self._thinking = False

    def end(self) -> None:
        """Finish the answer's line."""
        self._close()
        sys.stdout.write("\n")
        sys.stdout.flush()


def _converse(talk: Talk) -> None:
    import readline  # noqa: F401 - importing it gives input() editing and history

    from glmspark.errors import GlmsparkError, error_block

    print("Ctrl-D ends, /new begins afresh.")
    while True:
        try:
            question = input(f"{_BOLD}>{_RESET} " if wants_colour(sys.stdout) else "> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if question in ("/quit", "/exit"):
            return
        if question == "/new":
            talk.restart()
        elif question:
            try:
                talk.ask(question, show=True)
            except GlmsparkError as error:
                print(error_block(error, colour=wants_colour(sys.stderr)), file=sys.stderr)

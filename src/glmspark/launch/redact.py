"""Taking secrets, and if asked names and addresses, out of text that is to be shown to others. Pure.

What is known to be a secret is removed wherever it stands. Beyond that, what looks like one: tokens of
known makes, values of variables and keys that are called so, Authorization headers, passwords in URLs,
private keys.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from urllib.parse import quote, quote_plus

__all__ = ["REMOVED", "Redactor"]

REMOVED = "[removed]"
_LEAST = 6
"""Characters of a known secret; shorter ones are words that may stand anywhere."""

_MAKES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|nvapi-[A-Za-z0-9_-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})"
)
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
)
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|x-api-key|cookie|set-cookie)"
    r"(\\?[\"']?\s{0,3}[:=,]\s{0,3}(?:b(?=[\"']))?\\?[\"']?)"
    r"((?:bearer|basic|token|digest)\s+)?([^\s\"'\\,}\]]{1,4096})"
)
_BEARER = re.compile(r"(?i)\b(bearer)\s+([A-Za-z0-9._~+/=-]{6,4096})")
_URL = re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://)[^\s/@:\"']{0,256}:[^\s/@\"']{1,256}@", re.IGNORECASE)

# A name that ends in one of these words, or is one: HF_TOKEN, api_key, --api-key; but not max_tokens.
_NAME = (
    r"(?:[A-Za-z0-9]{1,40}[_-]){0,6}(?:token|secret|secrets|password|passwd|passphrase|api[_-]?key|apikey"
    r"|access[_-]?key(?:[_-]id)?|private[_-]?key|credential|credentials|cookie)"
)
_VALUE = r"(?:\\?\"(?:[^\"\\]|\\[^\"]){1,4096}|\\?'[^'\\]{1,4096}|[^\s\0\"'\\,;&}\])]{1,4096})"
_ASSIGNED = re.compile(
    rf"(?i)(?<![A-Za-z0-9])(-{{0,2}}{_NAME})"
    rf"(\\?[\"']?\s{{0,3}}[:=]\s{{0,3}}(?:[\[(]\s{{0,3}}(?=\\?[\"']))?(?:b(?=[\"']))?)({_VALUE})"
)
_BETWEEN = r"\\?[\"']?(?:\s{0,3},\s{0,3}|[\s\0]{1,3})"
_OPTION = re.compile(rf"(?i)(?<![A-Za-z0-9-])(--{_NAME})({_BETWEEN})({_VALUE})")
# A placeholder, or what only opens something.
_STANDS_FOR = re.compile(r"<[^<>]{0,80}>|\[[A-Z_]{1,20}\]?|[\[{<(]|\$\{?\w{1,80}\}?")
_PLAIN = {"none", "null", "true", "false", "unset", "set", "auto", "", REMOVED}

_HOME = re.compile(r"(/home/|/Users/|/var/home/)([^/\s\"':,;]{1,64})")
_LOGIN = re.compile(r"\b([a-z_][a-z0-9_-]{0,31})@(?=[A-Za-z0-9])")
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w.]?\w)"
)


def spellings(secret: str) -> set[str]:
    """A secret as it may stand in a text: as it is, in JSON, in Python's own words, in a URL, in hexadecimal,
    and in base64 wherever it begins in what was encoded (but for up to two bytes at its ends)."""
    raw = secret.encode("utf-8", "surrogateescape")
    found = {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        quote(raw, safe=""),
        quote_plus(raw),
    }
    for before, cut in ((0, 0), (1, 2), (2, 3)):
        whole = (b"\0" * before + raw)[: (before + len(raw)) // 3 * 3]
        found |= {encode(whole).decode()[cut:] for encode in (base64.b64encode, base64.urlsafe_b64encode)}
    return {form for form in found | {raw.hex()} if len(form) >= _LEAST}


class Redactor:
    """Removes secrets from texts. known: secrets as they are; names: user names to remove with `anonymous`.

    removed: how many of what kind, so that people see that something was.
    """

    def __init__(
        self, known: Iterable[str] = (), *, anonymous: bool = False, names: Iterable[str] = ()
    ) -> None:
        self.removed: Counter[str] = Counter()
        spelt = {form for one in known if len(one) >= _LEAST for form in spellings(one)}
        self._known = sorted(spelt, key=len, reverse=True)
        self._anonymous = anonymous
        self._users = {name: "user" for name in names if len(name) > 1 and name != "root"}
        self._addresses: dict[str, str] = {}

    def text(self, text: str) -> str:
        """The text without secrets; twice is as once."""
        for secret in self._known:
            if secret in text:
                self.removed["known secrets"] += text.count(secret)
                text = text.replace(secret, REMOVED)
        text = _KEY_BLOCK.sub(self._whole("private keys"), text)
        text = _MAKES.sub(self._whole("tokens"), text)
        text = _HEADER.sub(self._header, text)
        text = _BEARER.sub(lambda found: self._kept(found, 1, " "), text)
        text = _URL.sub(self._url, text)
        text = _OPTION.sub(self._assigned, text)
        text = _ASSIGNED.sub(self._assigned, text)
        return self._without_names(text) if self._anonymous else text

    def data(self, data: bytes) -> bytes:
        """The same for bytes, whatever they are. UTF-16, as some shells write logs, loses its zeros where
        there is a secret."""
        found = self._bytes(data)
        if b"\0" in found:
            dense = found.replace(b"\0", b"")
            if (without := self._bytes(dense)) != dense:
                return without
        return found

    def _bytes(self, data: bytes) -> bytes:
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    # -- what is put in their place ------------------------------------------------------------------------

    def _whole(self, kind: str) -> Callable[[re.Match[str]], str]:
        def replaced(_: re.Match[str]) -> str:
            self.removed[kind] += 1
            return REMOVED

        return replaced

    def _kept(self, found: re.Match[str], group: int, between: str) -> str:
        if found[group + 1] == REMOVED:
            return found[0]
        self.removed["headers"] += 1
        return f"{found[group]}{between}{REMOVED}"

    def _header(self, found: re.Match[str]) -> str:
        if REMOVED.startswith(found[4]) or found[4].casefold() in _PLAIN:
            return found[0]
        self.removed["headers"] += 1
        return f"{found[1]}{found[2]}{found[3] or ''}{REMOVED}"

    def _url(self, found: re.Match[str]) -> str:
        self.removed["passwords in URLs"] += 1
        return f"{found[1]}{REMOVED}@"

    def _assigned(self, found: re.Match[str]) -> str:
        value = found[3].lstrip("\\").lstrip("\"'")
        quote = found[3][: len(found[3]) - len(value)]
        plain = value.casefold() in _PLAIN or _STANDS_FOR.fullmatch(value)
        if plain or value.startswith(REMOVED) or REMOVED.startswith(value):
            return found[0]
        self.removed["named values"] += 1
        return f"{found[1]}{found[2]}{quote}{REMOVED}"

    def _without_names(self, text: str) -> str:
        text = _HOME.sub(self._home, text)
        text = _LOGIN.sub(self._login, text)
        for name in self._users:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "user", text)
        return _ADDRESS.sub(self._address, text)

    def _home(self, found: re.Match[str]) -> str:
        if found[2] != "user":
            self.removed["names"] += 1
        return f"{found[1]}user"

    def _login(self, found: re.Match[str]) -> str:
        if found[1] in ("user", "root"):
            return found[0]
        self.removed["names"] += 1
        return "user@"

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        if not address.is_global:
            return found[0]
        self.removed["addresses"] += 1
        return self._addresses.setdefault(found[0], f"[address {len(self._addresses) + 1}]")

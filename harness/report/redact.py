"""Take secrets out of text, environments, argument lists and JSON values before anybody else can read them.

Pure. Two nets: the shape of a secret (known token formats, `Authorization`, credentials in URLs, a value behind a
name that says secret), and the literal values found in an environment by `secrets_in`, whatever a server prints
around them. Every function is idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote

MASK = "***"

# A shorter value (`1`, `true`) would be cut out of the middle of unrelated words.
_SHORTEST_LITERAL = 6

_TOKEN_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{20,}"
    r"|api_org_[A-Za-z0-9]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_\-]{16,}"
    r"|nvapi-[A-Za-z0-9_\-]{20,}"
    r"|bk[a-z]{2}_[A-Za-z0-9]{20,}"
    r"|xox[abeprs]-[A-Za-z0-9\-]{10,}"
    r"|AKIA[0-9A-Z]{16}"
    # Not inside a word: `disk-` and `task-` end in the same three characters.
    r"|(?<![A-Za-z0-9])sk-[A-Za-z0-9_\-]{16,}"
    r"|eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"
)
_AUTHORIZATION = re.compile(
    r"""(?i)(authorization["']?\s{0,3}[:=]\s{0,3}["']?(?:(?:bearer|basic|token|digest)\s{1,3})?)[^\s"',;}]+"""
)
_BEARER = re.compile(r"(?i)\b(bearer\s{1,3})[A-Za-z0-9_\-.~+/=]{8,}")
# Up to the last @ before the path: a password may hold an @ itself.
_URL_CREDENTIALS = re.compile(r"(?i)(?<![a-z0-9+.\-])([a-z][a-z0-9+.\-]{0,20}://)[^\s/?#\"'<>]+@")
_FLAG = re.compile(
    r"""(?<![\w\-])(--?[A-Za-z][A-Za-z0-9_\-]*)((?:=|["']?,?\s{1,3})["']?)(?!-)([^\s"',;]+)""",
)
_NAME = re.compile(r"""(?<![A-Za-z0-9_\-])([A-Za-z_][A-Za-z0-9_\-]*)((?:["'])?[ \t]{0,3}(?:=|:)[ \t]{0,3})""")
# A list whole: vLLM prints its own arguments as `'api_key': ['...', '...']`.
_VALUE = re.compile(
    r"""(?P<list>\[[^\]\n]*\]?)"""
    r"""|(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\\n])*)(?P=quote)"""
    r"""|(?P<bare>[^\s"',;&)}\]]+)"""
)
_NO_VALUE = frozenset({"None", "null", "True", "False", "true", "false", "[]", "[None]"})

_SECRET_SEGMENT = re.compile(r"(?i)(?:SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEYS?)")
_UPPER_SEGMENT = re.compile(r"[A-Z0-9]*(?:TOKEN|KEYS?)")
# Only behind another word: `PASS: 14 checks` is a verdict.
_UPPER_SUFFIX = re.compile(r"_(?:PASS|AUTH)$")
# Lower case is prose and model configuration (`key=model.layers.0`, `pad_token_id=0`): only what can be nothing else.
_LOWER_KEY = re.compile(r"(?i)(?:^|[_\-])(?:api|access|secret|private|auth|account|signing|encryption)[_\-]?keys?$")
_LOWER_TOKEN = re.compile(r"(?i)(?:^|[_\-])token$")
_SPECIAL_TOKEN = re.compile(r"(?i)^(?:bos|eos|pad|unk|mask|sep|cls|image|video|audio|stop|start|end)[_\-]token$")


def is_secret_name(name: str) -> bool:
    """Whether an environment variable, flag or JSON key of this name holds a secret.

    ``HF_TOKEN``, ``--api-key``, ``db_password`` do; ``TOKENIZERS_PARALLELISM``, ``max_tokens``, ``cache_key`` do not.
    """
    bare = name.lstrip("-")
    if _SECRET_SEGMENT.search(bare) or _LOWER_KEY.search(bare):
        return True
    if bare.isupper():
        segments = re.split(r"[_\-]", bare)
        return bool(_UPPER_SUFFIX.search(bare)) or any(_UPPER_SEGMENT.fullmatch(segment) for segment in segments)
    return bool(_LOWER_TOKEN.search(bare)) and not _SPECIAL_TOKEN.search(bare)


def secrets_in(environment: Mapping[str, str]) -> frozenset[str]:
    """The secret values of an environment, for ``secrets`` below; values under 6 characters are left out."""
    named = {value for name, value in environment.items() if is_secret_name(name)}
    return frozenset(value for value in named if len(value) >= _SHORTEST_LITERAL)


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """``text`` with every secret replaced by ``***``; ``secrets`` are values to remove wherever they stand."""
    # Longest first: a secret that contains another one would leave its tail behind.
    for secret in sorted({s for s in secrets if s}, key=len, reverse=True):
        text = text.replace(secret, MASK).replace(quote(secret, safe=""), MASK)
    text = _URL_CREDENTIALS.sub(rf"\g<1>{MASK}@", text)
    text = _AUTHORIZATION.sub(rf"\g<1>{MASK}", text)
    text = _BEARER.sub(rf"\g<1>{MASK}", text)
    text = _TOKEN_SHAPES.sub(MASK, text)
    text = _FLAG.sub(_redact_flag, text)
    return _redact_named_values(text)


def redact_environment(environment: Mapping[str, str], secrets: Collection[str] = ()) -> dict[str, str]:
    """The same names; a value is masked whole when its name says secret, and as text otherwise."""
    return {
        name: MASK if is_secret_name(name) and value else redact_text(value, secrets)
        for name, value in environment.items()
    }


def redact_argv(argv: Sequence[str], secrets: Collection[str] = ()) -> list[str]:
    """The same arguments; the one that follows ``--api-key`` or its like is masked."""
    redacted: list[str] = []
    masks_next = False
    for argument in argv:
        redacted.append(MASK if masks_next and not argument.startswith("--") else redact_text(argument, secrets))
        masks_next = argument.startswith("-") and "=" not in argument and is_secret_name(argument)
    return redacted


def redact_json(value: Any, secrets: Collection[str] = ()) -> Any:
    """A JSON value of the same shape. Strings behind a secret key are masked; numbers are never touched."""
    if isinstance(value, str):
        return redact_text(value, secrets)
    if isinstance(value, Mapping):
        return {
            redact_text(str(key), secrets): MASK
            if isinstance(item, str) and item and is_secret_name(str(key))
            else redact_json(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            return redact_argv(value, secrets)
        return [redact_json(item, secrets) for item in value]
    return value


def _redact_flag(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{MASK}" if is_secret_name(match[1]) else match[0]


def _redact_named_values(text: str) -> str:
    """Mask the value in ``NAME=value``, ``"name": "value"`` and the like, where the name says secret."""
    parts: list[str] = []
    done = at = 0
    # Not one `sub`: in `note: HF_TOKEN=x` the value of the harmless name is itself a pair and must be looked at.
    while pair := _NAME.search(text, at):
        at = pair.end()
        if not is_secret_name(pair[1]):
            continue
        value = _VALUE.match(text, at)
        if value is None or value[0] in _NO_VALUE or _is_prose(pair[1], pair[2], value):
            continue
        edge = value["quote"] or ""
        parts += (text[done:at], edge, "" if value["quoted"] == "" else MASK, edge)
        done = at = value.end()
    return "".join(parts) + text[done:]


def _is_prose(name: str, separator: str, value: re.Match[str]) -> bool:
    """``unexpected token: foo`` and ``token=5`` are about language models; ``"token": "s3cr3tvalue"`` is not."""
    if not _LOWER_TOKEN.search(name) or name.isupper():
        return False
    if value["list"]:
        return False
    found = value["quoted"] or value["bare"] or ""
    spoken = separator.strip() == ":" and not value["quote"]
    return spoken or len(found) < 8 or found.startswith("<")

"""The byte-level vocabulary that all tiny checkpoints share.

Ids 0..255 are the bytes themselves, so any prompt is encodable. 256 and 257 are BOS and EOS. From `WORD_BASE` come 729
four-letter words that only a model emits: every generated text is printable ASCII, five characters a token, so text and
token ids determine each other and no decoder has to hold back half a character.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

BOS_ID = 256
EOS_ID = 257
BOS = "<s>"
EOS = "</s>"
WORD_BASE = 260
WORDS = tuple("".join(letters) for letters in itertools.product("bdfgklmnp", "aiu", "rstvzhjcw", "aeo"))
WORD_IDS = range(WORD_BASE, WORD_BASE + len(WORDS))
VOCAB_SIZE = 1024
MAX_POSITIONS = 4096

# No digits in the template: digits are mode tokens, and a template that held some would decide every answer.
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def byte_symbols() -> tuple[str, ...]:
    """The printable character that byte-level BPE uses for each byte value, by byte value."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(0x100)
    return tuple(chr(value) if value in printable else chr(next(spare)) for value in range(256))


@functools.cache
def tokenizer() -> Tokenizer:
    """The tokenizer of every tiny checkpoint; adds no BOS of its own."""
    symbols = byte_symbols()
    vocabulary = {symbol: value for value, symbol in enumerate(symbols)}
    vocabulary |= {BOS: BOS_ID, EOS: EOS_ID}
    vocabulary |= {symbols[ord(" ")] + word: token for token, word in zip(WORD_IDS, WORDS, strict=True)}
    built = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    return built


def tokenize(text: str) -> tuple[int, ...]:
    """Token ids of ``text``, as the engine gets them for a completion prompt."""
    return tuple(tokenizer().encode(text, add_special_tokens=False).ids)


def detokenize(ids: Iterable[int]) -> str:
    """Text of ``ids`` with special tokens left out, as the engine returns it."""
    return str(tokenizer().decode(list(ids), skip_special_tokens=True))


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into ``folder``."""
    tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "do_sample": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))

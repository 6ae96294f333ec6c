from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.zoo import BOS_ID, EOS_ID, detokenize, tokenize
from harness.zoo.tokens import CHAT_TEMPLATE, VOCAB_SIZE, WORD_IDS, WORDS, tokenizer, write_tokenizer


@given(st.text().filter(lambda text: "<s>" not in text and "</s>" not in text))
def test_a_prompt_is_its_bytes_and_no_bos_is_added(text: str) -> None:
    assert tokenize(text) == tuple(text.encode())
    assert detokenize(tokenize(text)) == text


@given(st.lists(st.sampled_from(WORD_IDS), min_size=1, max_size=50))
def test_generated_words_and_their_text_determine_each_other(ids: list[int]) -> None:
    text = detokenize(ids)
    assert text.isascii()
    assert [WORD_IDS[WORDS.index(word)] for word in text.split()] == ids


def test_special_tokens_are_recognized_in_text_and_left_out_of_it() -> None:
    assert tokenize("<s>a</s>") == (BOS_ID, ord("a"), EOS_ID)
    assert detokenize([BOS_ID, ord("a"), EOS_ID]) == "a"


def test_the_vocabulary_fits_the_embedding_with_room_for_broken_tokens() -> None:
    assert len(set(WORDS)) == len(WORD_IDS)
    assert max(tokenizer().get_vocab().values()) < WORD_IDS.stop < VOCAB_SIZE


def test_the_chat_template_holds_no_mode_token() -> None:
    outside_expressions = CHAT_TEMPLATE.replace("{{ message['role'] }}", "").replace("{{ message['content'] }}", "")
    assert not any(character.isdigit() for character in outside_expressions)


def test_the_files_name_the_special_tokens_and_the_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"], config["add_bos_token"]) == ("<s>", "</s>", False)
    assert config["chat_template"] == CHAT_TEMPLATE
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == EOS_ID
    assert (tmp_path / "tokenizer.json").is_file()

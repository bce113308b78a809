"""One directory that sentence-transformers loads, with the vectors that ``encode`` gives by default.

Prompt, end token and mask go where every loader finds them: the prompt into the tokenizer's normalizer (joined to the text
before it is tokenised, as ``encode`` does), the end token into its post-processor, ``is_causal`` into ``config.json``. No
chat template is written, since sentence-transformers would wrap every text in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.normalizers import Normalizer, Prepend, Replace
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from ambilm.errors import UserError
from ambilm.export.stock import fresh_directory
from ambilm.loading.quiet import quiet_transformers
from ambilm.model.ambilm import AmbiLM
from ambilm.model.encoding import PromptedTokenizer
from ambilm.model.settings import Settings

POOLING = {"last": "lasttoken", "mean": "mean", "weighted_mean": "weightedmean"}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def export_sentence_transformers(model: AmbiLM, output: Path) -> None:
    """Writes the model as an encoder; an adaptation is folded in.

    Raises:
        UserError: when its default encoding cannot be said in this format, or ``output`` is not empty.
    """
    settings = model.settings
    _check(settings)
    weights = model.merged().base if model.is_adapted else model.base
    width = weights.config.get_text_config().hidden_size
    pooling = {"word_embedding_dimension": width, "pooling_mode": POOLING[settings.pooling], "include_prompt": True}
    with fresh_directory(output) as directory:
        with quiet_transformers():
            weights.save_pretrained(directory)
            model.tokenizer.save_pretrained(directory)
        (directory / "chat_template.jinja").unlink(missing_ok=True)
        _update(directory / "config.json", is_causal=settings.layout == "causal")
        _update(directory / "tokenizer_config.json", model_max_length=settings.max_length, padding_side="right")
        _write_tokenizer(model.tokenizer, settings, directory / "tokenizer.json")
        _write(directory / "modules.json", MODULES)
        (directory / "1_Pooling").mkdir()
        _write(directory / "1_Pooling" / "config.json", pooling)
        _write(directory / "sentence_bert_config.json", {"max_seq_length": settings.max_length, "do_lower_case": False})


def _check(settings: Settings) -> None:
    if settings.layout == "bidirectional" and settings.sink:
        raise UserError(
            "sentence-transformers knows no sink, which this model was trained with: train it with --set sink=false to"
            " export it, or serve it with AmbiLM."
        )
    if settings.prompt.count("{text}") > 1:
        raise UserError("sentence-transformers cannot repeat a text: take a template with one {text}.")
    if not settings.include_prompt:
        raise UserError("sentence-transformers cannot leave a prompt out of the pooling: set include_prompt=true.")


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2))


def _update(file: Path, **changes: Any) -> None:
    _write(file, {**json.loads(file.read_text()), **changes})


def _write_tokenizer(tokenizer: PreTrainedTokenizerBase, settings: Settings, file: Path) -> None:
    """The tokenizer with the prompt around every text and the end token after it."""
    fast: Tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())  # type: ignore[attr-defined]
    prompted = PromptedTokenizer(
        tokenizer, settings.prompt, settings.max_length, start=settings.start_token_id, sink=False, end=None
    )
    steps: list[Normalizer] = []
    before, after = prompted.pieces
    if before:
        steps.append(Prepend(before))
    if after:
        steps.append(Replace(Regex(r"\z"), after))
    if steps:
        fast.normalizer = NormalizerSequence([*steps, *([fast.normalizer] if fast.normalizer else [])])
    appended = settings.appended_end(settings.pooling, settings.prompt)
    if appended is not None:
        end = tokenizer.convert_ids_to_tokens(appended)
        start = [tokenizer.convert_ids_to_tokens(token) for token in prompted.prepended]
        special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in {*start, end}]
        fast.post_processor = TemplateProcessing(single=[*start, "$A", end], special_tokens=special)
    fast.save(str(file))

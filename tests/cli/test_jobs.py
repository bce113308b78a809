"""The jobs on the real SmolLM2-135M: what a command writes is what the library gives."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ambilm.cli import embed as embed_command

if TYPE_CHECKING:
    from ambilm import AmbiLM

TEXTS = ["A dog runs in the park.", "", "Stocks fell on Monday, and again on Tuesday.", "naïve café ☕", "Short."]


@pytest.fixture
def texts_file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def test_embed_npy_over_several_chunks(
    run: Any, loaded: "AmbiLM", texts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_command, "CHUNK", 2)
    output = tmp_path / "x.npy"
    result = run("embed", "m", texts_file, "--output", output)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    vectors = np.load(output, mmap_mode="r")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, loaded.encode(TEXTS), atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "x.npy"]


def test_embed_options_and_json_lines_from_stdin(run: Any, loaded: "AmbiLM", tmp_path: Path) -> None:
    output = tmp_path / "made" / "x.jsonl"
    options = ("--prompt", "", "--pooling", "mean", "--layout", "bidirectional", "--normalize", "--truncate-dim", "16")
    rows = "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS)
    result = run("embed", "m", "-", "--output", output, *options, input=rows)
    assert result.exit_code == 0, result.stderr
    written = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in written] == TEXTS
    expected = loaded.encode(
        TEXTS, prompt="", pooling="mean", layout="bidirectional", normalize_embeddings=True, truncate_dim=16
    )
    np.testing.assert_array_equal(np.array([row["embedding"] for row in written], np.float32), expected)


def test_embed_by_a_reading(run: Any, loaded: "AmbiLM", texts_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.npy"
    assert run("embed", "m", texts_file, "--output", output, "--reading", "echo", "--include-prompt").exit_code == 0
    np.testing.assert_array_equal(np.load(output), loaded.encode(TEXTS, reading="echo", include_prompt=True))
    refused = run("embed", "m", texts_file, "--output", output, "--reading", "aloud")
    assert refused.exit_code == 2 and "prompt-eol" in refused.stderr


def test_embed_precision(run: Any, loaded: "AmbiLM", texts_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.npy"
    assert run("embed", "m", texts_file, "--output", output, "--precision", "ubinary").exit_code == 0
    vectors = np.load(output)
    assert (vectors.dtype, vectors.shape) == (np.uint8, (len(TEXTS), 576 // 8))


def test_tokens(run: Any, loaded: "AmbiLM", tmp_path: Path) -> None:
    result = run("tokens", "m", input="U.N. official Ekeus\n\nheads  for Baghdad\n")
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    sentences = [["U.N.", "official", "Ekeus"], [], ["heads", "for", "Baghdad"]]
    assert [row["words"] for row in rows] == sentences
    for row, expected in zip(rows, loaded.encode_tokens(sentences), strict=True):
        np.testing.assert_array_equal(np.array(row["vectors"], np.float32).reshape(expected.shape), expected)
    output = tmp_path / "x.jsonl"
    other = run("tokens", "m", "-", "--output", output, "--subword", "last", input="Baghdad\n")
    assert (other.exit_code, other.stdout) == (0, "")
    (vector,) = json.loads(output.read_text())["vectors"]
    np.testing.assert_array_equal(np.float32(vector), loaded.encode_tokens([["Baghdad"]], subword="last")[0][0])


def test_infill(run: Any, loaded: "AmbiLM") -> None:
    text = "She [BLANK] home and [BLANK] until noon."
    result = run("infill", "m", text, "--max-tokens", 3, "--json", "--candidates", 2)
    assert result.exit_code == 0, result.stderr
    row = json.loads(result.stdout)
    expected = loaded.infill(text, max_tokens=3, num_candidates=2)
    assert (row["text"], row["spans"]) == (expected.text, list(expected.spans))
    assert row["score"] == pytest.approx(expected.score, abs=1e-3)
    assert [candidate["text"] for candidate in row["candidates"]] == [item.text for item in expected.candidates]
    plain = run("infill", "m", text, "--max-tokens", 1)
    assert plain.stdout == loaded.infill(text, max_tokens=1).text + "\n"


def test_infill_sampling_repeats_with_its_seed(run: Any, loaded: "AmbiLM") -> None:
    arguments = ("infill", "m", "The old man [BLANK] by the sea.", "--max-tokens", 4, "--temperature", 1.9)
    first, second, third = (run(*arguments, "--seed", seed).stdout for seed in (3, 3, 4))
    assert first == second != third


def test_generate_is_the_base_model(run: Any, loaded: "AmbiLM") -> None:
    result = run("generate", "m", "Once upon a time", "--max-new-tokens", 12, "--greedy")
    assert result.exit_code == 0, result.stderr
    ids = loaded.tokenizer("Once upon a time", return_tensors="pt")
    expected = loaded.base.generate(**ids, max_new_tokens=12, do_sample=False)
    assert (
        result.stdout == loaded.tokenizer.decode(expected[0, ids.input_ids.shape[1] :], skip_special_tokens=True) + "\n"
    )


def test_generate_after_a_prompt_seen_both_ways(run: Any, loaded: "AmbiLM") -> None:
    prompt = "The old man and the young woman who"
    result = run("generate", "m", prompt, "--max-new-tokens", 6, "--greedy", "--layout", "prefix")
    assert result.stdout == str(loaded.generate(prompt, max_new_tokens=6, do_sample=False, layout="prefix")) + "\n"
    reply = loaded.chat([{"role": "user", "content": "Hello!"}], max_new_tokens=6, do_sample=False, layout="prefix")
    chat = ("chat", "m", "--max-new-tokens", 6, "--greedy", "--layout", "prefix")
    assert run(*chat, input="Hello!\n").stdout == f"{reply}\n"


def test_generate_seed(run: Any, loaded: "AmbiLM") -> None:
    arguments = ("generate", "m", "Once upon a time", "--max-new-tokens", 8, "--sample", "--temperature", 1.5)
    first, second, third = (run(*arguments, "--seed", seed).stdout for seed in (1, 1, 2))
    assert first == second != third


def test_chat_keeps_history_and_ends_with_exit(run: Any, loaded: "AmbiLM") -> None:
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    result = run(
        *("chat", "m", "--system", "Be brief.", "--max-new-tokens", 8, "--greedy"),
        input="Hello!\n\nAnd you?\n/exit\nnot read\n",
    )
    assert result.exit_code == 0, result.stderr
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
    first = str(loaded.chat(messages, **options))
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "And you?"}]
    assert result.stdout == f"{first}\n{loaded.chat(messages, **options)}\n"


def test_evaluate_and_compare(run: Any, loaded: "AmbiLM", tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    pairs = [
        ("A man sings.", "A man is singing.", 4.8),
        ("A dog runs.", "The sky is blue.", 0.2),
        ("A cat sits.", "A cat rests.", 3.6),
    ]
    rows = [{"sentence1": a, "sentence2": b, "score": s, "subset": "x", "split": "test"} for a, b, s in pairs * 2]
    (data / "stsb.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "results.json"
    result = run("evaluate", "m", "--tasks", "stsb", "--data", data, "--output", output)
    assert result.exit_code == 0, result.stderr
    content = json.loads(output.read_text())
    entry = content["tasks"]["stsb"]
    assert (entry["metric"], entry["n"]) == ("spearman", 6)
    assert result.stdout == f"stsb\tspearman\t{entry['main']}\n"
    for name in ("table.md", "table.html", "plot.png"):
        compared = run("compare", output, "--output", tmp_path / name)
        assert compared.exit_code == 0, compared.stderr
        assert (tmp_path / name).stat().st_size > 0
    assert "stsb" in (tmp_path / "table.md").read_text()


def test_notice_goes_to_stderr(run: Any, smollm2: "AmbiLM", monkeypatch: pytest.MonkeyPatch) -> None:
    from ambilm import AmbiLM

    monkeypatch.setattr(AmbiLM, "from_pretrained", lambda name, dtype, device: smollm2)
    result = run("generate", "smollm2-135m", "One, two,", "--max-new-tokens", 2)
    assert result.stderr.splitlines()[0] == smollm2.notice != ""
    assert smollm2.notice not in result.stdout


def test_ctrl_c_while_the_real_model_writes() -> None:
    # A shell starts what it runs in the background with Ctrl-C ignored.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from ambilm.cli import main; main()"
    )
    command = [sys.executable, "-c", script, "generate", "smollm2-135m", "Once upon a time", "--max-new-tokens", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        writer.stdout.read(10)
        writer.send_signal(signal.SIGINT)
        assert writer.wait(timeout=60) == 130
        notice, last = writer.stderr.read().decode().splitlines()
    assert notice.startswith("device ")
    assert last == "Interrupted."

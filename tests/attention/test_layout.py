"""The rule itself, by hand, and what it compiles to."""

import pytest
import torch

from ambilm.attention import Layout, Tokens
from ambilm.attention.layout import may_see, roles


def grid(text: str) -> torch.Tensor:
    return torch.tensor([[cell == "x" for cell in line.strip()] for line in text.split()])


def seen(layout: Layout, window: int | None = None) -> torch.Tensor:
    return may_see(layout.queries, layout.keys, window)[0]


def test_the_four_layouts_by_hand() -> None:
    assert torch.equal(seen(Layout.padded("causal", [4])), grid("x... xx.. xxx. xxxx"))
    assert torch.equal(seen(Layout.padded("bidirectional", [3])), grid("xxx xxx xxx"))
    assert torch.equal(seen(Layout.padded("prefix", [4], prefix=[2])), grid("xx.. xx.. xxx. xxxx"))
    infill = Layout.padded("infill", [5], is_span=torch.tensor([[False, True, True, False, False]]))
    # the span at places 1 and 2 sees context on both sides; context sees no span
    assert torch.equal(seen(infill), grid("x..xx xx.xx xxxxx x..xx x..xx"))


def test_a_second_span_sees_the_first() -> None:
    layout = Layout.padded("infill", [5], is_span=torch.tensor([[False, True, False, True, False]]))
    assert torch.equal(seen(layout), grid("x.x.x xxx.x x.x.x xxxxx x.x.x"))


def test_a_sink_sees_only_itself_and_is_seen() -> None:
    tokens = Tokens.padded([3], torch.zeros(1, 3, dtype=torch.bool)).with_sinks()
    assert torch.equal(seen(Layout.of(tokens)), grid("x.. xxx xxx"))
    assert Layout.of(tokens).shortcut is None


def test_windows_reach_as_transformers_reaches() -> None:
    assert torch.equal(seen(Layout.padded("causal", [4]), window=2), grid("x... xx.. .xx. ..xx"))
    assert torch.equal(seen(Layout.padded("bidirectional", [4]), window=2), grid("xxx. xxxx xxxx .xxx"))


def test_padding_sees_itself_alone() -> None:
    layout = Layout.padded("bidirectional", [1, 3])
    assert torch.equal(seen(layout), grid("x.. .x. ..x"))
    left = Layout.padded("causal", [2, 3], side="left")
    assert torch.equal(seen(left), grid("x.. .x. .xx"))


def test_masks_of_both_kinds_agree() -> None:
    layout = Layout.packed("infill", [3, 2], is_span=torch.tensor([[False, True, False, False, True]]))
    boolean, additive = layout.boolean_mask(), layout.additive_mask(None, torch.float32)
    assert boolean is not None and torch.equal(boolean, additive == 0)
    assert float(additive.min()) == torch.finfo(torch.float32).min


def test_a_lone_text_needs_no_mask() -> None:
    for name in ("causal", "bidirectional"):
        layout = Layout.padded(name, [4])
        assert layout.boolean_mask() is None and layout.shortcut == name
        assert layout.boolean_mask(window=2) is not None and layout.boolean_mask(window=9) is None


def test_varlen_numbers_and_refusals() -> None:
    cumulative, longest, causal = Layout.packed("causal", [3, 1, 4]).varlen()
    assert cumulative.tolist() == [0, 3, 4, 8] and longest == 4 and causal
    assert not Layout.packed("bidirectional", [3, 1]).varlen()[2]
    with pytest.raises(ValueError, match="causal and bidirectional"):
        Layout.packed("infill", [2, 2], is_span=torch.tensor([[False, True, False, True]])).varlen()
    with pytest.raises(ValueError, match="without padding"):
        Layout.padded("causal", [1, 3]).varlen()


def test_buckets_put_every_token_back() -> None:
    lengths = [3, 30, 4, 31, 2]
    layout = Layout.packed("bidirectional", lengths)
    buckets, inverse = layout.buckets()
    assert len(buckets) == 2
    gathered = torch.cat([bucket.index.reshape(-1) for bucket in buckets])
    assert torch.equal(gathered[inverse], torch.arange(sum(lengths)))


def test_block_mask_is_the_same_rule() -> None:
    tokens = Tokens.packed([3, 2], torch.tensor([[False, True, False, False, True]])).with_sinks()
    layout = Layout.of(tokens, "flex")
    mask_mod = layout.block_mask().mask_mod
    zero = torch.tensor(0)
    found = torch.tensor(
        [[bool(mask_mod(zero, zero, torch.tensor(q), torch.tensor(k))) for k in range(5)] for q in range(5)]
    )
    assert torch.equal(found, seen(layout))


@pytest.mark.parametrize("window", [None, 1, 2, 4])
@pytest.mark.parametrize("name", ["causal", "bidirectional", "infill"])
def test_block_mask_with_windows_and_a_cache(name: str, window: int | None) -> None:
    is_span = {"causal": [True] * 6, "bidirectional": [False] * 6, "infill": [False, True, True, False, True, False]}
    keys = Tokens.padded([6, 4], torch.tensor([is_span[name]] * 2)).with_sinks()
    queries = Tokens(keys.text[:, 3:], keys.is_span[:, 3:], keys.position[:, 3:])
    for layout in (Layout.of(keys, "flex"), Layout(queries, keys, "flex")):
        rule = layout.block_mask(window).mask_mod
        b, q, k = torch.meshgrid(
            torch.arange(2), torch.arange(layout.queries.text.shape[1]), torch.arange(6), indexing="ij"
        )
        expected = may_see(layout.queries, layout.keys, window)
        assert torch.equal(rule(b, torch.zeros_like(b), q, k), expected)


def test_a_prefix_and_an_infill_of_six_tokens_by_hand() -> None:
    prefix = Layout.packed("prefix", [4, 2], prefix=[2, 1])
    assert torch.equal(seen(prefix), grid("xx.... xx.... xxx... xxxx.. ....x. ....xx"))
    infill = Layout.padded("infill", [6], is_span=torch.tensor([[False, True, True, False, True, False]]))
    assert torch.equal(seen(infill), grid("x..x.x xx.x.x xxxx.x x..x.x xxxxxx x..x.x"))
    # windows measure positions, and those reserved for a span count
    gapped = Layout.padded(
        "infill", [4], is_span=torch.tensor([[False, True, False, False]]), positions=torch.tensor([[0, 1, 4, 5]])
    )
    assert torch.equal(seen(gapped, window=3), grid("x... xxx. ..xx ..xx"))


def test_wrong_names_and_shapes() -> None:
    with pytest.raises(ValueError, match="unknown layout"):
        roles("sideways", [3])
    with pytest.raises(ValueError, match="prefix"):
        roles("prefix", [3])
    with pytest.raises(ValueError, match="is_span"):
        roles("infill", [3])
    with pytest.raises(ValueError, match="shape"):
        Tokens(torch.zeros(1, 2), torch.zeros(1, 3), torch.zeros(1, 2))

"""Every family x layout x kernel: no leak, no missing sight, proved by changing one token at a time."""

import pytest
import torch
from tests.families import FAMILIES, VOCABULARY, tiny, windows
from torch import Tensor

from ambilm.adaptation import shared_view
from ambilm.attention import Layout, Tokens
from ambilm.attention.layout import may_see
from ambilm.model.forward import hidden_states, logits

LENGTH = 9
KERNELS = ("sdpa", "eager")
# roles of nine tokens: True for a span token
LAYOUTS: dict[str, list[bool]] = {
    "causal": [True] * 9,
    "bidirectional": [False] * 9,
    "prefix": [False] * 4 + [True] * 5,
    "infill": [False, False, True, True, False, False, True, False, False],
}


def layout_of(name: str, kernel: str, sink: bool = False) -> Layout:
    tokens = Tokens.padded([LENGTH], torch.tensor([LAYOUTS[name]]))
    return Layout.of(tokens.with_sinks() if sink else tokens, kernel)


def influence(view: torch.nn.Module, ids: Tensor, layout: Layout) -> Tensor:
    """(queries, keys) boolean: whether the output at the query changes when the token at the key does."""
    before = hidden_states(view, ids, layout)[0]  # (length, hidden)
    columns = []
    for place in range(ids.shape[1]):
        changed = ids.clone()
        changed[0, place] = (changed[0, place] + 17) % VOCABULARY
        columns.append((hidden_states(view, changed, layout)[0] != before).any(dim=-1))
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_one_layer_sees_exactly_what_it_may(family: str, name: str, kernel: str) -> None:
    view = shared_view(tiny(family, layers=1))
    ids = torch.arange(3, 3 + LENGTH)[None]
    layout = layout_of(name, kernel)
    expected = may_see(layout.queries, layout.keys, windows(family, 1)[0])[0]
    assert torch.equal(influence(view, ids, layout), expected)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_no_leak_through_several_layers(family: str, name: str) -> None:
    view = shared_view(tiny(family, layers=3))
    ids = torch.arange(3, 3 + LENGTH)[None]
    layout = layout_of(name, "sdpa", sink=True)
    reach = torch.eye(LENGTH)
    for window in windows(family, 3):
        reach = may_see(layout.queries, layout.keys, window)[0].float() @ reach
    seen = influence(view, ids, layout)
    assert not bool((seen & ~(reach > 0)).any())
    assert torch.equal(seen, reach > 0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_causal_layout_is_the_stock_model(family: str) -> None:
    base = tiny(family)
    view = shared_view(base)
    ids = torch.arange(3, 3 + LENGTH)[None]
    stock = base.base_model(input_ids=ids).last_hidden_state
    for kernel in KERNELS:
        hidden = hidden_states(view, ids, layout_of("causal", kernel))
        torch.testing.assert_close(hidden, stock, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(logits(view, hidden), base(ids).logits, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3"])
@torch.inference_mode()
def test_bidirectional_layout_is_the_stock_model_with_is_causal_false(family: str) -> None:
    base = tiny(family)
    ids = torch.arange(3, 3 + LENGTH)[None]
    stock = base.base_model(input_ids=ids, is_causal=False).last_hidden_state
    found = hidden_states(shared_view(base), ids, layout_of("bidirectional", "sdpa"))
    torch.testing.assert_close(found, stock, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_padding_and_packing_change_nothing(family: str, name: str, kernel: str) -> None:
    view = shared_view(tiny(family))
    roles = torch.tensor(LAYOUTS[name])
    lengths = [9, 5, 7]
    texts = [torch.arange(3, 3 + length) * (number + 1) % VOCABULARY for number, length in enumerate(lengths)]
    alone = [
        hidden_states(view, text[None], Layout.of(Tokens.padded([len(text)], roles[None, : len(text)]), kernel))[0]
        for text in texts
    ]
    row = torch.cat(texts)[None]
    packed_roles = torch.cat([roles[:length] for length in lengths])[None]
    packed = hidden_states(view, row, Layout.of(Tokens.packed(lengths, packed_roles), kernel))[0].split(lengths)
    for side in ("left", "right"):
        ids, spans = torch.zeros(3, 9, dtype=torch.long), torch.zeros(3, 9, dtype=torch.bool)
        for number, text in enumerate(texts):
            place = slice(9 - len(text), 9) if side == "left" else slice(0, len(text))
            ids[number, place], spans[number, place] = text, roles[: len(text)]
        padded = hidden_states(view, ids, Layout.of(Tokens.padded(lengths, spans, side=side), kernel))
        for number, length in enumerate(lengths):
            rows = padded[number, 9 - length :] if side == "left" else padded[number, :length]
            torch.testing.assert_close(rows, alone[number], atol=1e-4, rtol=1e-4)
    for found, expected in zip(packed, alone, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_neighbours_and_padding_leak_nothing(family: str, name: str, kernel: str) -> None:
    """Exactly: every token of a neighbour in the row, and every padding id, is changed, and not one bit moves."""
    view = shared_view(tiny(family))
    roles = torch.tensor(LAYOUTS[name])
    lengths = [9, 5, 7]
    layout = Layout.of(Tokens.packed(lengths, torch.cat([roles[:length] for length in lengths])[None]), kernel)
    row = torch.arange(3, 3 + 21)[None]
    before = hidden_states(view, row, layout)[0]  # (21, hidden)
    changed = row.clone()
    changed[0, 9:14] += 40
    moved = (hidden_states(view, changed, layout)[0] != before).any(dim=-1)
    assert moved.tolist() == [9 <= place < 14 for place in range(21)]
    for side in ("left", "right"):
        tokens = Tokens.padded([9, 5], torch.stack([roles, roles]), side=side)
        ids = torch.arange(3, 3 + 18).view(2, 9)
        other = torch.where(tokens.is_padding, ids + 40, ids)
        real = ~tokens.is_padding
        assert int(real.sum()) == 14
        found, expected = (hidden_states(view, item, Layout.of(tokens, kernel))[real] for item in (other, ids))
        assert torch.equal(found, expected) and bool(found.isfinite().all())


@torch.inference_mode()
def test_flex_agrees_where_it_compiles() -> None:
    view = shared_view(tiny("Llama", layers=1))
    ids = torch.arange(3, 3 + LENGTH)[None]
    try:
        found = hidden_states(view, ids, layout_of("infill", "flex", sink=True))
    except Exception as error:  # no compiler, or a head dimension that flex does not take on this processor
        pytest.skip(f"FlexAttention does not compile here: {str(error).splitlines()[0][:120]}")
    torch.testing.assert_close(
        found, hidden_states(view, ids, layout_of("infill", "eager", sink=True)), atol=1e-4, rtol=1e-4
    )

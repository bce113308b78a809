"""The chunked cross-entropy equals PyTorch's, in value and gradient."""

import pytest
import torch
from tests.families import tiny
from torch.nn import functional as F

from ambilm.adaptation import shared_view
from ambilm.model.forward import logits
from ambilm.objectives.prediction import CHUNK, token_losses


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "GPT2"])  # plain, capped logits, tied head
@pytest.mark.parametrize("count", [1, CHUNK, 2 * CHUNK + 3])
def test_equals_cross_entropy(family: str, count: int) -> None:
    torch.manual_seed(0)
    view = shared_view(tiny(family))
    width = view.get_input_embeddings().weight.shape[1]
    hidden = (5 * torch.randn(count, width)).requires_grad_()
    targets = torch.randint(0, view.config.vocab_size, (count,))
    weights = torch.rand(count)
    expected = F.cross_entropy(logits(view, hidden), targets, reduction="none")
    (wanted,) = torch.autograd.grad((expected * weights).sum(), hidden)
    found = token_losses(view, hidden, targets)
    (gradient,) = torch.autograd.grad((found * weights).sum(), hidden)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, wanted)


def test_a_target_that_the_model_rules_out_has_a_finite_loss() -> None:
    view = shared_view(tiny("Llama"))
    with torch.no_grad():
        view.get_output_embeddings().weight.mul_(1e4)  # type: ignore[operator, union-attr]
    width = view.get_input_embeddings().weight.shape[1]
    hidden = torch.randn(3, width, requires_grad=True)
    losses = token_losses(view, hidden, torch.tensor([1, 2, 3]))
    losses.sum().backward()
    assert bool(losses.isfinite().all()) and hidden.grad is not None and bool(hidden.grad.isfinite().all())

"""The student's neighbours against the teacher's."""

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax

from ambilm.objectives import distillation_loss


def test_value_by_hand() -> None:
    random = np.random.default_rng(0)
    student, teacher = random.normal(size=(5, 7)), random.normal(size=(5, 3))

    def neighbours(vectors: np.ndarray, text: int) -> np.ndarray:
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return softmax(np.delete(unit @ unit[text], text) / 0.1)

    expected = np.mean([rel_entr(neighbours(teacher, i), neighbours(student, i)).sum() for i in range(5)])
    found = distillation_loss(torch.tensor(student), torch.tensor(teacher), 0.1)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_a_turned_and_stretched_copy_has_nothing_left_to_learn() -> None:
    teacher = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = 3 * torch.cat([teacher.roll(1, dims=1), torch.zeros(6, 2)], dim=1)
    assert distillation_loss(turned, teacher, 0.05).item() == pytest.approx(0, abs=1e-5)


def test_descent_brings_the_teachers_neighbours() -> None:
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(8, 4, generator=generator)
    student = torch.randn(8, 6, generator=generator, requires_grad=True)
    optimiser = torch.optim.Adam([student], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        distillation_loss(student, teacher, 0.2).backward()
        optimiser.step()
    own, theirs = (torch.nn.functional.normalize(side.detach(), dim=1) for side in (student, teacher))
    nearest = [(side @ side.T - 2 * torch.eye(8)).argmax(dim=1) for side in (own, theirs)]
    assert torch.equal(*nearest)


def test_two_texts_have_no_choice_of_neighbours() -> None:
    student = torch.randn(2, 3, requires_grad=True)
    loss = distillation_loss(student, torch.randn(2, 3), 0.05)
    loss.backward()
    assert loss.item() == 0 and student.grad is not None and not student.grad.any()

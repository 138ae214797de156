"""The contrastive loss, and who finds whom, against torch's cross-entropy and plain loops."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triptych.tasks import contrastive
from triptych.tasks.contrastive import Matches, contrastive_loss, contrastive_losses, rank_of_best, row_keys

WIDTH = 5


def pairs(count: int, seed: int = 0, *, different: int = 4) -> tuple[Tensor, Tensor]:
    """Vectors of texts and images, of which some have equal texts; equal texts have equal vectors."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(different, (count,), generator=generator)
    texts = torch.randn(different, WIDTH, dtype=torch.float64, generator=generator)[keys]
    images = texts + torch.randn(count, WIDTH, dtype=torch.float64, generator=generator)
    return torch.stack((texts, images), dim=1), keys + 2**55  # more than float64 has exactly


def test_where_all_texts_differ_it_is_clips() -> None:
    """Radford et al. 2021, figure 3."""
    vectors, _ = pairs(7)
    logits = vectors[:, 1] @ vectors[:, 0].T
    labels = torch.arange(7)
    expected = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    torch.testing.assert_close(contrastive_loss(vectors, labels) / 7, expected, rtol=0, atol=1e-12)


@given(count=st.integers(1, 9), seed=st.integers(0, 99), different=st.integers(1, 5))
def test_equal_texts_share_what_is_expected(count: int, seed: int, different: int) -> None:
    vectors, keys = pairs(count, seed, different=different)
    shares = (keys[:, None] == keys).double()
    shares /= shares.sum(1, keepdim=True)
    logits = vectors[:, 1] @ vectors[:, 0].T
    expected = F.cross_entropy(logits, shares, reduction="none")
    torch.testing.assert_close(contrastive_losses(vectors[:, 1], vectors[:, 0], keys[:, None] == keys), expected)
    both = (expected + F.cross_entropy(logits.T, shares, reduction="none")).sum() / 2
    torch.testing.assert_close(contrastive_loss(vectors, keys), both)


def of_a_process(rank: int, folder: str) -> None:
    """Its share of the loss of seven pairs, and the gradient."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    vectors, keys = pairs(7)
    own = slice(0, 3) if rank == 0 else slice(3, 7)
    given = vectors[own].clone().requires_grad_()
    loss = contrastive_loss(given, keys[own])
    loss.backward()
    torch.save([loss.detach(), given.grad], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.nightly
def test_two_processes_share_the_loss_and_its_gradient(tmp_path: Path) -> None:
    """Of unequal numbers of pairs, some with equal texts."""
    torch.multiprocessing.spawn(of_a_process, (str(tmp_path),), nprocs=2)
    vectors, keys = pairs(7)
    vectors.requires_grad_()
    loss = contrastive_loss(vectors, keys)
    loss.backward()
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    torch.testing.assert_close(parts[0][0] + parts[1][0], loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.cat([parts[0][1], parts[1][1]]), vectors.grad, rtol=1e-12, atol=1e-14)


def test_autocast_leaves_the_loss_alone() -> None:
    vectors, keys = pairs(64, different=60)
    vectors = 10 * F.normalize(vectors.float(), dim=-1)
    expected = contrastive_loss(vectors, keys)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contrastive_loss(vectors, keys), expected)


def loop(vectors: Tensor, keys: list[int], k: int) -> tuple[float, float]:
    """Recall at k: of texts for images, of images for texts."""
    texts, images = vectors.unbind(1)
    first = [keys.index(key) for key in sorted({*keys})]
    found = [0, 0]
    for i, key in enumerate(keys):
        text_scores = sorted(
            ((float(images[i] @ texts[j]), keys[j] != key) for j in first), key=lambda s: (-s[0], -s[1])
        )
        image_scores = [(float(texts[i] @ images[j]), keys[j] != key) for j in range(len(keys))]
        image_scores.sort(key=lambda s: (-s[0], -s[1]))  # of equal ones, the wrong ones first
        best_wrong_before = next(n for n, (_, wrong) in enumerate(image_scores) if not wrong)
        found[0] += next(n for n, (_, wrong) in enumerate(text_scores) if not wrong) < k
        found[1] += best_wrong_before < k
    return found[0] / len(keys), found[1] / len(keys)


@pytest.mark.parametrize("seed", range(6))
def test_recall_is_that_of_a_plain_loop(seed: int) -> None:
    vectors, keys = pairs(40, seed, different=15)
    vectors = (2 * vectors).round()  # so that some are equal
    metric = Matches(WIDTH, (1, 2, 5))
    metric.update(vectors, keys, torch.arange(40))
    values = dict(zip(metric.names, metric.compute().tolist(), strict=True))
    for k in (1, 2, 5):
        found = values[f"image_to_text_recall_{k}"], values[f"text_to_image_recall_{k}"]
        assert found == loop(vectors, keys.tolist(), k)
    assert values["loss"] == pytest.approx(float(contrastive_loss(vectors, keys)) / 40, rel=1e-12)
    assert 0 < values["image_to_text_recall_1"] < values["image_to_text_recall_5"]
    ranks = [match.text_rank for match in metric.of_each.values()]
    assert sum(rank <= 2 for rank in ranks) / 40 == values["image_to_text_recall_2"]


def test_neither_order_nor_parts_change_a_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, keys = pairs(50, different=20)

    def values(*parts: list[int]) -> tuple[Any, Any]:
        metric = Matches(WIDTH, (1,))
        for part in parts:
            metric.update(vectors[part], keys[part], torch.tensor(part))
        return metric.compute().tolist(), metric.of_each

    expected = values([*range(50)])
    assert values([*range(30, 50)], [7], [*range(29, 7, -1), *range(7)]) == expected
    monkeypatch.setattr(contrastive, "ROWS", 7)
    numbers, matches = values([*range(50)])
    assert (numbers[1:], matches) == (expected[0][1:], expected[1])
    assert numbers[0] == pytest.approx(expected[0][0], rel=1e-14)
    best = {match.best_key for match in matches.values()}
    assert best <= {*keys.tolist()}


def test_the_best_text_is_one_that_there_is() -> None:
    vectors, keys = pairs(30, different=30)
    metric = Matches(WIDTH, (1,))
    metric.update(vectors, keys, torch.arange(30))
    metric.compute()
    for i, match in metric.of_each.items():
        assert match.best_key == int(keys[(vectors[:, 0] @ vectors[i, 1]).argmax()])
        assert (match.best_key == int(keys[i])) == (match.text_rank == 1)


def test_what_is_as_good_or_no_number_comes_first() -> None:
    scores = torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, 3.0], [math.nan, 1.0, 0.0], [1.0, math.nan, 0.0]])
    positives = torch.tensor([[True, False, False], [True, False, False], [True, False, False], [True, False, False]])
    assert rank_of_best(scores, positives).tolist() == [2, 2, 3, 2]
    vectors = torch.full((3, 2, WIDTH), math.nan)
    metric = Matches(WIDTH, (1,))
    metric.update(vectors, torch.arange(3), torch.arange(3))
    loss, *recalls = metric.compute().tolist()
    assert math.isnan(loss)
    assert recalls == [0, 0]


def test_of_nothing_there_is_no_number() -> None:
    assert Matches(WIDTH, (1, 5)).compute().isnan().tolist() == [True] * 5


def test_keys_are_of_the_tokens() -> None:
    texts = [[1, 2], [2, 1], [1], [], [1, 2, 0], [258]]
    keys = [row_keys(text) for text in texts]
    assert len({*keys}) == len(texts)
    assert keys == [row_keys(text) for text in texts]
    assert all(0 <= key < 2**60 for key in keys)

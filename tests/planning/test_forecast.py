"""What is planned of images that nobody has read."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from cases import by_day
from command_line import with_parts
from triptych.models.flops import TrainingCost
from triptych.planning.batch_shapes import AssumedData
from triptych.planning.forecast import make_forecast
from triptych.planning.gpus import GPUS

HANDWRITTEN = ["data.dir=.", "tokenizer=characters", "batch.global_size=8", "shape=tiny"]
EXPERIMENTS = {
    "captions/handwritten": ["full", "decoder_only", "prefix_lm"],
    "matching/handwritten": ["dual_encoder", "dual_decoder"],
    "generation/handwritten": ["full", "encoder_only"],
}
CASES = [f"{name} {model}" for name, models in EXPERIMENTS.items() for model in models]


@pytest.mark.parametrize("name", by_day(CASES, CASES[::6]))
def test_an_image_is_as_long_as_its_patches(name: str, chosen: Callable[..., DictConfig]) -> None:
    experiment, model = name.split()
    config = with_parts(chosen(f"experiment={experiment}", f"model={model}", *HANDWRITTEN))
    estimate = AssumedData(None, 1).estimate(config)
    length, source = estimate.longest
    assert length == config.shape.max_length
    assert source == (1 + 21 if "generation" not in experiment else length if model == "full" else 0)
    forecast = make_forecast(estimate, 1, GPUS["h100"])
    assert forecast.flops > 0
    assert forecast.memory.ddp(1, 8).total > 0
    assert TrainingCost(forecast.network).of_batch((8, length, source)) > 0

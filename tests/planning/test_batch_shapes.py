"""What the first steps of a training say of all of them."""

from omegaconf import OmegaConf

from triptych.planning.batch_shapes import BatchEstimate, StepShapes


def test_tokens_of_a_step_are_the_mean_over_steps_times_the_processes() -> None:
    steps = [StepShapes({(2, 3, 0): 1}, 5), StepShapes({(2, 4, 0): 1}, 8)]
    estimate = BatchEstimate(OmegaConf.create(), steps, world_size=3, rows=2, longest=(4, 0))
    assert estimate.tokens == 3 * (5 + 8) / 2

"""What is both better and cheaper than all else."""

from collections.abc import Sequence


def find_pareto_front(points: Sequence[tuple[float, float]], *, higher_is_better: bool) -> list[int]:
    """The points (cost, value) that no other one beats: none costs as little and is better, or is as good and costs
    less.

    Args:
        points: in any order.
        higher_is_better: which way values are better.

    Returns:
        their places in ``points``, by rising cost.
    """
    sign = 1 if higher_is_better else -1
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -sign * points[i][1])):
        if not front or sign * points[i][1] > sign * points[front[-1]][1]:
            front.append(i)
    return front

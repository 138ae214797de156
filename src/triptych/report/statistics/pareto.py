"""The Pareto front of cost and quality.

Tested by tests/report/statistics/test_standings.py.
"""

from collections.abc import Sequence


def find_pareto_front(points: Sequence[tuple[float, float]], *, higher_is_better: bool) -> list[int]:
    """Positions of the points (cost, value) on the Pareto front, by rising cost: no other point is at least as good and
    as cheap, and better in one of the two."""
    sign = 1 if higher_is_better else -1
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -sign * points[i][1])):
        if not front or sign * points[i][1] > sign * points[front[-1]][1]:
            front.append(i)
    return front

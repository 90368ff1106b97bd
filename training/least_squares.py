"""Levenberg-Marquardt for a handful of parameters and millions of residuals."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TINY = 1e-6
"""Least curvature: a parameter without effect stays where it is."""
LARGEST = 1.0
"""Longest way of a parameter in one step, of a logarithm a factor of e: one with next to no effect
would be anywhere after it."""


@torch.no_grad()
def levenberg_marquardt(
    residuals: Callable[[Tensor], Tensor],
    start: Tensor,
    moving: Sequence[int],
    iterations: int,
    step: float,
) -> Tensor:
    """Least squares by damped second-order steps with numerical derivatives.

    Args:
        residuals: Parameters to residuals, (M,).
        start: (K,) parameters to start from.
        moving: Indices of those that may move.
        iterations: Steps that are tried; one that does not help only raises the damping.
        step: Of the derivatives.

    Returns:
        (K,) the best parameters found.
    """
    best, damping = start.clone(), 1e-3
    moves = step * torch.eye(len(best)).to(best)[moving]
    error = residuals(best)
    for _ in range(iterations):
        columns = [(residuals(best + m) - residuals(best - m)) / (2 * step) for m in moves]
        jacobian = torch.stack(columns, dim=1).double()
        normal = jacobian.mT @ jacobian
        damped = normal + damping * torch.diag(normal.diagonal().clamp(min=TINY))
        change = torch.linalg.solve(damped, jacobian.mT @ error.double()).to(best)
        change = change.clamp(-LARGEST, LARGEST)
        moved = best.clone()
        moved[moving] -= change
        attempt = residuals(moved)
        better = bool(torch.isfinite(attempt).all()) and attempt.norm() < error.norm()
        if better:
            best, error = moved, attempt
        damping *= 0.1 if better else 10.0
    return best


__all__ = ["levenberg_marquardt"]

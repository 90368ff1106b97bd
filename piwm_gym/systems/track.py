"""A closed path in the plane: where points lie beside it, and how it bends ahead of them."""

import math
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

CELL = 0.05
"""Side of the lookup table's cells, m."""
MARGIN = 2.0
"""How far the table reaches beyond the path's bounding box, m."""
CANDIDATES = 8
"""Segments that a cell lists."""
CHUNK = 4096
MIN_POINTS = 8
UNEVEN = 0.1
"""Largest relative deviation of a segment's length from the mean."""


class Place(NamedTuple):
    """Where points lie beside a path, (*B,) each.

    Attributes:
        cte: Cross-track error: signed distance from the path, m, positive to the right of it.
        arc: Arc length of the nearest point from the path's first one, m, in [0, length).
        heading: Of the path there, rad, in [-pi, pi).
        curvature: Of the path there, 1/m, positive in a left turn.
    """

    cte: Tensor
    arc: Tensor
    heading: Tensor
    curvature: Tensor


def wrap_angle(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi), rad; unchanged where it is there already."""
    return angle - 2 * math.pi * torch.floor((angle + math.pi) / (2 * math.pi))


class Track:
    """Lookup tables of a closed polyline; float64 on the CPU, :meth:`to` for others.

    Each cell of a grid lists the segments nearest to it, so that a projection looks at a few
    segments instead of all of them. It is exact up to about four fifths of a turn's radius; close
    to the middle of a turn, where a whole arc is equally near, the distance may be some
    millimetres too large. Points beyond the grid are judged by its nearest cell. Nothing waits
    for the device.

    Attributes:
        length: Of the path, m.
        spawn: (3,) pose at its first point, along it: m, m, rad.

    Args:
        path: (M, 2) m, equally spaced; the last point is followed by the first. About 10 cm
            between points suits a car of 20 cm and turns of 1 m.

    Raises:
        ValueError: Not such a path.
    """

    def __init__(self, path: Float[Tensor, "M 2"]) -> None:
        self.check(path)
        points = path.detach().double().cpu()
        edges = points.roll(-1, 0) - points
        self.length = float(edges.norm(dim=1).sum())
        self._spacing = self.length / len(points)
        directions = torch.atan2(edges[:, 1], edges[:, 0])
        chords = points.roll(-1, 0) - points.roll(1, 0)
        headings = torch.atan2(chords[:, 1], chords[:, 0])
        curvatures = wrap_angle(directions - directions.roll(1)) / self._spacing
        low = points.amin(0) - MARGIN
        columns, rows = ((points.amax(0) + MARGIN - low) / CELL).ceil().long().tolist()
        self._shape = (rows, columns)
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        centres = low + CELL * (torch.stack((x, y), dim=-1).flatten(0, 1) + 0.5)
        self._nearest = _candidates(centres, points, edges)
        self._segments = torch.cat((points, edges, edges.square().sum(1, keepdim=True)), dim=1)
        turns = wrap_angle(headings.roll(-1) - headings)
        bends = curvatures.roll(-1) - curvatures
        self._course = torch.stack((headings, turns, curvatures, bends), dim=1)
        self._low = low
        self.spawn = torch.cat((points[0], headings[:1]))
        place = self.project(centres)
        self._glances = torch.stack(
            (place.arc, place.cte, place.heading.cos(), place.heading.sin()), dim=1
        )

    def to(self, like: Tensor) -> "Track":
        """The same track on the device and in the precision of a tensor."""
        track = copy(self)
        for name in ("spawn", "_segments", "_course", "_low", "_glances"):
            setattr(track, name, getattr(self, name).to(like))
        track._nearest = self._nearest.to(like.device)
        return track

    @staticmethod
    def check(path: Tensor) -> None:
        """Refuse what is not a path.

        Raises:
            ValueError: See the class.
        """
        if path.ndim != 2 or path.shape[1] != 2 or len(path) < MIN_POINTS:
            raise ValueError(
                f"path has shape {tuple(path.shape)}; expected (M, 2) with M >= {MIN_POINTS}: "
                "points in metres"
            )
        lengths = (path.roll(-1, 0) - path).norm(dim=1)
        if not bool(torch.isfinite(path).all()) or not bool(
            ((lengths / lengths.mean() - 1).abs() < UNEVEN).all()
        ):
            raise ValueError(
                f"path has segments of {float(lengths.min()):.3g} to {float(lengths.max()):.3g} m, "
                "the one from its last to its first point included; expected a closed path of "
                "finite, equally spaced points: resample it, and leave out a repeated first point"
            )

    def project(self, xy: Float[Tensor, "*B 2"]) -> Place:
        """Nearest point of the path; differentiable but where that jumps.

        Args:
            xy: Points, m.
        """
        flat = xy.reshape(-1, 2)
        segment = self._segment(flat.detach())
        start, edge, squared = self._segments[segment].split((2, 2, 1), dim=1)
        away = flat - start
        along = (away * edge).sum(1) / squared[:, 0]
        share = along.clamp(0, 1)
        gap = away - share[:, None] * edge
        right = (away[:, 0] * edge[:, 1] - away[:, 1] * edge[:, 0]) * squared[:, 0].rsqrt()
        # Beyond a corner the distance is that from the corner; its root has no slope at 0.
        distance = torch.sqrt(gap.square().sum(1).clamp(min=1e-12))
        cte = torch.where(along == share, right, torch.copysign(distance, right))
        heading, turn, curvature, bend = self._course[segment].unbind(1)
        arc = (segment + share) * self._spacing
        found = (
            cte,
            torch.where(arc >= self.length, arc - self.length, arc),
            wrap_angle(heading + share * turn),
            curvature + share * bend,
        )
        return Place(*(numbers.reshape(xy.shape[:-1]) for numbers in found))

    @torch.no_grad()
    def _segment(self, flat: Float[Tensor, "N 2"]) -> Int[Tensor, " N"]:
        """Index of the nearest segment."""
        near = self._nearest[self._cell(flat)]
        start, edge, squared = self._segments[near].split((2, 2, 1), dim=2)
        away = flat[:, None] - start
        share = ((away * edge).sum(2, keepdim=True) / squared).clamp(0, 1)
        best = (away - share * edge).square().sum(2).argmin(1, keepdim=True)
        return near.gather(1, best)[:, 0].long()

    def _cell(self, flat: Float[Tensor, "N 2"]) -> Int[Tensor, " N"]:
        """Index of the grid's nearest cell."""
        rows, columns = self._shape
        place = ((flat - self._low) / CELL).nan_to_num().clamp(0, max(self._shape)).long()
        return place[:, 1].clamp(max=rows - 1) * columns + place[:, 0].clamp(max=columns - 1)

    @torch.no_grad()
    def glance(self, xy: Float[Tensor, "*B 2"]) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Arc length of the nearest point and cross-track error, m, quickly.

        Both are interpolated from the nearest cell's centre: the arc length is right to a few
        centimetres, the cross-track error to millimetres. Without gradient.
        """
        flat = xy.reshape(-1, 2)
        cell = self._cell(flat)
        arc, cte, cos, sin = self._glances[cell].unbind(1)
        columns = self._shape[1]
        x = flat[:, 0] - (self._low[0] + CELL * (cell % columns + 0.5))
        y = flat[:, 1] - (self._low[1] + CELL * (cell // columns + 0.5))
        x, y = x.clamp(-CELL, CELL), y.clamp(-CELL, CELL)
        shape = xy.shape[:-1]
        return (arc + x * cos + y * sin).reshape(shape), (cte + x * sin - y * cos).reshape(shape)

    def driven(
        self, before: Float[Tensor, "*B"], after: Float[Tensor, "*B"]
    ) -> Float[Tensor, "*B"]:
        """Way along the path from one arc length to another, m, the shorter way round.

        Errors of :meth:`glance` do not add up along a drive: it counts laps.
        """
        apart = after - before
        return apart - self.length * torch.round(apart / self.length)

    def ahead(self, arc: Float[Tensor, "*B"], distances: Sequence[float]) -> Float[Tensor, "*B K"]:
        """Curvature of the path at distances ahead of an arc length, 1/m.

        Args:
            arc: From the path's first point, m; any number of laps.
            distances: K distances along the path, m.
        """
        place = torch.stack([arc + distance for distance in distances], dim=-1) / self._spacing
        whole = place.detach().floor()
        segment = torch.remainder(whole, len(self._course)).nan_to_num().long()
        segment = segment.clamp(max=len(self._course) - 1)
        curvature, bend = self._course[segment][..., 2:].unbind(-1)
        return curvature + (place - whole) * bend


def _candidates(
    centres: Float[Tensor, "N 2"], points: Float[Tensor, "M 2"], edges: Float[Tensor, "M 2"]
) -> Int[Tensor, "N C"]:
    """Segments nearest to each cell's centre, by their middles."""
    middles = (points + edges / 2).float()
    return torch.cat(
        [
            torch.cdist(part, middles).topk(CANDIDATES, largest=False, sorted=False).indices.int()
            for part in centres.float().split(CHUNK)
        ]
    )


__all__ = ["Place", "Track", "wrap_angle"]

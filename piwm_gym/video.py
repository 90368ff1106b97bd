"""Frames to pictures and films: mp4 and gif, grids, two films side by side.

Frames are uint8 (..., H, W, 3) everywhere here. Nothing is ever resampled: frames grow by an
integer factor, so that a pixel of the model stays a square of equal pixels.
"""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg  # type: ignore[import-untyped,unused-ignore]
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from piwm_gym.checks import check_whole

GAP = 2
"""Pixels between the pictures of a grid, before enlargement."""
GREY = 128
CAPTION = 22
"""Height in pixels of the line of text above a film."""

_PALETTE = (
    "split[a][b];[a]palettegen=reserve_transparent=0:stats_mode=full[p];"
    "[b][p]paletteuse=dither=none"
)
_ENCODERS = {
    ".mp4": "-c:v libx264 -crf 12 -pix_fmt yuv420p -movflags +faststart",
    ".gif": f"-filter_complex {_PALETTE} -c:v gif -pix_fmt pal8",
}
"""What ffmpeg needs to know for each format."""


def write_video(
    frames: UInt8[np.ndarray, "T H W 3"], path: Path | str, fps: float, scale: int | None = None
) -> Path:
    """Write a film; an existing file is replaced only when the new one is complete.

    The film has exactly T pictures, repeated ones included, of ``scale * H`` by ``scale * W``
    pixels. An mp4 needs even numbers: where the product is odd, its last row or column is
    repeated once. A gif stores delays in steps of 10 ms and browsers slow down delays below
    20 ms, so its rate is the nearest of 50, 33.3, 25, 20, ... per second. Gif colours are exact
    up to 256 of them, and the film repeats forever.

    Args:
        frames: The pictures.
        path: Where to; the ending, ``.mp4`` or ``.gif``, decides the format.
        fps: Pictures per second.
        scale: Factor of enlargement; default: 4 for frames smaller than 256 pixels, else 1.

    Returns:
        The path.

    Raises:
        ValueError: An unknown ending, frames that are not uint8 (T, H, W, 3) with T at least 1,
            a rate or scale that is not positive.
        RuntimeError: ffmpeg failed; its message is in the error.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _ENCODERS:
        raise ValueError(f"path is {str(path)!r}; expected a name that ends in .mp4 or .gif")
    frames = _checked(frames, ndim=4)
    if not fps > 0 or not np.isfinite(fps):
        raise ValueError(f"fps is {fps!r}; expected a positive number of pictures per second")
    if scale is None:
        scale = 4 if min(frames.shape[1:3]) < 256 else 1
    if suffix == ".gif":
        fps = 100 / max(2, round(100 / fps))
    pictures = (upscale(frame, scale) for frame in frames)
    if suffix == ".mp4":
        odd = [scale * side % 2 for side in frames.shape[1:3]]
        padding = ((0, odd[0]), (0, odd[1]), (0, 0))
        pictures = (np.pad(picture, padding, mode="edge") for picture in pictures)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{suffix}")
    try:
        _encode(pictures, temporary, fps)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _encode(pictures: Iterator[np.ndarray], path: Path, fps: float) -> None:
    """Send pictures of equal size to the ffmpeg that imageio brings along."""
    first = next(pictures)
    height, width, _ = first.shape
    rate = Fraction(fps).limit_denominator(1000)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y"]
    command += f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {rate} -i -".split()
    command += [*_ENCODERS[path.suffix].split(), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
        assert ffmpeg.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it gave up: the reason is in stderr
            for picture in itertools.chain((first,), pictures):
                ffmpeg.stdin.write(picture.tobytes())
        _, message = ffmpeg.communicate()
    if ffmpeg.returncode != 0:
        raise RuntimeError(f"ffmpeg could not write {path.name}: {message.decode().strip()}")


def _checked(frames: np.ndarray, ndim: int) -> np.ndarray:
    """Frames as an array of the expected rank."""
    frames = np.asarray(frames)
    if (
        frames.ndim != ndim
        or frames.dtype != np.uint8
        or frames.shape[-1] != 3
        or 0 in frames.shape
    ):
        layout = ("H, W, 3", "T, H, W, 3", "T, N, H, W, 3")[ndim - 3]
        raise ValueError(
            f"frames is a {frames.dtype} array of shape {frames.shape}; expected uint8 ({layout})"
        )
    return frames


def upscale(frames: UInt8[np.ndarray, "*B H W 3"], scale: int) -> UInt8[np.ndarray, "*B h w 3"]:
    """Repeat every pixel ``scale`` times in both directions.

    Raises:
        ValueError: ``scale`` is not a positive integer.
    """
    if not isinstance(scale, int | np.integer) or scale < 1:
        raise ValueError(f"scale is {scale!r}; expected a positive integer: nothing is resampled")
    return frames.repeat(scale, axis=-3).repeat(scale, axis=-2)


def tile(
    frames: UInt8[np.ndarray, "*B N H W 3"], columns: int | None = None, gap: int = GAP
) -> UInt8[np.ndarray, "*B h w 3"]:
    """N pictures as one, row by row, with grey gaps and grey free places.

    Args:
        frames: The pictures; leading axes, such as time, stay.
        columns: Pictures in a row; default: about as many as there are rows.
        gap: Pixels between neighbours.
    """
    *batch, count, height, width, _ = frames.shape
    columns = int(np.ceil(np.sqrt(count))) if columns is None else columns
    if columns < 1:
        raise ValueError(f"columns is {columns}; expected at least 1")
    rows = -(-count // columns)
    size = (rows * (height + gap) - gap, columns * (width + gap) - gap)
    sheet = np.full((*batch, *size, 3), GREY, dtype=np.uint8)
    for i in range(count):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        sheet[..., top : top + height, left : left + width, :] = frames[..., i, :, :, :]
    return sheet


def contact_sheet(
    frames: UInt8[np.ndarray, "T H W 3"], columns: int | None = None, every: int = 1
) -> UInt8[np.ndarray, "h w 3"]:
    """One picture of a film: every ``every``-th frame, row by row."""
    return tile(_checked(frames, ndim=4)[::every], columns)


def side_by_side(
    real: UInt8[np.ndarray, "T H W 3"],
    imagined: UInt8[np.ndarray, "T H W 3"],
    captions: tuple[str, str] = ("real", "imagined"),
    scale: int = 4,
) -> UInt8[np.ndarray, "T h w 3"]:
    """Two films next to each other, enlarged, with a caption above each.

    Raises:
        ValueError: The films differ in length or size, or are not uint8 (T, H, W, 3).
    """
    real, imagined = _checked(real, ndim=4), _checked(imagined, ndim=4)
    if real.shape != imagined.shape:
        raise ValueError(f"the films differ: {real.shape} and {imagined.shape}; expected equal")
    pairs = upscale(tile(np.stack((real, imagined), axis=1), columns=2), scale)
    height, width = CAPTION + -CAPTION % scale, pairs.shape[2]
    band = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(band), ImageFont.load_default(14)
    for i, caption in enumerate(captions):
        centre = (width * (1 + 2 * i) // 4, height // 2)
        draw.text(centre, caption, fill="black", font=font, anchor="mm")
    bands = np.broadcast_to(np.asarray(band), (len(pairs), height, width, 3))
    return np.concatenate((bands, pairs), axis=1)


Policy = Callable[[Any], Any]
"""Observation to action, in whatever layout the environment has."""


def record(
    env: gym.Env | gym.vector.VectorEnv,
    path: Path | str,
    policy: Policy | None = None,
    steps: int = 200,
    seed: int | None = None,
    columns: int | None = None,
    grid: tuple[int, int] | None = None,
) -> UInt8[np.ndarray, "T H W 3"]:
    """Film an episode, or several at once from a vector environment as a grid.

    Args:
        env: An environment with ``render_mode="rgb_array"``.
        path: A name that ends in .mp4 or .gif; the rate is the environment's ``render_fps``.
        policy: Observation to action; default: random actions.
        steps: Largest number of steps; a single environment stops where its episode ends.
        seed: Seed of the reset and of random actions.
        columns: Pictures in a row of the grid.
        grid: Rows and columns instead; the first slots are filmed, as many as it has places.

    Returns:
        The frames: the reset's and one for each step.

    Raises:
        ValueError: The environment does not render, or has fewer slots than the grid places.
    """
    slots = None
    if grid is not None:
        slots, columns = _places(env, grid), grid[1]
    frames = np.stack(list(_frames(env, policy, steps, seed, columns, slots)))
    write_video(frames, path, env.metadata["render_fps"])
    return frames


def _places(env: gym.Env | gym.vector.VectorEnv, grid: tuple[int, int]) -> int:
    """How many slots a grid shows."""
    count = getattr(env, "num_envs", 1)
    try:
        rows, columns = grid
        check_whole("rows", rows, 1)
        check_whole("columns", columns, 1)
    except (TypeError, ValueError):
        raise ValueError(f"grid is {grid!r}; expected (rows, columns), both 1 or more") from None
    if rows * columns > count:
        raise ValueError(
            f"grid is {grid!r}, {rows * columns} places; expected at most {count}, the number of "
            "environments"
        )
    return rows * columns


def _frames(
    env: gym.Env | gym.vector.VectorEnv,
    policy: Policy | None,
    steps: int,
    seed: int | None,
    columns: int | None,
    slots: int | None,
) -> Iterator[np.ndarray]:
    if env.render_mode != "rgb_array":
        raise ValueError(
            f"the environment has render_mode={env.render_mode!r}; expected 'rgb_array'"
        )
    if policy is None:
        env.action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    yield _picture(env, columns, slots)
    for _ in range(steps):
        action = env.action_space.sample() if policy is None else policy(obs)
        obs, _, terminated, truncated, _ = env.step(action)
        yield _picture(env, columns, slots)
        if isinstance(env, gym.Env) and (terminated or truncated):
            break


def _picture(
    env: gym.Env | gym.vector.VectorEnv, columns: int | None, slots: int | None
) -> np.ndarray:
    """What the environment shows now; a vector environment's first pictures as a grid."""
    picture: Any = env.render()
    if not isinstance(picture, tuple | list):
        return picture
    return tile(np.stack(picture[:slots]), columns)


__all__ = [
    "Policy",
    "contact_sheet",
    "record",
    "side_by_side",
    "tile",
    "upscale",
    "write_video",
]

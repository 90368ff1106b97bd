"""Training settings: one tree of dataclasses, named presets in code.

Every field can be overridden on the command line, for example ``--vision.epochs 10``.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from piwm_gym.models import AutoencoderConfig
from piwm_gym.models.direct import DirectConfig
from piwm_gym.models.physical import TransformerConfig
from piwm_gym.models.vision import VisionConfig
from piwm_gym.systems import unknown
from training.fit import FitConfig


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms; pixels and latents are summed, batches averaged.

    Attributes:
        interpretability: Of the interpretability loss, per squared normalised unit.
        latent: Of the latent reconstruction (stage 2).
        pixel: Of the decoded frame in stage 2; 0 is the paper's objective.
        visual_dropout: Share of samples that intrinsic decoders draw without a visual part.
        interpretability_loss: ``"mse"`` to the proxies' mean, or ``"kl"`` to a fitted Gaussian.
    """

    interpretability: float = 10_000.0
    latent: float = 1.0
    pixel: float = 1.0
    visual_dropout: float = 0.5
    interpretability_loss: Literal["mse", "kl"] = "mse"


@dataclass(frozen=True)
class TrainConfig:
    """Settings of all stages of one variant.

    Attributes:
        autoencoder: Architecture.
        weights: Loss weights.
        vision: Optimisation of stage 1, extrinsic.
        encoder: Optimisation of stage 2, extrinsic: E_p.
        glimpse: The same, E_p's closer look, where there is one.
        refinement: The same, E_p or its closer look once more, on labels that the learned
            dynamics have made smoother; no epochs for the paper's way.
        decoder: Optimisation of stage 2, extrinsic: D_p.
        intrinsic: Optimisation of the one autoencoder stage, intrinsic.
        dynamics: Optimisation of stage 3; its samples are trajectories.
        direct: Optimisation of the direct decoder, where there is one.
        views: Optimisation of E_p once more, on views that the direct decoder draws beside the
            frames, for extrinsic variants with one and a camera that drives along; without
            epochs, none.
        parametrisation: What is learned of the dynamics.
        starts: Independent starting points of stage 3; the best on validation labels is kept.
        init: The model's default state estimator, ``"shooting"`` or, of two frames, ``"fd"``.
    """

    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    weights: LossWeights = field(default_factory=LossWeights)
    vision: FitConfig = field(default_factory=FitConfig)
    encoder: FitConfig = field(default_factory=FitConfig)
    glimpse: FitConfig = field(default_factory=FitConfig)
    refinement: FitConfig = field(default_factory=FitConfig)
    decoder: FitConfig = field(default_factory=FitConfig)
    intrinsic: FitConfig = field(default_factory=FitConfig)
    dynamics: FitConfig = field(default_factory=FitConfig)
    direct: FitConfig = field(default_factory=FitConfig)
    views: FitConfig = field(default_factory=lambda: FitConfig(epochs=0))
    parametrisation: str = "identifiable"
    starts: int = 3
    init: Literal["shooting", "fd"] = "shooting"


def effective(config: TrainConfig) -> dict[str, Any]:
    """Settings as JSON-able data, without those of stages that the variant does not have.

    Nor does it name the estimator that was the only one when the first models were trained.
    """
    extrinsic = config.autoencoder.variant.startswith("extrinsic")
    reading = {"vision", "encoder", "glimpse", "refinement", "decoder"}
    unused = {"intrinsic"} if extrinsic else reading
    if not config.autoencoder.glimpse:
        unused.add("glimpse")
    if config.autoencoder.direct.patch is None:
        unused.add("direct")
    if not config.views.epochs:
        unused.add("views")
    if config.init == "shooting":
        unused.add("init")
    return {name: value for name, value in asdict(config).items() if name not in unused}


_PAPER_VISION = VisionConfig(
    channels=(32, 64), kernels=(8, 4), strides=(4, 2), paddings=(2, 1), blocks=0
)
_PAPER_TRANSFORMER = TransformerConfig(
    width=128, feedforward=512, dropout=0.1, merge=1, frequencies=0
)


def _direct(system: str, width: int = 96) -> DirectConfig:
    """Patches of the size of a vision token; none for systems whose pictures nobody explained."""
    patches = {"cartpole": 8, "lunar_lander": 4, "donkey_car": 4}
    return DirectConfig(patches.get(system), width)


def _glimpse(variant: str, system: str, widths: dict[str, int]) -> int:
    """Width of the closer look of an extrinsic variant at a system that is seen from the side."""
    return widths.get(system, 0) if variant.startswith("extrinsic") else 0


def _matching(system: str) -> int:
    """Steps for Donkey Car alone, whose pictures tell of millimetres.

    The median distance of its readings from the truth fell from 53 to 11 mm with three, and to 9
    with a search before them. Without one the median errors of Lunar Lander's x and y were halved,
    but not the few large ones that make the mean; Cart Pole, which is drawn on whole pixels, gained
    nothing.
    """
    return 3 if system == "donkey_car" else 0


def architecture(variant: str, system: str) -> AutoencoderConfig:
    """Networks of a variant for a system.

    Lunar Lander's hull is five pixels wide: 512 codes for patches of 8 pixels blur it, for
    patches of 4 they do not (foreground error 0.016 and 0.010). Donkey Car's frames are full of
    things: patches of 4 pixels whose kernels overlap by half draw them with a fifth less error
    than patches side by side (0.0037 and 0.0045 after 400 steps), and D_p draws from maps: after
    400 steps with an error of 0.015, a wide transformer after 1,200 with 0.023.

    Cart Pole's intrinsic encoders have a convolutional reader, too: with it the discrete one's
    interpretability loss was 0.016 after two epochs, without it 0.21 after nine.
    """
    glimpse = _glimpse(variant, system, {"cartpole": 256, "lunar_lander": 384})
    fine = VisionConfig(channels=(48,), kernels=(4,), strides=(4,), token_dim=32)
    if system == "lunar_lander":
        vision, transformer = fine, TransformerConfig(merge=4)
    elif system == "donkey_car":
        vision = replace(fine, kernels=(8,), paddings=(2,))
        transformer = TransformerConfig(merge=4, feedforward=320)
    else:
        reader = "transformer" if variant.startswith("extrinsic") else "convolution"
        return AutoencoderConfig(
            variant=variant, glimpse=glimpse, direct=_direct(system), reader=reader
        )
    return AutoencoderConfig(
        variant=variant,
        direct=_direct(system),
        vision=vision,
        transformer=transformer,
        latent_dim=32,
        reader="convolution",
        glimpse=glimpse,
        drawer="maps" if system == "donkey_car" else "transformer",
        matching=_matching(system),
    )


def _cpu(variant: str, system: str) -> TrainConfig:
    """A CPU; a variant takes an hour or two on one slow core.

    The direct decoder is worth most of it: Cart Pole's pictures had an error of 6.9 after 40 epochs
    and of 2.6 after 100.
    """
    fit = FitConfig(batch_size=128, samples_per_epoch=20_000, warmup_epochs=1, patience=100)
    return TrainConfig(
        architecture(variant, system),
        vision=replace(fit, epochs=25),
        encoder=replace(fit, epochs=40, learning_rate=5e-3),
        glimpse=_look(epochs=12),
        refinement=_refinement(system, fit),
        decoder=replace(fit, epochs=25, learning_rate=8e-3),
        intrinsic=replace(fit, epochs=35, learning_rate=3e-3),
        dynamics=_dynamics(system),
        direct=replace(fit, epochs=100, learning_rate=4e-3),
        views=_views(variant, system, replace(fit, epochs=40, learning_rate=3e-3)),
    )


def _look(epochs: int) -> FitConfig:
    """A closer look is cheap: all frames in every epoch."""
    return FitConfig(epochs, 512, learning_rate=4e-3, warmup_epochs=1, patience=100)


def _refinement(system: str, fit: FitConfig) -> FitConfig:
    """Of the closer look where there is one, otherwise of all of E_p."""
    if architecture("extrinsic-discrete", system).glimpse:
        return _look(epochs=30)
    return replace(fit, epochs=60, learning_rate=3e-3)


def _views(variant: str, system: str, fit: FitConfig) -> FitConfig:
    """For E_p of a camera that drives along; elsewhere no epochs."""
    drawn = system == "donkey_car" and variant.startswith("extrinsic")
    return fit if drawn else replace(fit, epochs=0)


def _dynamics(system: str) -> FitConfig:
    """Gradient steps of stage 3; second-order steps follow.

    Cart Pole needs all trajectories in every step: the pole's mass shows so little that batches
    drown it. What the others learn shows well and their equations are longer: a few steps on
    a part of the trajectories are enough for the second-order ones to converge from there.
    """
    fit = FitConfig(learning_rate=0.1, patience=1000)
    if system in ("lunar_lander", "donkey_car"):
        return replace(fit, epochs=20, batch_size=200, samples_per_epoch=200, warmup_epochs=2)
    return replace(fit, epochs=250, batch_size=100_000, warmup_epochs=5)


def _gpu(variant: str, system: str) -> TrainConfig:
    """One GPU and 16 cores; meant for ten minutes for all four variants, not timed yet.

    A step is of 200 to 1,200 short kernels, which a GPU takes hardly longer for in large batches:
    steps are what to save. Counted for Cart Pole, a variant takes some 40,000 of 13 to 16 million
    kernels in all, and stage 3 another 17 million.
    """
    fit = FitConfig(batch_size=512, warmup_epochs=1, patience=20)
    return TrainConfig(
        architecture(variant, system),
        vision=replace(fit, epochs=40),
        encoder=replace(fit, epochs=40, learning_rate=5e-3),
        glimpse=_look(epochs=12),
        refinement=_refinement(system, fit),
        decoder=replace(fit, epochs=40, learning_rate=8e-3),
        intrinsic=replace(fit, epochs=60, learning_rate=3e-3),
        dynamics=_dynamics(system),
        direct=replace(fit, epochs=100, learning_rate=4e-3),
        views=_views(variant, system, replace(fit, epochs=40, learning_rate=3e-3)),
    )


def _paper(variant: str, system: str) -> TrainConfig:
    """Layer sizes and optimisation of the paper's appendix; two frames estimate the state."""
    rate = 1e-3 if variant.endswith("discrete") else 1e-4
    fit = FitConfig(learning_rate=rate)
    return TrainConfig(
        AutoencoderConfig(
            variant=variant, vision=_PAPER_VISION, transformer=_PAPER_TRANSFORMER, flat=True
        ),
        LossWeights(interpretability=100.0, pixel=0.0, visual_dropout=0.0),
        vision=fit,
        encoder=fit,
        refinement=replace(fit, epochs=0),
        decoder=fit,
        intrinsic=fit,
        dynamics=replace(fit, learning_rate=1e-2),
        init="fd",
    )


def _debug(variant: str, system: str) -> TrainConfig:
    """Seconds; exercises every stage, learns nothing."""
    fit = FitConfig(
        epochs=7, batch_size=32, samples_per_epoch=64, warmup_epochs=1, save_seconds=0.0
    )
    return TrainConfig(
        AutoencoderConfig(
            variant=variant,
            vision=VisionConfig(channels=(16,), token_dim=16),
            transformer=TransformerConfig(width=16, heads=2, feedforward=32, layers=1),
            latent_dim=16,
            num_codes=32,
            glimpse=_glimpse(variant, system, {"cartpole": 16}),
            direct=_direct(system, width=16),
            matching=_matching(system),
        ),
        vision=fit,
        encoder=fit,
        glimpse=fit,
        refinement=fit,
        decoder=fit,
        intrinsic=fit,
        direct=fit,
        views=_views(variant, system, fit),
        dynamics=replace(fit, epochs=2, samples_per_epoch=8, batch_size=8, learning_rate=5e-2),
        starts=1,
    )


PRESETS = {"debug": _debug, "laptop": _cpu, "gpu": _gpu, "paper": _paper}


def preset(name: str, variant: str, system: str = "cartpole") -> TrainConfig:
    """Settings of a preset for a variant and a system; all but stage 3 are the same for all.

    Raises:
        ValueError: The preset is unknown; the nearest one is suggested.
    """
    if name not in PRESETS:
        raise ValueError(unknown("preset", name, tuple(PRESETS)))
    return PRESETS[name](variant, system)

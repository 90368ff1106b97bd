"""What each system's tables of results show: figure, target and where the number is."""

from collections.abc import Callable, Sequence

from training.results import (
    ACTIONS,
    AGREEMENT,
    Quantities,
    Results,
    action_rmse,
    agreement,
    agreement_percent,
    control,
    drawn_from_truth,
    driving,
    endings,
    one_frame,
    parameters,
    ratio,
)

_POLE = Quantities(
    single=(("x", ".4f", "m"), ("theta", ".4f", "rad")),
    forecast=(("x", ".3f", "m"), ("theta", ".3f", "rad")),
    reread=(("x", ".3f", "m"), ("theta", ".4f", "rad")),
)
_LANDER = Quantities(
    single=(("x", ".3f", "m"), ("y", ".3f", "m"), ("theta", ".3f", "rad")),
    forecast=(("x", ".2f", "m"), ("y", ".2f", "m"), ("theta", ".3f", "rad")),
    reread=(("x", ".3f", "m"), ("y", ".3f", "m"), ("theta", ".3f", "rad"), ("scene", ".3f", "m")),
)

_CAR = Quantities(
    single=(("x", ".3f", "m"), ("y", ".3f", "m"), ("theta", ".3f", "rad")),
    forecast=(("x", ".2f", "m"), ("y", ".2f", "m"), ("theta", ".3f", "rad"), ("v", ".2f", "m/s")),
    reread=(("x", ".3f", "m"), ("y", ".3f", "m"), ("theta", ".3f", "rad")),
)


def _pole_parameters(results: Results, noise: float) -> str:
    return parameters(
        results,
        noise,
        ("force_per_mass", "length", "pole_mass_fraction"),
        lambda e: f"{e[0]:.2%}, {e[1]:.2%} (pole's share of the mass: {e[2]:.0%})",
    )


_ENGINES = (
    "gravity",
    "main_acceleration",
    "side_acceleration",
    "side_angular_acceleration",
)
_TRUE_STATE = "true parameters from the true state"

Row = tuple[str, str, Callable[[Results], str]]

ROWS: dict[str, tuple[Row, ...]] = {
    "cartpole": (
        (
            "force / total mass and length, worst of three starts at least 50 % off",
            "1 %",
            lambda r: _pole_parameters(r, 0.05),
        ),
        ("the same, label noise 10 %", "2 %", lambda r: _pole_parameters(r, 0.1)),
        ("x and theta from one frame, RMSE", "0.015 m, 0.006 rad", _POLE.one_frame),
        (
            "30 steps later, from 10 frames",
            "0.08 m, 0.07 rad",
            lambda r: _POLE.later(r, "10 frames"),
        ),
        (
            "30 steps later, from 20 frames",
            "0.04 m, 0.04 rad",
            lambda r: _POLE.later(r, "20 frames"),
        ),
        ("30 steps later, from 2 frames", "", lambda r: _POLE.later(r, "2 frames")),
        ("30 steps later, persistence", "", lambda r: _POLE.later(r, "persistence")),
        (
            "state re-read from decoded frames, by the model",
            "0.03 m, 0.015 rad",
            lambda r: _POLE.redrawn(r, "model"),
        ),
        (
            "the same, by an independent network",
            "0.03 m, 0.015 rad",
            lambda r: _POLE.redrawn(r, "reader"),
        ),
        (
            "pixel controller's agreement on reconstructions, label noise 0, 5, 10 %",
            "99, 98.5, 98 %",
            agreement,
        ),
        (
            "the same on pictures drawn from true states, label noise 5 %",
            "",
            lambda r: drawn_from_truth(r, AGREEMENT),
        ),
        (
            "PPO trained in the model on states, real return from true states",
            "500",
            lambda r: control(r, "imagined state", "true state"),
        ),
        (
            "the same policies on states estimated from real frames",
            "495",
            lambda r: control(r, "imagined state", "state from real frames"),
        ),
        (
            "PPO trained on decoded frames only, real return from real frames",
            "475",
            lambda r: control(r, "decoded frames", "real frames"),
        ),
    ),
    "lunar_lander": (
        (
            "gravity; main, side and angular acceleration: worst of three starts at least 50 % off",
            "2, 2, 2, 3 %",
            lambda r: parameters(r, 0.05, _ENGINES),
        ),
        (
            "the same, label noise 10 %",
            "4, 4, 4, 6 %",
            lambda r: parameters(r, 0.1, _ENGINES),
        ),
        (
            "dispersion of main and side engines",
            "",
            lambda r: parameters(r, 0.05, ("main_dispersion", "side_dispersion")),
        ),
        (
            "strength, return and friction of the legs, against the joints' motors",
            "",
            lambda r: parameters(r, 0.05, ("leg_strength", "leg_return", "leg_friction")),
        ),
        ("x, y and theta from one frame, RMSE", "0.1 m, 0.1 m, 0.04 rad", _LANDER.one_frame),
        (
            "the same, where the whole lander is in the picture",
            "",
            lambda r: one_frame(r, _LANDER.single, init="single, in view"),
        ),
        (
            "median of all",
            "",
            lambda r: one_frame(
                r,
                (
                    ("x_median", ".3f", "m"),
                    ("y_median", ".3f", "m"),
                    ("theta_median", ".3f", "rad"),
                ),
            ),
        ),
        (
            "terrain heights from one frame, RMSE",
            "",
            lambda r: one_frame(r, (("scene", ".3f", "m"),)),
        ),
        (
            "30 steps later, from true states, relative to true parameters",
            "1.15",
            lambda r: ratio(r, "learned parameters from the true state", _TRUE_STATE),
        ),
        (
            "30 steps later, from 10 frames, relative to persistence",
            "0.5",
            lambda r: ratio(r, "10 frames", "persistence"),
        ),
        (
            "the same, from 2 and 20 frames",
            "",
            lambda r: ", ".join(
                ratio(r, line, "persistence") for line in ("2 frames", "20 frames")
            ),
        ),
        ("30 steps later, from 10 frames", "", lambda r: _LANDER.later(r, "10 frames")),
        (
            "30 steps later, what the engines' dispersion leaves",
            "",
            lambda r: _LANDER.later(r, _TRUE_STATE),
        ),
        (
            "state and terrain re-read from decoded frames, by the model",
            "",
            lambda r: _LANDER.redrawn(r, "model"),
        ),
        (
            "the same, by an independent network",
            "",
            lambda r: _LANDER.redrawn(r, "reader"),
        ),
        (
            "pixel controller's agreement on reconstructions, label noise 0, 5, 10 %",
            "95, 93, 90 %",
            agreement,
        ),
        (
            "the same on pictures drawn from true states, label noise 5 %",
            "",
            lambda r: drawn_from_truth(r, AGREEMENT),
        ),
        (
            "end of real episodes, landed, crashed or out of view, from 20 steps before",
            "95 %",
            lambda r: endings(r, 20),
        ),
        ("the same from 60 steps before", "", lambda r: endings(r, 60)),
        (
            "PPO trained in the model on states, real return from true states",
            "270, none under 255",
            lambda r: control(r, "imagined state", "true state"),
        ),
        (
            "the same policies on states estimated from real frames",
            "230",
            lambda r: control(r, "imagined state", "state from real frames"),
        ),
        (
            "policies trained with parameters drawn within 5 % of the learned ones, true states",
            "",
            lambda r: control(r, "imagined state", "true state", 0.05),
        ),
        (
            "the same on states estimated from real frames",
            "",
            lambda r: control(r, "imagined state", "state from real frames", 0.05),
        ),
    ),
    "donkey_car": (
        ("x, y and heading from one frame, RMSE", "0.15 m, 0.15 m, 0.1 rad", _CAR.one_frame),
        (
            "the same, distance, median",
            "",
            lambda r: one_frame(r, (("median_distance", ".3f", "m"),)),
        ),
        (
            "frames taken for another place, more than 1 m away",
            "0.5 %",
            lambda r: one_frame(r, (("misplaced_percent", ".2f", "%"),)),
        ),
        (
            "30 steps later, from 10 frames",
            "0.25 m, 0.25 m, 0.2 rad, 0.1 m/s",
            lambda r: _CAR.later(r, "10 frames"),
        ),
        ("30 steps later, from 20 frames", "", lambda r: _CAR.later(r, "20 frames")),
        ("30 steps later, from 2 frames", "", lambda r: _CAR.later(r, "2 frames")),
        (
            "30 steps later, from true states",
            "",
            lambda r: _CAR.later(r, "learned parameters from the true state"),
        ),
        ("30 steps later, persistence", "", lambda r: _CAR.later(r, "persistence")),
        (
            "state re-read from decoded frames, by the model",
            "",
            lambda r: _CAR.redrawn(r, "model"),
        ),
        ("the same, by an independent network", "", lambda r: _CAR.redrawn(r, "reader")),
        (
            "pixel controller's action RMSE on reconstructions, label noise 0, 5, 10 %",
            "0.08, 0.09, 0.11",
            lambda r: agreement(r, action_rmse),
        ),
        (
            "the same on pictures drawn from true states, label noise 5 %",
            "",
            lambda r: drawn_from_truth(r, ACTIONS),
        ),
        (
            "PPO trained in the model on states, driving the simulator by true states",
            "10 laps, three seeds",
            lambda r: driving(r, "true state"),
        ),
        (
            "the same drivers on states estimated from frames",
            "5 laps",
            lambda r: driving(r, "state from frames"),
        ),
        (
            "their pupils, taught in the model on decoded frames, driving by frames alone",
            "",
            lambda r: driving(r, "frames"),
        ),
    ),
}
"""Figure, target and measurement of each system's table of targets."""


VariantColumn = tuple[str, Callable[[Results, str], str]]


def _variant_columns(
    quantities: Quantities,
    forecasts: Sequence[VariantColumn],
    agreement: VariantColumn = (
        "agreement",
        lambda r, v: agreement_percent(r, variant=v, noise_level=0.05),
    ),
) -> tuple[VariantColumn, ...]:
    """What the variants are compared by: reading, forecasting, drawing."""
    return (
        ("from one frame", quantities.one_frame),
        *forecasts,
        (
            "re-read from decoded frames, independently",
            lambda r, v: quantities.redrawn(r, "reader", v),
        ),
        (
            "drawn through the latent",
            lambda r, v: quantities.redrawn(r, "reader_through_the_latent", v),
        ),
        agreement,
    )


VARIANT_COLUMNS: dict[str, tuple[VariantColumn, ...]] = {
    "cartpole": _variant_columns(
        _POLE,
        (
            ("30 steps later, from 10 frames", lambda r, v: _POLE.later(r, "10 frames", v)),
            ("from 20 frames", lambda r, v: _POLE.later(r, "20 frames", v)),
        ),
    ),
    "lunar_lander": _variant_columns(
        _LANDER,
        (
            (
                "30 steps later, from 10 frames, relative to persistence",
                lambda r, v: ratio(r, "10 frames", "persistence", v),
            ),
            ("from 20 frames", lambda r, v: ratio(r, "20 frames", "persistence", v)),
        ),
    ),
    "donkey_car": _variant_columns(
        _CAR,
        (
            ("30 steps later, from 10 frames", lambda r, v: _CAR.later(r, "10 frames", v)),
            ("from 20 frames", lambda r, v: _CAR.later(r, "20 frames", v)),
        ),
        ("action RMSE", lambda r, v: action_rmse(r, variant=v, noise_level=0.05)),
    ),
}

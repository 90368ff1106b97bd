"""Autoencoders, bottlenecks and learnable dynamics."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm

import piwm_gym
from piwm_gym.models import VARIANTS, AutoencoderConfig, Dynamics, Intrinsic, build_autoencoder
from piwm_gym.models.autoencoder import num_parameters
from piwm_gym.models.gaussian import Gaussian, kl_to_standard_normal
from piwm_gym.models.physical import READERS, ConfigurationEmbedding, TransformerConfig
from piwm_gym.models.quantizer import VectorQuantizer
from piwm_gym.models.tokens import merge_tokens, unmerge_tokens
from piwm_gym.models.vision import VisionConfig, to_float, to_uint8
from piwm_gym.surroundings import check_rollout
from piwm_gym.systems import CartPole, DonkeyCar, LunarLander, System
from piwm_gym.world_model import WorldModel, WorldModelConfig
from training.config import preset

SYSTEM = CartPole()
SYSTEMS = {system.name: system for system in (SYSTEM, LunarLander(), DonkeyCar())}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=SYSTEMS.values(), ids=SYSTEMS)
def system(request: pytest.FixtureRequest) -> System:
    return request.param


@pytest.mark.parametrize("size", ["debug", "laptop", "paper"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_encodes_and_decodes(variant: str, size: str, system: System) -> None:
    autoencoder = build_autoencoder(preset(size, variant, system.name).autoencoder, system).eval()
    frames = torch.rand(3, 3, *system.frame.size)
    configuration = autoencoder.encode(frames)
    assert configuration.shape == (3, len(system.configuration))
    assert autoencoder.decode(configuration).shape == frames.shape


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_frame_depends_on_every_number_of_the_configuration(variant: str, system: System) -> None:
    autoencoder = build_autoencoder(
        preset("debug", variant, system.name).autoencoder, system
    ).eval()
    inside = torch.rand(2, len(system.configuration)) - 0.5
    configuration = autoencoder.centre + autoencoder.half_range * inside
    features = autoencoder.normalize(configuration)
    assert features.shape == (2, autoencoder.num_features)
    torch.testing.assert_close(autoencoder.denormalize(features), configuration)
    configuration.requires_grad_()
    frames = autoencoder.decode(configuration)
    (gradient,) = torch.autograd.grad((frames * torch.randn_like(frames)).sum(), configuration)
    assert torch.isfinite(gradient).all()
    assert (gradient != 0).all()
    autoencoder.encode(frames.detach()).square().sum().backward()
    first = next(autoencoder.vision_encoder.parameters())
    assert first.grad is not None
    assert first.grad.abs().sum() > 0


def test_a_visual_part_needs_room_beside_the_configuration() -> None:
    config = AutoencoderConfig("intrinsic-continuous", latent_dim=14)
    with pytest.raises(ValueError, match="latent_dim is 14; expected more than 14"):
        build_autoencoder(config, SYSTEMS["lunar_lander"])


def test_variants_differ_and_unknown_ones_are_refused() -> None:
    counts = {num_parameters(build_autoencoder(AutoencoderConfig(v), SYSTEM)) for v in VARIANTS}
    assert len(counts) == len(VARIANTS)
    with pytest.raises(ValueError, match="did you mean 'extrinsic-discrete'"):
        build_autoencoder(AutoencoderConfig("extrinsic-discret"), SYSTEM)


@pytest.mark.parametrize("reader", READERS)
def test_both_readers_read_a_grid_of_any_shape(reader: str) -> None:
    encoder = READERS[reader](TransformerConfig(merge=2), (8, 12), 16, 5)
    tokens = torch.randn(3, 96, 16, requires_grad=True)
    read = encoder(tokens)
    read.sum().backward()
    assert read.shape == (3, 5)
    assert tokens.grad is not None
    assert (tokens.grad.abs().sum(-1) > 0).all()
    assert not torch.equal(encoder(tokens.roll(1, dims=1)), read)


@pytest.mark.parametrize("variant", ["intrinsic-discrete", "intrinsic-continuous"])
def test_intrinsic_tokens_all_hear_what_a_convolution_reads(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = preset("laptop", variant, "lunar_lander").autoencoder
    autoencoder = build_autoencoder(config, SYSTEMS["lunar_lander"]).eval()
    assert isinstance(autoencoder, Intrinsic)
    monkeypatch.setattr(autoencoder.context, "forward", lambda seen: torch.zeros(2, 24, 96))
    tokens = autoencoder.tokens(torch.rand(2, 3, 64, 96))
    assert torch.equal(tokens, tokens[:, :1].expand_as(tokens))
    assert not torch.equal(tokens[0], tokens[1])


def test_an_unknown_reader_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'convolution'"):
        build_autoencoder(AutoencoderConfig(reader="convolutions"), SYSTEM)


def test_frames_survive_the_change_of_layout() -> None:
    frames = torch.randint(0, 256, (2, 5, 64, 64, 3), dtype=torch.uint8)
    assert to_float(frames).shape == (2, 5, 3, 64, 64)
    assert torch.equal(to_uint8(to_float(frames)), frames)


def test_unmerging_undoes_merging_and_cells_are_neighbours() -> None:
    tokens = torch.arange(64.0).view(1, 64, 1)
    cells = merge_tokens(tokens, (8, 8), 2)
    assert cells.shape == (1, 16, 4)
    assert cells[0, 0].tolist() == [0, 1, 8, 9]
    assert torch.equal(unmerge_tokens(cells, (8, 8), 2), tokens)


def test_cells_of_a_wide_grid_are_neighbours_too() -> None:
    tokens = torch.arange(2 * 96.0).view(2, 96, 1)
    cells = merge_tokens(tokens, (8, 12), 2)
    assert cells.shape == (2, 24, 4)
    assert cells[0, 7].tolist() == [26, 27, 38, 39]  # rows 2 and 3, columns 2 and 3
    assert torch.equal(unmerge_tokens(cells, (8, 12), 2), tokens)
    with pytest.raises(ValueError, match="merge is 5, the grid has 8 x 12 tokens"):
        merge_tokens(tokens, (8, 12), 5)


def test_the_grid_follows_the_frame_and_what_does_not_fit_is_refused() -> None:
    assert VisionConfig().grid((64, 96)) == (8, 12)
    two = VisionConfig(channels=(4, 4), kernels=(8, 4), strides=(4, 2), paddings=(2, 1))
    assert two.grid((64, 96)) == (8, 12)
    with pytest.raises(ValueError, match="width 100 .* kernel 8, stride 8 and padding 0 .* 100"):
        VisionConfig().grid((64, 100))
    with pytest.raises(ValueError, match="height 4 does not fit"):
        VisionConfig().grid((4, 64))


def test_half_of_the_frequencies_look_at_two_neighbours_of_the_scene() -> None:
    embedding = ConfigurationEmbedding(3, 11, frequencies=64, num_tokens=4, width=8)
    assert embedding.frequencies.shape == (3, 32)
    assert embedding.scene_frequencies is not None
    used = embedding.scene_frequencies != 0
    assert used.shape == (11, 32)
    assert (used.sum(0) == 2).all()
    assert (used[:-1] & used[1:]).any(0).all()
    assert used.any(1).all()


def test_without_a_scene_the_embedding_is_one_set_of_frequencies() -> None:
    embedding = ConfigurationEmbedding(2, 0, frequencies=64, num_tokens=4, width=8)
    torch.manual_seed(0)
    assert torch.equal(embedding.frequencies, 8.0 * torch.randn(2, 64))
    assert set(embedding.state_dict()) == {"frequencies", "weight", "bias"}


def test_kl_matches_torch_distributions() -> None:
    mean, logvar = torch.randn(10), torch.randn(10)
    normal = torch.distributions.Normal(mean, (0.5 * logvar).exp())
    expected = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0))
    torch.testing.assert_close(kl_to_standard_normal(mean, logvar), expected)


def test_physical_dimensions_are_neither_sampled_nor_regularised() -> None:
    gaussian = Gaussian(num_inputs=4, input_dim=8, latent_dim=6, num_physical=2, flat=True)
    tokens = torch.randn(3, 4, 8)
    first, second = gaussian.train()(tokens), gaussian(tokens)
    assert torch.equal(first.value[..., :2], second.value[..., :2])
    assert not torch.equal(first.value[..., 2:], second.value[..., 2:])
    with torch.no_grad():
        gaussian.project.bias[:2] += 100.0
    torch.testing.assert_close(gaussian(tokens).loss, first.loss)


def test_quantised_latents_are_codes_with_straight_through_gradients() -> None:
    quantizer = VectorQuantizer(8, (2, 2), latent_dim=5, num_codes=16)
    tokens = torch.randn(3, 4, 8, requires_grad=True)
    latent = quantizer(tokens)
    assert latent.indices is not None
    torch.testing.assert_close(latent.value, quantizer.lookup(latent.indices))
    z = quantizer.continuous(tokens)
    brute = (z[..., None, :] - quantizer.codes).square().sum(-1).argmin(-1)
    assert torch.equal(latent.indices, brute)
    weight = torch.randn_like(latent.value)
    (gradient,) = torch.autograd.grad((latent.value * weight).sum(), tokens, retain_graph=True)
    (expected,) = torch.autograd.grad((z * weight).sum(), tokens)
    torch.testing.assert_close(gradient, expected)


def test_commitment_weighs_a_quarter_of_the_codebook_loss() -> None:
    quantizer = VectorQuantizer(8, (2, 2), latent_dim=5, num_codes=16)
    tokens = torch.randn(3, 4, 8)
    z = quantizer.continuous(tokens)
    squared = (quantizer.lookup(quantizer.nearest(z)) - z).square().sum((1, 2)).mean()
    torch.testing.assert_close(quantizer(tokens).loss, 1.25 * squared)


def test_levels_are_repeated_and_reach_beyond_the_range() -> None:
    physical = VectorQuantizer(8, (4, 4), num_physical=3).physical
    levels, repeats = physical.flatten().unique(return_counts=True)
    assert len(levels) == 64
    assert (repeats == 8).all()
    assert levels.min() == -1.25
    assert levels.max() == 1.25


@pytest.mark.parametrize(("num_physical", "merge"), [(2, 2), (14, 4), (5, 1), (64, 1)])
def test_means_of_quantised_physical_numbers_are_finer_than_a_level(
    num_physical: int, merge: int
) -> None:
    quantizer = VectorQuantizer(8, (8, 8), merge, 6, num_physical)
    assert quantizer.physical_tokens is not None
    propose = quantizer.physical_tokens.propose
    token = layer_norm(torch.randn(50, 1, 8), (8,))
    with torch.no_grad():
        largest = propose(token).abs().max()
        for numbers in propose.parameters():
            numbers.div_(largest)
    wanted = propose(token)[:, 0]
    latent = quantizer(token.expand(-1, 64 // merge**2, -1))
    physical, visual = quantizer.partition(latent.value)
    share = 64 // num_physical
    assert (physical - wanted).abs().max() < 0.5001 * quantizer.step / share
    assert visual.shape == (50, 64, 5)


def test_no_picture_moves_a_physical_number() -> None:
    quantizer = VectorQuantizer(8, (4, 4), latent_dim=5, num_physical=3)
    z = torch.randn(2, 16, 5)
    chosen = quantizer.lookup(quantizer.nearest(z))
    levels = quantizer.physical.flatten()
    assert torch.equal(chosen[..., 0], levels[(z[..., :1] - levels).abs().argmin(-1)])
    at_level = quantizer.physical[:, 0] == chosen[..., :1]
    distance = (z[..., None, 1:] - quantizer.codebook).square().sum(-1)
    best = distance.where(at_level, torch.inf).amin(-1)
    torch.testing.assert_close((z - chosen)[..., 1:].square().sum(-1), best)


def test_impossible_sizes_of_physical_parts_are_named() -> None:
    with pytest.raises(ValueError, match="4 tokens for 5 physical numbers"):
        VectorQuantizer(8, (2, 2), num_physical=5)
    with pytest.raises(ValueError, match="num_codes is 12; .* multiple of 8 from 16"):
        VectorQuantizer(8, (2, 2), num_physical=2, num_codes=12)
    with pytest.raises(ValueError, match="latent_dim is 1; expected more than 1"):
        VectorQuantizer(8, (2, 2), latent_dim=1, num_physical=2)


def test_training_never_moves_the_physical_part_of_the_codebook() -> None:
    autoencoder = build_autoencoder(preset("debug", "intrinsic-discrete").autoencoder, SYSTEM)
    names = {name for name, _ in autoencoder.named_parameters()}
    assert "bottleneck.codebook" in names
    assert "bottleneck.physical" not in names
    assert "bottleneck.physical" in autoencoder.state_dict()


def test_the_discrete_physical_state_is_the_mean_of_the_selected_physical_codes() -> None:
    autoencoder = build_autoencoder(preset("debug", "intrinsic-discrete").autoencoder, SYSTEM)
    assert isinstance(autoencoder, Intrinsic)
    frames = torch.rand(2, 3, 64, 64)
    latent = autoencoder.latent(frames)
    physical, visual = autoencoder.split(latent.value)
    quantizer = autoencoder.bottleneck
    assert isinstance(quantizer, VectorQuantizer)
    selected = quantizer.physical[latent.indices][..., 0].unflatten(1, (8, 8))
    # cells of 2 x 2 tokens: columns in turn stand for the position and the angle
    expected = torch.stack((selected[:, :, ::2].mean((1, 2)), selected[:, :, 1::2].mean((1, 2))), 1)
    torch.testing.assert_close(physical, expected)
    assert visual.shape == (2, 64, 15)
    torch.testing.assert_close(autoencoder.encode(frames), autoencoder.denormalize(physical))


def test_dynamics_hold_values_behind_links_that_keep_them_valid() -> None:
    dynamics = Dynamics(SYSTEM)
    dynamics.set_values((9.0, 0.1, 0.5))
    torch.testing.assert_close(torch.stack(dynamics.values), torch.tensor([9.0, 0.1, 0.5]))
    with torch.no_grad():
        dynamics.raw.fill_(-50.0)
    assert all(0 < float(v.detach()) < 1 for v in dynamics.values)
    params = Dynamics(SYSTEM).params
    params.force_mag.backward()


def test_the_papers_parameters_warn_that_they_are_not_identifiable() -> None:
    with pytest.warns(UserWarning, match="only their ratios are learned"):
        dynamics = Dynamics(SYSTEM, "paper")
    assert dynamics.names == ("masscart", "masspole", "length", "force_mag")
    with pytest.raises(ValueError, match="did you mean 'paper'"):
        Dynamics(SYSTEM, "papers")


@pytest.fixture
def model() -> WorldModel:
    config = preset("debug", "extrinsic-discrete").autoencoder
    model = WorldModel(WorldModelConfig(autoencoder=config)).eval()
    model.dynamics.set_values((9.0, 0.1, 0.5))
    return model


def test_encoding_accepts_both_layouts_and_teaches_about_others(model: WorldModel) -> None:
    frames = torch.randint(0, 256, (2, 4, 64, 64, 3), dtype=torch.uint8)
    actions = torch.ones(2, 3, dtype=torch.long)
    torch.testing.assert_close(
        model.encode(frames, actions), model.encode(to_float(frames), actions)
    )
    with pytest.raises(ValueError, match="one action between neighbouring frames, .2, 3"):
        model.encode(frames, actions[:, :2])
    with pytest.raises(ValueError, match="T >= 2"):
        model.encode(frames[:, :1], actions[:, :0])
    with pytest.raises(ValueError, match="uint8 or"):
        model.encode(frames.long(), actions)
    with pytest.raises(ValueError, match="did you mean 'shooting'"):
        model.encode(frames, actions, init="shoting")


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (255.0, r"from 0 to 255; expected finite numbers in \[0, 1\]: divide"),
        (-1.0, "from -1 to -0"),
        (torch.nan, "from nan to nan"),
        (torch.inf, "from nan to nan"),
    ],
)
def test_colours_of_another_scale_are_no_frames(
    model: WorldModel, scale: float, message: str
) -> None:
    frames = torch.zeros(1, 3, 3, 64, 64)
    frames[..., 0] = 1.0
    actions = torch.ones(1, 2, dtype=torch.long)
    assert model.encode(1.05 * frames, actions).isfinite().all()  # as filters overshoot
    for read in (
        lambda y: model.encode(y, actions),
        model.encode_frames,
        model.encode_scene,
        lambda y: model.recognize(y, torch.zeros(1, 3, 2)),
    ):
        with pytest.raises(ValueError, match=message):
            read(scale * frames)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (7, "action of window 0, time step 0 is 7; expected an integer from 0 to 1"),
        (-1, "action of window 0, time step 0 is -1"),
        (0.5, "action of window 0, time step 0 is 0.5"),
        (torch.nan, "action of window 0, time step 0 is nan"),
    ],
)
def test_actions_that_nobody_can_have_taken_are_refused(
    model: WorldModel, action: float, message: str
) -> None:
    frames, actions = torch.rand(2, 3, 3, 64, 64), torch.full((2, 2), action)
    for estimate in (
        lambda: model.encode(frames, actions),
        lambda: model.encode_window(frames, actions, "fd"),
        lambda: model.estimate(model.encode_frames(frames), actions),
    ):
        with pytest.raises(ValueError, match=message):
            estimate()
    with pytest.raises(ValueError, match=r"actions has shape \(2, 2, 1\)"):
        model.encode(frames, torch.ones(2, 2, 1))


def test_boxed_actions_of_a_window_are_numbers(make_tiny: Callable[..., WorldModel]) -> None:
    car, frames = make_tiny(system="donkey_car"), torch.rand(1, 3, 3, 48, 80)
    assert car.encode(frames, torch.zeros(1, 2, 2)).shape == (1, 6)
    with pytest.raises(ValueError, match="time step 0 is not a number"):
        car.encode(frames, torch.full((1, 2, 2), torch.nan))
    with pytest.raises(ValueError, match=r"actions has shape \(1, 2\)"):
        car.encode(frames, torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.numpy(), r"is a numpy array; expected a tensor: torch.from_numpy\("),
        (lambda x: x.tolist(), r"is a list; expected a tensor: torch.as_tensor\("),
        (lambda x: None, "is a NoneType; expected a tensor"),
    ],
)
def test_what_is_no_tensor_is_told_how_to_become_one(
    model: WorldModel, change: Callable[[torch.Tensor], Any], message: str
) -> None:
    frames, actions = torch.rand(1, 3, 3, 64, 64), torch.ones(1, 2, dtype=torch.long)
    states = torch.zeros(1, 4)
    for name, call in (
        ("frames", lambda: model.encode(change(frames), actions)),
        ("actions", lambda: model.encode(frames, change(actions))),
        ("frames", lambda: model.encode_frames(change(frames))),
        ("configurations", lambda: model.estimate(change(torch.zeros(1, 3, 2)), actions)),
        ("configurations", lambda: model.recognize(frames, change(torch.zeros(1, 3, 2)))),
        ("states", lambda: model.rollout(change(states), actions)),
        ("actions", lambda: model.rollout(states, change(actions))),
        ("states", lambda: model.step(change(states), actions[:, 0])),
        ("actions", lambda: model.step(states, change(actions[:, 0]))),
        ("states", lambda: model.decode(change(states))),
        ("states", lambda: model.draw(change(states))),
        ("states", lambda: model.in_distribution(change(states))),
    ):
        with pytest.raises(ValueError, match=f"{name} {message}"):
            call()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_empty_batches_give_empty_results(
    make_tiny: Callable[..., WorldModel], variant: str, system: str
) -> None:
    model = make_tiny(variant, system)
    size, width = model.system.frame.size, len(model.system.variables)
    read, one = len(model.system.configuration), model.system.action_space.shape or ()
    frames = torch.zeros(0, 4, *size, 3, dtype=torch.uint8)
    actions, states = torch.zeros(0, 3, *one), torch.zeros(0, width)
    for result, shape in (
        (model.encode(frames, actions), (0, width)),
        (model.encode(frames, actions, "fd"), (0, width)),
        (model.encode_frames(frames), (0, 4, read)),
        (model.recognize(frames, torch.zeros(0, 4, read)), (0, 4)),
        (model.decode(states), (0, 3, *size)),
        (model.decode(torch.zeros(2, 0, width)), (2, 0, 3, *size)),
        (model.draw(states), (0, *size, 3)),
        (model.in_distribution(states), (0,)),
        (model.step(states, actions[:, 0]), (0, width)),
        (model.rollout(states, actions), (0, 3, width)),
        (model.rollout(torch.zeros(2, width), torch.zeros(2, 0, *one)), (2, 0, width)),
    ):
        assert tuple(result.shape) == shape


@pytest.mark.parametrize("decoder", ["latent", None])
def test_states_in_double_precision_are_drawn(decoder: str | None) -> None:
    model = piwm_gym.load(decoder=decoder, device="cpu")
    states = torch.tensor([[0.1, 0.0, -0.05, 0.0]], dtype=torch.float64)
    assert torch.equal(model.decode(states), model.decode(states.float()))
    assert torch.equal(model.draw(states), model.draw(states.float()))
    ahead = model.rollout(states, torch.ones(1, 3))
    assert ahead.dtype == torch.float64
    assert model.decode(ahead).shape == (1, 3, 3, 64, 64)


@pytest.mark.parametrize("env_id", ["PIWM-CartPole-v0", "PIWM-LunarLander-v0", "PIWM-DonkeyCar-v0"])
def test_states_that_are_nowhere_are_not_drawn(env_id: str) -> None:
    model = piwm_gym.load(env_id, device="cpu")
    states = torch.zeros(3, len(model.system.variables))
    states[1] = torch.nan
    for draw in (model.decode, model.draw):
        with pytest.raises(ValueError, match="1 of 3 states are not finite"):
            draw(states)


def test_what_was_read_already_is_estimated_as_its_frames_are(model: WorldModel) -> None:
    frames = torch.rand(2, 4, 3, 64, 64)
    actions = torch.ones(2, 3, dtype=torch.long)
    readings = model.encode_frames(frames)
    for init in ("shooting", "fd"):
        state, scene = model.estimate(readings, actions, init)
        assert torch.equal(state, model.encode(frames, actions, init))
        assert scene is None
    with pytest.raises(ValueError, match=r"configurations has shape \(2, 2\).*T >= 2"):
        model.estimate(readings[:, 0], actions)
    with pytest.raises(ValueError, match="one action between neighbouring frames, .2, 3"):
        model.estimate(readings, actions[:, :2])


def test_states_of_other_dimensions_are_no_states(model: WorldModel) -> None:
    actions = torch.zeros(2, 3, dtype=torch.long)
    for states in (torch.zeros(2, 3), torch.zeros(2, 5), torch.tensor(0.0)):
        for use in (
            lambda states: model.rollout(states, actions),
            lambda states: model.step(states, actions[:, 0]),
            model.decode,
            model.draw,
        ):
            with pytest.raises(ValueError, match=r"states have shape .*x, x_dot, theta, theta_dot"):
                use(states)


def test_no_state_depends_on_later_frames_or_actions(model: WorldModel) -> None:
    frames = torch.rand(1, 8, 3, 64, 64)
    actions = torch.zeros(1, 7, dtype=torch.long)
    states = model.rollout(model.encode(frames[:, :5], actions[:, :4]), actions[:, 4:])
    frames[:, 5:] = 0.0
    later = actions.clone()
    later[:, 6] = 1
    again = model.rollout(model.encode(frames[:, :5], later[:, :4]), later[:, 4:])
    assert torch.equal(states[:, :2], again[:, :2])
    assert not torch.equal(states[:, 2], again[:, 2])


def test_rollouts_are_differentiable_in_state_and_parameters(model: WorldModel) -> None:
    state = torch.zeros(2, 4, requires_grad=True)
    model.rollout(state, torch.ones(2, 30)).square().sum().backward()
    assert state.grad is not None
    assert model.dynamics.raw.grad is not None
    assert torch.isfinite(model.dynamics.raw.grad).all()


def test_states_beyond_the_training_labels_are_reported(model: WorldModel) -> None:
    model.state_low.fill_(-1.0)
    model.state_high.fill_(1.0)
    states = torch.tensor([[0.0, 0, 0, 0], [0, 1.5, 0, 0]])
    assert model.in_distribution(states).tolist() == [True, False]


def test_the_parameter_table_has_units_references_and_errors(model: WorldModel) -> None:
    table = {row.name: row for row in model.param_table()}
    assert table["length"].unit == "m"
    assert table["force_per_mass"].relative_error == pytest.approx(abs(9.0 / (10 / 1.1) - 1))
    assert table["force_mag"].value == pytest.approx(9.0 * 1.0 / 0.9)


# ---- a model of a system with a scene ----------------------------------------------------------


@pytest.fixture
def lander(make_tiny: Callable[..., WorldModel]) -> WorldModel:
    return make_tiny(system="lunar_lander")


def test_frames_give_configurations_and_their_mean_the_scene(lander: WorldModel) -> None:
    frames = torch.rand(2, 4, 3, 64, 96)
    configurations = lander.encode_frames(frames)
    assert configurations.shape == (2, 4, 14)
    torch.testing.assert_close(lander.encode_scene(frames), configurations[..., 3:].mean(1))
    with pytest.raises(ValueError, match="64, 96, 3. uint8"):
        lander.encode_frames(torch.rand(2, 4, 3, 96, 64))


def test_states_are_estimated_with_the_scene_seen_or_given(lander: WorldModel) -> None:
    frames, actions = torch.rand(2, 4, 3, 64, 96), torch.zeros(2, 3, dtype=torch.long)
    seen = lander.encode_scene(frames)
    state = lander.encode(frames, actions)
    assert state.shape == (2, 10)
    torch.testing.assert_close(state, lander.encode(frames, actions, scene=seen))
    raised = lander.encode(frames, actions, scene=torch.full((11,), 9.0))
    assert not torch.equal(state, raised)


def test_without_a_scene_forecasts_have_the_nominal_one(lander: WorldModel) -> None:
    nominal = lander.system.nominal_scene
    state = torch.zeros(3, 10)
    state[:, 1] = 1.0
    actions = torch.zeros(3, 60, dtype=torch.long)
    states = lander.rollout(state, actions)
    assert torch.equal(states, lander.rollout(state, actions, scene=nominal.expand(3, -1)))
    assert states[:, -1, 1].min() > -1.0
    lower = lander.rollout(state, actions, scene=nominal - 5)
    assert lower[:, -1, 1].max() < -1.0
    assert torch.equal(lander.step(state, actions[:, 0]), states[:, 0])
    noise = torch.rand(3, 60, 2)
    firing = actions + 2
    assert not torch.equal(
        lander.rollout(state, firing, noise=noise), lander.rollout(state, firing)
    )
    drawn = lander.step(state, firing[:, 0], noise=noise[:, 0])
    assert torch.equal(drawn, lander.rollout(state, firing, noise=noise)[:, 0])


def test_a_scene_is_drawn_for_its_batch_element(lander: WorldModel) -> None:
    scene = lander.system.scene(torch.rand(2, 12))
    states = torch.rand(2, 5, 10)
    frames = lander.decode(states, scene)
    assert frames.shape == (2, 5, 3, 64, 96)
    torch.testing.assert_close(frames[1, 3], lander.decode(states[1, 3], scene[1]))
    torch.testing.assert_close(frames[:, 2], lander.decode(states[:, 2], scene))
    torch.testing.assert_close(
        lander.decode(states[0]), lander.decode(states[0], lander.system.nominal_scene)
    )
    for wrong, message in (
        (scene[:1], r"shape \(1, 11\), states have leading dimensions \(2, 5\)"),
        (scene[:, :10], r"expected \(11,\) or \(B, 11\): height_0"),
    ):
        with pytest.raises(ValueError, match=message):
            lander.decode(states, wrong)


def test_a_scene_for_a_system_without_one_is_refused(model: WorldModel) -> None:
    scene, state = torch.zeros(11), torch.zeros(1, 4)
    for call in (
        lambda: model.decode(state, scene),
        lambda: model.step(state, torch.zeros(1), scene),
        lambda: model.rollout(state, torch.zeros(1, 2), scene=scene),
        lambda: model.encode(torch.rand(1, 2, 3, 64, 64), torch.zeros(1, 1), scene=scene),
    ):
        with pytest.raises(ValueError, match="cartpole has no scene"):
            call()


@pytest.mark.parametrize(
    ("shape", "actions", "message"),
    [
        ((3, 4), torch.ones(3), r"shape \(3,\); expected \(3, H\)"),
        ((3, 4), torch.ones(2, 5), r"shape \(2, 5\); expected \(3, H\)"),
        ((3, 4), torch.ones(3, 5, 1), r"shape \(3, 5, 1\); expected \(3, H\)"),
        ((3, 4), torch.full((3, 5), 5), "from 5 to 5; expected numbers from 0 to 1"),
        ((3, 4), torch.full((3, 5), -0.5), "from -0.5 to -0.5; expected numbers from 0 to 1"),
        ((3, 4), torch.full((3, 5), torch.nan), "from nan to nan"),
        ((4,), torch.ones(4, 5), r"shape \(4,\); expected one batch"),
    ],
)
def test_rollouts_of_wrong_actions_are_refused(
    model: WorldModel, shape: tuple[int, ...], actions: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_rollout(model.system, torch.zeros(shape), actions)
    if shape == (3, 4) and actions.shape == (3, 5):
        with pytest.raises(ValueError, match=message):
            model.rollout(torch.zeros(shape), actions)
        with pytest.raises(ValueError, match=message):
            model.step(torch.zeros(shape), actions[:, 0])


def test_rollouts_of_boxed_actions_have_their_shape() -> None:
    car = DonkeyCar()
    check_rollout(car, torch.zeros(2, len(car.variables)), torch.zeros(2, 5, 2))
    with pytest.raises(ValueError, match=r"expected \(2, H, 2\)"):
        check_rollout(car, torch.zeros(2, len(car.variables)), torch.zeros(2, 5))


def test_derived_dimensions_have_no_distribution(lander: WorldModel) -> None:
    state = torch.zeros(2, 10)
    state[:, 6:] = 7.0
    state[1, 0] = 11.0
    assert lander.in_distribution(state).tolist() == [True, False]

"""The direct decoder: what moves is drawn where it is, the rest stays as it was."""

from pathlib import Path

import gymnasium as gym
import pytest
import torch

import piwm_gym
from piwm_gym.checkpoint import save
from piwm_gym.models import VARIANTS, AutoencoderConfig, build_autoencoder
from piwm_gym.models.direct import DirectConfig, DirectDecoder
from piwm_gym.models.vision import to_uint8
from piwm_gym.registration import ENTRIES
from piwm_gym.systems import System, get_system
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel, WorldModelConfig

SYSTEMS = (("cartpole", 8), ("lunar_lander", 4), ("donkey_car", 4))


def decoder(name: str, patch: int) -> tuple[System, DirectDecoder]:
    torch.manual_seed(0)
    system = get_system(name)
    return system, DirectDecoder(DirectConfig(patch, width=32), system)


def configurations(system: System, number: int = 6) -> torch.Tensor:
    """Anywhere in the middle half of the documented ranges."""
    share = torch.rand(
        number, len(system.configuration), generator=torch.Generator().manual_seed(1)
    )
    low = torch.tensor([v.low for v in system.configuration])
    high = torch.tensor([v.high for v in system.configuration])
    return low + (high - low) * (0.25 + 0.5 * share)


def draw(system: System, direct: DirectDecoder, configuration: torch.Tensor) -> torch.Tensor:
    autoencoder = build_autoencoder(AutoencoderConfig(), system)
    with torch.no_grad():
        return direct(autoencoder.normalize(configuration))


@pytest.mark.parametrize(("name", "patch"), [*SYSTEMS, ("cartpole", 2), ("cartpole", 1)])
def test_the_quick_frames_are_the_frames(name: str, patch: int) -> None:
    system = get_system(name)
    config = AutoencoderConfig(direct=DirectConfig(patch, width=32))
    autoencoder = build_autoencoder(config, system)
    shown = configurations(system)
    with torch.no_grad():
        frames, quick = autoencoder.decode(shown), autoencoder.draw_frames(shown)
    assert frames.shape == (6, 3, *system.frame.size)
    assert quick.dtype == torch.uint8
    apart = (quick.int() - to_uint8(frames).int()).abs()  # last bits decide between two bytes
    assert apart.max() <= 1
    assert apart.float().mean() < 1e-4


@pytest.mark.parametrize(("name", "patch"), SYSTEMS[:2])
def test_a_body_moved_by_a_patch_is_drawn_a_patch_further(name: str, patch: int) -> None:
    system, direct = decoder(name, patch)
    assert system.side_view is not None
    here = configurations(system)
    if system.scene_variables:  # level ground looks the same from everywhere
        here[:, len(system.visible) :] = here[:, -1:]
    there = here.clone()
    left, right = system.frame.columns
    native = (right - left) / (system.frame.size[1] // patch)
    there[:, 0] += native / system.side_view.scale
    before, after = draw(system, direct, here), draw(system, direct, there)
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(
        after[..., 2 * patch : -patch], before[..., patch : -2 * patch], atol=2e-4, rtol=0
    )


@pytest.mark.parametrize(("name", "patch"), SYSTEMS[:2])
def test_patches_out_of_reach_do_not_change(name: str, patch: int) -> None:
    system, direct = decoder(name, patch)
    view = system.side_view
    assert view is not None
    pose = configurations(system)
    other = pose.clone()
    other[:, len(system.visible) - 1] += 0.05  # the angle
    changed = (draw(system, direct, pose) - draw(system, direct, other)).abs().amax((1, 2)) > 1e-6
    width = system.frame.size[1]
    left, right = system.frame.columns
    native = left + (torch.arange(width) + 0.5) * (right - left) / width
    x = (native - view.origin[1]) / view.scale
    far = (x - pose[:, :1]).abs() > view.reach[0] + 2 * patch * (right - left) / width / view.scale
    assert changed.any()
    assert far.any()
    assert not (changed & far).any()
    # And within reach, everything may.
    near = (x - pose[:, :1]).abs() < view.reach[0]
    assert changed[near].float().mean() > 0.9


def test_a_body_outside_of_the_picture_is_no_error() -> None:
    system, direct = decoder("lunar_lander", 4)
    outside = configurations(system)
    outside[:, 0] = 1e4
    outside[:, 1] = -1e4
    assert draw(system, direct, outside).isfinite().all()


def test_frames_have_gradients_in_the_state() -> None:
    for name, patch in SYSTEMS:
        system, direct = decoder(name, patch)
        autoencoder = build_autoencoder(AutoencoderConfig(), system)
        shown = configurations(system).requires_grad_()
        direct(autoencoder.normalize(shown)).square().sum().backward()
        assert shown.grad is not None
        assert (shown.grad[:, : len(system.visible)] != 0).all()


def test_a_patch_that_does_not_tile_the_frame_is_refused() -> None:
    with pytest.raises(ValueError, match=r"patch is 7.*divisor.*64 and 64"):
        DirectDecoder(DirectConfig(7), get_system("cartpole"))


def test_the_paper_s_decoder_is_an_option(tmp_path: Path) -> None:
    config = AutoencoderConfig(direct=DirectConfig(8, width=16))
    path = tmp_path / "cartpole-extrinsic-discrete.safetensors"
    save(WorldModel(WorldModelConfig("cartpole", config)), path, {})
    direct = piwm_gym.load(checkpoint=path, device="cpu")
    latent = piwm_gym.load(checkpoint=path, device="cpu", decoder="latent")
    state = torch.tensor([[0.3, 0.0, 0.1, 0.0]])
    normalized = direct.autoencoder.normalize(state[:, ::2])
    by_latent = direct.autoencoder.decode_latent(normalized).clamp(0, 1)
    torch.testing.assert_close(latent.decode(state), by_latent)
    assert not torch.equal(direct.decode(state), by_latent)
    env = gym.make("PIWM-CartPole-v0", checkpoint=str(path), device="cpu", decoder="latent")
    envs = gym.make_vec(
        "PIWM-CartPole-v0", num_envs=2, checkpoint=str(path), device="cpu", decoder="latent"
    )
    options = {"state": state[0].numpy()}
    frame, _ = env.reset(options=options)
    frames, _ = envs.reset(options=options)
    for drawn in (frame, *frames):
        torch.testing.assert_close(torch.from_numpy(drawn), latent.draw(state)[0])
    with pytest.raises(ValueError, match=r"decoder.*'laten'.*'latent'"):
        piwm_gym.load(checkpoint=path, device="cpu", decoder="laten")


@pytest.mark.parametrize("variant", VARIANTS[:2])
@pytest.mark.parametrize("env_id", ENTRIES)
def test_frames_in_bfloat16_are_off_by_three_at_most(env_id: str, variant: str) -> None:
    model, short = (
        piwm_gym.load(env_id, variant, decoder=decoder) for decoder in ("direct", "direct-bfloat16")
    )
    arguments = {"model": model, "obs_type": "state", "output": "torch"}
    envs = WorldModelVectorEnv(env_id, 64, **arguments)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    off = []
    for step in range(1, 41):
        envs.step(envs.action_space.sample())
        if step % 8 == 0:
            scene = envs.simulation.scene if model.system.scene_variables else None
            seen = envs.simulation.state, scene
            off.append((model.draw(*seen).int() - short.draw(*seen).int()).abs())
    apart = torch.stack(off)
    assert 0 < apart.max() <= 3
    assert apart.float().mean() < 0.2


def test_a_model_without_a_direct_decoder_says_so() -> None:
    autoencoder = build_autoencoder(AutoencoderConfig(), get_system("cartpole"))
    assert autoencoder.decodes_by == "latent"
    for decoder in ("direct", "direct-bfloat16"):
        with pytest.raises(ValueError, match=rf"decoder is '{decoder}'.*expected 'latent'"):
            autoencoder.use(decoder)

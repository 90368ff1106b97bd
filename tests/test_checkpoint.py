"""Checkpoints: bit-exact round trips, and a telling refusal of every damaged file."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from piwm_gym import checkpoint, locate, manifest, registration
from piwm_gym.checkpoint import CheckpointError, load, load_checkpoint, save
from piwm_gym.config_tree import from_json, to_json
from piwm_gym.models import VARIANTS
from piwm_gym.models.physical import TransformerConfig
from piwm_gym.models.vision import VisionConfig
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.world_model import WorldModel

Edit = Callable[[dict[str, torch.Tensor], dict[str, Any]], Any]


@pytest.fixture
def saved(tmp_path: Path, model: WorldModel) -> Path:
    path = tmp_path / f"cartpole-{DEFAULT_VARIANT}.safetensors"
    save(model, path, {"note": "random weights", "seeds": [0, 1]})
    return path


def rewrite(path: Path, edit: Edit, resign: bool = True) -> None:
    """Change a checkpoint's tensors and header, with a valid hash or with the old one."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["piwm_gym"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    edit(tensors, header)
    if resign and "sha256" in header:
        header["sha256"] = checkpoint._digest(header, tensors)
    save_file(tensors, path, {"piwm_gym": json.dumps(header)})


@pytest.mark.parametrize("variant", VARIANTS)
def test_round_trip_is_exact(
    variant: str, tmp_path: Path, make_tiny: Callable[..., WorldModel]
) -> None:
    model = make_tiny(variant)
    save(model, tmp_path / "m.safetensors", {"note": variant})
    loaded = load_checkpoint(tmp_path / "m.safetensors", device="cpu")
    assert loaded.config == model.config
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    frames = torch.randint(0, 256, (2, 3, 64, 64, 3), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(model.encode_frames(frames), loaded.encode_frames(frames))
        states = torch.rand(5, 4) / 10
        assert torch.equal(model.decode(states), loaded.decode(states))
        actions = torch.randint(0, 2, (5, 9))
        assert torch.equal(model.rollout(states, actions), loaded.rollout(states, actions))


def test_weights_of_half_precision_take_half_the_space_and_come_back_as_they_were(
    saved: Path, model: WorldModel, tmp_path: Path
) -> None:
    with torch.no_grad():
        for parameter in model.autoencoder.parameters():
            parameter.copy_(parameter.half())
    save(model, tmp_path / "half.safetensors", {"note": "rounded"})
    weights = 4 * sum(p.numel() for p in model.autoencoder.parameters())
    spared = saved.stat().st_size - (tmp_path / "half.safetensors").stat().st_size
    assert spared > 0.45 * weights
    loaded = load_checkpoint(tmp_path / "half.safetensors", "cpu")
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(tensor, loaded.state_dict()[name]), name


def test_loaded_model_is_ready_for_use(saved: Path) -> None:
    model = load_checkpoint(saved)
    assert not model.training
    assert model.metadata["note"] == "random weights"
    assert model.metadata["format_version"] == checkpoint.FORMAT_VERSION
    learnable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learnable == {"dynamics.raw"}


def test_loading_leaves_the_global_random_state_alone(saved: Path) -> None:
    before = torch.get_rng_state()
    load_checkpoint(saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_equal_models_have_equal_files(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.safetensors"
    model = load_checkpoint(saved)
    save(model, again, {"seeds": [0, 1], "note": "random weights"})
    assert again.read_bytes() == saved.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([again.name, saved.name])


def test_save_refuses_what_could_not_be_loaded(saved: Path, model: WorldModel) -> None:
    before = saved.read_bytes()
    with pytest.raises(TypeError, match="JSON"):
        save(model, saved, {"path": Path()})
    with pytest.raises(ValueError, match=r"metadata\['error'\] is nan; expected a finite"):
        save(model, saved, {"error": float("nan")})
    with pytest.raises(ValueError, match=r"metadata\['results'\]\[1\]\['x'\] is -inf"):
        save(model, saved, {"results": (1, {"x": -float("inf")})})
    torch.nn.init.constant_(model.dynamics.raw, float("nan"))
    with pytest.raises(CheckpointError, match=r"3 of 3 numbers of 'dynamics.raw' are not finite"):
        save(model, saved, {})
    assert saved.read_bytes() == before


def test_metadata_becomes_json(model: WorldModel, tmp_path: Path) -> None:
    save(model, tmp_path / "m.safetensors", {"error at step": {10: 0.1, 9: 1 / 3}, "size": (2, 3)})
    metadata = load_checkpoint(tmp_path / "m.safetensors").metadata
    assert metadata["error at step"] == {"10": 0.1, "9": 1 / 3}
    assert metadata["size"] == [2, 3]


def test_another_default_dtype_is_named(saved: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(CheckpointError, match=r"default dtype is torch.float64; expected"):
            load_checkpoint(saved)
    finally:
        torch.set_default_dtype(torch.float32)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_checkpoint(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("size", [100, 5000, -1])
def test_truncated(saved: Path, size: int) -> None:
    saved.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"truncated or damaged.*download it again"):
        load_checkpoint(saved)


def test_altered_data(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[-3] ^= 1
    saved.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"altered.*SHA-256.*its header says"):
        load_checkpoint(saved)


@pytest.mark.parametrize(
    "edit",
    [
        lambda tensors, header: header["metadata"].update(note="measured"),
        lambda tensors, header: header["config"].update(init="fd"),
        lambda tensors, header: tensors["state_low"].fill_(0),
    ],
)
def test_altered_content(saved: Path, edit: Edit) -> None:
    rewrite(saved, edit, resign=False)
    with pytest.raises(CheckpointError, match="altered"):
        load_checkpoint(saved)


def rename(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    tensors["dynamics.theta"] = tensors.pop("dynamics.raw")


REFUSALS = {
    "renamed tensor": (rename, r"tensor 'dynamics.raw' is missing"),
    "missing tensor": (lambda t, h: t.pop("state_low"), r"tensor 'state_low' is missing"),
    "extra tensor": (
        lambda t, h: t.update(velocity=torch.zeros(1)),
        r"tensor 'velocity' is not one of the model's",
    ),
    "wrong shape": (
        lambda t, h: t.update({"dynamics.raw": torch.zeros(4)}),
        r"'dynamics.raw' has shape \(4,\) and type torch.float32; expected \(3,\)",
    ),
    "wrong type": (
        lambda t, h: t.update({"dynamics.raw": torch.zeros(3, dtype=torch.float64)}),
        r"type torch.float64; expected \(3,\) and torch.float32",
    ),
    "not finite": (
        lambda t, h: t["dynamics.raw"].fill_(torch.inf),
        r"3 of 3 numbers of 'dynamics.raw' are not finite",
    ),
    "range is NaN": (lambda t, h: t["state_low"].fill_(torch.nan), r"'state_low' are not finite"),
    "version": (
        lambda t, h: h.update(format_version=99),
        r"format version 99; this piwm-gym reads version 1.*train again",
    ),
    "no version": (lambda t, h: h.pop("format_version"), "metadata is damaged"),
    "no config": (lambda t, h: h.pop("config"), "lacks config"),
    "no hash": (lambda t, h: h.pop("sha256"), "lacks sha256"),
    "unknown key": (
        lambda t, h: h["config"]["autoencoder"].update(variannt="x"),
        r"config.autoencoder: unknown key 'variannt'.*did you mean 'variant'",
    ),
    "missing key": (
        lambda t, h: h["config"]["autoencoder"]["vision"].pop("blocks"),
        r"config.autoencoder.vision: key 'blocks' is missing",
    ),
    "unknown variant": (
        lambda t, h: h["config"]["autoencoder"].update(variant="extrinsic-discret"),
        r"did you mean 'extrinsic-discrete'",
    ),
    "unknown system": (lambda t, h: h["config"].update(system="pendulum"), "unknown system"),
    "absurd parameters": (
        lambda t, h: t["dynamics.raw"].fill_(500),
        r"parameter '.*' \[.*\] is inf; expected positive, finite numbers; train again",
    ),
    "absurd heads": (
        lambda t, h: h["config"]["autoencoder"]["transformer"].update(heads=7),
        r"heads is 7; expected a divisor of width, 16",
    ),
    "absurd sizes": (
        lambda t, h: h["config"]["autoencoder"]["vision"].update(strides=[0, 2]),
        "does not fit this piwm-gym",
    ),
}


@pytest.mark.parametrize(("edit", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(saved: Path, edit: Edit, message: str) -> None:
    rewrite(saved, edit)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(saved)
    assert str(saved) in str(caught.value)


def test_not_safetensors(saved: Path) -> None:
    torch.save({"a": torch.zeros(1)}, saved)
    with pytest.raises(CheckpointError, match=r"not a safetensors file.*pickled checkpoints"):
        load_checkpoint(saved)
    saved.write_bytes(b"")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load_checkpoint(saved)


def test_missing_metadata(saved: Path) -> None:
    save_file({"a": torch.zeros(1)}, saved)
    with pytest.raises(CheckpointError, match="no 'piwm_gym' entry in its metadata"):
        load_checkpoint(saved)
    save_file({"a": torch.zeros(1)}, saved, {"piwm_gym": "not JSON"})
    with pytest.raises(CheckpointError, match="metadata is damaged"):
        load_checkpoint(saved)


def test_config_tree_types() -> None:
    config = VisionConfig(channels=(8, 16))
    data = json.loads(json.dumps(to_json(config)))
    assert from_json(VisionConfig, data) == config
    for key, value, message in [
        ("blocks", 1.0, r"config.blocks is 1.0; expected int"),
        ("blocks", True, r"expected int"),
        ("channels", 8, r"config.channels is 8; expected a list"),
        ("channels", [8, "x"], r"config.channels\[1\] is 'x'; expected int"),
    ]:
        with pytest.raises(ValueError, match=message):
            from_json(VisionConfig, {**data, key: value})
    assert from_json(TransformerConfig, to_json(TransformerConfig()) | {"dropout": 0}).dropout == 0
    with pytest.raises(TypeError, match="numbers, strings and tuples"):
        to_json((1, Path()))


@pytest.fixture
def weights(tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the shipped weights."""
    manifest.write_manifest(tmp_path)
    monkeypatch.setattr(locate, "WEIGHTS", tmp_path)
    return saved


def test_shipped_weights_are_verified(weights: Path, model: WorldModel) -> None:
    assert checkpoint.resolve() == weights
    assert checkpoint.load(device="cpu").system.name == "cartpole"
    expected = manifest.sha256(weights)
    save(model, weights, {})
    with pytest.raises(CheckpointError, match="was altered") as caught:
        checkpoint.load()
    text = str(caught.value)
    assert expected in text
    assert manifest.sha256(weights) in text
    assert "reinstall" in text
    manifest.write_manifest(weights.parent)
    checkpoint.load()


def test_shipped_weights_missing_or_unlisted(weights: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"no weights cartpole-intrinsic-discrete.*present: cartpole-extr"
    ):
        checkpoint.load(variant="intrinsic-discrete")
    (weights.parent / manifest.MANIFEST).write_text("{}")
    with pytest.raises(CheckpointError, match="not listed"):
        checkpoint.load()
    (weights.parent / manifest.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="missing or unreadable"):
        checkpoint.load()


def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match="did you mean 'PIWM-CartPole-v0'"):
        checkpoint.resolve("PIWM-CartPole-v1")
    with pytest.raises(ValueError, match="did you mean 'extrinsic-discrete'"):
        checkpoint.resolve(variant="extrinsic-vq")
    with pytest.raises(ValueError, match="expected 'auto', 'cpu' or 'cuda'"):
        checkpoint.resolve_device("gpu0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is available")
def test_cuda_without_cuda() -> None:
    with pytest.raises(ValueError, match="CUDA is not available"):
        checkpoint.resolve_device("cuda")


@pytest.mark.parametrize("device", [None, 3.5, "mps", "meta", "gpu", torch.device("meta")])
def test_devices_that_models_do_not_run_on_are_refused(saved: Path, device: Any) -> None:
    for use in (
        lambda: load(checkpoint=saved, device=device),
        lambda: load_checkpoint(saved, device),
        lambda: gym.make("PIWM-CartPole-v0", checkpoint=saved, device=device),
        lambda: gym.make_vec("PIWM-CartPole-v0", checkpoint=saved, device=device),
    ):
        with pytest.raises(ValueError, match="device is .*; expected 'auto', 'cpu' or 'cuda'"):
            use()


@pytest.mark.parametrize("checkpoint", [5, b"file", ["a"], True])
def test_what_is_no_path_is_no_checkpoint(checkpoint: Any) -> None:
    for use in (
        lambda: load(checkpoint=checkpoint),
        lambda: gym.make("PIWM-CartPole-v0", checkpoint=checkpoint),
    ):
        with pytest.raises(CheckpointError, match="checkpoint is .*; expected a .safetensors file"):
            use()


def test_paths_and_folders(saved: Path) -> None:
    assert checkpoint.resolve(checkpoint=saved) == saved
    assert checkpoint.resolve(checkpoint=str(saved)) == saved
    assert checkpoint.resolve(checkpoint=saved.parent) == saved
    for wrong in (saved.with_name("x.safetensors"), "runs/x.safetensors", "model"):
        with pytest.raises(CheckpointError, match="does not exist; expected a"):
            checkpoint.resolve(checkpoint=wrong)


def test_checkpoint_of_another_system(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = registration.Entry("PIWM-Other-v0", "other", 100, 0.0)
    monkeypatch.setitem(registration.ENTRIES, other.env_id, other)
    with pytest.raises(CheckpointError, match="is a model of 'cartpole'"):
        checkpoint.load("PIWM-Other-v0", checkpoint=saved)


class FakeHub:
    """Stands for the package huggingface_hub."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.calls: list[tuple[str, str, str | None]] = []

    def hf_hub_download(self, repo: str, name: str, cache_dir: str | None = None) -> str:
        self.calls.append((repo, name, cache_dir))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def test_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(saved)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setenv("PIWM_CACHE", "/some/cache")
    assert checkpoint.resolve(variant="intrinsic-discrete", checkpoint="user/name") == saved
    assert hub.calls == [("user/name", "cartpole-intrinsic-discrete.safetensors", "/some/cache")]


def test_hub_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'piwm-gym\[hub\]'"):
        checkpoint.resolve(checkpoint="user/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(OSError("no network")))
    with pytest.raises(CheckpointError, match="failed: no network; check the name"):
        checkpoint.resolve(checkpoint="user/name")

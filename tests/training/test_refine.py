"""A finished checkpoint, trained further: what is refined changes, the rest does not."""

import re
from pathlib import Path

import pytest
import torch

from piwm_gym.checkpoint import load_checkpoint
from piwm_gym.manifest import sha256
from training.collect import Settings, collect
from training.refine import main
from training.train import main as train

pytestmark = pytest.mark.usefixtures("unchecked_shapes", "hasty_dynamics")


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    collect(Settings("cartpole", 24, shard_size=8, seed=5), folder)
    return folder


def trained(data: Path, folder: Path, variant: str, *settings: str) -> Path:
    command = ["cartpole", "--preset", "debug", "--variant", variant, "--quiet", *settings]
    assert train([*command, "--data", str(data), "--runs", str(folder), "--out", str(folder)]) == 0
    return folder / f"cartpole-{variant}.safetensors"


@pytest.mark.parametrize(
    ("variant", "refined"),
    [
        ("extrinsic-discrete", ("autoencoder.glimpse.", "autoencoder.direct.")),
        ("intrinsic-continuous", ("autoencoder.direct.",)),
    ],
)
def test_only_what_is_refined_changes(
    variant: str, refined: tuple[str, ...], data_folder: Path, tmp_path: Path
) -> None:
    path = trained(data_folder, tmp_path, variant)
    out = tmp_path / "refined.safetensors"
    folder = tmp_path / "runs"
    main(path, data=data_folder, runs=folder, out=out, preset_name="debug", refinement=3, direct=3)
    before, after = load_checkpoint(path, "cpu"), load_checkpoint(out, "cpu")
    found = after.state_dict()
    assert found.keys() == before.state_dict().keys()
    changed = {n for n, t in before.state_dict().items() if not torch.equal(t, found[n])}
    assert changed
    assert all(name.startswith((*refined, "reading_std")) for name in changed)
    assert {p for p in refined for name in changed if name.startswith(p)} == set(refined)
    assert after.metadata["stages"]["direct"]["epochs"] >= 1
    assert after.metadata["measured"].keys() == before.metadata["measured"].keys()


def test_no_epochs_leave_the_direct_decoder_as_it_is(data_folder: Path, tmp_path: Path) -> None:
    path = trained(data_folder, tmp_path, "extrinsic-discrete")
    out = tmp_path / "refined.safetensors"
    main(path, data_folder, tmp_path / "runs", out, preset_name="debug", refinement=3, direct=0)
    before, after = load_checkpoint(path, "cpu"), load_checkpoint(out, "cpu")
    found = after.state_dict()
    changed = {n for n, t in before.state_dict().items() if not torch.equal(t, found[n])}
    assert changed
    assert all(name.startswith(("autoencoder.glimpse.", "reading_std")) for name in changed)
    assert after.metadata["training"]["direct"] == before.metadata["training"]["direct"]


def test_epochs_of_d_p_train_it_alone(data_folder: Path, tmp_path: Path) -> None:
    path = trained(data_folder, tmp_path, "extrinsic-discrete")
    out, none = tmp_path / "refined.safetensors", {"refinement": 0, "direct": 0, "views": 0}
    main(path, data_folder, tmp_path / "runs", out, preset_name="debug", decoder=2, **none)
    before, after = load_checkpoint(path, "cpu"), load_checkpoint(out, "cpu")
    found = after.state_dict()
    changed = {n for n, t in before.state_dict().items() if not torch.equal(t, found[n])}
    assert changed
    assert all(n.startswith(("autoencoder.physical_decoder.", "reading_std")) for n in changed), (
        changed
    )
    assert after.metadata["training"]["decoder"]["epochs"] == 2


def test_a_closer_look_that_is_not_trained_is_not_added(data_folder: Path, tmp_path: Path) -> None:
    path = trained(data_folder, tmp_path, "extrinsic-discrete", "--autoencoder.glimpse", "0")
    out = tmp_path / "refined.safetensors"
    main(path, data_folder, tmp_path / "runs", out, preset_name="debug", refinement=0, direct=3)
    before, after = load_checkpoint(path, "cpu"), load_checkpoint(out, "cpu")
    assert after.config.autoencoder.glimpse == 0
    frames = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    torch.testing.assert_close(after.encode_frames(frames), before.encode_frames(frames))


def test_a_direct_decoder_may_begin_as_that_of_another_variant(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained(data_folder, tmp_path, "intrinsic-continuous")
    given = trained(data_folder, tmp_path, "extrinsic-discrete")
    out = tmp_path / "refined.safetensors"
    settings = {"preset_name": "debug", "refinement": 0, "direct": 0, "direct_from": given}
    main(path, data_folder, tmp_path / "runs", out, **settings)
    before, after, source = (load_checkpoint(file, "cpu") for file in (path, out, given))
    assert after.metadata["training"]["direct_from"] == sha256(given)
    wanted = before.state_dict()
    drawing = {n: t for n, t in source.state_dict().items() if ".direct." in n}
    for name in before.state_dict().keys() - {"reading_std"}:  # measured anew
        tensor = after.state_dict()[name]
        assert torch.equal(tensor, drawing.get(name, wanted[name])), name
    again = tmp_path / "again.safetensors"
    main(out, data_folder, tmp_path / "runs", again, "debug", refinement=0, direct=1)
    assert "direct_from" not in load_checkpoint(again, "cpu").metadata["training"]
    other = trained(data_folder, tmp_path, "extrinsic-discrete", "--autoencoder.direct.width", "8")
    with pytest.raises(SystemExit):
        main(path, data_folder, tmp_path / "runs", out, **{**settings, "direct_from": other})
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"direct_from: .*width=8.* of cartpole; expected .*width=16", said)


def test_data_of_other_seeds_are_refused(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained(data_folder, tmp_path, "extrinsic-discrete")
    content = path.read_bytes()
    other = tmp_path / "other"
    collect(Settings("cartpole", 4, shard_size=4, seed=99), other)
    with pytest.raises(SystemExit):
        main(path, data=other, runs=tmp_path / "runs")
    assert "expected" in capsys.readouterr().err
    assert path.read_bytes() == content

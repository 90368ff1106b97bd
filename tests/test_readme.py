"""What the README says is true: its code runs, its tables are those of the files."""

import re
import shutil
from pathlib import Path

import pytest

from piwm_gym.registration import ENTRIES
from piwm_gym.systems import get_system
from training import report
from training.report_rows import ROWS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_of_the_readme_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(compile(code, "README.md", "exec"), {})
    assert "force_per_mass" in capsys.readouterr().out


def test_the_table_of_ids_is_the_registry() -> None:
    for entry in ENTRIES.values():
        row = next(line for line in README.splitlines() if line.startswith(f"| `{entry.env_id}`"))
        assert get_system(entry.system).real_id in row
        assert row.rstrip(" |").endswith(str(entry.max_episode_steps))


def test_measured_tables_are_those_of_the_files() -> None:
    for table in (ROOT / "assets" / "results").glob("*.md"):
        assert table.read_text().strip() in README


@pytest.mark.parametrize("system", ROWS)
def test_tables_of_the_files_are_those_of_the_numbers(system: str, tmp_path: Path) -> None:
    results = ROOT / "assets" / "results"
    for table in results.glob(f"{system}-*.csv"):
        shutil.copy(table, tmp_path)
    report.main(system, tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    assert written == {path.name: path.read_text() for path in results.glob(f"{system}-*.md")}


def test_pictures_links_and_examples_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for example in (ROOT / "examples").glob("*.py"):
        assert f"examples/{example.name}" in README


def test_ci_runs_the_test_command_of_the_readme() -> None:
    command = next(line for line in README.splitlines() if "tests/check.sh" in line)
    assert command in (ROOT / ".ci" / "run").read_text()

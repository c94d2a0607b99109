"""README.md and docs/ show the results that are stored, and what is measured anew takes their place."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "benchmarks"
STORED = PROGRAMS / "results"

ABOUT = {
    "date": "2026-01-02",
    "machine": "a processor, 4 usable cores, Linux 6.1, x86_64",
    "python": "3.11.7",
    "gymbridge": "0.1",
    "numpy": "2.4.6",
    "torchrl": "not installed",
    "rounds": 3,
    "seconds": 0.25,
    "programs": 2,
    "num_envs": 500,
    "milliseconds": 10.0,
}


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules that measure and render."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(PROGRAMS)
    return {name: import_module(name) for name in ("all", "published", "report")}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The pages, without pictures, and nothing stored."""
    (tmp_path / "docs/figures").mkdir(parents=True)
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        shutil.copy(page, tmp_path / page.relative_to(ROOT))
    return tmp_path


def fake(cases: list[str], candidates: list[str], **more: Any) -> dict[str, Any]:
    """Results in which each figure is another."""
    figures = [
        {
            "case": case,
            "candidate": name,
            "title": f"**gymbridge `{name}`**" if name.startswith("gymbridge") else f"`{name}`",
            "against": candidates[0],
            "failure": None,
            "median": 100.0 * row + column + 1,
            "ratio": 1.0 + row,
            "rounds": [100.0 * row + column + 1, 100.0 * row + column, 100.0 * row + column + 2],
            **more,
        }
        for column, case in enumerate(cases)
        for row, name in enumerate(candidates)
    ]
    return {"about": ABOUT, "unit": "us a step", "figures": figures}


def all_fake() -> dict[str, dict[str, Any]]:
    kinds = [f"{kind} N={n}" for kind in ("null", "CartPole-v1", "image") for n in (2, 8, 64)]
    in_process = ["raw", "gymbridge-sync", "gymnasium-sync", "sb3-dummy", "gymbridge-serial", "torchrl-serial"]
    in_workers = ["gymbridge-async", "gymnasium-async", "sb3-subproc", "gymbridge-parallel", "torchrl-parallel"]
    rollouts = ["gymbridge-parallel-rollout", "torchrl-parallel-rollout"]
    single = fake(["single CartPole-v1"], ["gymbridge-step", "torchrl-step"])
    steps = fake(kinds, in_process)
    pools = ["alone", "torchrl-shm", "gymbridge-processes", "gymbridge-shared", "torchrl-threads", "gymbridge-threads"]
    return {
        "steps_in_process": {**steps, "figures": steps["figures"] + single["figures"]},
        "steps_in_workers": fake(kinds, in_workers),
        "rollouts": fake(kinds, rollouts),
        "starts": fake(
            ["cold", "warm"],
            ["gymbridge-async", "gymbridge-parallel", "gymnasium-spawn", "gymnasium-fork", "torchrl-parallel"],
        ),
        "pools": fake(["dispatch N=8", "synchronous N=8", "slow-resets N=8"], pools),
        "event_loop": fake(["gymnasium", "TensorDict"], ["bare", "pool"]),
        "deaths": fake(["noticed", "goes on"], ["vector", "parallel", "pool"]),
        "sb3": fake(
            [f"{kind} N=8" for kind in ("null", "infos", "CartPole-v1", "image")],
            ["gymbridge", "sb3-subproc", "gymbridge-parallel", "gymbridge-sync", "sb3-dummy"],
        ),
        "collectors": fake(
            [f"{case} N=8" for case in ("random", "network", "transformed")],
            ["gymbridge-parallel", "torchrl-parallel", "gymbridge-serial", "torchrl-serial"],
        ),
        "from_torchrl": fake(
            [f"{case} N=8" for case in ("counting", "transformed", "CartPole")],
            [
                "torchrl-parallel",
                "gymbridge-parallel",
                "gymbridge-processes",
                "torchrl-serial",
                "gymbridge-serial",
                "torchrl-alone",
            ],
        ),
        "envpool": fake(
            [f"{kind} N=8" for kind in ("CartPole-v1", "Pendulum-v1", "HalfCheetah-v4", "Pong-v5")],
            ["envpool", "gymbridge", "gymbridge-vector", "envpool-async", "gymbridge-async"],
        ),
        "ray": fake(["0 ms", "1 ms", "10 ms", "100 ms"], ["multiprocessing", "ray"], caller_us=500.0),
        "stats": fake(
            ["null N=8", "CartPole-v1 N=8"],
            ["sync-vector", "sync-vector-asked", "serial", "serial-asked", "threads", "threads-asked"],
        ),
        "caller_steps": fake(
            [f"{kind} N={n}" for kind in ("null", "CartPole-v1", "busy") for n in (2, 8, 64)],
            ["parallel", "caller", "one-worker", "serial"],
        ),
    }


def rendered(benchmarks: dict[str, Any], site: Path, results: dict[str, Any]) -> dict[str, str]:
    benchmarks["all"].render(site, results)
    files = [*site.glob("*.md"), *site.glob("docs/*.md"), *site.glob("docs/figures/*.svg")]
    return {str(file.relative_to(site)): file.read_text(encoding="utf-8") for file in files}


def block(texts: dict[str, str], page: str, name: str) -> str:
    return texts[page].partition(f"<!-- measured: {name} -->\n")[2].partition(f"\n<!-- end: {name} -->")[0]


def test_each_measurement_is_shown_and_each_block_is_measured(benchmarks: dict[str, Any]) -> None:
    blocks = benchmarks["published"].BLOCKS
    assert {each.results for each in blocks.values()} == {*benchmarks["all"].MEASUREMENTS}
    for measurement in benchmarks["all"].MEASUREMENTS.values():
        assert (PROGRAMS / measurement.program).exists()


def test_the_pages_have_the_marks_of_each_block(benchmarks: dict[str, Any]) -> None:
    pages = {page: page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    found = sorted(
        (str(page.relative_to(ROOT)), name)
        for page, text in pages.items()
        for name in re.findall(r"<!-- measured: (\w+) -->\n(?:.*\n)*?<!-- end: \1 -->", text)
    )
    assert found == sorted((each.page, name) for name, each in benchmarks["published"].BLOCKS.items())


def test_what_is_stored_is_what_the_pages_and_pictures_show(benchmarks: dict[str, Any], site: Path) -> None:
    """To the letter; pictures where the matplotlib that drew them is installed, since each draws a little otherwise."""
    import matplotlib

    results = benchmarks["all"].stored(STORED, benchmarks["all"].MEASUREMENTS)
    if not results:
        pytest.skip("nothing is stored")
    texts = rendered(benchmarks, site, results)
    for name, text in texts.items():
        committed = (ROOT / name).read_text(encoding="utf-8")
        if not name.endswith(".svg") or f"Matplotlib v{matplotlib.__version__}," in committed:
            assert text == committed, name
    pictures = {
        f"docs/figures/{name}.svg" for name, each in benchmarks["published"].PICTURES.items() if each.results in results
    }
    assert {name for name in texts if name.endswith(".svg")} == pictures


def test_what_is_stored_has_no_gaps(benchmarks: dict[str, Any]) -> None:
    files = [*STORED.glob("*.json")]
    if not files:
        pytest.skip("nothing is stored")
    assert {file.stem for file in files} <= {*benchmarks["all"].MEASUREMENTS}
    for file in files:
        results = json.loads(file.read_text(encoding="utf-8"))
        assert {"date", "machine", "python", "gymbridge", "rounds"} <= {*results["about"]}
        assert results["figures"]
        assert not benchmarks["report"].failures(results["figures"])


def test_new_results_take_the_place_of_the_old_ones(benchmarks: dict[str, Any], site: Path) -> None:
    results = all_fake()
    assert {*results} == {*benchmarks["all"].MEASUREMENTS}
    before = {page: (ROOT / page).read_text() for page in ("README.md", "docs/benchmarks.md", "docs/quickstart.md")}
    texts = rendered(benchmarks, site, results)
    shown = block(texts, "README.md", "steps_in_process")
    assert shown.splitlines()[0].startswith(
        "2 January 2026, a processor, 4 usable cores, Linux 6.1, x86_64, Python 3.11.7,"
    )
    assert "medians of 3 rounds of 0.25 s" in shown.replace("\n", " ")
    assert "torchrl" not in shown.partition("|")[0]
    assert "| | null N=2 | null N=8 | null N=64 | CartPole N=8 | CartPole N=64 | image N=8 |" in shown
    assert "| **gymbridge `gymbridge-sync`** | **101** (2.0) | **102** (2.0) | **103** (2.0) |" in shown
    assert "`GymEnv.step` 1, TorchRL's 101 (2.0)." in shown
    assert "| `parallel` | 101.0 (102.0) | 102.0 (103.0) |" in block(texts, "README.md", "deaths")
    assert "| 1 ms | 2 | 102 | 2.0 | 500 us | 500 us |" in block(texts, "docs/ray.md", "ray")
    assert "at 0.5 ms of the caller's time a transition" in block(texts, "docs/ray.md", "ray").replace("\n", " ")
    for name, each in benchmarks["published"].BLOCKS.items():
        told = block(texts, each.page, name).replace("\n", " ")
        assert "2 January 2026" in told, name
        assert "| - |" not in told, f"{name}: a figure that is shown is not measured"
    assert texts["docs/quickstart.md"] == before["docs/quickstart.md"]
    assert texts["README.md"].partition("<!-- figures -->")[0] == before["README.md"].partition("<!-- figures -->")[0]


def test_rendering_again_changes_nothing(benchmarks: dict[str, Any], site: Path) -> None:
    first = rendered(benchmarks, site, all_fake())
    assert rendered(benchmarks, site, all_fake()) == first
    assert len([name for name in first if name.endswith(".svg")]) == len(benchmarks["published"].PICTURES)


def test_without_results_all_stays(benchmarks: dict[str, Any], site: Path) -> None:
    """Those of one measurement change nobody else's table."""
    results = {"sb3": all_fake()["sb3"]}
    texts = rendered(benchmarks, site, results)
    changed = [name for name, text in texts.items() if text != (ROOT / name).read_text()]
    assert changed == ["docs/sb3.md"]


def test_pictures_are_readable_and_told_in_words(benchmarks: dict[str, Any], site: Path) -> None:
    """Their texts are texts, they follow the page into the dark, and the alt text has each line's ends."""
    texts = rendered(benchmarks, site, all_fake())
    shown = dict(re.findall(r"!\[([^\]]*)\]\((figures/\w+\.svg)\)", texts["docs/benchmarks.md"]))
    assert {f"docs/{file}" for file in shown.values()} == {name for name in texts if name.endswith(".svg")}
    for alt, file in shown.items():
        root = ElementTree.fromstring(texts[f"docs/{file}"])
        said = {"".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"environments", "microseconds for a step of all of them", "2", "8", "64"} <= said
        lines = {line for line in said if line.startswith(("gymbridge ", "gymnasium-", "sb3-", "torchrl-", "raw"))}
        assert len(lines) >= 5
        assert all(f"{line} " in alt for line in lines)
        assert "prefers-color-scheme: dark" in texts[f"docs/{file}"]
        assert "<dc:date>" not in texts[f"docs/{file}"]
    assert "gymbridge gymbridge-sync 101 to 103" in next(iter(shown))


def test_marks_that_are_missing_are_told(benchmarks: dict[str, Any], site: Path) -> None:
    (site / "docs/sb3.md").write_text("# A page\n")
    with pytest.raises(ValueError, match=r"docs/sb3\.md: expected <!-- measured: sb3 -->"):
        benchmarks["all"].render(site, {"sb3": all_fake()["sb3"]})


def test_what_lacks_a_library_is_told_and_stays(
    benchmarks: dict[str, Any], site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = benchmarks["all"].Measurement("sb3_step.py", ("no_such_library",), (), ())
    monkeypatch.setitem(benchmarks["all"].MEASUREMENTS, "sb3", lacking)
    benchmarks["report"].write(site / "sb3.json", all_fake()["sb3"])
    stored = (site / "sb3.json").read_text()
    status = benchmarks["all"].main(["--full", "--only=sb3", f"--results={site}", f"--root={site}"])
    assert status == 1
    assert "not measured, stays as it is: sb3: no interpreter has no_such_library" in capsys.readouterr().err
    assert (site / "sb3.json").read_text() == stored
    assert "2 January 2026" in (site / "docs/sb3.md").read_text()


def test_what_fails_is_told_and_stays(
    benchmarks: dict[str, Any], site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that ends badly, one that could not time a candidate, and one that takes too long."""
    programs = {
        "sb3": "raise SystemExit(3)",
        "deaths": "from report import write\n"
        "from pathlib import Path\n"
        "figure = {'candidate': 'peer', 'case': 'a', 'failure': 'it broke'}\n"
        "write(Path(sys.argv[-1].partition('=')[2]), {'about': {}, 'unit': 'us', 'figures': [figure]})",
        "ray": "import threading\nthreading.Event().wait()",
    }
    for name, program in programs.items():
        (site / f"{name}.py").write_text(f"import sys\nsys.path.append({str(PROGRAMS)!r})\n{program}\n")
        measurement = benchmarks["all"].Measurement(str(site / f"{name}.py"), (), (), ())
        limit = 1.0 if name == "ray" else 100.0
        with pytest.raises(RuntimeError) as raised:
            benchmarks["all"].measured(measurement, Path(sys.executable), full=True, time_limit=limit)
        assert (
            str(raised.value)
            == {
                "sb3": "ended with status 3",
                "deaths": "could not time all: peer, a: it broke",
                "ray": "took longer than 1 s",
            }[name]
        )
    monkeypatch.setitem(
        benchmarks["all"].MEASUREMENTS, "sb3", benchmarks["all"].Measurement(str(site / "sb3.py"), (), (), ())
    )
    assert benchmarks["all"].main(["--full", "--only=sb3", f"--results={site}", f"--root={site}"]) == 1
    assert "stays as it is: sb3: ended with status 3" in capsys.readouterr().err
    assert not (site / "sb3.json").exists()


def test_a_measurement_is_stored_and_rendered(
    benchmarks: dict[str, Any], site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, with a benchmark that runs."""
    short = benchmarks["all"].Measurement("asyncio_pool.py", (), ("--num-envs=3",), ("--rounds=2", "--seconds=0.02"))
    monkeypatch.setitem(benchmarks["all"].MEASUREMENTS, "event_loop", short)
    argv = ["--only=event_loop", f"--results={site / 'results'}", f"--root={site}"]
    assert benchmarks["all"].main(["--full", *argv]) == 0
    results = json.loads((site / "results/event_loop.json").read_text())
    assert len(results["figures"][0]["rounds"]) == results["about"]["rounds"] == 2
    text = (site / "README.md").read_text()
    shown = block({"README.md": text}, "README.md", "event_loop")
    assert "3 environments whose steps await 10 ms" in shown
    assert "medians of 2 rounds of 0.02 s" in shown.replace("\n", " ")
    (site / "README.md").write_text(text.replace(shown, "what stood there before"))
    assert benchmarks["all"].main(argv) == 0
    assert (site / "README.md").read_text() == text
    assert "README.md: rendered anew" in capsys.readouterr().out

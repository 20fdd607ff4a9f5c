"""An inspection in words: for the terminal, and as a section of a results page."""

from collections.abc import Mapping
from pathlib import Path

from surgicalmamba.data.store import make_folder, write_atomic
from surgicalmamba.eval.score import Json
from surgicalmamba.studies.results import provenance_line

PICTURES = {
    "ribbons": "Annotated and predicted phases over time, errors in black",
    "planes": "Similarity of rotation planes between chunks",
    "state": "The carried state on two principal axes, coloured by phase",
    "decay": "Intensity and effective decay over the video, with the annotated phases above",
}
"""Figures that an inspection draws where the model has what they show, and what to say of them."""


def summary_text(results: Mapping[str, Json], out: Path) -> str:
    """For the terminal: accuracies, alignment, plateau."""
    lines = [f"{results['video']} of {results['dataset']}"]
    scores, planes, decay = results["strict_accuracy"], results["planes"], results["decay"]
    assert isinstance(scores, dict) and isinstance(decay, dict)
    lines += [f"  strict accuracy      {name}: {score:.2f} %" for name, score in scores.items() if isinstance(score, float)]
    if isinstance(planes, dict) and isinstance(planes["blocks"], list):
        for block, numbers in enumerate(planes["blocks"]):
            assert isinstance(numbers, dict)
            same, other, theta = (_told(numbers[key]) for key in ("same_phase", "other_phase", "median_theta"))
            lines.append(f"  planes, block {block}      same phase {same}, other phase {other}, median theta {theta}")
    for name, numbers in decay.items():
        assert isinstance(numbers, dict)
        kept, after = _told(numbers["plateau_per_s"]), _told(numbers["at_boundaries"])
        lines.append(f"  decay                {name}: keeps {kept} a second within phases, {after} a sample after boundaries")
    return "\n".join([*lines, f"{out / 'index.html'}"])


def _told(value: Json, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else "-"


def section(results: Mapping[str, Json], title: str, pictures: str) -> str:
    """The inspection on a results page: what was run, the four views with their numbers. `pictures` are lines that show the figures."""
    scores, planes, states, decay = (results[key] for key in ("strict_accuracy", "planes", "state", "decay"))
    assert isinstance(scores, dict) and isinstance(states, dict) and isinstance(decay, dict)
    lines = [
        f"## {title}",
        "",
        f"{provenance_line(results)} `{results['video']}` of {results['dataset']}.",
        "",
        f"```\n{results['command']}\n```",
        "",
        pictures,
        "",
        "| | strict accuracy | kept a second within phases | kept a sample after boundaries | intensity within phases | after boundaries "
        "| directions of the state |",
        "|---" * 7 + "|",
    ]
    for name in dict.fromkeys([*scores, *states, *decay]):
        state, kept = (part.get(name) or {} for part in (states, decay))
        assert isinstance(state, dict) and isinstance(kept, dict)
        numbers = [_told(kept.get(key)) for key in ("plateau_per_s", "at_boundaries", "intensity_inside", "intensity_at_boundaries")]
        lines.append(f"| {name} | " + " | ".join([_told(scores.get(name), 2), *numbers, _told(state.get("dimensions"), 2)]) + " |")
    if isinstance(planes, dict) and isinstance(planes["blocks"], list):
        lines += ["", "| rotation planes | same phase | other phase | median angle |", "|---|---|---|---|"]
        for block, numbers_of in enumerate(planes["blocks"]):
            assert isinstance(numbers_of, dict)
            cells = [_told(numbers_of[key]) for key in ("same_phase", "other_phase", "median_theta")]
            lines.append(f"| block {block} | " + " | ".join(cells) + " |")
        lines += ["", f"Planes that have nothing to do with each other would score {_told(planes['chance'])}."]
    return "\n".join(lines) + "\n"


def pictures_on_page(results: Mapping[str, Json], folder: Path, page: Path, name: str) -> str:
    """Put the figures that show something into the page's `images` folder; the lines of Markdown that show them."""
    images = page.parent / "images"
    make_folder(images)
    lines = []
    for view, alt in PICTURES.items():
        if results.get(view, True) is not None:
            write_atomic(images / f"{name}-{view}.png", (folder / f"{view}.png").read_bytes())
            lines.append(f"![{alt}](images/{name}-{view}.png)")
    return "\n\n".join(lines)

"""An inspection in words: for the terminal, and as a section of a results page."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from surgicalmamba.data.store import make_folder, write_atomic
from surgicalmamba.eval.score import Json
from surgicalmamba.insight.inspection import OWN
from surgicalmamba.report.sections import provenance_line

PICTURES = {
    "ribbons": "Annotated and predicted phases over time, errors in black",
    "planes": "Similarity of rotation planes between chunks",
    "state": "The carried state on two principal axes, coloured by phase",
    "decay": "Intensity and effective decay over the video, with the annotated phases above",
}
"""Figures that an inspection draws where the model has what they show, and what to say of them."""
GAPS = {"gap": "gap", "relative_gap": "relative gap"}


def summary_text(results: Mapping[str, Json], out: Path) -> str:
    """For the terminal: accuracies, alignment, angles and content dependence beside the untrained mean, plateau."""
    lines = [f"{results['video']} of {results['dataset']}"]
    scores, planes, rotation, decay = (results[key] for key in ("strict_accuracy", "planes", "rotation", "decay"))
    assert isinstance(scores, dict) and isinstance(decay, dict)
    lines += [f"  strict accuracy      {name}: {score:.2f} %" for name, score in scores.items() if isinstance(score, float)]
    if isinstance(planes, dict) and isinstance(planes["blocks"], list):
        for block, numbers in enumerate(planes["blocks"]):
            assert isinstance(numbers, dict)
            lines.append(
                f"  planes, block {block}      same phase {_told(numbers['same_phase'])}, other phase {_told(numbers['other_phase'])}"
            )
            for name, words in GAPS.items():
                trained, untrained, verdict = _compared(numbers[name])
                lines.append(f"    {words:<19}{trained}, untrained {untrained}: {verdict}")
    for name, numbers in decay.items():
        assert isinstance(numbers, dict)
        kept, after = _told(numbers["plateau_per_s"]), _told(numbers["at_boundaries"])
        lines.append(f"  decay                {name}: keeps {kept} a second within phases, {after} a sample after boundaries")
    if beside := [*_rotation_lines(rotation), *_intensity_lines(decay[OWN])]:
        lines += [*beside, "  in parentheses: the same with untrained rotators and intensity, mean over draws"]
    return "\n".join([*lines, f"{out / 'index.html'}"])


def _rotation_lines(rotation: Json) -> Iterator[str]:
    for path, numbers in (rotation if isinstance(rotation, dict) else {}).items():
        theta, high, content = (_beside(numbers, measure) for measure in ("theta_q50", "theta_q90", "content_dependence"))
        yield f"  rotation, {path:<11}median theta {theta}, 0.9 quantile {high}, content dependence {content}"


def _intensity_lines(decay: Json) -> Iterator[str]:
    assert isinstance(decay, dict)
    blocks = decay.get("intensity_of_blocks")
    for block, numbers in enumerate(blocks if isinstance(blocks, list) else []):
        precision, entropy = (_beside(numbers, measure) for measure in ("average_precision", "bce"))
        chance, constant = (_told(_trained(numbers)[measure]) for measure in ("boundary_share", "bce_of_constant"))
        found = f"average precision {precision}, by chance {chance}; cross-entropy {entropy}, of a constant {constant}"
        yield f"  intensity, block {block}   {found}"


def _told(value: Json, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else "-"


def _compared(gap: Json) -> list[str]:
    """A gap of the trained model, of the untrained draws, and where the one lies in the range of the others."""
    assert isinstance(gap, dict) and isinstance(gap["untrained"], dict)
    mean, low, high = (_told(gap["untrained"][key]) for key in ("mean", "low", "high"))
    return [_told(gap["trained"]), f"{mean} ({low} to {high})", str(gap["verdict"])]


def _beside(part: Json, measure: str) -> str:
    """A measure of a path or a block, and its mean over untrained draws in parentheses."""
    assert isinstance(part, dict) and isinstance(part["untrained"], dict)
    spread = part["untrained"][measure]
    assert isinstance(spread, dict)
    return f"{_told(_trained(part)[measure])} ({_told(spread['mean'])})"


def _trained(part: Json) -> dict[str, Json]:
    assert isinstance(part, dict) and isinstance(part["trained"], dict)
    return part["trained"]


def section(results: Mapping[str, Json], title: str, pictures: str) -> str:
    """The inspection on a results page: what was run, the four views with their numbers. `pictures` are lines that show the figures."""
    scores, planes, rotation, states, decay = (results[key] for key in ("strict_accuracy", "planes", "rotation", "state", "decay"))
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
        lines += ["", "| rotation planes | same phase | other phase | | trained | untrained, mean and range | |", "|---" * 7 + "|"]
        for block, numbers_of in enumerate(planes["blocks"]):
            assert isinstance(numbers_of, dict)
            means = [_told(numbers_of[key]) for key in ("same_phase", "other_phase")]
            lines += [
                f"| block {block} | " + " | ".join([*means, words, *_compared(numbers_of[name])]) + " |" for name, words in GAPS.items()
            ]
    if isinstance(rotation, dict):
        lines += ["", "| rotation | theta, 0.1 quantile | median | 0.9 quantile | content dependence |", "|---" * 5 + "|"]
        for path, of_path in rotation.items():
            measures = ("theta_q10", "theta_q50", "theta_q90", "content_dependence")
            lines.append(f"| {path} | " + " | ".join(_beside(of_path, measure) for measure in measures) + " |")
        lines += ["", "Untrained, and in parentheses: the mean over draws of the same network with rotators and intensity never trained."]
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

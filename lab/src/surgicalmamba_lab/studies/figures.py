"""Figures of studies on disk: PNG and SVG in the study's folder, and a PNG beside the page that shows it."""

from pathlib import Path

from matplotlib.figure import Figure


def save_figure(figure: Figure, folder: Path, name: str) -> None:
    """The figure as PNG and SVG, each whole or not at all."""
    for kind in ("png", "svg"):
        _save(figure, folder / f"{name}.{kind}", kind)


def figure_on_page(figure: Figure, page: Path, name: str, alt: str) -> str:
    """Put the picture into the page's `images` folder and return the line of Markdown that shows it."""
    folder = page.parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    _save(figure, folder / f"{name}.png", "png")
    return f"![{alt}](images/{name}.png)"


def _save(figure: Figure, file: Path, kind: str) -> None:
    part = file.with_name(f".{file.name}.part")
    figure.savefig(part, dpi=150, format=kind)
    part.replace(file)

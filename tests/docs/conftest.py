"""What a reader has at hand: the files that the getting-started page makes, and small recordings, arrays and
labels of their own."""

import csv
import os
import shutil

import numpy as np
import pytest
from filelock import FileLock

import surgicalmamba as sm
from docs.blocks import ROOT, blocks
from docs.running import PageRun
from surgicalmamba.data.synthetic import PHASE_NAMES, operation
from surgicalmamba.data.synthetic.recording import encode

OWN_PHASES = ("Access", "Dissection", "Closure")


def add_own_videos(folder):
    """op01 to op10: three seconds of video each, and segments as labels."""
    folder.mkdir()
    (folder / "phases.yaml").write_text(f"phases: [{', '.join(OWN_PHASES)}]\n", encoding="utf-8")
    renderer = operation(0, 0, short=True, fps=1).renderer
    pictures = [np.ascontiguousarray(renderer.frame(i)[:180, :240]) for i in range(25)]
    for number in range(1, 11):
        encode(folder / f"op{number:02d}.mp4", pictures[number : number + 15], fps=5)
        rows = ["start,end,phase", *(f"{i},{i + 1},{name}" for i, name in enumerate(OWN_PHASES))]
        (folder / f"op{number:02d}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def add_own_arrays(folder):
    """Vectors of five procedures, with labels and phase names."""
    folder.mkdir()
    (folder / "phases.yaml").write_text("phases: [Access, Dissection, Closure]\nfps: 1\n", encoding="utf-8")
    rng = np.random.default_rng(0)
    for number in range(1, 6):
        np.savez(
            folder / f"op{number:02d}.npz",
            x=rng.normal(size=(30, 4)).astype(np.float32),
            y=np.repeat([0, 1, 2], 10),
        )


def add_labels_and_predictions(folder):
    """Plain label files of two videos with the phases of Cholec80, and what two systems said about them."""
    truth = np.repeat(np.arange(7), 20)
    for system, late in (("labels", 0), ("system-a", 3), ("system-b", 12)):
        (folder / system).mkdir()
        for number in (41, 42):
            said = np.concatenate([truth[:1].repeat(late), truth[: len(truth) - late]])
            with (folder / system / f"video{number}-phase.txt").open(
                "w", encoding="utf-8", newline=""
            ) as file:
                rows = csv.writer(file, delimiter="\t")
                rows.writerow(["Frame", "Phase"])
                rows.writerows((i, PHASE_NAMES[phase]) for i, phase in enumerate(said))


def build(folder):
    """Work through docs/getting-started.md, then put a reader's own files beside what it leaves."""
    folder.mkdir()
    shutil.copytree(ROOT / "configs", folder / "configs")
    (folder / "src").symlink_to(
        ROOT / "src"
    )  # some commands name the demo model by its place in the repository
    with PageRun(folder) as run:
        for block in blocks(ROOT / "docs" / "getting-started.md"):
            run.block(block)
    add_own_videos(folder / "my-videos")
    add_own_arrays(folder / "my-arrays")
    add_labels_and_predictions(folder)
    width = sm.load(folder / "runs" / "tiny" / "best").feature_width
    np.save(folder / "features.npy", np.zeros((20, width), np.float32))


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """The folder of somebody who has worked through docs/getting-started.md. Test processes that run side by
    side share one."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(place / "reader.lock"):
        if not (place / "reader").exists():
            shutil.rmtree(place / "reader-draft", ignore_errors=True)
            build(place / "reader-draft")
            (place / "reader-draft").rename(place / "reader")
    return place / "reader"

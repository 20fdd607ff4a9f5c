"""Preparing: complete or not there, the same bytes however often it was killed, and plain words when
something is stale or broken."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from surgicalmamba.data.pictures import Preprocess, read_image
from surgicalmamba.data.prepare import Request, prepare
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def clips(tmp_path_factory, numbered):
    """Ten recordings of ten seconds with labels, in the layout of a user's own data."""
    source = tmp_path_factory.mktemp("own")
    (source / "phases.yaml").write_text("phases: [Alpha, Beta]\n")
    for i in range(10):
        numbered.write(
            source / f"op{i}.mp4", 250, gop=25, picture=lambda n, i=i: numbered.picture((n + 7 * i) % 1000)
        )
        (source / f"op{i}.csv").write_text("start,end,phase\n0,5,Alpha\n5,10,Beta\n")
    return source


@pytest.fixture
def source(clips, tmp_path):
    folder = tmp_path / "source"
    shutil.copytree(clips, folder)
    for path in sorted(folder.glob("op[3-9].*")):
        path.unlink()
    return folder


def tree(folder):
    """Every file below a folder with the hash of its content."""
    files = sorted(p for p in Path(folder).rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def command(source, out, *more):
    base = [
        sys.executable,
        "-m",
        "surgicalmamba",
        "prepare",
        "custom",
        "--source",
        str(source),
        "--out",
        str(out),
    ]
    return [*base, *more]


def run(source, out, *more, **options):
    return subprocess.run(command(source, out, *more), capture_output=True, text=True, check=False, **options)


def test_one_process_and_several_write_the_same_bytes(source, tmp_path):
    prepare(Request("custom", source, tmp_path / "one", workers=1))
    prepare(Request("custom", source, tmp_path / "two", workers=2))
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert not (tmp_path / "two/.partial").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_grows_and_ends_at_the_whole(source, tmp_path, workers):
    heard = []
    prepare(
        Request("custom", source, tmp_path / "out", fps=Fraction(5), workers=workers),
        lambda done, total: heard.append((done, total)),
    )
    total = sum(path.stat().st_size for path in source.glob("op*"))
    assert heard[0] == (0, total) and heard[-1] == (pytest.approx(total), total)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard) and len(heard) > 10


def test_a_source_folder_elsewhere_gives_the_same_bytes(source, tmp_path):
    shutil.copytree(source, tmp_path / "moved")
    prepare(Request("custom", source, tmp_path / "one"))
    prepare(Request("custom", tmp_path / "moved", tmp_path / "two"))
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def children_of(pid):
    """Processes whose parent is `pid`, by the process table."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at the process table in /proc")
def test_killed_again_and_again_it_ends_with_the_bytes_of_a_run_in_peace(clips, tmp_path):
    """kill -9 of the parent at random moments; the workers leave by themselves, and what is there is never
    taken for finished."""
    settings = ("--fps", "5", "--workers", "2")
    assert run(clips, tmp_path / "peace", *settings).returncode == 0
    out = tmp_path / "out"
    dice = random.Random(4)
    kills = 0
    for _ in range(5):
        process = subprocess.Popen(
            command(clips, out, *settings), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        begun = set((out / "videos").iterdir()) if (out / "videos").is_dir() else set()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and process.poll() is None:
            now = set((out / "videos").iterdir()) if (out / "videos").is_dir() else set()
            if now - begun or ((out / ".partial").is_dir() and any((out / ".partial").glob("op*"))):
                break
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.4))
        if process.poll() is not None:
            break
        workers = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        with pytest.raises(DataError, match=r"unfinished|no dataset\.json"):
            PreparedDataset.open(out)
        deadline = time.monotonic() + 5
        while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(alive(pid) for pid in workers), "a worker outlived its parent"
    assert kills >= 3
    last = run(clips, out, *settings)
    assert last.returncode == 0, last.stderr
    assert tree(out) == tree(tmp_path / "peace")


def test_a_second_call_does_nothing_and_says_so(source, tmp_path):
    prepare(Request("custom", source, tmp_path / "out"))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    outcome = prepare(Request("custom", source, tmp_path / "out"))
    assert outcome.prepared == [] and len(outcome.kept) == 3
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    assert {p: t for p, t in after.items() if p.is_file()} == {p: t for p, t in before.items() if p.is_file()}


def test_a_changed_source_is_noticed_and_only_that_video_is_prepared_again(source, tmp_path):
    prepare(Request("custom", source, tmp_path / "out"))
    (source / "op1.csv").write_text("start,end,phase\n0,9,Alpha\n9,10,Beta\n")
    outcome = prepare(Request("custom", source, tmp_path / "out"))
    assert outcome.prepared == ["op1"] and sorted(outcome.kept) == ["op0", "op2"]
    assert any("op1: its source files have changed" in warning for warning in outcome.warnings)
    assert PreparedDataset.open(tmp_path / "out").videos["op1"].labels.tolist() == [0] * 9 + [1]


def test_changed_settings_are_refused_by_name_and_rebuilt_on_request(source, tmp_path):
    prepare(Request("custom", source, tmp_path / "out"))
    before = tree(tmp_path / "out")
    with pytest.raises(DataError, match=r"was prepared with fps 1 \(now 5\): it is stale. Add --rebuild"):
        prepare(Request("custom", source, tmp_path / "out", fps=Fraction(5)))
    with pytest.raises(DataError, match=r"box inclusive \(now none\), size 250 \(now 64\)"):
        prepare(Request("custom", source, tmp_path / "out", preprocess=Preprocess("none", 64)))
    assert tree(tmp_path / "out") == before
    prepare(Request("custom", source, tmp_path / "out", fps=Fraction(5), rebuild=True))
    assert PreparedDataset.open(tmp_path / "out").videos["op0"].n_samples == 50


def test_other_phase_names_make_the_dataset_stale(source, tmp_path):
    prepare(Request("custom", source, tmp_path / "out"))
    (source / "phases.yaml").write_text("phases: [Beta, Alpha]\n")
    with pytest.raises(DataError, match=r"phases .* it is stale"):
        prepare(Request("custom", source, tmp_path / "out"))


def test_a_video_that_left_the_source_is_refused(source, tmp_path):
    prepare(Request("custom", source, tmp_path / "out"))
    (source / "op1.mp4").unlink()
    with pytest.raises(DataError, match=r"holds video op1, which .* does not have"):
        prepare(Request("custom", source, tmp_path / "out"))


def test_broken_videos_fail_alone_and_the_run_ends_with_a_table_and_exit_code_1(source, tmp_path):
    (source / "op1.mp4").write_bytes(b"not a video at all" * 100)
    (source / "op2.csv").write_text("start,end,phase\n0,5,Gamma\n")
    done = run(source, tmp_path / "out")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "2 of 3 videos failed; the dataset is unfinished" in done.stdout
    assert (
        "op1.mp4: a text file, not a video" in done.stdout
        and "op2.csv:2: unknown phase 'Gamma'" in done.stdout
    )
    assert not (tmp_path / "out/dataset.json").exists() and (tmp_path / "out/videos/op0").is_dir()
    mended = run(source, tmp_path / "out", "--exclude", "op1", "--exclude", "op2")
    assert mended.returncode == 0 and "1 videos ready (0 prepared, 1 already there)" in mended.stdout


def test_a_length_difference_within_the_tolerance_is_told_and_beyond_it_refused(source, tmp_path):
    frames = "".join(f"{i}\tAlpha\n" for i in range(200))
    (source / "op1.csv").write_text("Frame\tPhase\n" + frames)
    outcome = prepare(Request("custom", source, tmp_path / "a"))
    assert any(
        "op1.mp4: 2 more samples than" in w and "the surplus is left out" in w for w in outcome.warnings
    )
    assert PreparedDataset.open(tmp_path / "a").videos["op1"].n_samples == 8
    failure = prepare(Request("custom", source, tmp_path / "b", tolerance=1)).failures["op1"]
    assert "250 frames at 25 fps make 2 more samples than" in failure and "raise --tolerance" in failure
    (source / "op1.csv").write_text("Frame\tPhase\n" + "".join(f"{i}\tAlpha\n" for i in range(400)))
    assert "make 6 fewer samples than" in prepare(Request("custom", source, tmp_path / "c")).failures["op1"]


def test_a_cut_off_video_whose_announced_length_fits_is_kept_as_far_as_it_goes(source, tmp_path):
    (source / "op1.csv").write_text("Frame\tPhase\n" + "".join(f"{i}\tAlpha\n" for i in range(250)))
    data = (source / "op1.mp4").read_bytes()
    (source / "op1.mp4").write_bytes(data[: len(data) // 2])
    outcome = prepare(Request("custom", source, tmp_path / "out"))
    assert outcome.failures == {}
    assert any(
        "op1.mp4: cut off; readable up to" in w and "of 10.0 s announced" in w for w in outcome.warnings
    )
    assert 2 <= PreparedDataset.open(tmp_path / "out").videos["op1"].n_samples < 10


def test_the_stored_pictures_are_the_preprocessed_samples(source, tmp_path, numbered):
    prepare(Request("custom", source, tmp_path / "out", preprocess=Preprocess("none", 160)))
    video = PreparedDataset.open(tmp_path / "out").videos["op1"]
    assert [numbered.read(read_image(path)) for path in video.frame_paths] == [
        (25 * k + 7) % 1000 for k in range(10)
    ]


class MeanColour:
    """A stand-in for a backbone: three features, the mean of each colour."""

    name = "mean colour"

    def __init__(self):
        self.sizes = []

    def __call__(self, rgb):
        self.sizes.append(rgb.shape)
        return rgb.mean(axis=(1, 2)).astype(np.float32)


def test_an_encoder_turns_the_dataset_into_features_once(source, tmp_path):
    encoder = MeanColour()
    request = Request("custom", source, tmp_path / "out", fps=Fraction(5), encoder=encoder)
    assert prepare(request).failures == {}
    dataset = PreparedDataset.open(tmp_path / "out")
    assert (
        dataset.kind == "features"
        and dataset.d_feature == 3
        and dataset.manifest.settings["encoder"] == "mean colour"
    )
    assert encoder.sizes[:2] == [(32, 250, 250, 3), (18, 250, 250, 3)]
    plain = prepare(Request("custom", source, tmp_path / "images", fps=Fraction(5)))
    assert plain.failures == {}
    image = read_image(PreparedDataset.open(tmp_path / "images").videos["op2"].frame_path(7))
    assert np.allclose(dataset.videos["op2"].features[7], image.mean(axis=(0, 1)), atol=1.0)
    assert prepare(request).kept == ["op0", "op1", "op2"]


def test_features_of_features_are_refused(tmp_path, real_data):
    with pytest.raises(ConfigError, match="already consists of features"):
        prepare(Request("jigsaws", real_data("jigsaws"), tmp_path / "out", encoder=MeanColour()))


def test_places_that_cannot_be_used_are_refused_before_anything_is_written(source, tmp_path):
    with pytest.raises(ConfigError, match="lie inside each other"):
        prepare(Request("custom", source, source / "out"))
    with pytest.raises(ConfigError, match="lie inside each other"):
        prepare(Request("custom", source, tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    with pytest.raises(DataError, match=r"holds other files \(thesis.tex\)"):
        prepare(Request("custom", source, tmp_path / "mine"))
    assert sorted(p.name for p in (tmp_path / "mine").iterdir()) == ["thesis.tex"]
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot make the folder .*file"):
        prepare(Request("custom", source, tmp_path / "file"))
    with pytest.raises(ConfigError, match="--exclude op77: no such video"):
        prepare(Request("custom", source, tmp_path / "out", exclude=("op77",)))
    with pytest.raises(DataError, match="every video is excluded"):
        prepare(Request("custom", source, tmp_path / "out", exclude=("op0", "op1", "op2")))


def test_two_runs_at_once_do_not_share_a_folder(source, tmp_path):
    fcntl = pytest.importorskip("fcntl", reason="locks need a POSIX system")
    (tmp_path / "out/.partial").mkdir(parents=True)
    with (tmp_path / "out/.partial/lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another prepare is writing"):
            prepare(Request("custom", source, tmp_path / "out"))


def test_a_full_disk_is_told_and_leaves_nothing_that_passes_for_finished(source, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs privileges that are not here")
    try:
        done = run(source, disk / "out", "--workers", "1", "--fps", "5")
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert (
            "No space left on device. Free some space and run the same command again"
            in done.stdout + done.stderr
        )
        assert not (disk / "out/dataset.json").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def without_privileges():
    """Let file permissions hold for root, too: the program that follows cannot override them."""
    import ctypes

    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        drop_from_bounding_set, override, read_search = (
            24,
            1,
            2,
        )  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        for capability in (override, read_search):
            if libc.prctl(drop_from_bounding_set, capability, 0, 0, 0):
                raise OSError("cannot drop privileges")


@pytest.mark.skipif(sys.platform != "linux", reason="drops privileges in the way of Linux")
def test_no_permission_is_told_for_reading_and_for_writing(source, tmp_path):
    (source / "op1.mp4").chmod(0)
    (source / "op2.csv").chmod(0)
    read = run(source, tmp_path / "out", "--workers", "1", preexec_fn=without_privileges)
    assert read.returncode == 1 and "2 of 3 videos failed" in read.stdout
    for name in ("op1.mp4", "op2.csv"):
        assert f"{name}: cannot be read (Permission denied)" in read.stdout
        (source / name).chmod(0o644)
    (source / "hidden").mkdir(mode=0)
    listed = run(source, tmp_path / "out", "--workers", "1", preexec_fn=without_privileges)
    assert listed.returncode == 1 and "hidden: cannot be read (Permission denied)" in listed.stderr
    (source / "hidden").rmdir()
    (tmp_path / "locked").mkdir(mode=0o555)
    write = run(source, tmp_path / "locked/out", "--workers", "1", preexec_fn=without_privileges)
    assert write.returncode == 1 and "Permission denied. Choose a folder you may write to" in write.stderr
    assert "Traceback" not in read.stderr + listed.stderr + write.stderr

"""The stand-in for recordings of brains by its law; the reader of the recordings by a fake one."""

import pathlib
import sys
import types

import numpy as np
import pytest

from experiments.fco import brains
from experiments.fco.brains import haxby, sparse_classification


def subjects_of(data):
    return np.array([int(name.split(",")[0].split()[1]) for name in data.client_ids])


def test_shapes_are_those_of_the_recordings():
    scans = sparse_classification(0, dim=20, num_nonzero=3)
    assert scans.train.sizes.tolist() == [18] * 59
    assert scans.test.sizes.tolist() == [18] * 12
    assert np.bincount(subjects_of(scans.train)).tolist() == [0, 12, 12, 12, 12, 11]
    assert np.bincount(subjects_of(scans.test))[6:].tolist() == [12]
    for data in scans[:2]:
        assert data.examples["x"].shape == (18 * data.num_clients, 20)
        assert data.examples["y"].dtype == np.int32
        for client in range(data.num_clients):  # balanced
            assert np.bincount(data.client(client)["y"]).tolist() == [9, 9]
    assert brains.VOXELS == 39912


def test_truth_is_sparse_and_of_unit_length():
    weight = sparse_classification(0, dim=400, num_nonzero=25, dtype=np.float64).weight
    assert set(np.round(weight, 12)) == {-0.2, 0.0, 0.2}
    assert np.count_nonzero(weight) == 25


def test_classes_differ_by_the_truth_alone():
    """3,000 examples a class: within 5 standard errors of a difference of means, sqrt(2 / 3000).

    Every session has both classes in equal numbers, so that shifts cancel.
    """
    scans = sparse_classification(
        1, dim=200, num_nonzero=8, train_sessions=(100, 200), test_sessions=(1,),
        examples_per_session=20, separation=3.0, heterogeneity=2.0, dtype=np.float64,
    )  # fmt: skip
    x, y = scans.train.examples["x"], scans.train.examples["y"]
    difference = x[y == 1].mean(0) - x[y == 0].mean(0)
    np.testing.assert_allclose(difference, 3.0 * scans.weight, atol=5 * (2 / 3000) ** 0.5)
    # Without its class's mean every session is its subject's shift and unit noise.
    rest = x - 3.0 * np.outer(y - 0.5, scans.weight)
    owners = subjects_of(scans.train)[scans.train.owners()]
    shifts = np.stack([rest[owners == subject].mean(0) for subject in (1, 2)])
    np.testing.assert_allclose((rest - shifts[owners - 1]).std(0), 1.0, rtol=5 / (2 * 6000) ** 0.5)
    np.testing.assert_allclose(shifts.std(), 2.0, rtol=5 / (2 * 400) ** 0.5)
    assert abs(np.corrcoef(shifts)[0, 1]) < 5 / 200**0.5
    # Sessions of one subject have the same shift: 20 examples, 0.22 standard errors.
    one, two = (rest[scans.train.owners() == client].mean(0) for client in (0, 1))
    assert abs(one - two).max() < 5 * (2 / 20) ** 0.5


def test_one_seed_is_one_problem():
    few, double = (sparse_classification(3, dim=9, num_nonzero=2, **options) for options in (
        {"test_sessions": (1, 1)}, {"dtype": np.float64}))  # fmt: skip
    again = sparse_classification(np.random.default_rng(3), dim=9, num_nonzero=2)
    x = double.train.examples["x"].astype(np.float32)
    for scans in (few, again):
        np.testing.assert_array_equal(scans.train.examples["x"], x)
        assert scans.weight.dtype == scans.train.examples["x"].dtype == np.float32
    assert few.test.client_ids == ("subject 6, session 1", "subject 7, session 1")
    other = sparse_classification(4, dim=9, num_nonzero=2)
    assert (other.train.examples["x"] != x).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim is 0; expected at least 1"),
        ({"num_nonzero": 6}, "num_nonzero is 6; expected at most dim, 5"),
        ({"num_nonzero": 0}, "num_nonzero is 0; expected at least 1"),
        ({"examples_per_session": 3}, "examples_per_session is 3; expected an even number"),
        ({"train_sessions": ()}, r"train_sessions is \(\); expected at least one session"),
        ({"test_sessions": (2, 0)}, r"test_sessions is \(2, 0\); expected at least one session"),
        ({"separation": -1.0}, "separation is -1.0; expected at least 0"),
        ({"heterogeneity": np.nan}, "heterogeneity is nan; expected at least 0"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        sparse_classification(0, **({"dim": 5, "num_nonzero": 2} | options))


KINDS = ("rest", "face", "cat", "house")
SCANS = len(KINDS)  # a session; recordings have 121


def write_recordings(root, subjects=(1, 2, 6), labels=None):
    """Folders as nilearn has them: a scan of every kind a session, three voxels in a text file."""
    folder = root / brains.FOLDER
    for number in subjects:
        sessions = 1 if number == 2 else 2
        subject = folder / f"subj{number}"
        subject.mkdir(parents=True)
        rows = [f"{kind} {session}" for session in range(sessions) for kind in KINDS]
        (subject / "labels.txt").write_text("\n".join(labels or ["labels chunks", *rows]) + "\n")
        scans = [(number, scan, scan % SCANS) for scan in range(sessions * SCANS)]
        (subject / "bold.nii.gz").write_text("\n".join(" ".join(map(str, s)) for s in scans))
    for name in ("mask.nii.gz", "MD5SUMS"):
        (folder / name).write_text("")
    return root


@pytest.fixture
def nilearn(monkeypatch):
    """Stand-in for nilearn by its documentation, on the files above; returns the calls."""
    calls = []

    def fetch_haxby(data_dir=None, subjects=(2,), verbose=1):
        calls.append(subjects)
        folder = f"{data_dir}/{brains.FOLDER}"
        return {
            "func": [f"{folder}/subj{i}/bold.nii.gz" for i in subjects],
            "session_target": [f"{folder}/subj{i}/labels.txt" for i in subjects],
            "mask": f"{folder}/mask.nii.gz",
        }

    class NiftiMasker:
        def __init__(self, mask_img=None, runs=None, standardize=False):
            calls.append((mask_img.rpartition("/")[2], runs.tolist(), standardize))

        def fit_transform(self, imgs):
            return np.loadtxt(pathlib.Path(imgs).read_text().splitlines())

    package = types.ModuleType("nilearn")
    package.datasets = types.SimpleNamespace(fetch_haxby=fetch_haxby)
    package.maskers = types.SimpleNamespace(NiftiMasker=NiftiMasker)
    monkeypatch.setitem(sys.modules, "nilearn", package)
    return calls


def test_reads_houses_and_faces_session_by_session(tmp_path, nilearn):
    write_recordings(tmp_path)
    scans = haxby(tmp_path, train_subjects=(2, 1))
    assert nilearn[0] == [2, 1, 6]
    assert nilearn[1] == ("mask.nii.gz", [0] * SCANS, "zscore_sample")
    assert nilearn[2] == ("mask.nii.gz", [0] * SCANS + [1] * SCANS, "zscore_sample")
    # Scans 1 and 3 of a session are of a face and of a house.
    assert scans.train.examples["x"].tolist() == [
        [2, 1, 1], [2, 3, 3], [1, 1, 1], [1, 3, 3], [1, 5, 1], [1, 7, 3],
    ]  # fmt: skip
    assert scans.train.examples["x"].dtype == np.float32
    assert scans.train.examples["y"].tolist() == [1, 0] * 3
    assert scans.train.offsets.tolist() == [0, 2, 4, 6]
    assert scans.train.client_ids[1:] == ("subject 1, session 1", "subject 1, session 2")
    assert scans.test.client_ids == ("subject 6, session 1", "subject 6, session 2")
    assert scans.weight is None


def test_bad_recordings_are_refused(tmp_path, nilearn):
    write_recordings(tmp_path / "short", labels=["labels chunks", "face 0"])
    with pytest.raises(ValueError, match=r"labels\.txt: 1 rows; expected 8, one per scan"):
        haxby(tmp_path / "short", train_subjects=(1,))
    write_recordings(tmp_path / "columns", labels=["labels", "face"])
    with pytest.raises(ValueError, match=r"columns \['labels'\]; expected labels and chunks"):
        haxby(tmp_path / "columns", train_subjects=(1,))


def test_nothing_is_fetched_unasked(tmp_path, nilearn):
    write_recordings(tmp_path)
    assert brains.is_available(tmp_path)
    assert not brains.is_available(tmp_path / "elsewhere")
    assert not brains.is_available(None)
    message = r"subj3/bold\.nii\.gz, subj3/labels\.txt missing; expected nilearn's folder"
    with pytest.raises(ValueError, match=message):
        haxby(tmp_path, train_subjects=(1, 3))
    assert nilearn == []


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            (1, 6),
            (6,),
            r"subjects are \[1, 6, 6\]; expected distinct ones",
        ),
        ((), (6,), "expected distinct ones"),
        ((0, 1), (6,), "expected numbers from 1 to 6"),
    ],
)
def test_other_subjects_are_refused(tmp_path, train, test, message):
    with pytest.raises(ValueError, match=message):
        haxby(tmp_path, train_subjects=train, test_subjects=test)


def test_says_what_to_install(tmp_path, monkeypatch):
    write_recordings(tmp_path)
    monkeypatch.setitem(sys.modules, "nilearn", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[fmri\]'"):
        haxby(tmp_path, train_subjects=(1,))

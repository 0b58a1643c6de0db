r"""Brain scans of subjects who see pictures of two classes; a client is a session of one subject.

:func:`haxby` reads the recordings of Haxby et al.; :func:`sparse_classification` generates a
problem of the same shapes, if the recordings are not available. The test sets consist of other
subjects.

References:
    Haxby et al., "Distributed and Overlapping Representations of Faces and Objects in Ventral
        Temporal Cortex", 2001.
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, section 4.5.4.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

import fedjax_sim as fs
from fedjax_sim.checks import check_at_least, check_count, import_extra

TRAIN_SUBJECTS, TEST_SUBJECTS = (1, 2, 3, 4, 5), (6,)
# Sessions per subject. A session has nine scans of each class.
TRAIN_SESSIONS, TEST_SESSIONS, SCANS, VOXELS = (12, 12, 12, 12, 11), (12,), 18, 39912
CLASSES = ("house", "face")
FOLDER = "haxby2001"  # nilearn's folder in the data directory


class Scans(NamedTuple):
    """Training and test data: ``{"x": [N, voxels] float, "y": [N] int32}``."""

    train: fs.FederatedData
    test: fs.FederatedData  # of other subjects
    weight: np.ndarray | None  # [voxels] direction between the classes, if known


def sparse_classification(
    seed: int | np.random.Generator,  # int or generator
    *,
    dim: int = VOXELS,  # features per example
    num_nonzero: int = VOXELS // 200,  # number of nonzero entries of w, 1 to ``dim``
    train_sessions: Sequence[int] = TRAIN_SESSIONS,  # number of sessions of every training subject
    test_sessions: Sequence[int] = TEST_SESSIONS,  # number of sessions of every test subject
    examples_per_session: int = SCANS,  # an even number
    separation: float = 5.0,  # c, the distance between the classes' means, >= 0
    heterogeneity: float = 0.5,  # h, >= 0
    dtype: DTypeLike = np.float32,  # of inputs and w
) -> Scans:
    r"""Two classes that differ in few of many features; every subject has its own shift.

    .. math::
        x = h\, \nu_s + c\, (y - \tfrac12)\, w + \varepsilon, \qquad
        \nu_s, \varepsilon \sim N(0, I), \quad \|w\|_2 = 1

    w has ``num_nonzero`` nonzero entries of equal magnitude, at random places and with random
    signs. The shift :math:`\nu_s` is drawn once per subject. Half of every session's examples have
    class 0, the others class 1. If the shift is known, the best rule is the sign of :math:`\langle
    w, x - h \nu_s \rangle`, which is correct with probability :math:`\Phi(c / 2)`; the shift of a
    new subject is unknown.

    For one seed the training examples depend neither on ``dtype`` nor on the test sessions.
    """
    check_count(1, dim=dim, num_nonzero=num_nonzero, examples_per_session=examples_per_session)
    check_at_least(0.0, separation=separation, heterogeneity=heterogeneity)
    if num_nonzero > dim:
        raise ValueError(f"num_nonzero is {num_nonzero}; expected at most dim, {dim}")
    if examples_per_session % 2:
        raise ValueError(f"examples_per_session is {examples_per_session}; expected an even number")
    for name, counts in (("train_sessions", train_sessions), ("test_sessions", test_sessions)):
        if not counts or min(counts) < 1:
            raise ValueError(f"{name} is {counts}; expected at least one session per subject")
    rng = np.random.default_rng(seed)
    weight = np.zeros(dim)
    places = rng.choice(dim, num_nonzero, replace=False)
    weight[places] = rng.choice([-1.0, 1.0], num_nonzero) / math.sqrt(num_nonzero)
    y = np.repeat(np.arange(2, dtype=np.int32), examples_per_session // 2)
    apart = separation * np.outer(y - 0.5, weight)

    def subject_examples(sessions: int) -> list[dict[str, np.ndarray]]:
        shift = heterogeneity * rng.standard_normal(dim)
        return [
            {"x": (shift + apart + rng.standard_normal((len(y), dim))).astype(dtype), "y": y}
            for _ in range(sessions)
        ]

    train = [subject_examples(n) for n in train_sessions]
    test = [subject_examples(n) for n in test_sessions]
    subjects = range(1, len(train) + len(test) + 1)
    return Scans(
        _concatenate(subjects[: len(train)], train),
        _concatenate(subjects[len(train) :], test),
        weight.astype(dtype),
    )


def is_available(data_dir: str | Path | None) -> bool:
    """Returns True if the data directory has a folder of the recordings."""
    return data_dir is not None and (Path(data_dir).expanduser() / FOLDER).is_dir()


def haxby(
    data_dir: str | Path,
    *,
    train_subjects: Sequence[int] = TRAIN_SUBJECTS,
    test_subjects: Sequence[int] = TEST_SUBJECTS,
    download: bool = False,
) -> Scans:
    """Scans of Haxby et al. for houses (class 0) and faces (class 1), read with nilearn.

    An example consists of the recording's voxels within the mask that is part of the data. Every
    voxel is standardised to mean 0 and variance 1 over its session, before the scans of the two
    classes are selected. A client is a session; subject 5 has 11 sessions, the others have 12.
    """
    subjects = [*train_subjects, *test_subjects]
    if not (train_subjects and test_subjects) or len(set(subjects)) < len(subjects):
        raise ValueError(
            f"subjects are {subjects}; expected distinct ones, at least one for each part"
        )
    if not set(subjects) <= set(range(1, 7)):
        raise ValueError(f"subjects are {subjects}; expected numbers from 1 to 6")
    root = Path(data_dir).expanduser()
    if not download:
        _check_files(root / FOLDER, subjects)
    datasets, maskers = _nilearn()
    files = datasets.fetch_haxby(data_dir=os.fspath(root), subjects=subjects, verbose=0)
    recordings = zip(files["func"], files["session_target"], strict=True)
    by_subject = [_sessions(maskers, files["mask"], *paths) for paths in recordings]
    count = len(train_subjects)
    return Scans(
        _concatenate(train_subjects, by_subject[:count]),
        _concatenate(test_subjects, by_subject[count:]),
        None,
    )


def _sessions(
    maskers: ModuleType, mask: str, recording: str, labels: str
) -> list[dict[str, np.ndarray]]:
    """Examples of one subject, per session."""
    lines = Path(labels).read_bytes().decode(errors="replace").splitlines()
    head, *rows = [line.split() for line in lines if line.strip()] or [[]]
    if head != ["labels", "chunks"] or not all(len(r) == 2 and r[1].isdecimal() for r in rows):
        raise ValueError(f"{labels}: columns {head}; expected labels and chunks, one row per scan")
    kinds, sessions = np.array([row[0] for row in rows]), np.array([int(row[1]) for row in rows])
    masker = maskers.NiftiMasker(mask_img=mask, runs=sessions, standardize="zscore_sample")
    try:
        x = np.asarray(masker.fit_transform(recording), np.float32)
    except Exception as error:  # nibabel and nilearn promise no set of exceptions
        raise ValueError(f"{recording}: {error}; expected scans for {labels} and {mask}") from error
    if len(x) != len(kinds):
        raise ValueError(f"{labels}: {len(kinds)} rows; expected {len(x)}, one per scan")
    y = np.select([kinds == name for name in CLASSES], range(len(CLASSES)), -1).astype(np.int32)
    selected = [(sessions == session) & (y >= 0) for session in np.unique(sessions)]
    return [{"x": x[rows], "y": y[rows]} for rows in selected]


def _concatenate(
    subjects: Sequence[int], by_subject: Sequence[Sequence[dict[str, np.ndarray]]]
) -> fs.FederatedData:
    names = [
        f"subject {subject}, session {session}"
        for subject, sessions in zip(subjects, by_subject, strict=True)
        for session in range(1, len(sessions) + 1)
    ]
    return fs.from_clients([client for sessions in by_subject for client in sessions], names)


def _check_files(folder: Path, subjects: Sequence[int]) -> None:
    files = [f"subj{i}/{name}" for i in subjects for name in ("bold.nii.gz", "labels.txt")]
    missing = [name for name in ("mask.nii.gz", "MD5SUMS", *files) if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"{folder}: {', '.join(missing)} missing; expected nilearn's folder with all subjects, "
            "or download=True"
        )


def _nilearn() -> tuple[ModuleType, ModuleType]:
    import_extra("nilearn", "fmri")
    from nilearn import datasets, maskers  # pyright: ignore[reportMissingImports]

    return datasets, maskers

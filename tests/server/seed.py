"""Records made up for the page: a synthetic procedure's script with soft edges, stretched to any length."""

import time

import numpy as np

from surgicalmamba.data.synthetic import PHASE_NAMES, operation
from surgicalmamba.live.estimate import PhaseEstimate, ServedEstimate
from surgicalmamba.server.record import Change, Ending, SessionInfo, Store, segments_of


def made_up_rows(n, fps=1.0, seed=3):
    """`n` estimates that follow a script: sure inside phases, unsure and of high intensity around their
    changes."""
    script = operation(seed, 0, short=False, fps=1).procedure.phase_per_frame()
    phases = script[np.linspace(0, len(script) - 1, n).astype(int)]
    rng = np.random.default_rng(seed)
    changes = np.flatnonzero(np.diff(phases)) + 1
    distance = np.abs(np.arange(n)[:, None] - changes[None]).min(axis=1) if len(changes) else np.full(n, n)
    width = max(n / 120, 2)
    near = np.exp(-distance / width)
    scores = rng.gamma(0.4, (0.05 + 0.5 * near)[:, None], (n, len(PHASE_NAMES)))
    scores[np.arange(n), phases] += 1.5
    shares = scores / scores.sum(axis=1, keepdims=True)
    intensity = np.clip(0.04 + 0.85 * near + rng.normal(0, 0.02, n), 0, 1).tolist()
    newest = shares.argmax(axis=1).tolist()
    made = [
        PhaseEstimate(
            i, i, i / fps, newest[i], PHASE_NAMES[newest[i]], tuple(shares[i].tolist()), intensity[i]
        )
        for i in range(n)
    ]
    return [ServedEstimate.of(estimate, row=i, frame=i) for i, estimate in enumerate(made)]


def seed_session(folder, fingerprint, name, n, fps=1.0, is_finished=False, seed=3, key=None):
    """Put a session with `n` estimates on record, as a server that was killed, or that finished it, would
    have left it."""
    key = key or f"{abs(hash((name, seed))) % 16**16:016x}"
    info = SessionInfo(
        key, name, time.time() - n / fps, f"{fps:g}", PHASE_NAMES, fingerprint, "drop", None, {"room": name}
    )
    rows = made_up_rows(n, fps, seed)
    ending = (
        Ending(time.time(), "", n, 0, segments_of((row.phase, row.time_s) for row in rows))
        if is_finished
        else None
    )
    store = Store(folder)
    store.write([Change(key, created=info, rows=tuple(rows), durable=n - 1, ending=ending)])
    store.close()
    return key

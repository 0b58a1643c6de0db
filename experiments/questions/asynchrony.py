r"""The bias of asynchrony: where asynchronous methods settle, and which weights correct it.

    python -m experiments.questions.asynchrony

Quadratic clients with exact gradients, fast and slow: a local step takes a geometric time with the
mean 2 or 16, at most K = 20 steps per visit (the setting of "FAVANO: Federated AVeraging with
Asynchronous Nodes", arXiv 2305.16099, Appendix C.2).  Cohorts, buffers and FedAsync's mix are
proportional to the number M of clients, as s = 20 and Z = 10 are to n = 100 there.  Each run has
two problems side by side, with a shared and with different Hessians: in ``speed`` the minimisers
are 1 for slow and 0 for fast clients, so the limit is the weight that slow clients have in it; in
``scatter`` they are independent of speed, N(0, 1).  A run is linear in the minimisers, so for
minimisers ``h v_i + gap slow_i`` the limit is h times the one plus gap times the other.

Cost, stated before the run: 38 configurations with ten seeds, about 3 minutes of CPU; timelines of
up to 10^5 clients, about 6 minutes.  A first run had five seeds with 100 clients and three
otherwise, which left the seventh and the eighth answer undecided.

Expected answers, written before the run.  Numbers are of :mod:`.asynchrony_limits` and
:mod:`.asynchrony_times`, which know speeds and sizes but no run.

1. *The limit follows from rates of contribution.*  Runs agree with the formulas within 2 % of the
   distance from the optimum.  Reason: linear recursions; those of FAVANO and QuAFL are exact, those
   of FedBuff and FedAsync up to the order of the server's rate over the buffer, which is small.
2. *FedBuff and FedAsync lack what slow clients lack in uploads*, with M = 100 and two thirds slow
   0.45 and 0.47 of a total weight of 0.67.  With the ratio r of a slow client's uploads to a fast
   one's the lack is largest at the share of slow clients 1 / (1 + sqrt r), about 0.73, not where
   most clients are slow, and is (1 - sqrt r) / (1 + sqrt r) there.
3. *A weight that decreases with staleness makes it worse*: 0.59 for ``(1 + tau)^(-1/2)``.  Reason:
   slow clients are the stale ones, so they are punished twice.
4. *QuAFL is nearly unbiased by speed*, 0.087 at M = 100 and 0.011 at M = 1,000, against the paper's
   sentence that its updates favour fast clients.  Reason: H = Q / (1 + s Q) does not depend on Q
   once s Q is large.  Its limit is then the mean of the minimisers, which is not the optimum if
   Hessians differ, and no weight changes that.  It takes (n / s) (1 + s Q) / Q contacts, more than
   n, to get there, so larger M than 100 are not run.
5. *FAVANO's alpha over-corrects*: slow clients have 0.042 too much, and without alpha 0.37 too
   little.  Reason: progress saturates in the number of steps, ``1 - (1 - lr a)^E``, so dividing by
   E counts fast clients too low, to the order lr K.
6. *Corrected, the others are unbiased*: the intervals of FedBuff and FedAsync with uploads times
   ``1 / (M pi_i E[s(tau)])`` contain 0, and are inside of 0.02.
7. *With speeds independent of data the bias fades like M^(-1/2)*, the slope of log distance over
   log M from 10^2 to 10^4 is within 0.1 of -1/2; with slow clients that differ it stays.  Reason:
   the difference of two groups' means.
8. *The share of slow clients in FedBuff's uploads is stationary* (within 10 %) after about 1,000
   units of time for a third of slow clients, three visits of a slow client, at every M; the time
   grows with the square of K.  Reason: all begin together, and a visit's relative spread is
   ``sqrt((1 - p) / K)``.  So the paper's "huge amount of server iterations" is 160 updates with a
   buffer of M / 10, and the number grows like M only where each upload is an update.  Contacts
   (FAVANO, QuAFL) are stationary after about 10 contacts, 70 units of time.
"""

import tyro

from experiments.harness import (
    MACHINE,
    save_report,
    settings,
)
from experiments.questions.asynchrony_report import build
from experiments.questions.asynchrony_runs import Options, clocked, kept, trained
from experiments.questions.asynchrony_setting import (
    FAST,
    INTERVAL,
    LR,
    POWER,
    SERVER_LR,
    SETTLED,
    SLOW,
    STEPS,
)


def main(options: Options) -> None:
    """Runs both parts, writes tables, report and figure; or keeps one part."""
    parts = {"clocks": clocked, "limits": trained}
    if options.part != "all":
        kept(options, options.part, parts[options.part])
        return
    tables = {"clocks": kept(options, "clocks", clocked), "": kept(options, "limits", trained)}
    constants = {"fast": FAST, "slow": SLOW, "steps": STEPS, "interval": INTERVAL, "lr": LR}
    constants |= {"server_lr": SERVER_LR, "settled": SETTLED, "power": POWER}
    save_report(
        options.output / "questions" / "asynchrony", "asynchrony", tables, build,
        options=settings(options, without=(*MACHINE, "part")), constants=constants,
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))

#!/bin/bash
# Tries docs/clusters/*.sbatch on a real Slurm with two nodes on this machine. Not part of CI.
#
#     apt-get install -y slurm-wlm munge
#     PYTHON=.venv/bin/python bash tests/clusters/slurm_trial.sh
#
# Needs root. Both nodes are slurmd processes with a host name of their own, 16 CPUs and four GPUs
# that do not exist. Takes a quarter of an hour; prints a line per check and ends with exit code 1 if one
# failed. FOLDER keeps the logs (default: a new folder).
set -euo pipefail
ROOT="$(cd "$(dirname "$0")/../.." && pwd)"
PYTHON="$(cd "$(dirname "${PYTHON:-${ROOT}/.venv/bin/python}")" && pwd)/python"
FOLDER="${FOLDER:-$(mktemp -d)}"
mkdir -p "${FOLDER}"/{state,spool,log,project/.venv/bin,project/docs}
export SLURM_CONF="${FOLDER}/slurm.conf" PATH="${PATH}:/usr/sbin"

cat > "${SLURM_CONF}" <<EOF
ClusterName=trial
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=17817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=${FOLDER}/state
SlurmdSpoolDir=${FOLDER}/spool/%n
SlurmctldPidFile=${FOLDER}/slurmctld.pid
SlurmdPidFile=${FOLDER}/slurmd.%n.pid
SlurmctldLogFile=${FOLDER}/log/slurmctld
SlurmdLogFile=${FOLDER}/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
KillWait=30
ReturnToService=2
NodeName=node1 NodeHostname=node1 NodeAddr=127.0.1.1 Port=17818 CPUs=16 RealMemory=8000 Gres=gpu:4
NodeName=node2 NodeHostname=node2 NodeAddr=127.0.1.2 Port=17819 CPUs=16 RealMemory=8000 Gres=gpu:4
PartitionName=trial Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
EOF
touch "${FOLDER}"/nvidia{0,1,2,3}
echo "Name=gpu File=${FOLDER}/nvidia[0-3]" > "${FOLDER}/gres.conf"
printf '127.0.0.1 localhost %s\n127.0.1.1 node1\n127.0.1.2 node2\n' "$(hostname)" > "${FOLDER}/hosts"

pgrep -x munged > /dev/null || { mkdir -p /run/munge; chown munge: /run/munge; \
    setpriv --reuid munge --regid munge --clear-groups munged; }
slurmctld -i
PIDS=()
for node in node1 node2; do
    # A host name of its own, and a hosts file with both nodes.
    unshare --uts --mount bash -c "hostname ${node}; mount --bind '${FOLDER}/hosts' /etc/hosts
        exec slurmd -D" > /dev/null 2>&1 &
    PIDS+=($!)
done
finish() { kill "${PIDS[@]}" "$(cat "${FOLDER}/slurmctld.pid")" 2> /dev/null || true; }
trap finish EXIT

# The clone that a user would have: the scripts, and the command in .venv.
cp -r "${ROOT}/docs/clusters" "${FOLDER}/project/docs/"
printf '#!/bin/bash\nexport PYTHONPATH=%q JAX_PLATFORMS=cpu\nexec %q -m fedjax_sim.cli "$@"\n' \
    "${ROOT}" "${PYTHON}" > "${FOLDER}/project/.venv/bin/fedjax-sim"
chmod +x "${FOLDER}/project/.venv/bin/fedjax-sim"
cd "${FOLDER}/project"

FAILED=0
check() { # check TEXT COMMAND...
    if "${@:2}"; then echo "ok      $1"; else echo "FAILED  $1"; FAILED=1; fi
}
submit() { sbatch --parsable "$@" | cut -d';' -f1; }
state() { scontrol show job "$1" | grep -o 'JobState=[A-Z]*' | head -n 1 | cut -d= -f2; }
wait_for() { # wait_for JOB STATE...: until the job has one of the states
    for _ in $(seq 1500); do
        for wanted in "${@:2}"; do [ "$(state "$1")" != "${wanted}" ] || return 0; done
        sleep 1
    done
    return 1
}
wait_until() { for _ in $(seq 240); do ! "$@" 2> /dev/null || return 0; sleep 1; done; return 1; }
has() { grep -q -- "$1" "slurm-$2.out"; }
checkpoint() { ls results/"$1"/scaffold/checkpoints 2> /dev/null | grep -q '^[1-9]'; }
newest() { ls results/"$1"/scaffold/checkpoints | grep '^[0-9]*$' | sort -n | tail -n 1; }
complete() { # complete NAME ROUNDS: every round evaluated once per seed and metric, up to the last
    "${PYTHON}" - "results/$1/scaffold/history.csv" "$2" <<'EOF'
import collections, csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
names = collections.Counter((row["replica"], row["round"], row["metric"]) for row in rows)
last = max(int(row["round"]) for row in rows)
sys.exit(not (set(names.values()) == {1} and last == int(sys.argv[2])))
EOF
}
same() { cmp "results/$1/scaffold/history.csv" "results/$2/scaffold/history.csv"; }
# Small sizes; what the scripts say stays, but for the time and the notice.
SMALL=(quickstart --algorithms scaffold --seeds 2 --num-clients 16 --cohort-size 4 \
    --model softmax_regression --eval-every 50)
ROUNDS="${ROUNDS:-2000}"
TIME=(--time=00:02:00 --signal=INT@60)

sleep 3
scontrol update NodeName=node1,node2 State=RESUME 2> /dev/null || true
sinfo --version
sinfo -N -o "%N %T %c %G"

echo "--- whole"
job=$(submit --job-name=whole --time=00:30:00 docs/clusters/slurm.sbatch "${SMALL[@]}" --rounds "${ROUNDS}")
check "ends" wait_for "${job}" COMPLETED
check "reports devices and idle GPUs" has "2 processes, .* devices (cpu, .* per process); idle: 8 GPUs (by process 4 4)" "${job}"
check "has no lines of Gloo" bash -c "! grep -q Gloo slurm-${job}.out"
check "has lines of progress" has "scaffold 100 %" "${job}"
check "complete" complete whole "${ROUNDS}"

echo "--- refused"
job=$(submit --job-name=refused docs/clusters/slurm.sbatch "${SMALL[@]}" --num-strata 3)
check "fails" wait_for "${job}" FAILED
check "one message" [ "$(grep -c 'fedjax-sim: error' "slurm-${job}.out")" -eq 1 ]

echo "--- killed"
job=$(submit --job-name=killed --time=00:30:00 docs/clusters/slurm.sbatch "${SMALL[@]}" --rounds "${ROUNDS}")
check "has a checkpoint" wait_until checkpoint killed
kill -9 "$(pgrep -f 'fedjax_sim.cli run .*results/killed' | while read -r pid; do
    grep -qz '^SLURM_PROCID=1$' "/proc/${pid}/environ" && echo "${pid}"; done | head -n 1)"
check "ends" wait_for "${job}" FAILED
check "names the lost process" has "process 1 of 2 was lost" "${job}"
echo "        continues from round $(newest killed)"
job=$(submit --job-name=killed --time=00:30:00 docs/clusters/slurm.sbatch "${SMALL[@]}" --rounds "${ROUNDS}")
check "the same command ends" wait_for "${job}" COMPLETED
check "the history of the whole run" same killed whole

echo "--- cancelled"
job=$(submit --job-name=cancelled --time=00:30:00 docs/clusters/slurm.sbatch "${SMALL[@]}" --rounds "${ROUNDS}")
check "has a checkpoint" wait_until checkpoint cancelled
scancel "${job}"
check "is not requeued" wait_for "${job}" CANCELLED
sleep 10
check "has no traceback" bash -c "! grep -q Traceback slurm-${job}.out"
echo "        continues from round $(newest cancelled)"
job=$(submit --job-name=cancelled --time=00:30:00 docs/clusters/slurm.sbatch "${SMALL[@]}" --rounds "${ROUNDS}")
check "the same command ends" wait_for "${job}" COMPLETED
check "the history of the whole run" same cancelled whole

echo "--- requeued at the time limit"
LONG=$((ROUNDS * 3))
job=$(submit --job-name=requeued "${TIME[@]}" docs/clusters/slurm.sbatch "${SMALL[@]}" --rounds "${LONG}")
check "is interrupted" wait_until has "to resume" "${job}"
check "has no traceback" bash -c "! grep -q Traceback slurm-${job}.out"
check "returns to the queue" wait_for "${job}" PENDING
began=$(date +%s)
echo "        continues from round $(newest requeued)"
wait_for "${job}" RUNNING && echo "        started again after $(($(date +%s) - began)) s"
check "ends" wait_for "${job}" COMPLETED
check "one log" [ "$(grep -c '2 processes' "slurm-${job}.out")" -ge 2 ]
check "complete" complete requeued "${LONG}"

echo "--- sweep"
SWEEP=(quickstart --seeds 2 --num-clients 16 --cohort-size 4 --model softmax_regression \
    --rounds 2000 --eval-every 100 --grid.lr.values 0.1 0.2 --grid.batch-size.values 5 10)
job=$(PARTS=2 submit --array=1-2 docs/clusters/sweep_array.sbatch "${SWEEP[@]}")
check "a part runs" wait_for "${job}_2" RUNNING
scancel "${job}_2"
check "the other part ends" wait_for "${job}_1" COMPLETED
check "names what is missing" has "runs of other parts are missing" "${job}_1"
job=$(PARTS=2 submit --array=2 docs/clusters/sweep_array.sbatch "${SWEEP[@]}")
check "the part that failed, alone" wait_for "${job}_2" COMPLETED
check "writes the tables" test -f results/fedjax-sim-sweep/best.csv

exit "${FAILED}"

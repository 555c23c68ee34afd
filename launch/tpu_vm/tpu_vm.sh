#!/bin/bash
# shellcheck disable=SC2016  # Workers expand what is in single quotes.
# Not run: needs a Google Cloud project with TPU quota. tests/launch/test_tpu_vm.py runs it with a stand-in for gcloud.
#
# Trains on a TPU slice that is requested as a queued resource, and on a new one after a preemption:
#
#   export ZONE=us-west4-a ACCELERATOR_TYPE=v5litepod-32 RUNTIME_VERSION=v2-alpha-tpuv5-lite
#   launch/tpu_vm/tpu_vm.sh watch xlme-base --gin_file=gin_configs/runs/xlme_base.gin \
#       --gin.DATA_DIR="'gs://my-bucket/data'" --gin.MODEL_DIR="'gs://my-bucket/runs/xlme_base'"
#   launch/tpu_vm/tpu_vm.sh delete xlme-base
#
# create NAME        requests a slice, waits for it, and installs the commit that is checked out here on its workers
# run NAME ARG...    runs `python -m xlme_jax.train --distributed ARG...` on all workers; exits with its code
# watch NAME ARG...  creates and runs, again after a preemption or the loss of a worker, until train is done or fails
# stop NAME          asks train to save and end; end `watch` first, which would restart it
# delete NAME        deletes the slice
#
# Train does not need the connection: the same command finds it again and waits for it. Settings: CREATE_FLAGS (--spot),
# flags of `gcloud compute tpus queued-resources create`; EXTRAS (gcs,tpu), what to install; MAX_RESTARTS (100);
# POLL_SECONDS (60), the time between two looks at the state.
set -uo pipefail

REPOSITORY=$(cd "$(dirname "$0")/../.." && pwd)
EXTRAS=${EXTRAS:-gcs,tpu}
MAX_RESTARTS=${MAX_RESTARTS:-100}
POLL_SECONDS=${POLL_SECONDS:-60}

# On a worker, ~/xlme_jax_run/lock is held while train runs, and exit_code is there once it has ended.
FOLLOW='cd xlme_jax_run && { tail --lines=20 --follow train.log & flock lock true; sleep 0.2; kill $!; }'
# Without exit_code, the worker was restarted: to the others, a lost process.
REPORT='cd xlme_jax_run || exit
flock --timeout 60 lock true && code=$(cat exit_code 2> /dev/null || echo 76); echo "train: ${code-running}"'

say() { echo "$(date +%H:%M:%S) $NAME: $*" >&2; }

tpus() { gcloud compute tpus "$@" --zone="$ZONE" < /dev/null; }

# Runs a command on a worker, or on `all`. It may run twice: gcloud repeats it after a lost connection, which ssh would
# notice after hours without the flags.
on() {
    tpus tpu-vm ssh "$NAME" --worker="$1" --command="$2" --ssh-flag="-o ConnectTimeout=20 -o ServerAliveInterval=20"
}

# Prints the state; nothing if there is no such resource.
state() {
    gcloud compute tpus queued-resources list --zone="$ZONE" --filter="name~/$NAME\$" --format="value(state.state)"
}

request() {
    local flags
    read -ra flags <<< "${CREATE_FLAGS---spot}"
    tpus queued-resources create "$NAME" --node-id="$NAME" --accelerator-type="$ACCELERATOR_TYPE" \
        --runtime-version="$RUNTIME_VERSION" "${flags[@]}"
}

delete() { tpus queued-resources delete "$NAME" --force --quiet; }

# Waits for the slice; requests it if there is none.
obtain() {
    local now requests=0
    while :; do
        now=$(state) || now="state not known, gcloud failed"
        say "${now:-no such resource}"
        case $now in
        ACTIVE) return 0 ;;
        SUSPENDED | FAILED) delete || return ;;
        "")
            ((requests++ == 0)) || return # The last request failed.
            request || return
            ;;
        esac
        sleep "$POLL_SECONDS"
    done
}

# Installs a clone, so that the run's manifest.json has the commit. uv brings a Python that is recent enough.
# An argument keeps an installation that is there.
install() {
    local bundle code=0 installed=xlme_jax_run/installed
    bundle=$(mktemp) || return
    git -C "$REPOSITORY" bundle create --quiet "$bundle" HEAD &&
        tpus tpu-vm scp "$bundle" "$NAME:xlme_jax.bundle" --worker=all &&
        on all "set -e; ${1+test ! -e $installed || exit 0;} mkdir -p xlme_jax_run; rm -rf xlme_jax $installed
git -c advice.detachedHead=false clone --quiet xlme_jax.bundle xlme_jax
python3 -m pip install --quiet --user uv; uv=\$HOME/.local/bin/uv; \$uv venv --quiet --python=3.12 xlme_jax/.venv
\$uv pip install --quiet --python=xlme_jax/.venv/bin/python --editable 'xlme_jax[$EXTRAS]'; touch $installed" || code=$?
    rm -f "$bundle"
    return "$code"
}

create() { obtain && install; }

# Starts train on all workers where it does not run.
start() {
    local train
    # Quoted twice: for the shell that waits for train, and for the one that starts that shell.
    train=$(printf '%q ' .venv/bin/python -m xlme_jax.train --distributed "$@")
    train="cd xlme_jax && { $train & echo \$! > ../xlme_jax_run/pid; wait \$!; }; echo \$? > ~/xlme_jax_run/exit_code"
    on all "set -e; mkdir -p xlme_jax_run; exec 9> xlme_jax_run/lock; flock --nonblock 9 || exit 0
rm -f xlme_jax_run/exit_code; nohup bash -c $(printf '%q' "$train") >> xlme_jax_run/train.log 2>&1 < /dev/null &"
}

run() {
    local reports now one code=0
    start "$@" || return 76
    while :; do
        on 0 "$FOLLOW"
        if reports=$(on all "$REPORT"); then
            [[ $reports == *running* ]] || break
        elif now=$(state) && [[ $now != ACTIVE ]]; then
            return 76
        fi
        sleep "$POLL_SECONDS"
    done
    # An error in one process makes the others end with 76: the error counts.
    while read -r one; do
        case $one in
        0) ;;
        75 | 76 | 134) code=$one ;;
        *) return "$one" ;;
        esac
    done < <(sed -n 's/^train: //p' <<< "$reports")
    return "$code"
}

watch() {
    local code restarts
    for ((restarts = 0; ; restarts++)); do
        if obtain && install if_missing; then
            run "$@"
            code=$?
        elif ((restarts == 0)); then
            return 1 # More likely a mistake in the settings than a lost slice.
        else
            code=76
        fi
        # 75: stopped by a signal, saved. 76, 134: a process was lost. A restart does not fix all others.
        case $code in
        75 | 76 | 134) ;;
        *) break ;;
        esac
        ((restarts < MAX_RESTARTS)) || break
        say "train ended with $code; restarted"
        sleep "$POLL_SECONDS"
    done
    say "train ended with $code after $restarts restarts"
    return "$code"
}

stop() { on 0 'kill -TERM $(cat xlme_jax_run/pid)'; }

COMMAND=${1-} NAME=${2-}
case $COMMAND in
create | watch) : "${ACCELERATOR_TYPE:?is not set}" "${RUNTIME_VERSION:?is not set}" ;;&
create | watch | run | stop | delete)
    : "${ZONE:?is not set}" "${NAME:?is missing}"
    "$COMMAND" "${@:3}"
    ;;
*)
    sed -n '/^# create/,/^# delete/s/^# //p' "$0" >&2
    exit 2
    ;;
esac

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The two-node walk-through of docs/cluster.md on two network namespaces: one key file, a poised on each host with nothing
# else configured, trainers that name nobody and find each other by the launcher's variables, payload over TCP; over IPv4
# and IPv6, by interface; and what is said where the key is missing.
set -eu
. tests/system/lib.sh
fail() { echo "$*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip >/dev/null || skip "there is no ip (iproute2)"
a=poise-a-$$ b=poise-b-$$
ip netns add "$a" 2>/dev/null || skip "network namespaces cannot be made here"
work=$(mktemp -d)
pids=()
end() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    ip netns del "$a" || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
ip netns add "$b"
ip link add eth0 netns "$a" type veth peer name eth0 netns "$b" || skip "there is no veth here"
n=0
for ns in "$a" "$b"; do
    n=$((n + 1))
    ip -n "$ns" link set lo up
    ip -n "$ns" link set eth0 up
    ip -n "$ns" addr add "10.99.0.$n/24" dev eth0
    ip -n "$ns" addr add "fd99::$n/64" dev eth0 nodad
done
unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME POISE_COORDINATORS POISE_INTERFACE POISE_SOCKET_DIR

"$BUILD/poisectl" keygen "$work/keys" >/dev/null

poised_in() { # NS DIR FLAGS...: starts one, and waits for it
    local ns=$1 dir=$2
    shift 2
    ip netns exec "$ns" "$BUILD/poised" --config /dev/null --socket-dir "$dir" "$@" 2>"$dir.log" &
    pids+=($!)
    until_true "[ -S $dir/status.sock ]"
}

train() { # MASTER_ADDR JOB: two ranks on each host
    local rank ns dir
    local -a ranks=()
    for rank in 0 1 2 3; do
        ns=$a dir=$work/a
        [ $rank -lt 2 ] || { ns=$b dir=$work/b; }
        MASTER_ADDR=$1 MASTER_PORT=29500 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 ip netns exec "$ns" "$BUILD/trainer" \
            --rank $rank --ranks 4 --steps 5 --job "$2" --socket-dir "$dir" --timeout-ms 30000 >"$work/out.$rank" 2>&1 &
        ranks+=($!)
    done
    for rank in 0 1 2 3; do
        wait "${ranks[rank]}" || fail "$2: rank $rank: $(cat "$work/out.$rank"; tail -20 "$work"/[ab].log)"
    done
}

poised_in "$a" "$work/a" --keys "$work/keys" --node-name a
poised_in "$b" "$work/b" --keys "$work/keys" --node-name b
ip netns exec "$b" "$BUILD/poisectl" doctor --socket-dir "$work/b" --coordinators tcp://10.99.0.1 >"$work/doctor" || true
grep -q "tcp://10.99.0.1 can be connected, and so can its beacons" "$work/doctor" || fail "$(cat "$work/doctor")"

train 10.99.0.1 walk
status() { "$BUILD/poisectl" status --json --socket-dir "$work/$1"; }
until_true "status b | grep -q '\"local\": \"10.99.0.2:'"
status b >"$work/status"
grep -q '"endpoint": "tcp://10.99.0.1:29410"' "$work/status" || fail "$(cat "$work/status")"
grep -q '"encrypted": true' "$work/status" || fail "not encrypted: $(cat "$work/status")"
status a | grep -q '"address": "10.99.0.2"' || fail "the node's address: $(status a)"
grep -q "others are told that it is at tcp://10.99.0.2:29410" "$work/b.log" || fail "$(cat "$work/b.log")"

train fd99::1 walk6
until_true "status b | grep -q '\"local\": \"\[fd99::2\]:'"

# By interface: the connections leave from its address.
ip -n "$b" addr add 10.99.0.77/24 dev eth0
poised_in "$b" "$work/c" --keys "$work/keys" --node-name c --listen none --interface 10.99.0.77
MASTER_ADDR=10.99.0.1 MASTER_PORT=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 ip netns exec "$b" "$BUILD/trainer" --rank 0 --ranks 1 \
    --steps 2 --job interface --socket-dir "$work/c" --timeout-ms 30000 >"$work/out" 2>&1 || fail "$(cat "$work/out")"
until_true "status c | grep -q '\"local\": \"10.99.0.77:'"

# Without the key: refused at the start, or told in the trainer's error, which names the way out.
! "$BUILD/poised" --config /dev/null --socket-dir "$work/d" --listen tcp://10.99.0.1 >"$work/out" 2>&1 || fail "listens without keys"
grep -q "poisectl keygen" "$work/out" || fail "$(cat "$work/out")"
poised_in "$b" "$work/e" --insecure yes --node-timeout-ms 3000
! MASTER_ADDR=10.99.0.1 MASTER_PORT=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 ip netns exec "$b" "$BUILD/trainer" --rank 0 --ranks 1 \
    --steps 2 --job nokey --socket-dir "$work/e" --timeout-ms 30000 >"$work/out" 2>&1 || fail "a node without keys is admitted"
grep -q "it has keys, this node has none" "$work/out" || fail "$(cat "$work/out")"
grep -q "10.99.0.2" "$work/a.log" || fail "the coordinator does not say who: $(cat "$work/a.log")"

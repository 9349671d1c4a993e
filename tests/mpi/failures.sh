#!/bin/sh
# What happens to a job of several ranks when one of them cannot go on: the status, one message, nothing left behind,
# and that within seconds.
#
#   sh failures.sh EJK EJK_MPI WORK_FOLDER
#
# Exit status 77: there is no mpirun.
set -u
ejk=$1 ejk_mpi=$2 work=$3
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
launch="mpirun --oversubscribe -q"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
failed=0

fail() {
  echo "FAILED: $1"
  sed 's/^/    /' stderr.txt
  failed=1
}

# What must be true of a job that has ended: its status, seconds, a line on stderr, nothing in the folder `out`.
# expect NAME STATUS TEXT
expect() {
  [ "$status" = "$2" ] || fail "$1: status $status, not $2"
  [ "$seconds" -lt 10 ] || fail "$1: took $seconds s"
  [ -z "$3" ] || [ "$(grep -c -e "$3" stderr.txt)" = 1 ] || fail "$1: not once on stderr: $3"
  [ -z "$(ls -A out)" ] || fail "$1: left behind: $(ls -A out)"
  rm -rf out && mkdir out
}

# job WORDS... : runs them and sets status and seconds
job() {
  begin=$(date +%s)
  timeout -s KILL 60 "$@" >stdout.txt 2>stderr.txt </dev/null
  status=$?
  seconds=$(($(date +%s) - begin))
}

mkdir out
"$ejk" generate attention-inputs --batch 1 --seq 6000 --heads 1 --head-dim 8 -o rows.h5 -q || exit 1
"$ejk" generate attention-inputs --batch 1 --seq 8 --heads 1 --head-dim 6000 -o columns.h5 -q || exit 1
"$ejk" convert 'rows.h5:query[0,:,0,:]' --dtype bfloat16 -o lhs.npy -q || exit 1
"$ejk" convert 'columns.h5:query[:,:,0,:]' --dtype bfloat16 -o rhs.npy -q || exit 1
{ # [6000]
  printf '\223NUMPY\001\000\166\000%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }"
  printf '\160\027\000\000'
} >sizes.npy
product="grouped-matmul lhs.npy rhs.npy sizes.npy"  # 72 MB
head -c 1000 lhs.npy >short.npy
# Seconds of work, for those that are ended in the midst of it.
"$ejk" generate attention-inputs --batch 1 --seq 24000 --heads 8 --head-dim 64 -o qkv.h5 -q || exit 1

# All ranks see it: told once.
job $launch -n 3 "$ejk_mpi" grouped-matmul nowhere.npy rhs.npy sizes.npy -o out/x.npy
expect "an input that does not exist" 3 "nowhere.npy"
job $launch -n 3 "$ejk_mpi" $product --no-such-option -o out/x.npy
expect "an unknown option" 2 "unknown option"
job $launch -n 3 "$ejk_mpi" $product -o "$work/nowhere/x.npy"
expect "a folder that does not exist" 4 "does not exist"
job $launch -n 2 "$ejk_mpi" attention qkv.h5:/query qkv.h5:/key qkv.h5:/value --max-memory 1M -o out/x.h5
expect "too little memory" 5 "--max-memory"

# One rank sees it.
job $launch -n 1 "$ejk_mpi" $product -o out/x.npy : \
  -n 1 "$ejk_mpi" grouped-matmul short.npy rhs.npy sizes.npy -o out/x.npy
expect "an input that one rank cannot read" 3 "on rank 1"
for target in x.npy x.h5 x.npz; do
  job $launch -n 1 "$ejk_mpi" $product -o out/$target : \
    -n 1 prlimit --fsize=40000000:40000000 "$ejk_mpi" $product -o out/$target
  case $target in
    x.npz) # rank 0 writes it alone
      [ "$status" = 0 ] && [ -s out/x.npz ] || fail "x.npz by rank 0: status $status"
      rm -f out/x.npz ;;
    *) expect "a full disk on one rank, $target" 4 "rank 1: .*File too large" ;;
  esac
done
job $launch -n 1 prlimit --fsize=40000000:40000000 "$ejk_mpi" $product -o out/x.npy : \
  -n 1 "$ejk_mpi" $product -o out/x.npy
expect "a full disk on rank 0" 4 "File too large"

# The old target stays when a rank fails.
"$ejk" $product -o old.npy -q
cp old.npy kept.npy
job $launch -n 1 "$ejk_mpi" $product -o old.npy : \
  -n 1 prlimit --fsize=40000000:40000000 "$ejk_mpi" $product -o old.npy
cmp -s old.npy kept.npy || fail "the old target has changed"

# Ended from outside, in the midst of the work: a long job, and a signal to one rank, or to mpirun.
long_job() {
  $launch -n 3 "$ejk_mpi" attention qkv.h5:/query qkv.h5:/key qkv.h5:/value -o out/x.h5 \
    >stdout.txt 2>stderr.txt </dev/null &
  launcher=$!
  ranks=
  for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    sleep 0.1
    ranks=$(pgrep -P "$launcher" | tr '\n' ' ')
    [ "$(echo $ranks | wc -w)" -ge 3 ] && break
  done
  sleep 0.5
}

wait_for_end() {
  begin=$(date +%s)
  (sleep 20 && kill -KILL "$launcher" 2>/dev/null) &
  watch=$!
  wait "$launcher"
  status=$?
  kill "$watch" 2>/dev/null
  seconds=$(($(date +%s) - begin))
}

long_job
kill -KILL $(echo $ranks | cut -d' ' -f2)
wait_for_end
[ "$status" != 0 ] || fail "a rank that was killed: status 0"
expect "a rank that was killed" "$status" ""

long_job
kill -INT "$launcher"
wait_for_end
[ "$status" != 0 ] || fail "an interrupted job: status 0"
expect "an interrupted job" "$status" ""

[ "$failed" = 0 ] && echo "all as it should be"
exit "$failed"

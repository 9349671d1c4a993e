#!/bin/sh
# How well ranks of ejk-mpi scale: each does as much as one alone, and beside them as many processes of ejk, each bound
# to a core of its own and knowing nothing of the others, do the same. Where those take longer together than one alone
# the machine is what does not scale; the ratio of ranks to them is the cost of working together.
#
#   sh weak_scaling.sh EJK EJK_MPI WORK_FOLDER [RANKS...]      (2 by default; 5 GiB in the work folder and more for more ranks)
#
# All take turns, three rounds, the best time of each. One thread a rank.
set -eu
ejk=$1 mpi=$2 work=$3
shift 3
[ $# -gt 0 ] || set -- 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
most=2
for n in "$@"; do [ "$n" -le "$most" ] || most=$n; done
mkdir -p "$work" && cd "$work"

"$ejk" generate attention-inputs --batch 1 --seq 16384 --heads "$most" --head-dim 64 -o qkv.h5 --overwrite -q
for array in query key value; do "$ejk" convert qkv.h5:/$array -o $array.npy -q; done
"$ejk" mask --mask 'local(left=700, right=50)' --shape $((65536 * most))x32768 -o mask.npy -q 2>/dev/null
"$ejk" generate attention-inputs --batch 1 --seq $((8192 * most)) --heads 1 --head-dim 4096 -o wide.h5 --overwrite -q
"$ejk" generate attention-inputs --batch 1 --seq 4096 --heads "$most" --head-dim 2048 -o experts.h5 --overwrite -q
"$ejk" convert 'wide.h5:/query[0,:,0]' -o lhs.npy -q
"$ejk" convert 'experts.h5:/query[0]' -o experts.npy -q
rm wide.h5 experts.h5

seconds() { sed -n 's/.*"elapsed_s":\([0-9.e-]*\).*/\1/p'; }
largest() { sort -g | tail -1; }
least() { sort -g | head -1; }

# words CASE FIRST COUNT : a command over so many units of work
words() {
  end=$(($2 + $3))
  case $1 in
    attention) echo attention "query.npy[:,:,$2:$end]" "key.npy[:,:,$2:$end]" "value.npy[:,:,$2:$end]" --mask causal ;;
    mask-info) echo mask-info "mask.npy[$((65536 * $2)):$((65536 * end))]" --block 128x128 ;;
    grouped-matmul) echo grouped-matmul "lhs.npy[$((8192 * $2)):$((8192 * end))]" rhs.npy sizes.npy ;;
  esac
}
# rhs.npy and sizes.npy of so many groups
groups() {
  "$ejk" convert "experts.npy[:,0:$1]" -o e.npy -q
  python3 - "$1" <<'END'
import sys, numpy as np
n = int(sys.argv[1])
np.save("rhs.npy", np.ascontiguousarray(np.load("e.npy").transpose(1, 0, 2)))
np.save("sizes.npy", np.full(n, 8192, np.int32))
END
}

echo "case            ranks  one alone  ejk beside ejk  ranks together  of one alone  of ejk beside ejk"
for case in attention grouped-matmul mask-info; do
  for n in "$@"; do
    rm -f one.txt beside.txt ranks.txt
    for round in 1 2 3; do
      groups 1
      rm -f out*.h5
      taskset -c 0 "$ejk" $(words $case 0 1) -o out-0.h5 --json --stats 2>/dev/null | seconds >>one.txt
      i=0
      rm -f times.txt
      while [ $i -lt "$n" ]; do
        rm -f out-$i.h5
        taskset -c $i "$ejk" $(words $case $i 1) -o out-$i.h5 --json --stats 2>/dev/null |
          seconds >>times.txt &
        i=$((i + 1))
      done
      wait
      largest <times.txt >>beside.txt
      groups "$n"
      rm -f out*.h5
      mpirun -q --bind-to core --map-by core -n "$n" "$mpi" $(words $case 0 "$n") -o out.h5 --json --stats \
        2>/dev/null | seconds >>ranks.txt
    done
    awk -v c="$case" -v n="$n" -v a="$(least <one.txt)" -v b="$(least <beside.txt)" -v r="$(least <ranks.txt)" \
      'BEGIN { printf "%-15s %5d %9.3f s %13.3f s %13.3f s %11.0f %% %16.0f %%\n", c, n, a, b, r, 100 * a / r, 100 * b / r }'
  done
done

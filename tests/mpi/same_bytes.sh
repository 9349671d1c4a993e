#!/bin/sh
# Random problems over all commands that divide their work and all containers: what ejk-mpi writes and says is what
# ejk writes and says, to the byte, for every number of ranks.
#
#   sh same_bytes.sh EJK EJK_MPI WORK_FOLDER [SEED]
#
# LAUNCH are the words that start ranks, to which -n N is added; SIZES are the numbers of ranks of every problem,
# otherwise each problem has some of 1, 2, 3 and 4. Exit status 77: there is no mpirun.
set -u
ejk=$1 ejk_mpi=$2 work=$3 seed=${4:-1}
launch=${LAUNCH:-mpirun --oversubscribe -q}
command -v "${launch%% *}" >/dev/null || { echo "skipped: there is no ${launch%% *}"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 NO_COLOR=1 COLUMNS=80
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
rm -rf "$work" && mkdir -p "$work/in" && cd "$work" || exit 1
work=$PWD
failed=0 problems=0 starts=0

# --- random numbers

state=$(((seed * 7919 + 12345) & 0x7fffffff))
# rand N: r is one of 0 … N - 1.
rand() {
  state=$(((state * 1103515245 + 12345) & 0x7fffffff))
  r=$(((state >> 8) % $1))
}
# between A B: r is one of A … B.
between() {
  rand $(($2 - $1 + 1))
  r=$((r + $1))
}
# pick WORD...: p is one of them.
pick() {
  rand $#
  shift "$r"
  p=$1
}

# --- a problem

fail() {
  echo "FAILED: $*"
  failed=$((failed + 1))
}

# Without what may differ: times and rates, peak memory, the program's name.
normal() {
  LC_ALL=C sed -E -e 's/ejk-mpi/ejk/g' -e 's/"([a-z0-9_]*_s|peak_bytes)":[^,}]*/"\1":0/g' \
    -e 's/ +[0-9][0-9.,]* (ns|us|ms|s|min|h)$/ TIME/' -e 's/ +[0-9][0-9.,]* [kMGT]?FLOP\/s$/ RATE/' "$1"
}

# run INTO WORDS...: runs them in a folder that holds the inputs alone, and keeps all that is there afterwards: what
# was written, stdout, stderr and the status.
run() {
  into=$1
  shift
  rm -rf at "$into" && mkdir at && ln -s ../in at/in || exit 1
  [ -z "$begin_with" ] || cp "$begin_with" at/out.h5
  cd at || exit 1
  "$@" <"$work/$input" >../stdout 2>../stderr
  echo $? >../status
  cd .. && rm at/in && mv stdout stderr status at && mv at "$into"
}

# same FILE: whether it is the same in both runs, as far as it must be.
same() {
  cmp -s once/"$1" team/"$1" && return
  case $1 in stdout | stderr) ;; *) return 1 ;; esac
  normal once/"$1" >once.txt
  normal team/"$1" >team.txt
  cmp -s once.txt team.txt
}

# problem WORDS...: done once, and by ranks. Of the next one alone: `input` is a file for stdin, `begin_with` one that
# is at out.h5 before, and with `any_stderr` ranks may say more than one process would.
input=nothing begin_with= any_stderr=
: >nothing
problem() {
  problems=$((problems + 1))
  run once "$ejk" "$@"
  kept=$(cat once/status)
  case $((problems % 4)) in
    0) sizes="2" ;;
    1) sizes="1 3" ;;
    2) sizes="4" ;;
    *) sizes="2 3" ;;
  esac
  for n in ${SIZES:-$sizes}; do
    starts=$((starts + 1))
    run team $launch -n "$n" "$ejk_mpi" "$@"
    # Open MPI 4.1's mpirun crashes now and then while it forwards stdin, whatever the ranks do: then once more.
    if [ -n "$input" ] && grep -q orte_iof_hnp_read_local_handler team/stderr; then
      sleep 2 # ranks that have lost it end
      run team $launch -n "$n" "$ejk_mpi" "$@"
    fi
    here="problem $problems, $n ranks: $*"
    (cd once && find . | sort) >once.txt
    (cd team && find . | sort) >team.txt
    if ! cmp -s once.txt team.txt; then
      fail "$here: other files: $(diff once.txt team.txt | grep '^[<>]' | tr '\n' ' ')"
      head -n 5 team/stderr
      continue
    fi
    for file in $(cd once && find . -type f | sed 's|^\./||' | sort); do
      if [ "$file" = stderr ] && [ -n "$any_stderr" ]; then
        [ -s team/stderr ] || fail "$here: no message"
        continue
      fi
      same "$file" && continue
      fail "$here: $file differs"
      case $file in
        stdout | stderr) diff -a once.txt team.txt | head -n 10 | cut -c 1-300 ;;
        status) echo "    $kept, and of ranks $(cat team/status)" && head -n 5 team/stderr ;;
        *) cmp once/"$file" team/"$file" ;;
      esac
    done
  done
  input=nothing begin_with= any_stderr=
}

# expect STATUS: the last problem was what it was meant to be.
expect() {
  [ "$kept" = "$1" ] || { fail "problem $problems is another one: status $kept, not $1" && cat once/stderr; }
}

# --- inputs: every kind in several containers

make() { "$ejk" "$@" -q || { echo "FAILED: $*"; exit 1; }; }

cd in || exit 1
between 100 260 && seq=$r
between 1 3 && batch=$r
pick 1 2 4 && kv_heads=$p
make generate attention-inputs --seed "$seed" --batch "$batch" --seq "$seq" --heads 4 --head-dim 16 -o qkv.h5
make generate attention-inputs --seed $((seed + 1)) --batch "$batch" --seq "$seq" --heads 4 --head-dim 16 -o other.h5
make convert qkv.h5 -o qkv.npz
make convert qkv.h5 -o qkv.safetensors
make convert qkv.h5 --dtype bfloat16 -o half/
make convert qkv.h5 --dtype float16 --compression 4 -o packed.npz
make convert qkv.h5 --dtype float64 --compression 2 -o packed.h5
make convert qkv.h5:query -o query.npy
make generate attention-inputs --seed 4 --batch 1 --seq 4 --heads "$seq" --head-dim "$seq" -o bias.npz
for name in key value; do make convert "qkv.h5:$name[:,:,0:$kv_heads,:]" -o $name.npy; done
# Masks of three heads, as bools and as integers in chunks.
between 300 700 && rows=$r
make mask --mask 'causal & local(left=90, right=0)' --mask 'chunked(64) | prefix(7)' \
  --mask 'local(left=5, right=200)' --shape 3x"$rows"x"$rows" -o mask.npy
make convert mask.npy --dtype uint8 --compression 3 -o mask.h5:/deep/mask
make convert mask.npy -o mask.npz
make mask --mask 'causal | prefix(20)' --shape "$seq"x"$seq" -o square.npy
# Packed sequences, one of them without a token.
make generate lens --seed "$seed" --count 9 --longest 60 --mean 25 -o lens.npy
make cu-seqlens lens.npy -o cu.npy
make cdiv lens.npy --by 2 -o half.npy
make cu-seqlens half.npy -o short.npy  # with padding behind each where cu.npy says that they begin
tokens=$("$ejk" convert cu.npy 2>/dev/null | awk 'NF { last = $NF } END { print last }')
make generate attention-inputs --seed 3 --batch 1 --seq "$tokens" --heads 4 --head-dim 8 -o thd.h5
# Segments.
make generate masks --seed "$seed" --batch 5 --seq 150 --mean 60 -o padding.npy
make convert padding.npy --dtype int32 -o ids.npy
make mask --mask 'documents(cu.npy)' --shape "$tokens"x"$tokens" -o documents.npy
make segment-ids documents.npy -o ids.h5
# Groups, some without a row, and rows of no group.
between 500 900 && m=$r
make generate group-sizes --seed "$seed" --groups 11 --tokens $((m - 30)) --empty 3 -o sizes.npy
make generate attention-inputs --seed 5 --batch 1 --seq "$m" --heads 1 --head-dim 40 -o lhs.h5
make generate attention-inputs --seed 6 --batch 1 --seq 11 --heads 40 --head-dim 56 -o rhs.h5
make generate attention-inputs --seed 7 --batch 1 --seq 40 --heads 1 --head-dim "$m" -o columns.h5
make group-metadata sizes.npy --layout deepgemm --align 3 -o labels.npz
padded=$("$ejk" info labels.npz:grouped_layout --json | sed 's/.*"shape":\[\([0-9]*\)\].*/\1/')
make convert 'lhs.h5:query[0,:,0,:]' -o lhs.npy
make convert 'lhs.h5:key[0,:,0,:]' -o grad.npy
make convert 'rhs.h5:query[0]' --dtype bfloat16 --compression 1 -o weights.h5:/w
make convert 'columns.h5:query[0,:,0,:]' -o columns.npz:x
# Some 10 MB, and nearly the same again.
make generate attention-inputs --seed 8 --batch 1 --seq 5000 --heads 8 --head-dim 64 --field query -o large.npy
make convert large.npy --dtype bfloat16 -o large_half.npy
make convert large.npy --compression 1 -o large.h5:/x
make convert large_half.npy --dtype float32 --compression 1 -o large.npz:x
head -c 4000 large.npy >cut.npy
cd "$work" || exit 1

# --- problems

# mask-info
for target in out.h5 out.npz out/; do
  pick 16x16 32x64 128x32 50x70 && block=$p
  pick 'causal & local(left=77, right=3)' 'chunked(100) | prefix(9)' 'causal(offset=13)' '~local(left=4, right=4)' &&
    mask=$p
  pick --json --dkv --dynamic --no-computable && how=$p
  between 200 900 && queries=$r
  between 200 900 && keys=$r
  problem mask-info --mask "$mask" --shape 2x"$queries"x"$keys" --block "$block" --pad "$how" -o $target
  expect 0
done
pick in/mask.npy in/mask.npz:mask in/mask.h5:/deep/mask && stored=$p
pick 32x32 64x16 && block=$p
problem mask-info "$stored" --block "$block" --pad --dkv --picture out.svg --html out.html -o out.npz
expect 0
pick in/mask.npy in/mask.h5:/deep/mask && stored=$p
problem mask-info "$stored" --mask causal --block 40x40 --pad --no-shrink-grid --field block_mask -o -
expect 0
input=in/mask.npy
problem mask-info - --block 20x50 --pad --mask-kind drop -o out.h5
expect 0
between 1 4 && heads=$r
problem mask-info --mask 'documents(in/cu.npy) & causal' --shape "$heads"x"$tokens"x"$tokens" --block 8x8 --pad
expect 0
problem mask-info in/mask.npy --block 17x32 -o out.h5

# attention
pick causal 'local(left=31, right=2)' 'chunked(50)' && mask=$p
problem attention in/query.npy in/key.npy in/value.npy --mask "$mask" --block 32x64 -o out.h5
expect 0
pick in/half/query.npy in/packed.npz:query in/packed.h5:/query && query=$p
problem attention "$query" in/qkv.npz:key in/half/value.npy --dtype float32 --softcap 2.5 -o out.npz --json
expect 0
problem attention in/qkv.safetensors:query in/qkv.safetensors:key in/qkv.npz:value --mask causal -o out.safetensors
expect 0
problem attention in/qkv.h5:query in/qkv.h5:key in/packed.h5:value in/square.npy --mask full --block 16x16 -o out/
expect 0
problem attention 'in/thd.h5:query[0]' 'in/thd.h5:key[0]' 'in/thd.h5:value[0]' --cu-seqlens in/cu.npy --mask causal \
  --field lse -o -
expect 0
problem attention in/thd.h5:query in/thd.h5:key in/thd.h5:value --check --field out -o out.npy
expect 0
problem attention in/qkv.h5:query in/qkv.h5:key in/other.h5:value --mask causal --against in/other.h5:query --explain
expect 1
problem attention in/query.npy in/key.npy in/value.npy --mask causal --sinks 'in/query.npy[0,0,:,0]' --alibi auto \
  --as jax-splash --lse-base 2 --max-logits --check -o out.npz
expect 0
problem attention in/query.npy in/key.npy in/value.npy --mask causal --dropout in/square.npy --keep 0.5 -o out.npz
expect 0
problem attention in/query.npy in/cu.npy in/value.npy -o out.h5
expect 3

# attention-grad
pick causal 'local(left=19, right=0)' && mask=$p
problem attention-grad in/query.npy in/key.npy in/value.npy in/other.h5:query --mask "$mask" --block 64x32 -o out.npz
expect 0
pick float16 float32 bfloat16 && dtype=$p
problem attention-grad in/half/query.npy in/packed.npz:key in/packed.h5:/value in/other.h5:query --dtype "$dtype" \
  -o out.h5
expect 0
problem attention-grad in/query.npy in/key.npy in/value.npy in/other.h5:query --dropout in/square.npy --keep 0.5 \
  -o out.npz
expect 0
input=in/query.npy
problem attention-grad - in/key.npy in/value.npy in/other.h5:key --mask causal --field dk -o - --json
expect 0
problem attention-grad 'in/thd.h5:query[0]' 'in/thd.h5:key[0]' 'in/thd.h5:value[0]' 'in/thd.h5:value[0]' \
  --cu-seqlens in/cu.npy --mask causal --check -o out/ -q
expect 0
problem attention-grad 'in/thd.h5:query[0]' 'in/thd.h5:key[0]' 'in/thd.h5:value[0]' 'in/thd.h5:value[0]' \
  --cu-seqlens in/short.npy --cu-seqlens-padded in/cu.npy --check -o out.npz
expect 0
pick '' '[:,:1]' '[:,:,:1]' '[:,:,:,:1]' && bias="in/bias.npz:query$p"
problem attention-grad in/query.npy in/key.npy in/value.npy in/other.h5:query --bias "$bias" --mask causal -o out.npz
expect 0
problem attention-grad in/query.npy in/key.npy in/value.npy in/other.h5:query --sinks 'in/query.npy[0,1,:,0]' \
  --alibi auto --softcap 2 --softcap-order after-bias --check -o out.npz
expect 0

# grouped-matmul
problem grouped-matmul "in/lhs.npy[:$padded]" in/weights.h5:/w --row-groups in/labels.npz:grouped_layout --check -o out.npy
expect 0
problem grouped-matmul in/lhs.npy in/weights.h5:/w in/sizes.npy -o out.npy
expect 0
pick float16 bfloat16 float64 && dtype=$p
problem grouped-matmul in/lhs.npy 'in/rhs.h5:/key[0]' in/sizes.npy --dtype "$dtype" --tiling 64x32x16 --check \
  -o out.h5:/y --json
expect 0
input=in/lhs.npy
problem grouped-matmul - 'in/weights.h5:/w[2:7]' in/sizes.npy --group-offset 2 -o -
expect 0
problem grouped-matmul in/grad.npy in/weights.h5:/w in/sizes.npy --against in/lhs.npy
expect 3

# transposed-grouped-matmul
problem transposed-grouped-matmul in/columns.npz:x in/grad.npy in/sizes.npy -o out.npz
expect 0
pick float16 bfloat16 && dtype=$p
between 1 6 && offset=$r
problem transposed-grouped-matmul in/columns.npz:x in/grad.npy in/sizes.npy --dtype "$dtype" \
  --group-offset "$offset" --num-actual-groups 3 -o out.h5:/gradient --check
expect 0

# what rank 0 does alone
problem sparsity in/mask.npy --mask causal --blocks 16x16,128x64 --cp 2 --html out.html
expect 0
pick in/large_half.npy in/large.npz:x && half=$p
problem compare "$half" in/large.npy --rtol 1e-6
expect 1
problem compare --runs in/large.npy in/large.h5:/x in/large.npy --json
expect 0
problem compare in/cut.npy in/large.npy
expect 3
input=in/large.npy
problem convert - --dtype bfloat16 -o -
expect 0
problem convert in/qkv.h5 in/cu.npy --dtype float32 -o out/
expect 0
any_stderr=yes
problem convert in/cu.npy --dtype int7 -o out.npy
expect 2
pick in/documents.npy in/mask.npy && stored=$p
problem segment-ids "$stored" -o out.h5
expect 0
input=in/ids.npy
problem segment-mask - -o out.npy
expect 0

(cd in && ls -A) | grep -q '^\.' && fail "left among the inputs: $(ls -A in)"
echo "$problems problems, $starts starts of ranks, seed $seed: $failed differences"
[ "$failed" = 0 ]

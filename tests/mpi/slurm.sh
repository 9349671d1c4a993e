#!/bin/sh
# The scripts for Slurm, with an `srun` that calls mpirun.
#
#   sh slurm.sh EJK EJK_MPI WORK_FOLDER
set -eu
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
scripts=$(cd "$(dirname "$0")/../../apps/ejk-mpi/slurm" && pwd)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
rm -rf "$3" && mkdir -p "$3/bin" && cd "$3"
ln -s "$1" bin/ejk
ln -s "$2" bin/ejk-mpi
cat >bin/srun <<'END'
#!/bin/sh
# Takes its own options away; as many tasks as the job has.
while case $1 in -*) true ;; *) false ;; esac; do
  echo "$1" >>srun-options.txt
  shift
done
exec mpirun --oversubscribe -q -n "${SLURM_NTASKS:-1}" "$@"
END
chmod +x bin/srun
export PATH="$PWD/bin:$PATH"

ejk mask-info --mask 'causal & local(99, 0)' --shape 4096x4096 --block 64x64 -o one.h5 -q
for script in one-node many-nodes; do
  SLURM_NTASKS=3 SLURM_CPUS_PER_TASK=1 sh "$scripts/$script.sbatch" mask-info --mask 'causal & local(99, 0)' \
    --shape 4096x4096 --block 64x64 -o three.h5 -q
  cmp one.h5 three.h5
  grep -q -e --cpus-per-task=1 srun-options.txt
  rm three.h5 srun-options.txt
done

cat >commands.txt <<'END'
mask-info --mask causal --shape 512x512 --block 64x64 -o first.h5 -q
mask-info --mask 'causal & local(99, 0)' --shape 4096x4096 --block 64x64 -o second.h5 -q
END
for task in 1 2; do SLURM_ARRAY_TASK_ID=$task sh "$scripts/array.sbatch" commands.txt; done
cmp one.h5 second.h5
test -s first.h5
if SLURM_ARRAY_TASK_ID=3 sh "$scripts/array.sbatch" commands.txt 2>stderr.txt; then exit 1; fi
grep -q "has no line 3" stderr.txt

# What Slurm gives a task is its number of threads.
SLURM_NTASKS=2 SLURM_CPUS_PER_TASK=1 srun ejk-mpi compare one.h5 second.h5 --json --stats >report.json
grep -q '"threads":1\b' report.json
echo "all as it should be"

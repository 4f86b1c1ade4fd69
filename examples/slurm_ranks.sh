#!/bin/bash
# One run over two machines of a SLURM cluster: sbatch examples/slurm_ranks.sh settings.toml /shared/runs/first
# The folder must lie on a file system that all nodes share. The job may be queued again at any time: it goes on from the
# last checkpoint, with the same result.
#SBATCH --job-name=leanfed
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

settings=$1
folder=$2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# One rank a machine, which uses all of its cores. For GPUs: --nproc-per-node with their number.
srun torchrun \
  --nnodes "$SLURM_NNODES" --nproc-per-node 1 --max-restarts 3 \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:29500" \
  -m leanfed run "$settings" --out "$folder"

#!/usr/bin/env bash
# A Slurm of one node, in a root of this machine's release in which the Debian package of build/ is installed, runs jobs of two
# ranks as scripts/slurm_example.sbatch has them, and their variants without MPI, with ottava launch and with mpirun. They save
# before the time limit and when they are requeued or, but for mpirun, cancelled, go on from there, and end when a rank dies.
# Needs root.
#     scripts/stages/slurm.sh [BUILD FOLDER]
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/ { /^set/d; s/^# //p }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
source scripts/stages/debian_root.sh
need_root
scripts/install_dependencies.sh mmdebstrap
build=${1:-build}
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
cpack --config "$build/CPackConfig.cmake" -B "$packages" -G DEB >"$packages/log" || { cat "$packages/log"; exit 1; }

debian_root slurm "$(. /etc/os-release && echo "$VERSION_CODENAME")" --variant=minbase \
  --include=slurmctld,slurmd,slurm-client,munge,openmpi-bin,libpmix-dev,hostname,procps
root=$roots/slurm
cp "$packages"/ottava_*.deb "$root/tmp/ottava.deb"
in_root slurm root bash -ec 'export DEBIAN_FRONTEND=noninteractive; apt-get update; apt-get install -y --reinstall /tmp/ottava.deb' \
  >"$packages/log" 2>&1 || { cat "$packages/log"; exit 1; }
user_in slurm user
home=$root/home/user
rm -rf "$home/jobs"
mkdir -p "$home/jobs/build"
ln -s /usr/bin/ottava "$home/jobs/build/ottava"
cp scripts/slurm_example.sbatch scripts/stages/slurm_jobs.sh "$home/jobs/"
for i in $(seq 20000); do echo "The dog number $i sees the dog number $((i + 1))."; done >"$home/jobs/text.txt"
chown -R --reference="$home" "$home/jobs"

node=$(hostname -s)
echo "127.0.0.1 localhost $node" >"$root/etc/hosts"
cat >"$root/etc/slurm/slurm.conf" <<EOF
ClusterName=one
SlurmctldHost=$node
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
StateSaveLocation=/var/lib/slurm/state
SlurmdSpoolDir=/var/lib/slurm/node
SlurmctldLogFile=/var/log/slurm/controller.log
SlurmdLogFile=/var/log/slurm/node.log
NodeName=$node CPUs=2
PartitionName=all Nodes=$node Default=YES OverSubscribe=FORCE:4
EOF
# A killed job leaves a folder of its number in /tmp, where the next start's job of that number does not begin.
rm -rf "$root"/var/lib/slurm/{state,node} "$root"/var/log/slurm/* "$root"/tmp/spmix_appdir_*
mkdir -p "$root"/var/lib/slurm/{state,node} "$root"/var/log/slurm
in_root slurm root bash -ec '
  install -d -o munge -g munge /run/munge
  su -s /bin/sh munge -c munged
  slurmctld
  slurmd
  su --login user --command "cd jobs && bash slurm_jobs.sh"' || { tail -n 20 "$root"/var/log/slurm/*.log; exit 1; }

# What CTest runs before the tests. Variables by which a launcher tells a process its rank are not those of the tests, also where
# CTest is started within a job of Slurm, in a container of a cluster or under mpirun. Those by which OpenMP binds a program's
# first thread would leave all that a test starts one CPU, and those that limit threads would leave a loop fewer than a test asks
# for; tests of such variables set them.
foreach(_name
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOG_RANK TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE
    OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
    PMI_SIZE PMI_RANK PMI_LOCAL_RANK PMI_LOCAL_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
    SLURM_STEP_NUM_TASKS SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_TASKS_PER_NODE SLURM_CPUS_PER_TASK
    OTTAVA_ACCOUNTS OTTAVA_OMP_BINDING
    OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY OMP_THREAD_LIMIT OMP_MAX_ACTIVE_LEVELS OMP_DYNAMIC)
  unset(ENV{${_name}})
endforeach()

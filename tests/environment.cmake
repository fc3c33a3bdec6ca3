# What CTest runs before the tests: variables by which a launcher tells a process its rank are not those of the tests, also where
# CTest is started within a job of Slurm, in a container of a cluster or under mpirun.
foreach(_name
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOG_RANK TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE
    OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_MCA_orte_bound_at_launch
    PMI_SIZE PMI_RANK PMI_LOCAL_RANK PMI_LOCAL_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
    SLURM_STEP_NUM_TASKS SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_TASKS_PER_NODE SLURM_CPU_BIND_TYPE OTTAVA_ACCOUNTS)
  unset(ENV{${_name}})
endforeach()

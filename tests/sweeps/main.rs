//! Sweeps: on this machine, with Slurm, with Ray. The daemons belong to these tests.

mod jobs_server;
mod sweep_files;
mod sweep_ray;
mod sweep_runs;
mod sweep_slurm;

//! The command `kdgat`. Everything is in the library.

fn main() -> std::process::ExitCode {
    kdgat::torch::number_gpus_by_bus();
    // Before the first tensor, so that all are counted.
    if let Err(error) = kdgat::memory::install() {
        eprintln!("error: the allocator of host memory cannot be installed: {error}");
        return std::process::ExitCode::FAILURE;
    }
    kdgat::cli::main()
}

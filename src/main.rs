//! The command `kdgat`; the library has the code.

fn main() -> std::process::ExitCode {
    kdgat::torch::number_gpus_by_bus();
    // Before the first tensor, so that the allocator counts all of them.
    if let Err(error) = kdgat::memory::install() {
        eprintln!("error: cannot install the allocator for host memory: {error}");
        return std::process::ExitCode::FAILURE;
    }
    kdgat::torch::skip_destructors_at_exit();
    kdgat::cli::main()
}

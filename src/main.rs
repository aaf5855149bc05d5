//! The command `kdgat`. Everything is in the library.

fn main() -> std::process::ExitCode {
    kdgat::cli::main()
}

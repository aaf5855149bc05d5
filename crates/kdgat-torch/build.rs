//! Compiles the C++ shim against libtorch's headers and adds libtorch's folder to the run path, so that binaries built
//! by cargo run without LD_LIBRARY_PATH.

#[path = "../run_path.rs"]
mod run_path;

const SHIM: &str = "src/shim";
/// Includes all other C++ files.
const SOURCE: &str = "all.cpp";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SHIM}");
    for variable in ["LIBTORCH", "LIBTORCH_INCLUDE", "LIBTORCH_CXX11_ABI"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let libtorch = std::env::var("LIBTORCH").unwrap_or_default();
    if libtorch.is_empty() {
        panic!("LIBTORCH is not set: run scripts/setup once; it obtains libtorch and configures cargo to find it");
    }
    compile_shim(&std::env::var("LIBTORCH_INCLUDE").unwrap_or_else(|_| libtorch.clone()));
    run_path::main();
}

/// Compiles the shim. It links nothing itself: `torch-sys` already links libtorch and the OpenMP runtime that libtorch
/// uses.
fn compile_shim(headers: &str) {
    let abi = std::env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .emit_rerun_if_env_changed(false)
        .includes([SHIM.to_owned(), format!("{headers}/include"), format!("{headers}/include/torch/csrc/api/include")])
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        // at::parallel_for is a template: without this flag it would run its body on the calling thread only.
        .flag("-fopenmp")
        .opt_level(2)
        .debug(false)
        .file(format!("{SHIM}/{SOURCE}"))
        .compile("kdgat_shim");
}

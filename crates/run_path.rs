//! Build script of every package whose programs or tests load libtorch: puts its folder on their run path, so that
//! they run without LD_LIBRARY_PATH. Cargo applies such link arguments to the package itself only. kdgat-torch has a
//! build script of its own, which calls this one.

pub fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    // crates/kdgat-torch/build.rs says what to do when it is missing.
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/../nvidia/cu13/lib");
    }
}

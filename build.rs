//! Puts libtorch's folder on the run path, so that what cargo builds runs without LD_LIBRARY_PATH.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let libtorch = std::env::var("LIBTORCH").unwrap_or_default();
    if libtorch.is_empty() {
        panic!("LIBTORCH is not set: run scripts/setup once, it obtains libtorch and tells cargo where it is");
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/../nvidia/cu13/lib");
}

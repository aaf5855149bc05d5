//! What libtorch has and `tch` does not expose. The only `unsafe` code of the crate, and the only C++.
#![allow(unsafe_code)]

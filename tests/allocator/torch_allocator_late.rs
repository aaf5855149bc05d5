//! Installing the allocator after tensors were created. In a process of its own, because it is installed once per process.

use kdgat::torch::allocator::{self, Phase};
use support::process::runs_alone;
use tch::{Device, Kind, Tensor};

#[test]
fn earlier_memory_is_not_counted_but_freed() {
    if !runs_alone(module_path!(), "earlier_memory_is_not_counted_but_freed") {
        return;
    }
    let earlier = Tensor::ones([1_000_000], (Kind::Float, Device::Cpu));
    assert!(!allocator::is_installed());
    allocator::install().unwrap();
    allocator::install().unwrap();
    assert!(allocator::is_installed());
    assert_eq!(allocator::stats().current, 0);
    assert!(!allocator::attribute(&earlier, Phase::Data).unwrap());
    let later = &earlier + 1.0;
    assert!(allocator::attribute(&later, Phase::Data).unwrap());
    assert_eq!(allocator::stats().current, 4_000_000);
    drop(earlier);
    assert_eq!(allocator::stats().current, 4_000_000);
    drop(later);
    assert_eq!(allocator::stats().current, 0);
}

//! The host allocator, its limits and its injected failures. It is installed for the whole process: the tests take turns.

mod memory_failures;
mod memory_steps;
mod torch_allocator;
mod torch_allocator_late;

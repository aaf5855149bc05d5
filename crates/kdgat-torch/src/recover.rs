//! Turns tch's panics over libtorch errors into errors.
//!
//! Most of tch's fallible methods return errors, but a method that takes a number (such as `f_add_scalar`) panics when
//! it drops that number, because libtorch's error is still unread. Code that must survive running out of memory or a
//! GPU error therefore goes through [`recover`].

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;

use tch::TchError;

use super::allocator::is_out_of_memory;
use super::ffi;

thread_local! {
    /// Nesting depth of `recover` calls on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Runs `body`. A panic of tch over an error of libtorch becomes that error, as does any panic whose message means out
/// of memory (see [`is_out_of_memory`]). Other panics continue.
///
/// After an error or a panic, restores this thread's state: whether it records gradients (tch's `no_grad` does not
/// restore this on a panic), and no unread libtorch error.
pub fn recover<T, E: From<TchError>>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    silence_expected_panics();
    let records = recording();
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    DEPTH.set(DEPTH.get() - 1);
    if !matches!(outcome, Ok(Ok(_))) {
        set_recording(records);
        drain_error();
    }
    match outcome {
        Ok(result) => result,
        Err(payload) => match libtorch_error(payload.as_ref()) {
            Some(error) => Err(error.into()),
            None => resume_unwind(payload),
        },
    }
}

/// True if this thread records gradients.
fn recording() -> bool {
    // SAFETY: one number. libtorch returns the mode only in exchange for a new one; the old one is restored at once.
    let records = unsafe { torch_sys::at_grad_set_enabled(0) } != 0;
    set_recording(records);
    records
}

fn set_recording(records: bool) {
    // SAFETY: one number.
    unsafe { torch_sys::at_grad_set_enabled(i32::from(records)) };
}

/// Discards an unread error, which would otherwise be reported for the next operation.
fn drain_error() {
    // SAFETY: null, or a text from `malloc` that we own.
    unsafe {
        let text = torch_sys::get_and_reset_last_err();
        if !text.is_null() {
            libc::free(text.cast());
        }
    }
}

fn libtorch_error(payload: &(dyn Any + Send)) -> Option<TchError> {
    let text = ffi::panic_message(payload);
    let told = text.split_once("on an `Err` value: Torch(\"").map(|(_, told)| {
        // Escaped, as in the message of `unwrap`; libtorch appends the location in its own code.
        let end = told.find("\\nException raised from").unwrap_or(told.len());
        TchError::Torch(told[..end].trim_end_matches("\")").to_owned())
    });
    told.or_else(|| Some(TchError::Torch(text)).filter(is_out_of_memory))
}

/// Suppresses the printed message of panics that will be caught.
fn silence_expected_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let expected = DEPTH.get() > 0 && libtorch_error(info.payload()).is_some();
            if !expected {
                print(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_tch_panics_over_is_that_error() {
        let refused = "CUDA error: an illegal memory access was encountered";
        for text in [refused.to_owned(), format!("{refused}\nException raised from launch at file.cu:5")] {
            let fails = || -> Result<(), TchError> { Err(TchError::Torch(text.clone())) };
            let body = || -> Result<(), TchError> {
                fails().unwrap();
                Ok(())
            };
            let error = recover(body).unwrap_err();
            assert!(matches!(&error, TchError::Torch(told) if told == refused), "{error:?}");
        }
    }

    #[test]
    fn only_running_out_of_memory_is_caught() {
        let error = recover(|| -> Result<(), TchError> { panic!("CUDA out of memory. Tried to allocate 2 GiB") });
        assert!(is_out_of_memory(&error.unwrap_err()));
        let other = catch_unwind(|| recover(|| -> Result<(), TchError> { panic!("a wrong index") }));
        assert_eq!(ffi::panic_message(other.unwrap_err().as_ref()), "panicked: a wrong index");
        assert!(matches!(recover(|| Ok::<_, TchError>(7)), Ok(7)));
    }

    #[test]
    fn a_panic_leaves_gradients_recorded() {
        let failing = || tch::no_grad(|| -> Result<(), TchError> { panic!("out of memory") });
        assert!(recover(failing).is_err());
        assert!(recording());
        assert!(
            recover(|| {
                let _guard = tch::no_grad_guard();
                failing()
            })
            .is_err()
        );
        assert!(recording());
    }
}

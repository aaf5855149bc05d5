//! Printing to standard error without the panic of the standard library's macros.

/// Shadows the standard library's `eprintln!`: a closed standard error (`2> >(head)`) must not abort training.
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Shadows the standard library's `eprint!`, as [`eprintln!`] does.
#[macro_export]
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}

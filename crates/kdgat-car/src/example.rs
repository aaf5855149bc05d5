//! The example program `kdgat-car` of an exported folder: reads frames on Linux, prints the lines of `kdgat detect`.

/// Paths below the folder and contents.
pub const FILES: &[(&str, &str)] = &[
    ("example/.gitignore", include_str!("../c/example/.gitignore")),
    ("example/Makefile", include_str!("../c/example/Makefile")),
    ("example/README.md", include_str!("../c/example/README.md")),
    ("example/alarm.c", include_str!("../c/example/alarm.c")),
    ("example/alarm.h", include_str!("../c/example/alarm.h")),
    ("example/bus.c", include_str!("../c/example/bus.c")),
    ("example/bus.h", include_str!("../c/example/bus.h")),
    ("example/can_socket.c", include_str!("../c/example/can_socket.c")),
    ("example/can_socket.h", include_str!("../c/example/can_socket.h")),
    ("example/candump.c", include_str!("../c/example/candump.c")),
    ("example/candump.h", include_str!("../c/example/candump.h")),
    ("example/event.c", include_str!("../c/example/event.c")),
    ("example/event.h", include_str!("../c/example/event.h")),
    ("example/hook.c", include_str!("../c/example/hook.c")),
    ("example/hook.h", include_str!("../c/example/hook.h")),
    ("example/input.c", include_str!("../c/example/input.c")),
    ("example/input.h", include_str!("../c/example/input.h")),
    ("example/kdgat-car@.service", include_str!("../c/example/kdgat-car@.service")),
    ("example/main.c", include_str!("../c/example/main.c")),
    ("example/notify.c", include_str!("../c/example/notify.c")),
    ("example/notify.h", include_str!("../c/example/notify.h")),
    ("example/options.c", include_str!("../c/example/options.c")),
    ("example/options.h", include_str!("../c/example/options.h")),
    ("example/saved.c", include_str!("../c/example/saved.c")),
    ("example/saved.h", include_str!("../c/example/saved.h")),
    ("example/severity.c", include_str!("../c/example/severity.c")),
    ("example/severity.h", include_str!("../c/example/severity.h")),
    ("example/text.c", include_str!("../c/example/text.c")),
    ("example/text.h", include_str!("../c/example/text.h")),
    ("example/test/alarm_test.c", include_str!("../c/example/test/alarm_test.c")),
    ("example/test/bus_test.c", include_str!("../c/example/test/bus_test.c")),
    ("example/test/can_socket_test.c", include_str!("../c/example/test/can_socket_test.c")),
    ("example/test/candump_test.c", include_str!("../c/example/test/candump_test.c")),
    ("example/test/options_test.c", include_str!("../c/example/test/options_test.c")),
    ("example/test/repeat.c", include_str!("../c/example/test/repeat.c")),
    ("example/test/text_test.c", include_str!("../c/example/test/text_test.c")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_file_of_the_folder_is_written() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
        let below = |path: &str| -> BTreeSet<String> {
            let entries = std::fs::read_dir(folder.join(path)).unwrap().map(Result::unwrap);
            let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
            files.map(|entry| format!("{path}/{}", entry.file_name().to_str().unwrap())).collect()
        };
        let mut expected = below("example");
        expected.extend(below("example/test"));
        // Programs that `make` leaves have no extension.
        expected.retain(|name| name.contains('.') || name.ends_with("Makefile"));
        assert_eq!(FILES.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>(), expected);
    }
}

//! `kdgat teachers cache`; and a student's files contain nothing of its teacher.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use kdgat::exit;
use support::cli::{SMALL_STUDENT, Workplace, said};
use support::stops::{ended_by, wait_for_in};

const STUDENT_RUNS: &str = "vgae_student_autoencoder_kd";

fn cache<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["teachers", "cache"], SMALL_STUDENT, more].concat()
}

/// The only target cache file in a workplace.
fn targets_file(workplace: &Workplace) -> PathBuf {
    let folder = workplace.path().join("stores/targets");
    let mut files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|extension| extension == "targets"));
    file.unwrap_or_else(|| panic!("no file of targets in {}", folder.display()))
}

/// Sum of a column of `steps.csv`.
fn column_sum(run: &Path, name: &str) -> f64 {
    let mut reader = csv::Reader::from_path(run.join("steps.csv")).unwrap();
    let rows = reader.deserialize::<BTreeMap<String, String>>();
    rows.map(|row| row.unwrap()[name].parse::<f64>().unwrap()).sum()
}

#[test]
fn targets_are_computed_ahead_once_and_training_reads_them() {
    let workplace = Workplace::with_teacher();
    let said = workplace.success(&cache(&[]));
    for words in ["targets of", "free", "complete", "computed now"] {
        assert!(said.contains(words), "nothing is said of '{words}':\n{said}");
    }
    let size = said.find("take").unwrap();
    assert!(size < said.find("complete").unwrap(), "the size is to be said first:\n{said}");
    let again = workplace.success(&cache(&[]));
    assert!(again.contains(" 0 computed now"), "{again}");

    workplace.success(
        &[&["autoencoder"], SMALL_STUDENT, &["--max-epochs", "2", "--teacher-cache", "disk", "--offload-teacher"]]
            .concat(),
    );
    let run = workplace.run_folder(STUDENT_RUNS, 1);
    assert_eq!(column_sum(&run, "cache_miss_rows"), 0.0);
    assert!(column_sum(&run, "cache_hit_rows") > 0.0);
    assert_eq!(column_sum(&run, "copy_ms"), 0.0, "the weights were brought to the device for nothing");
}

/// Ctrl-C ends the computation cleanly: computed targets stay cached, and the same command resumes.
#[test]
fn an_interrupted_computation_goes_on() {
    let workplace = Workplace::with_teacher();
    let one_at_a_time = ["--batch-size", "1", "--optimize-batch-size", "false"];
    let mut command = workplace.command(&cache(&one_at_a_time));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The file is created before the first target is computed.
    let folder = workplace.path().join("stores/targets");
    let has_file = || folder.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    assert!(wait_for_in(&mut child, "a file of targets", has_file), "it has ended already");
    let output = ended_by(child, rustix::process::Signal::INT);
    let first = said(&output);
    assert_eq!(output.status.code(), Some(exit::INTERRUPTED.into()), "{first}");
    assert!(first.contains("interrupted"), "{first}");
    let second = workplace.success(&cache(&one_at_a_time));
    // "targets of 12 of 345 graphs (...), 12 computed now"
    let numbers = |text: &str| -> [u64; 3] {
        let line = text.lines().find(|line| line.contains(" computed now")).unwrap_or_else(|| panic!("{text}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse().unwrap_or_else(|_| panic!("no number {at} in: {line}"));
        let of = words.iter().position(|&word| word == "of").unwrap();
        [number(of + 1), number(of + 3), number(words.iter().position(|&word| word == "computed").unwrap() - 1)]
    };
    let ([kept, wanted, computed], [complete, _, rest]) = (numbers(&first), numbers(&second));
    assert!(kept == computed && kept < wanted, "{first}");
    assert_eq!((complete, rest), (wanted, wanted - kept), "what was kept is computed again:\n{first}{second}");
}

#[test]
fn what_is_missing_or_damaged_is_computed_again() {
    let workplace = Workplace::with_teacher();
    workplace.success(&cache(&[]));
    let path = targets_file(&workplace);
    let mut bytes = std::fs::read(&path).unwrap();
    // The last byte that is not zero is in the last written record.
    let last = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let said = workplace.success(&cache(&[]));
    assert!(said.contains(" 1 computed now") && said.contains("complete"), "{said}");
}

#[test]
fn a_cache_that_nothing_would_read_is_refused() {
    let workplace = Workplace::with_teacher();
    let said = workplace.refused(&cache(&["--teacher-cache", "ram"]));
    assert!(said.contains("--teacher-cache disk"), "{said}");
    let said = workplace.refused(&cache(&["--use-teacher-cache", "false"]));
    assert!(said.contains("--use-teacher-cache"), "{said}");
    let said = Workplace::new().refused(&cache(&[]));
    assert!(said.contains("kdgat autoencoder --preset vgae,teacher"), "{said}");
}

#[test]
fn a_foreign_cache_is_refused_and_the_difference_is_named() {
    let workplace = Workplace::with_teacher();
    workplace.success(&cache(&[]));
    let path = targets_file(&workplace);
    let other = workplace.path().join("other.targets");
    std::fs::rename(&path, &other).unwrap();
    workplace.success(&cache(&["--teacher-cache-precision", "f16"]));
    let half = targets_file(&workplace);
    std::fs::rename(&other, &half).unwrap();
    let output = workplace.run(&cache(&["--teacher-cache-precision", "f16"]));
    let said = support::cli::said(&output);
    assert!(!output.status.success() && said.contains("precision") && said.contains("f16"), "{said}");
}

#[test]
fn a_students_files_hold_no_bytes_of_its_teacher() {
    let workplace = Workplace::with_teacher();
    workplace.success(&[&["autoencoder"], SMALL_STUDENT, &["--max-epochs", "1"]].concat());
    let teacher = workplace.path().join("teachers/small/vgae/weights.safetensors");
    let teacher = kdgat::distill::Weights::read(&teacher).unwrap();
    let run = workplace.run_folder(STUDENT_RUNS, 1);
    for file in ["best.safetensors", "last/state.safetensors"] {
        let bytes = std::fs::read(run.join(file)).unwrap();
        let mut compared = 0;
        for (name, tensor) in teacher.iter() {
            let tensor = tensor.flatten(0, -1);
            // Tensors that may be equal by chance: a zero bias, counts.
            let Ok(values) = Vec::<f32>::try_from(&tensor) else { continue };
            if values.len() < 8 || values.iter().all(|value| *value == values[0]) {
                continue;
            }
            let pattern: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert!(memchr::memmem::find(&bytes, &pattern).is_none(), "{file} holds the teacher's {name}");
            compared += 1;
        }
        assert!(compared > 5, "only {compared} of the teacher's tensors were looked for");
        let size = bytes.len() as u64;
        assert!(file != "best.safetensors" || size < teacher.bytes() / 2 + 16_384, "{file} has {size} bytes");
    }
}

/// Bytes of the only file of targets in a folder of the workplace.
fn only_bytes(workplace: &Workplace, folder: &str) -> Vec<u8> {
    let files = std::fs::read_dir(workplace.path().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = files.collect();
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::read(&files[0]).unwrap()
}

/// The file of a part of the targets.
fn part_file(workplace: &Workplace, folder: &str, part: &str) -> PathBuf {
    let files = std::fs::read_dir(workplace.path().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut files = files.filter(|path| path.to_string_lossy().ends_with(&format!(".part-{part}")));
    files.next().unwrap_or_else(|| panic!("no file of part {part}"))
}

#[test]
fn parts_have_the_bytes_of_one_computation() {
    let workplace = Workplace::with_teacher();
    let with = |folder: &'static str, more: &[&'static str]| {
        cache(&[&["--batch-size", "40", "--teacher-cache-dir", folder], more].concat())
    };
    workplace.success(&with("whole", &[]));
    let whole = only_bytes(&workplace, "whole");
    // On different machines, joined on one; by processes of this machine.
    for part in ["3/3", "1/3", "2/3"] {
        let said = workplace.success(&with("apart", &["--part", part]));
        assert!(said.contains("complete: targets of") && said.contains(" graphs"), "{said}");
    }
    let said = workplace.success(&with("apart", &["--parts", "3"]));
    assert!(said.contains("3 parts, 3 of them done") && said.contains(" 0 computed now"), "{said}");
    assert!(only_bytes(&workplace, "apart") == whole, "three commands change the bytes");
    let said = workplace.success(&with("local", &["--parts", "4", "--jobs", "2"]));
    assert!(said.contains("4 parts, 0 of them done"), "{said}");
    assert!(only_bytes(&workplace, "local") == whole, "four processes change the bytes");
    let again = workplace.success(&with("local", &["--parts", "4"]));
    assert!(again.contains(" 0 computed now") && again.contains("complete"), "{again}");
    let script = workplace.success(&with("new", &["--parts", "2", "--executor", "slurm", "--dry-run"]));
    assert!(script.contains("#SBATCH --array=0-1") && script.contains("# 2/2"), "{script}");
    assert!(!workplace.path().join("new").exists());
}

/// A part of a killed process has some of its records; one of other targets is not taken for a part.
#[test]
fn parts_that_are_not_complete_or_foreign_are_not_joined() {
    let workplace = Workplace::with_teacher();
    let with = |folder: &'static str, more: &[&'static str]| {
        cache(&[&["--batch-size", "40", "--teacher-cache-dir", folder], more].concat())
    };
    workplace.success(&with("whole", &[]));
    for part in ["1/2", "2/2"] {
        workplace.success(&with("parts", &["--part", part]));
    }
    let second = part_file(&workplace, "parts", "2-of-2");
    let mut bytes = std::fs::read(&second).unwrap();
    // The table after the header has a byte for each record: the later half is not written yet.
    let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let table = (24 + length).next_multiple_of(4096);
    let written: Vec<usize> = (table..table + 4096).filter(|&at| bytes[at] == 1).collect();
    written[written.len() / 2..].iter().for_each(|&at| bytes[at] = 0);
    std::fs::write(&second, &bytes).unwrap();
    let said = workplace.success(&with("parts", &["--parts", "2"]));
    assert!(said.contains("2 parts, 1 of them done"), "{said}");
    assert!(only_bytes(&workplace, "parts") == only_bytes(&workplace, "whole"), "a repeated part changes the bytes");

    let half = ["--part", "1/2", "--teacher-cache-precision", "f16"];
    workplace.success(&with("foreign", &half));
    let foreign = part_file(&workplace, "foreign", "1-of-2");
    let renamed = foreign.to_string_lossy().replace("-f16", "-f32");
    std::fs::rename(&foreign, &renamed).unwrap();
    let output = workplace.run(&with("foreign", &["--parts", "2"]));
    let said = support::cli::said(&output);
    assert!(!output.status.success() && said.contains("part 1/2: "), "{said}");
    assert!(said.contains(".part-1-of-2") && said.contains("precision"), "{said}");
    assert!(said.contains("1 of 2 parts failed"), "{said}");
    std::fs::remove_file(renamed).unwrap();
    workplace.success(&with("foreign", &["--parts", "2"]));
    assert!(only_bytes(&workplace, "foreign") == only_bytes(&workplace, "whole"), "another part was joined");
}

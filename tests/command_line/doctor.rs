//! `kdgat doctor` prints what it found, as text and as JSON.

use support::cli::Workplace;

#[test]
fn the_doctor_names_libtorch_memory_and_why_there_is_no_gpu() {
    let said = Workplace::new().success(&["doctor"]);
    for words in ["libtorch     2.11", "CUDA", "driver", "processor", "threads", "memory to memory", "available"] {
        assert!(said.contains(words), "nothing is said of '{words}':\n{said}");
    }
}

#[test]
fn the_doctor_measures_with_so_many_threads() {
    for threads in [1, 3] {
        let said = Workplace::new().run(&["doctor", "--json", "--threads", &threads.to_string()]);
        let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_eq!(report["host"]["threads"], threads);
    }
}

/// Processes that meet have measured their sums, and one of them reports; a process that is alone at its place waits for none.
#[test]
fn the_doctor_measures_the_exchange_of_processes() {
    let place = Workplace::new();
    let doctor = ["launch", "--processes", "3", "--", "doctor", "--threads", "1"];
    let said = place.run(&[&doctor[..], &["--json"]].concat());
    assert!(said.status.success(), "{said:?}");
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let exchange = &report["exchange"];
    assert_eq!((&exchange["processes"], &exchange["shares_memory"]), (&3.into(), &true.into()), "{exchange}");
    for name in ["meeting_seconds", "small_sum_ms", "sum_bytes_per_second"] {
        assert!(exchange[name].as_f64().unwrap() > 0.0, "{name}: {exchange}");
    }
    let said = place.success(&doctor);
    assert_eq!(said.matches("libtorch     ").count(), 1, "{said}");
    assert!(said.contains("3 have met at 127.0.0.1:") && said.contains("ms in shared memory, 4 MiB at"), "{said}");
    assert!(!place.success(&["doctor", "--threads", "1"]).contains("have met"));
    let said = place.refused(&["launch", "--processes", "2", "--", "evaluate"]);
    assert!(said.contains("several processes train together with") && said.contains("`doctor`"), "{said}");
}

#[test]
fn the_doctors_json_is_complete() {
    let said = Workplace::new().run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert!(report["libtorch_version"].as_str().unwrap().starts_with("2.11"));
    assert!(std::path::Path::new(report["libtorch_folder"].as_str().unwrap()).join("libtorch_cpu.so").exists());
    assert!(report["host"]["memory_available_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(report["host"]["copy_bytes_per_second"].as_f64().unwrap() > 1e8);
    let devices = report["devices"].as_array().unwrap();
    // Without a GPU the report has the reason, with a GPU its figures.
    assert_eq!(devices.is_empty(), report["no_cuda_device"].is_string());
    for device in devices {
        assert!(device["copies"]["Ok"]["pageable_bytes_per_second"].as_f64().unwrap() > 1e8, "{device}");
    }
}

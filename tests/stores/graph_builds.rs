//! Killed and concurrent store builds: a partial store is never used, and no store is built twice.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;
use support::process::only_test;

use kdgat::can::Dataset;
use kdgat::graph::store::build::store_folder;
use kdgat::graph::{Store, StoreError, open_or_build};
use support::graph::{Heard, contents_names, fixture, small};

#[test]
fn a_folder_of_a_killed_build_is_removed_and_never_opened() {
    let fixture = fixture(1000);
    let folder = store_folder(&fixture.dataset, &small(), &fixture.stores).unwrap();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let leftovers =
        [format!(".{name}.building-1"), format!(".{name}.replaced-2")].map(|name| fixture.stores.join(name));
    for leftover in &leftovers {
        fs::create_dir_all(leftover).unwrap();
        fs::write(leftover.join("unit-000000-000000.safetensors"), b"half").unwrap();
    }
    let store = open_or_build(&fixture.dataset, &small(), &fixture.stores, &()).unwrap();
    assert_eq!(store.path(), folder);
    assert!(leftovers.iter().all(|leftover| !leftover.exists()), "leftovers stay");
}

#[test]
fn two_at_once_build_one_store() {
    let fixture = fixture(4000);
    let heard = Heard::default();
    let open = || open_or_build(&fixture.dataset, &small(), &fixture.stores, &heard).unwrap().digest().to_string();
    let digests: HashSet<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((digests.len(), heard.count("started")), (1, 1));
}

/// Not a test: `builds_survive_kills` runs this in processes that it kills.
#[test]
#[ignore = "a process of another test"]
fn build_in_a_process_that_is_killed() {
    if let (Some(data), Some(stores)) = (std::env::var_os("KDGAT_TEST_DATA"), std::env::var_os("KDGAT_TEST_STORES")) {
        let dataset = Dataset::open(Path::new(&data)).unwrap();
        open_or_build(&dataset, &small(), Path::new(&stores), &()).unwrap();
    }
}

#[test]
fn builds_survive_kills() {
    let fixture = fixture(60_000);
    let folder = store_folder(&fixture.dataset, &small(), &fixture.stores).unwrap();
    let spawn = || {
        only_test(module_path!(), "build_in_a_process_that_is_killed")
            .arg("--ignored")
            .env("KDGAT_TEST_DATA", &fixture.dataset.root)
            .env("KDGAT_TEST_STORES", &fixture.stores)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let start = Instant::now();
    assert!(spawn().wait().unwrap().success());
    let whole = start.elapsed();
    let digest = Store::open(&folder).unwrap().digest().to_string();
    let mut killed_while_building = 0;
    for step in 0..10 {
        fs::remove_dir_all(&folder).unwrap_or_default();
        let mut child = spawn();
        std::thread::sleep(whole.mul_f64(0.1 + 0.12 * f64::from(step)));
        child.kill().unwrap();
        child.wait().unwrap();
        match Store::open(&folder) {
            Ok(store) => store.verify().unwrap(),
            Err(StoreError::Missing { .. }) => killed_while_building += 1,
            Err(error) => panic!("killed after {step} steps: {error}"),
        }
    }
    println!("a whole build takes {whole:?}; {killed_while_building} of 10 were killed before their end");
    assert!(killed_while_building > 0, "no build was killed early enough to test anything ({whole:?})");
    let store = open_or_build(&fixture.dataset, &small(), &fixture.stores, &()).unwrap();
    assert_eq!(store.digest(), digest);
    let left: Vec<_> = contents_names(&fixture.stores).into_iter().filter(|name| name.contains(".building")).collect();
    assert!(left.is_empty(), "left over: {left:?}");
}

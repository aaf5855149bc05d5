//! The GPU simulated in software: compiled on first use, and loaded into the program in place of libtorch_cuda.
//! The header of `card.cpp` describes what it models and its settings.

pub mod runs;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kdgat::torch::TEST_CUDA_LIBRARY;

const SOURCES: [(&str, &str); 10] = [
    ("card.cpp", include_str!("card.cpp")),
    ("fallback.h", include_str!("fallback.h")),
    ("graphs.h", include_str!("graphs.h")),
    ("guard.h", include_str!("guard.h")),
    ("kernels.h", include_str!("kernels.h")),
    ("memory.h", include_str!("memory.h")),
    ("operators.h", include_str!("operators.h")),
    ("runtime.h", include_str!("runtime.h")),
    ("settings.h", include_str!("settings.h")),
    ("streams.h", include_str!("streams.h")),
];

/// Compiled card. It is built once for these sources, compiler and libtorch, in about 15 seconds.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(compile)
}

fn compile() -> PathBuf {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // The same environment as the program's build: see build.rs.
    let variable = |name: &str, built: Option<&str>| std::env::var(name).ok().or_else(|| built.map(str::to_owned));
    let libtorch = variable("LIBTORCH", option_env!("LIBTORCH")).expect("LIBTORCH is set by .cargo/config.toml");
    let headers = variable("LIBTORCH_INCLUDE", option_env!("LIBTORCH_INCLUDE")).unwrap_or(libtorch);
    let abi = variable("LIBTORCH_CXX11_ABI", option_env!("LIBTORCH_CXX11_ABI")).unwrap_or_else(|| "1".to_owned());
    let mut hasher = DefaultHasher::new();
    (SOURCES, &compiler, &headers, &abi).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("software_card-{:016x}.so", hasher.finish()));
    if library.exists() {
        return library;
    }
    std::fs::create_dir_all(folder).unwrap();
    let sources = tempfile::tempdir_in(folder).unwrap();
    for (name, text) in SOURCES {
        std::fs::write(sources.path().join(name), text).unwrap();
    }
    let made = sources.path().join("card.so");
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wno-unknown-pragmas"]);
    command.arg(format!("-D_GLIBCXX_USE_CXX11_ABI={abi}"));
    // System headers, so that their warnings are suppressed.
    command.args(["-isystem", &format!("{headers}/include")]);
    command.args(["-isystem", &format!("{headers}/include/torch/csrc/api/include")]);
    let output = command.arg(sources.path().join("card.cpp")).arg("-o").arg(&made).output().unwrap();
    assert!(output.status.success(), "{compiler} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    // Another test process may have built the same library in the meantime.
    std::fs::rename(&made, &library).unwrap();
    library
}

/// Settings of the card for one process.
#[derive(Clone, Debug, Default)]
pub struct Card {
    variables: Vec<(String, String)>,
}

impl Card {
    /// One card of 4 GiB that runs each job when it is queued.
    pub fn new() -> Self {
        Self::default()
    }

    /// Delays jobs randomly, by this seed.
    pub fn late(self, seed: u64) -> Self {
        self.set("SEED", seed)
    }

    /// Sets the number of cards.
    pub fn count(self, cards: usize) -> Self {
        self.set("COUNT", cards)
    }

    /// Sets the memory of each card, in bytes.
    pub fn memory(self, bytes: u64) -> Self {
        self.set("MEMORY", bytes)
    }

    /// Turns off the check of the order of accesses; the results show its faults.
    pub fn unchecked(self) -> Self {
        self.set("CHECK", 0)
    }

    /// Lets calls fail, such as `copy:3`.
    pub fn fail(self, calls: &str) -> Self {
        self.set("FAIL", calls)
    }

    /// Leaves out waits, such as `1<0`.
    pub fn leave_out(self, waits: &str) -> Self {
        self.set("LEAVE_OUT", waits)
    }

    /// Lets an operator, such as `aten::mse_loss`, take this long.
    pub fn slow(self, operator: &str, milliseconds: u64) -> Self {
        self.set("SLOW", format!("{operator}={milliseconds}"))
    }

    /// Sets the bytes that the first matrix product of each stream takes for good.
    pub fn workspace(self, bytes: u64) -> Self {
        self.set("WORKSPACE", bytes)
    }

    /// Divides the card into slices.
    pub fn sliced(self) -> Self {
        self.set("MIG", 1)
    }

    /// Sets the compute capability, such as 75 for 7.5.
    pub fn capability(self, capability: u32) -> Self {
        self.set("CAPABILITY", capability)
    }

    /// Sets another variable of the environment.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes counts to this file when the process ends.
    pub fn report(self, file: &Path) -> Self {
        self.set("REPORT", file.display())
    }

    /// Limits the allocator to this share of the memory. The program takes this for a setting of the user, and plans with
    /// the whole memory.
    pub fn allocator_share(self, share: f64) -> Self {
        self.allocator(&format!("per_process_memory_fraction:{share:.6}"))
    }

    /// Sets options of the allocator, as a user does.
    pub fn allocator(self, settings: &str) -> Self {
        self.variable("PYTORCH_ALLOC_CONF", settings)
    }

    fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((format!("SOFTWARE_CARD_{name}"), value.to_string()));
        self
    }

    /// Makes `command` run on this card.
    pub fn apply(&self, command: &mut Command) {
        command.env(TEST_CUDA_LIBRARY, library());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

//! What a configuration value can be, beside numbers, texts and paths: each type of a field that is the program's own.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use super::setting::{Choice, Kind, Setting};

/// A type that is stored as the text it prints as.
macro_rules! stored_as_text {
    ($($name:ident),+) => {$(
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                Self::parse(&text).ok_or_else(|| format!("`{text}` found, expected {}", Self::KIND.expected))
            }
        }
    )+};
}
stored_as_text!(ByteSize, DeviceChoice, Threshold);

/// A number of bytes, written `6GiB` (1024³), `512MB` (1000²), or without a unit.
///
/// ```
/// use kdgat::config::{ByteSize, Setting};
/// assert_eq!(ByteSize::parse("1.5GiB"), Some(ByteSize(1_610_612_736)));
/// assert_eq!(ByteSize(1_610_612_736).to_string(), "1536MiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ByteSize(pub u64);

const BYTE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

impl fmt::Display for ByteSize {
    /// The largest unit that divides it, so that nothing is lost.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = BYTE_UNITS.iter().find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes));
        let (unit, bytes) = whole.unwrap_or(&("B", 1));
        write!(formatter, "{}{unit}", self.0 / bytes)
    }
}

impl Setting for ByteSize {
    const KIND: Kind = Kind::plain("a size such as 6GiB or 512MB", "SIZE", true);

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (number, unit) =
            text.split_at(text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len()));
        let (number, unit) = (number.trim(), unit.trim());
        let bytes_per_unit = match unit {
            "" => 1,
            unit => BYTE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1,
        };
        if let Some(whole) = u64::parse(number) {
            return whole.checked_mul(bytes_per_unit).map(ByteSize);
        }
        let bytes = f64::parse(number)? * bytes_per_unit as f64;
        (0.0..u64::MAX as f64).contains(&bytes).then_some(ByteSize(bytes.round() as u64))
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn numbers(&self) -> Vec<f64> {
        vec![self.0 as f64]
    }
}

/// Where a model is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DeviceChoice {
    /// The first GPU when there is one, else the CPU.
    Auto,
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => formatter.write_str("auto"),
            DeviceChoice::Cpu => formatter.write_str("cpu"),
            DeviceChoice::Cuda(0) => formatter.write_str("cuda"),
            DeviceChoice::Cuda(index) => write!(formatter, "cuda:{index}"),
        }
    }
}

impl Setting for DeviceChoice {
    const KIND: Kind = Kind::plain("auto, cpu, cuda or cuda:N", "DEVICE", true);

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(DeviceChoice::Auto),
            "cpu" => Some(DeviceChoice::Cpu),
            "cuda" => Some(DeviceChoice::Cuda(0)),
            _ => text.strip_prefix("cuda:")?.parse().ok().map(DeviceChoice::Cuda),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// How the score is found above which a window is called an attack.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Threshold {
    /// The score that this share of benign validation windows exceeds.
    FalsePositiveRate(f64),
    /// The score at which true-positive minus false-positive rate is largest on validation data (Youden 1950).
    Youden,
    /// This score.
    Score(f64),
}

impl fmt::Display for Threshold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threshold::FalsePositiveRate(rate) => write!(formatter, "fpr:{}", shortest(*rate)),
            Threshold::Youden => formatter.write_str("youden"),
            Threshold::Score(score) => formatter.write_str(&shortest(*score)),
        }
    }
}

/// A number without hundreds of zeros: with an exponent where it is far from one.
fn shortest(number: f64) -> String {
    let text = format!("{number:?}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

impl Setting for Threshold {
    const KIND: Kind = Kind::plain("fpr:RATE (above 0, below 1), youden, or a score", "THRESHOLD", true);

    fn parse(text: &str) -> Option<Self> {
        if text == "youden" {
            return Some(Threshold::Youden);
        }
        match text.strip_prefix("fpr:") {
            Some(rate) => f64::parse(rate).filter(|&rate| rate > 0.0 && rate < 1.0).map(Threshold::FalsePositiveRate),
            None => f64::parse(text).map(Threshold::Score),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// Enumerations whose variants have a name in files and on the command line, and a line of help.
macro_rules! choices {
    ($($(#[$about:meta])* $name:ident { $(#[doc = $help:literal] $variant:ident = $text:literal),+ $(,)? })+) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $(#[doc = $help] #[serde(rename = $text)] $variant),+ }

        impl $name {
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl Setting for $name {
            const KIND: Kind = Kind {
                choices: &[$(Choice { name: $text, help: $help.trim_ascii() }),+],
                ..Kind::plain("one of its names", "NAME", true)
            };

            fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }

            fn show(&self) -> String {
                self.as_str().to_string()
            }
        }
    )+};
}

choices! {
    LogFormat {
        /// Recognise it by the content of each file
        Auto = "auto",
        /// CSV: timestamp,arbitration_id,data_field,attack
        CanTrainAndTest = "can-train-and-test",
        /// SocketCAN's `candump -L` or `-l`
        Candump = "candump",
        /// SocketCAN's `candump -ta`
        CandumpAscii = "candump-ascii",
        /// HCRL Car-Hacking and Survival Analysis, as published
        CarHacking = "car-hacking",
        /// HCRL Car Hacking Challenge 2020, as published
        Challenge2020 = "challenge-2020",
        /// Vector ASC
        Asc = "asc",
        /// Parquet with the columns of can-train-and-test (programs built with `--features parquet`)
        Parquet = "parquet",
    }
    FeatureChoice {
        /// 10 features of a node, between 0 and 1
        Window = "window",
        /// 35 features of a node, standardised by attack-free training data
        Rich = "rich",
    }
    IdEncoding {
        /// A row for each ID of the attack-free training data, one for all others
        Vocabulary = "vocabulary",
        /// Rows of a small table, chosen by hash functions: any ID has an embedding of its own (Svenstrup et al. 2017)
        Hash = "hash",
    }
    ModelKind {
        /// Variational graph autoencoder
        Vgae = "vgae",
        /// Graph attention classifier
        Gat = "gat",
        /// Network of the agent that fuses the two (`kdgat fusion`)
        Dqn = "dqn",
    }
    /// How an agent learns which weight to fuse with.
    FusionKind {
        /// Double deep Q-network (van Hasselt et al. 2016)
        Dqn = "dqn",
        /// Neural-LinUCB (Xu et al. 2022)
        Bandit = "bandit",
    }
    /// The graph convolution.
    Convolution {
        /// Graph attention (Veličković et al. 2018)
        Gat = "gat",
        /// GATv2 (Brody et al. 2022), which reads the edge features
        GatV2 = "gatv2",
    }
    AttentionChoice {
        /// Fused on the CPU, composed on a GPU
        Auto = "auto",
        /// One pass for attention and the layers around it; on a GPU for attention alone, compiled there (NVRTC): experimental, no card has run it yet
        Fused = "fused",
        /// Operations of libtorch, one after another
        Composed = "composed",
    }
    Schedule {
        /// Half a cosine, from `lr` to a hundredth of it at `max_epochs`
        Cosine = "cosine",
        /// Times `lr_gamma` every `lr_step_epochs` epochs
        Step = "step",
        /// Times `lr_gamma` where the validation loss stops falling
        Plateau = "plateau",
        /// The same in all epochs
        Constant = "constant",
    }
    Precision {
        /// Single precision
        Single = "32",
        /// Mixed with half precision, the loss scaled (GPU)
        Half = "16-mixed",
        /// Mixed with bfloat16
        BrainFloat = "bf16-mixed",
    }
    TaskLoss {
        /// Cross-entropy
        CrossEntropy = "ce",
        /// Cross-entropy, each class weighted by its rarity
        Weighted = "weighted",
        /// Focal loss (Lin et al. 2017)
        Focal = "focal",
    }
    KdLoss {
        /// Kullback–Leibler divergence of softened classes (Hinton et al. 2015)
        Kl = "kl",
        /// Decoupled distillation (Zhao et al. 2022)
        Dkd = "dkd",
        /// Mean squared difference of logits (Kim et al. 2021)
        Mse = "mse",
    }
    Residency {
        /// On the device all the time
        Resident = "resident",
        /// On the device only while the teacher works
        Forward = "forward",
        /// On the device a few layers at a time, while the teacher works
        Layer = "layer",
        /// One of the three, by measurement
        Auto = "auto",
    }
    TeacherCache {
        /// In memory while it fits the budget, else on disk
        Auto = "auto",
        /// Nowhere: each batch is computed anew
        Off = "off",
        /// In memory
        Ram = "ram",
        /// On disk, for later runs too
        Disk = "disk",
    }
    CachePrecision {
        /// Single precision
        F32 = "f32",
        /// Half precision
        F16 = "f16",
    }
    CurriculumKind {
        /// Drawn from the graphs above a percentile of difficulty, which rises with the epochs
        Difficulty = "difficulty",
        /// The hardest ones
        Static = "static",
        /// Drawn at random
        Random = "random",
        /// All of them
        Off = "none",
    }
    MemoryEstimation {
        /// By a few training steps
        Measured = "measured",
        /// In closed form
        Static = "static",
    }
}

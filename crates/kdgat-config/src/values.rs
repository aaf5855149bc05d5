//! The program's own types of configuration values, in addition to numbers, texts and paths.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use super::setting::{Choice, Kind, Setting};

/// Stores a type as the text that it displays.
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
stored_as_text!(ByteSize, DeviceChoice, Names, Paths, Representations, Threshold);

/// A number of bytes, written `6GiB` (1024³), `512MB` (1000²), or without a unit.
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
    /// Uses the largest unit that divides the size, so the text is exact.
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

/// The device that a model is trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DeviceChoice {
    /// The first GPU if there is one, else the CPU.
    Auto,
    /// The CPU, even if there is a GPU.
    Cpu,
    /// The GPU with this number.
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

/// A list of paths, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Paths(pub Vec<PathBuf>);

impl fmt::Display for Paths {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(|path| path.display().to_string()).collect();
        formatter.write_str(&texts.join(","))
    }
}

impl Setting for Paths {
    const KIND: Kind = Kind::plain("paths separated by commas", "PATH,PATH,..", true);

    fn parse(text: &str) -> Option<Self> {
        text.split(',').map(PathBuf::parse).collect::<Option<_>>().map(Self)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A list of names, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Names(pub Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join(","))
    }
}

impl Setting for Names {
    const KIND: Kind = Kind::plain("names separated by commas", "NAME,NAME,..", true);

    fn parse(text: &str) -> Option<Self> {
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        names.iter().all(|name| !name.is_empty()).then_some(Self(names))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// Counts of representations of rotations and reflections, such as `32x0e + 16x1o + 8x2e`. The network reads them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Representations(pub String);

impl fmt::Display for Representations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Setting for Representations {
    const KIND: Kind = Kind::plain("counts of representations, such as 32x0e + 16x1o + 8x2e", "IRREPS", true);

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_known = |letter: char| letter.is_ascii_digit() || matches!(letter, 'x' | 'e' | 'o' | '+' | ' ');
        (!text.is_empty() && text.chars().all(is_known)).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// The rule for the decision threshold: windows with a higher score are classified as attacks.
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

/// The shortest text of a number: with an exponent if it is very large or small, without a trailing `.0`.
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

/// Defines enumerations whose variants have a name, for files and the command line, and one line of help.
macro_rules! choices {
    ($($(#[$about:meta])* $name:ident { $(#[doc = $help:literal] $variant:ident = $text:literal),+ $(,)? })+) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $(#[doc = $help] #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// The name that files and the command line use.
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
    /// The format of log files.
    LogFormat {
        /// Recognise the format from each file's content
        Auto = "auto",
        /// CSV: timestamp,arbitration_id,data_field,attack
        CanTrainAndTest = "can-train-and-test",
        /// SocketCAN's `candump -L` or `-l`
        Candump = "candump",
        /// SocketCAN's `candump -ta` or `-tA`
        CandumpAscii = "candump-ascii",
        /// HCRL Car-Hacking and Survival Analysis, as published
        CarHacking = "car-hacking",
        /// HCRL Car Hacking Challenge 2020, as published
        Challenge2020 = "challenge-2020",
        /// python-can's CSV
        PythonCan = "python-can",
        /// Vector ASC
        Asc = "asc",
        /// Parquet with the columns of can-train-and-test (only in builds with `--features parquet`)
        Parquet = "parquet",
    }
    /// The unit of the times in logs.
    TimeUnitChoice {
        /// Seconds, if they are plausible
        Auto = "auto",
        /// Seconds, whatever they say
        Seconds = "s",
        /// Milliseconds
        Milliseconds = "ms",
        /// Microseconds
        Microseconds = "us",
        /// Nanoseconds
        Nanoseconds = "ns",
    }
    /// The rule that chooses validation data.
    ValidationChoice {
        /// Blocks of time of every training log
        Blocks = "blocks",
        /// Whole training logs, with attacks and without
        Logs = "logs",
        /// Whole kinds of attack, recorded ones by the names of their logs, and synthetic ones
        Attacks = "attacks",
    }
    /// The feature set of nodes and edges.
    FeatureChoice {
        /// 10 features per node, between 0 and 1
        Window = "window",
        /// 35 features per node, standardised on attack-free training data
        Rich = "rich",
        /// Deviations of each ID's timing and bytes from the car's profile; they mean the same on every car
        Profile = "profile",
    }
    /// The embedding of CAN IDs.
    IdEncoding {
        /// One row for each ID of the attack-free training data, one shared row for all others
        Vocabulary = "vocabulary",
        /// Combined rows of a small table, chosen by hash functions: unseen IDs have embeddings, too (Svenstrup et al. 2017)
        Hash = "hash",
    }
    /// The architecture of a model.
    ModelKind {
        /// Variational graph autoencoder
        Vgae = "vgae",
        /// Graph attention classifier
        Gat = "gat",
        /// Q-network of the agent that fuses the two (`kdgat fusion`)
        Dqn = "dqn",
        /// Graph isomorphism network (`kdgat train`; Xu et al. 2019)
        Gin = "gin",
        /// Graph convolutional network (`kdgat train`; Kipf & Welling 2017)
        Gcn = "gcn",
        /// GraphSAGE with the mean aggregator (`kdgat train`; Hamilton et al. 2017)
        Sage = "sage",
        /// Multilayer perceptron on node features, and degrees of whole graphs, without messages (`kdgat train`)
        Mlp = "mlp",
        /// Multilayer perceptron whose outputs are propagated, for one large graph (`kdgat train`; Gasteiger et al. 2019)
        Appnp = "appnp",
        /// Continuous-filter convolutions of nodes with positions (`kdgat train`; Schütt et al. 2018)
        SchNet = "schnet",
        /// Messages of scalars and vectors of nodes with positions (`kdgat train`; Schütt et al. 2021)
        PaiNN = "painn",
        /// Paths of three edges between nodes with positions (`kdgat train`; Zhang & Zhao 2021)
        Sgmp = "sgmp",
        /// Products of scalars, vectors and matrices of nodes with positions (`kdgat train`; Geiger & Smidt 2022)
        Irreps = "irreps",
    }
    /// The division of a graph's nodes.
    NodeSplitChoice {
        /// The dataset's own split, if it has one; otherwise `per-class`
        Auto = "auto",
        /// The dataset's own split
        Given = "given",
        /// `labels_per_class` and `validation_per_class` nodes of each class; the rest is for testing
        PerClass = "per-class",
        /// Shares of the labelled nodes
        Random = "random",
    }
    /// The place that batches read features from.
    FeaturesFrom {
        /// The store while it is small; memory if it leaves room for all of them; otherwise direct reads
        Auto = "auto",
        /// The mapped store, whose pages the system caches
        Mapped = "mapped",
        /// The store's file, around the system's cache, with io_uring where it is allowed
        Direct = "direct",
        /// Memory, read once at the start
        Resident = "resident",
    }
    /// The validation of a training on sampled neighbours.
    NodeValidation {
        /// `exact` for a graph whose features and edges take at most 1 GiB, otherwise `sampled`
        Auto = "auto",
        /// All neighbours: the whole graph in one pass
        Exact = "exact",
        /// The same samples after each epoch
        Sampled = "sampled",
    }
    /// The aggregator of GraphSAGE.
    AggregatorChoice {
        /// A map of the neighbours' mean plus a map of the node itself
        Mean = "mean",
        /// One map of the mean of the neighbours and the node
        Gcn = "gcn",
    }
    /// Normalisation of hidden layers.
    NormChoice {
        /// No normalisation
        None = "none",
        /// Batch norm
        Batch = "batch",
        /// Layer norm
        Layer = "layer",
    }
    /// Pooling of the nodes of a graph to one row.
    PoolingChoice {
        /// Their sum
        Sum = "sum",
        /// Their mean
        Mean = "mean",
        /// Their maximum in each column
        Max = "max",
        /// Their mean, weighted by attention (Li et al. 2016)
        Attention = "attention",
    }
    /// Functions of the distance of two nodes.
    RadialBasisChoice {
        /// Gaussians at equal distances from each other
        Gaussian = "gaussian",
        /// Bessel functions (Klicpera et al. 2020)
        Bessel = "bessel",
    }
    /// The question of a pre-training.
    PretrainingObjectiveChoice {
        /// Predict the features of nodes that are hidden
        Masked = "masked",
        /// Tell order, kinship and growth of the nodes of rooted trees (GT-SSL, Zhang et al. 2024)
        GtSsl = "gt-ssl",
    }
    /// The layers of the encoder of an autoencoder of graphs.
    EncoderChoice {
        /// Graph isomorphism network; with edge features GIN-E
        Gin = "gin",
        /// Graph convolutional network
        Gcn = "gcn",
        /// Graph attention network
        Gat = "gat",
    }
    /// The part of regression targets that is fitted before training.
    TargetReference {
        /// Least squares on the sums of each graph's node features; the network learns the rest
        Linear = "linear",
        /// The mean
        Mean = "mean",
    }
    /// The learning algorithm of the fusion agent.
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
        /// GATv2 (Brody et al. 2022), which also reads the edge features
        GatV2 = "gatv2",
    }
    /// The implementation of attention and its softmax.
    AttentionChoice {
        /// `fused` where it can: on the CPU, and on a GPU for attention if NVRTC is installed; otherwise `composed`
        Auto = "auto",
        /// Fused kernels; on a GPU for attention only, compiled at first use (NVRTC) and cached on disk
        Fused = "fused",
        /// libtorch operations
        Composed = "composed",
    }
    /// The course of the learning rate.
    Schedule {
        /// Falls along half a cosine from `lr` to a hundredth of it at `max_epochs`
        Cosine = "cosine",
        /// Multiplied by `lr_gamma` every `lr_step_epochs` epochs
        Step = "step",
        /// Multiplied by `lr_gamma` after `patience` / 4 epochs without a lower validation loss
        Plateau = "plateau",
        /// `lr` in all epochs
        Constant = "constant",
    }
    /// The precision of training.
    Precision {
        /// Single precision
        Single = "32",
        /// Mixed precision with float16 and loss scaling (GPU only)
        Half = "16-mixed",
        /// Mixed precision with bfloat16
        BrainFloat = "bf16-mixed",
    }
    /// The loss of a classifier on the labels.
    TaskLoss {
        /// Cross-entropy
        CrossEntropy = "ce",
        /// Cross-entropy with class weights: the rarer class counts more
        Weighted = "weighted",
        /// Focal loss (Lin et al. 2017)
        Focal = "focal",
    }
    /// The distance of a student's outputs to the teacher's.
    KdLoss {
        /// Kullback–Leibler divergence between softened class probabilities (Hinton et al. 2015)
        Kl = "kl",
        /// Decoupled distillation (Zhao et al. 2022); the same as kl for two classes
        Dkd = "dkd",
        /// Mean squared difference of the logits (Kim et al. 2021)
        Mse = "mse",
    }
    /// The validation value that early stopping and `best` follow.
    MonitorChoice {
        /// The validation loss: the lowest is the best
        Loss = "loss",
        /// The metric of the task: validation accuracy (classes, labels) or mean absolute error (values); the loss decides between epochs of the same metric
        Metric = "metric",
    }
    /// The distance of a student's embeddings to the teacher's.
    EmbeddingLossChoice {
        /// One minus the cosine of the student's and the teacher's embedding
        Cosine = "cosine",
        /// Mean squared difference
        Mse = "mse",
        /// Finding each graph's teacher embedding among those of the batch (G-CRD, Joshi et al. 2022)
        Contrastive = "contrastive",
        /// Mean squared difference between the cosines of all pairs of graphs of the batch (Park et al. 2019)
        Relational = "relational",
    }
    /// The residency of the teacher's weights on the device.
    Residency {
        /// On the device all the time
        Resident = "resident",
        /// On the device only while the teacher computes
        Forward = "forward",
        /// On the device a few layers at a time, while the teacher computes: least device memory
        Layer = "layer",
        /// One of these three, chosen from measurements at the start of training
        Auto = "auto",
    }
    /// The storage of the teacher's outputs.
    TeacherCache {
        /// In memory if all outputs fit the budget, else on disk
        Auto = "auto",
        /// No cache: the teacher computes each batch again
        Off = "off",
        /// In memory
        Ram = "ram",
        /// On disk, where later runs can use them, too
        Disk = "disk",
    }
    /// The precision of cached outputs.
    CachePrecision {
        /// Single precision
        F32 = "f32",
        /// Half precision
        F16 = "f16",
    }
    /// The choice of graphs for an epoch: of the normal ones, or with `kdgat train` of all training graphs.
    CurriculumKind {
        /// Drawn at random above a percentile of difficulty that rises with the epochs
        Difficulty = "difficulty",
        /// The hardest graphs, in every epoch
        Static = "static",
        /// The easiest graphs, in every epoch (Bengio et al. 2009)
        Easiest = "easiest",
        /// Drawn at random, without difficulty scores
        Random = "random",
        /// All graphs, in every epoch
        Off = "none",
    }
    /// The source of the difficulty of graphs that are no CAN windows.
    DifficultySource {
        /// The task loss of `difficulty_model` if it is set, else of the teacher if there is one, else of the student itself
        Auto = "auto",
        /// The task loss of the student itself: scored after the first epoch, and again every `difficulty_cache_update` epochs
        Student = "student",
        /// The number of nodes
        Size = "size",
    }
}

impl CurriculumKind {
    /// True if it chooses graphs by their difficulty.
    pub fn scores(self) -> bool {
        matches!(self, Self::Difficulty | Self::Static | Self::Easiest)
    }
}

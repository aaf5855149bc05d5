//! Profile of a car: what each CAN ID usually does, learned from attack-free traffic.
//!
//! A window of 100 frames says little about what is usual for its IDs. The profile knows their gaps, the values and changes of their bytes,
//! and the IDs before them; the [deviations](deviations) from it mean the same on every car, and are the node features of the profile
//! set. A model carries the profile of its training data; a calibration replaces it with another car's. The profile also knows
//! [relations](relations) between signals of different IDs, which no single ID shows.

mod culprits;
pub mod deviations;
mod evidence;
pub mod gone;
mod learner;
mod pauses;
mod relation_learner;
pub mod relations;
pub mod rules;
mod signals;
mod standstill;

use std::ops::Range;
use std::sync::Arc;

use kdgat_can::frame::PAYLOAD_BYTES;
use serde::{Deserialize, Serialize};

pub use culprits::Culprit;
pub use deviations::DEVIATIONS;
pub use evidence::{Comparisons, USUALLY_BROKEN};
pub use gone::{GoneId, GoneWatch};
pub use learner::ProfileLearner;
pub use pauses::Pauses;
pub use relations::{Partner, Relation, SignalRange};
pub use signals::Place;

/// Number of parts of the training traffic that a profile is learned without, in turn.
pub const FOLDS: usize = 4;
/// Neighbouring windows in a fold.
const FOLD_WINDOWS: u64 = 64;

/// The fold of a training window, from its position in its log: windows in blocks of 64 belong to the folds in turn.
pub fn fold_of(window: u64) -> usize {
    (window / FOLD_WINDOWS % FOLDS as u64) as usize
}

/// Number of parts that calibration traffic is divided into.
const PARTS: usize = 5;

/// Contiguous parts of `windows` calibration windows: each is judged with a profile learned from the others, because under a profile that
/// has seen it a window looks too usual.
pub fn fold_parts(windows: usize) -> Vec<Range<usize>> {
    (0..PARTS).map(|part| windows * part / PARTS..windows * (part + 1) / PARTS).collect()
}

/// Version of the profile and of the deviations from it: raised whenever the same frames give other features, so that a model never reads
/// features of another meaning.
pub const PROFILE_VERSION: u32 = 2;

/// Version of what a profile knows besides: raised whenever the same frames give other values that no feature reads. A store is built anew then; a
/// model keeps what it knows.
pub const KNOWLEDGE_VERSION: u32 = 3;

/// What is usual for one ID.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdProfile {
    /// The ID.
    pub can_id: u32,
    /// Number of frames that it was learned from.
    pub frames: u64,
    /// Number of gaps that it was learned from.
    pub gaps: u64,
    /// 0.1 % quantile of the gaps.
    pub gap_low_seconds: f32,
    /// Median of the gaps.
    pub gap_median_seconds: f32,
    /// Mean of the gaps.
    pub gap_mean_seconds: f32,
    /// 99.9 % quantile of the gaps.
    pub gap_high_seconds: f32,
    /// Seconds of attack-free traffic, without pauses, from its first frame of each drive to its last one. 0 in profiles that do not know it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub watched_seconds: f32,
    /// Longest silence: the longest gap without pauses, or a longer one until the end of a drive that would be called the ID's end. 0 in profiles that do
    /// not know it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub longest_silence_seconds: f32,
    /// Share of the frames that repeat the previous payload.
    pub repeats: f32,
    /// Longest standstill: frames in a row that repeated the payload before them, 255 for more.
    #[serde(default)]
    pub longest_standstill: u8,
    /// Share of the frames that return to the payload before the previous one.
    pub returns: f32,
    /// Mean number of bytes that change from one frame to the next.
    pub changed_bytes: f32,
    /// Bit `n` is set if payloads have `n` bytes.
    pub lengths: u16,
    /// `[PAYLOAD_BYTES]`: values and changes of each byte.
    pub bytes: Vec<ByteProfile>,
}

/// What is usual for one byte of an ID.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByteProfile {
    /// Bit `v % 64` of `seen[v / 64]` is set if the byte had the value `v`.
    #[serde(with = "hexadecimal")]
    pub seen: [u64; 4],
    /// 99.99 % quantile of the change from one frame to the next.
    pub change_high: u8,
    /// Largest change from one frame to the next.
    pub change_most: u8,
    /// False if the byte changed in every frame, as counters and checksums do.
    #[serde(default = "yes")]
    pub repeats: bool,
}

impl ByteProfile {
    /// True if the byte had this value.
    pub fn has_seen(&self, value: u8) -> bool {
        self.seen[usize::from(value) / 64] & (1 << (value % 64)) != 0
    }
}

/// Serialised form of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// [`PROFILE_VERSION`].
    version: u32,
    /// The IDs, ascending.
    ids: Vec<IdProfile>,
    /// Relations between signals, ascending by ID and place.
    relations: Vec<Relation>,
    /// False for a profile [without bytes](CarProfile::without_bytes).
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    counts_bytes: bool,
}

fn yes() -> bool {
    true
}

/// Profiles of before are written as they were, so that the digest of a store that has one stays.
fn is_zero(value: &f32) -> bool {
    *value == 0.0
}

fn is_true(value: &bool) -> bool {
    *value
}

/// Profile of a car. Clones share the content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Content", into = "Content")]
pub struct CarProfile {
    content: Arc<Content>,
    /// Values derived for each ID, so that a frame's deviations need no search.
    usual: Arc<Vec<deviations::Usual>>,
    new_id_surprise: f32,
    counts_bytes: bool,
}

impl Default for CarProfile {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new())
    }
}

impl From<Content> for CarProfile {
    fn from(mut content: Content) -> Self {
        let usual = content.ids.iter().map(deviations::Usual::of).collect();
        let once = content.ids.iter().filter(|id| id.frames == 1).count();
        let frames: u64 = content.ids.iter().map(|id| id.frames).sum();
        let new_id_surprise = -((once + 1) as f32 / (frames + 2) as f32).ln();
        // Kept beside the content, which profiles with and without bytes share.
        let counts_bytes = std::mem::replace(&mut content.counts_bytes, true);
        Self { content: Arc::new(content), usual: Arc::new(usual), new_id_surprise, counts_bytes }
    }
}

impl From<CarProfile> for Content {
    fn from(profile: CarProfile) -> Self {
        Self { counts_bytes: profile.counts_bytes, ..Arc::unwrap_or_clone(profile.content) }
    }
}

impl CarProfile {
    /// A profile of these IDs, ascending, and these relations, ascending by ID and place.
    pub fn new(ids: Vec<IdProfile>, relations: Vec<Relation>) -> Self {
        Content { version: PROFILE_VERSION, ids, relations, counts_bytes: true }.into()
    }

    /// The same profile, under which values and changes of bytes deviate in nothing: of a car whose traffic was watched for too short a time
    /// to tell what its bytes never do.
    pub fn without_bytes(&self) -> Self {
        Self { counts_bytes: false, ..self.clone() }
    }

    /// False for a profile [without bytes](CarProfile::without_bytes).
    pub fn counts_bytes(&self) -> bool {
        self.counts_bytes
    }

    /// The IDs, ascending.
    pub fn ids(&self) -> &[IdProfile] {
        &self.content.ids
    }

    /// Relations between signals, ascending by ID and place.
    pub fn relations(&self) -> &[Relation] {
        &self.content.relations
    }

    /// Number of frames that the profile was learned from.
    pub fn frames(&self) -> u64 {
        self.ids().iter().map(|id| id.frames).sum()
    }

    /// −ln P(the next frame has an ID that the profile does not have): the share of IDs that occurred once (Good 1953), smoothed.
    pub fn new_id_surprise(&self) -> f32 {
        self.new_id_surprise
    }

    /// Position of an ID in [`CarProfile::ids`].
    fn position_of(&self, can_id: u32) -> Option<usize> {
        self.content.ids.binary_search_by_key(&can_id, |id| id.can_id).ok()
    }

    /// What is usual for an ID; `None` for an unknown one.
    pub fn id(&self, can_id: u32) -> Option<&IdProfile> {
        self.position_of(can_id).map(|at| &self.content.ids[at])
    }

    /// What is usual for an ID, with the limits derived from it.
    fn usual_of(&self, can_id: u32) -> Option<(&IdProfile, &deviations::Usual)> {
        self.position_of(can_id).map(|at| (&self.content.ids[at], &self.usual[at]))
    }

    /// Describes what is wrong with the values, if anything: a file may be damaged.
    pub fn problem(&self) -> Option<String> {
        if self.content.version != PROFILE_VERSION {
            let found = self.content.version;
            return Some(format!("the profile has version {found}, this program reads {PROFILE_VERSION}"));
        }
        let ids = self.ids();
        if !ids.is_sorted_by(|one, next| one.can_id < next.can_id) {
            return Some("the IDs of the profile are not ascending".to_owned());
        }
        let relations = self.relations();
        if !relations.is_sorted_by(|one, next| (one.can_id, one.place) < (next.can_id, next.place)) {
            return Some("the relations of the profile are not ascending".to_owned());
        }
        if let Some(broken) = relations.iter().find(|relation| !relation.is_valid()) {
            let (can_id, place) = (broken.can_id, broken.place);
            return Some(format!(
                "the relation of ID {can_id:03X}, {place}, has no partner or a value that is no number"
            ));
        }
        let number = |value: f32| value.is_finite() && value >= 0.0;
        let broken = ids.iter().find(|id| {
            let gaps = [id.gap_low_seconds, id.gap_median_seconds, id.gap_mean_seconds, id.gap_high_seconds];
            let gaps = gaps.into_iter().chain([id.watched_seconds, id.longest_silence_seconds]);
            let shares = [id.repeats, id.returns, id.changed_bytes];
            id.bytes.len() != PAYLOAD_BYTES || !gaps.chain(shares).all(number)
        });
        broken.map(|id| format!("the profile of ID {:03X} has a value that is no number, or lacks bytes", id.can_id))
    }

    /// True if both share their content, or have equal content.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.counts_bytes == other.counts_bytes
            && (Arc::ptr_eq(&self.content, &other.content) || self.content == other.content)
    }
}

/// Bitmaps as 64 hexadecimal digits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(words: &[u64; 4], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&words.iter().map(|word| format!("{word:016x}")).collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u64; 4], D::Error> {
        let text = String::deserialize(deserializer)?;
        let word = |at: usize| u64::from_str_radix(text.get(16 * at..16 * (at + 1))?, 16).ok();
        match (text.len(), word(0), word(1), word(2), word(3)) {
            (64, Some(a), Some(b), Some(c), Some(d)) => Ok([a, b, c, d]),
            _ => Err(D::Error::custom(format!("expected 64 hexadecimal digits, found '{text}'"))),
        }
    }
}

#[cfg(test)]
mod test_windows {
    use kdgat_can::Frame;

    use crate::{Columns, FeatureSet, GraphStream};

    /// The windows of `window` frames that these frames have, one after the other.
    pub fn of(frames: &[Frame], window: usize) -> Columns {
        let mut columns = Columns::new(FeatureSet::Profile);
        let pushed: Result<(), ()> = GraphStream::new(FeatureSet::Profile, window, window).push(frames, |mut ready| {
            ready.append_to(0, &mut columns);
            Ok(())
        });
        pushed.unwrap();
        columns
    }
}
